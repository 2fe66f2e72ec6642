package sizes

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/walferry/walferry/internal/pgtest"
)

// A table of 1,600 columns, PostgreSQL's limit: full rows, rows of nulls, changes
// of one column, by key and by the whole row.
func TestSize_TableOfManyColumns(t *testing.T) {
	columns := 1600 // the limit itself costs nothing
	rows := scaled(20, 5000)
	pub, sub := servers(t)
	var defs, ones []string
	for i := 2; i <= columns; i++ {
		defs = append(defs, fmt.Sprintf("c%d int", i))
		ones = append(ones, fmt.Sprintf("g + %d", i))
	}
	list := strings.Join(defs, ", ")
	pgtest.Exec(t, pub, `CREATE TABLE public.w (id int PRIMARY KEY, `+list+`)`,
		`CREATE TABLE public.f (id int, `+list+`); ALTER TABLE f REPLICA IDENTITY FULL`)
	fill := func(table string, from, to int) string {
		return fmt.Sprintf(`INSERT INTO %s SELECT g, %s FROM generate_series(%d, %d) g`, table, strings.Join(ones, ", "), from, to)
	}
	pgtest.Exec(t, pub, fill("w", 1, rows))
	f := startFerry(t, pair(pub, sub, "confirm: queued", "max_bytes: 4GiB"))
	check := func(what string, took time.Duration) {
		t.Helper()
		f.within(t, 20<<10, fmt.Sprintf("%d columns: %s", columns, what), took)
		same(t, pub, sub, digest("public.w"))
		same(t, pub, sub, digest("public.f"))
	}
	check(fmt.Sprintf("initial copy of %d rows", rows), f.wait(t, patience()))
	few := max(rows/50, 4)
	for _, step := range []struct{ what, sql string }{
		{fmt.Sprintf("insert of %d rows", rows), fill("w", rows+1, 2*rows)},
		{fmt.Sprintf("%d rows of nulls", rows), fmt.Sprintf(`INSERT INTO w (id, c7, c1600) SELECT g, g, 1 FROM generate_series(%d, %d) g`, 2*rows+1, 3*rows)},
		{fmt.Sprintf("update of one column of %d rows", rows), fmt.Sprintf(`UPDATE w SET c1599 = -id WHERE id <= %d`, rows)},
		{fmt.Sprintf("update of a null of %d rows", rows), fmt.Sprintf(`UPDATE w SET c1599 = -id WHERE id > %d`, 2*rows)},
		{fmt.Sprintf("%d updates by the whole row", few), fill("f", 1, few) + fmt.Sprintf(`; UPDATE f SET c800 = NULL WHERE id %% 2 = 0; UPDATE f SET c801 = 5; INSERT INTO f (id, c9) SELECT g, g FROM generate_series(%d, %d) g; UPDATE f SET c1600 = 1`, few+1, 2*few)},
		{fmt.Sprintf("delete of %d rows", rows), fmt.Sprintf(`DELETE FROM w WHERE id %% 3 = 0; DELETE FROM f WHERE id %% 3 = 0`)},
	} {
		began := time.Now()
		pgtest.Exec(t, pub, step.sql)
		f.wait(t, patience())
		check(step.what, time.Since(began))
	}
}
