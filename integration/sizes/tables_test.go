package sizes

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/walferry/walferry/internal/pgtest"
)

// makeTables makes t1 to tn with a row each, some hundred in a transaction: the
// lock table of the server is small.
func makeTables(t *testing.T, url string, n int, filled bool) {
	t.Helper()
	for from := 1; from <= n; from += 500 {
		var b strings.Builder
		for i := from; i < min(from+500, n+1); i++ {
			fmt.Fprintf(&b, "CREATE TABLE public.t%d (id int PRIMARY KEY, a text, b timestamptz DEFAULT now());", i)
			if filled {
				fmt.Fprintf(&b, "INSERT INTO t%d VALUES (0, 'row of %d');", i, i)
			}
		}
		pgtest.Exec(t, url, b.String())
	}
}

// sameTables compares tables t<from> to t<to>, some hundred in a transaction.
func sameTables(t *testing.T, pub, sub string, from, to int) {
	t.Helper()
	for ; from <= to; from += 500 {
		last := min(from+499, to)
		sql := fmt.Sprintf(`DO $$ DECLARE n bigint := 0; s numeric := 0; c bigint; h numeric; BEGIN
			FOR i IN %d..%d LOOP EXECUTE 'SELECT count(*), coalesce(sum(hashtextextended(x::text, 0)), 0) FROM public.t' || i || ' x' INTO c, h; n := n + c; s := s + h; END LOOP;
			PERFORM set_config('sizes.digest', n || ' rows, ' || s, false); END $$; SELECT current_setting('sizes.digest')`, from, last)
		if want, got := pgtest.QueryString(t, pub, sql), pgtest.QueryString(t, sub, sql); got != want {
			t.Errorf("tables %d to %d: subscriber has %s, publisher %s", from, last, got, want)
		}
	}
}

// One transaction that writes to 500 tables, in turn.
func TestSize_ManyTablesInOneTransaction(t *testing.T) {
	tables, rounds := scaled(50, 500), scaled(5, 40)
	pub, sub := servers(t)
	makeTables(t, pub, tables, true)
	f := startFerry(t, pair(pub, sub, "confirm: queued", "max_bytes: 4GiB"))
	f.within(t, 0, fmt.Sprintf("%d tables: start and initial copy", tables), f.wait(t, patience()))
	began := time.Now()
	pgtest.Exec(t, pub, fmt.Sprintf(`DO $$ BEGIN FOR r IN 1..%d LOOP FOR i IN 1..%d LOOP
			EXECUTE format('INSERT INTO public.t%%s VALUES (%%s, %%L); UPDATE public.t%%s SET a = %%L WHERE id = %%s', i, r, 'x' || r, i, 'y' || r, r - 1);
		END LOOP; END LOOP; END $$`, rounds, tables))
	made := time.Since(began)
	f.wait(t, patience())
	f.within(t, 0, fmt.Sprintf("%d rows of %d tables in turn, one transaction (made in %.1f s)", 2*rounds*tables, tables, made.Seconds()), time.Since(began))
	sameTables(t, pub, sub, 1, tables)
}

// 10,000 tables in the publication, on a publisher with a lock table as PostgreSQL
// has it when it is installed. The subscriber, where the tables are made in one
// transaction, says what it needs before it is tried.
func TestSize_ManyTablesInThePublication(t *testing.T) {
	tables := scaled(60, 10_000)
	stock := []pgtest.Option{pgtest.WithSetting("max_locks_per_transaction", "64"), pgtest.WithSetting("max_connections", "100"), pgtest.WithSetting("shared_buffers", "128MB")}
	if !*full { // one server is enough to see that it works
		stock = []pgtest.Option{pgtest.WithSetting("max_locks_per_transaction", "10"), pgtest.WithSetting("max_connections", "25"), pgtest.WithSetting("max_prepared_transactions", "0"), pgtest.WithSetting("max_wal_senders", "10")}
	}
	pub := pgtest.New(t, stock...).DB(t)
	if *full {
		stock[0] = pgtest.WithSetting("max_locks_per_transaction", "512")
	}
	sub := pgtest.New(t, stock...).DB(t)
	makeTables(t, pub, tables, true)
	f := startFerry(t, pair(pub, sub, "confirm: queued", "max_bytes: 4GiB"))
	f.within(t, 0, fmt.Sprintf("%d tables: publication, schema and initial copy", tables), f.wait(t, patience()))
	sameTables(t, pub, sub, 1, tables)

	began := time.Now()
	f.status(t)
	t.Logf("FIGURES walferry status with %d tables: %.2f s", tables, time.Since(began).Seconds())
	f.idle(t, pub, sub, fmt.Sprintf("%d tables", tables))

	began = time.Now()
	changed := max(tables/10, 10)
	for from := 1; from <= changed; from += 500 {
		pgtest.Exec(t, pub, fmt.Sprintf(`DO $$ BEGIN FOR i IN %d..%d LOOP
			EXECUTE format('INSERT INTO public.t%%s VALUES (1, %%L); UPDATE public.t%%s SET a = %%L WHERE id = 0', i, 'new', i, 'changed'); END LOOP; END $$`, from, min(from+499, changed)))
	}
	f.wait(t, patience())
	f.within(t, 0, fmt.Sprintf("changes in %d of %d tables", changed, tables), time.Since(began))
	sameTables(t, pub, sub, 1, changed)

	f.stop(t)
	began = time.Now()
	f.start(t)
	pgtest.Exec(t, pub, `INSERT INTO public.t1 VALUES (100, 'after the restart')`)
	f.wait(t, patience())
	f.within(t, 0, fmt.Sprintf("restart with %d tables", tables), time.Since(began))
}
