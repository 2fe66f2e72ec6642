package sizes

import (
	"fmt"
	"testing"
	"time"

	"github.com/walferry/walferry/internal/pgtest"
)

// One value of 300 MB: copied by the initial copy, inserted, made by an update,
// and in the old row of an update and a delete under REPLICA IDENTITY FULL, where
// one change holds the value twice.
func TestSize_OneHugeValue(t *testing.T) {
	size := scaled(2<<20, 300_000_000)
	for _, streaming := range []string{"off", "on"} {
		t.Run("streaming "+streaming, func(t *testing.T) {
			pub, sub := servers(t)
			value := func(seed string) string { return fmt.Sprintf(`repeat(md5('%s'), %d)`, seed, size/32) }
			pgtest.Exec(t, pub, `CREATE TABLE public.r (id int PRIMARY KEY, n int, v text); ALTER TABLE r ALTER v SET STORAGE EXTERNAL`,
				`CREATE TABLE public.f (id int PRIMARY KEY, n int, v text); ALTER TABLE f ALTER v SET STORAGE EXTERNAL; ALTER TABLE f REPLICA IDENTITY FULL`,
				`INSERT INTO r VALUES (0, 0, `+value("copied")+`)`)
			f := startFerry(t, pair(pub, sub, "streaming: "+streaming, "max_bytes: 8GiB"))
			took := f.wait(t, patience())
			check := func(what string, took time.Duration) {
				t.Helper()
				f.within(t, int64(size), fmt.Sprintf("value of %d bytes, streaming %s: %s", size, streaming, what), took)
				same(t, pub, sub, `SELECT count(*), string_agg(id || ' ' || n || ' ' || length(v) || ' ' || md5(v), ', ' ORDER BY id) FROM public.r`)
				same(t, pub, sub, `SELECT count(*), string_agg(id || ' ' || n || ' ' || length(v) || ' ' || md5(v), ', ' ORDER BY id) FROM public.f`)
			}
			check("initial copy", took)
			for _, step := range []struct{ what, sql string }{
				{"insert", `INSERT INTO r VALUES (1, 1, ` + value("inserted") + `)`},
				{"two inserts in one transaction", `INSERT INTO r VALUES (2, 1, ` + value("second") + `), (3, 1, ` + value("third") + `)`},
				{"update to the value", `UPDATE r SET n = 2, v = ` + value("updated") + ` WHERE id = 1`},
				{"update beside the value", `UPDATE r SET n = 3 WHERE id = 1`},
				{"insert, identity full", `INSERT INTO f VALUES (1, 1, ` + value("inserted") + `)`},
				{"update beside the value, identity full", `UPDATE f SET n = 2 WHERE id = 1`},
				{"update of the value, identity full: twice in one change", `UPDATE f SET v = ` + value("updated") + ` WHERE id = 1`},
				{"delete, identity full", `DELETE FROM f WHERE id = 1`},
			} {
				began := time.Now()
				pgtest.Exec(t, pub, step.sql)
				f.wait(t, patience())
				check(step.what, time.Since(began))
			}
		})
	}
}
