package sizes

import (
	"fmt"
	"testing"
	"time"

	"github.com/walferry/walferry/internal/pgtest"
)

// One transaction of 20 million rows: sent when it commits, and streamed while it
// runs, by way of the spool. What is rolled back leaves nothing, and small
// transactions around it stay whole.
func TestSize_OneTransactionOfManyRows(t *testing.T) {
	rows := scaled(50_000, 20_000_000)
	for _, streaming := range []string{"off", "on"} {
		t.Run("streaming "+streaming, func(t *testing.T) {
			pub, sub := servers(t)
			pgtest.Exec(t, pub, `CREATE TABLE public.r (id bigint PRIMARY KEY, a int, v text)`)
			f := startFerry(t, pair(pub, sub, "streaming: "+streaming, "max_bytes: 8GiB"))
			f.wait(t, patience())

			began := time.Now()
			pgtest.Exec(t, pub, fmt.Sprintf(`BEGIN; INSERT INTO r SELECT g, g %% 1000, 'row ' || g FROM generate_series(1, %d) g; ROLLBACK`, rows/4),
				`INSERT INTO r VALUES (-1, 0, 'before')`)
			f.wait(t, patience())
			f.within(t, 0, fmt.Sprintf("%d rows rolled back, streaming %s", rows/4, streaming), time.Since(began))

			began = time.Now()
			pgtest.Exec(t, pub, fmt.Sprintf(`INSERT INTO r SELECT g, g %% 1000, 'row ' || g FROM generate_series(1, %d) g`, rows),
				`INSERT INTO r VALUES (-2, 0, 'after')`)
			inserted := time.Since(began)
			f.wait(t, patience())
			f.within(t, 0, fmt.Sprintf("%d rows in one transaction, streaming %s (the INSERT itself %.1f s)", rows, streaming, inserted.Seconds()), time.Since(began))
			same(t, pub, sub, digest("public.r"))
		})
	}
}

// Very many transactions of one row each.
func TestSize_ManyTinyTransactions(t *testing.T) {
	txns := scaled(5_000, 200_000)
	pub, sub := servers(t)
	pgtest.Exec(t, pub, `CREATE TABLE public.r (id bigint PRIMARY KEY, v text)`,
		`CREATE PROCEDURE tiny(n int) LANGUAGE plpgsql AS $$ BEGIN
			FOR i IN 1..n LOOP INSERT INTO r VALUES (i, 'row ' || i); COMMIT; END LOOP; END $$`)
	f := startFerry(t, pair(pub, sub, "confirm: queued", "max_bytes: 2GiB"))
	f.wait(t, patience())
	began := time.Now()
	pgtest.Exec(t, pub, fmt.Sprintf(`CALL tiny(%d)`, txns))
	made := time.Since(began)
	f.wait(t, patience())
	f.within(t, 0, fmt.Sprintf("%d transactions of one row (made in %.1f s)", txns, made.Seconds()), time.Since(began))
	same(t, pub, sub, digest("public.r"))
	if got := f.status(t).Subscriptions[0].Transactions; got < int64(txns) {
		t.Errorf("status counts %d transactions, want at least %d", got, txns)
	}
}
