package snapshot

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/walferry/walferry/internal/pgtest"
)

// interrupt runs the copy of o until so many rows were sent, at which the subscriber
// ends all connections of the copy.
func (p *pair) interrupt(o Options, rows int64) {
	p.t.Helper()
	var once sync.Once
	o.Events.TableProgress = func(pr Progress) {
		if pr.Rows >= rows {
			once.Do(func() { p.endWriters() })
		}
	}
	if _, err := p.fail(o); strings.Contains(err.Error(), "another worker") {
		p.t.Errorf("error: %v", err)
	}
}

func (p *pair) endWriters() {
	c, err := connect(p.t.Context(), p.sub, "test")
	if err == nil {
		err = execSQL(p.t.Context(), c, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'walferry copy writer' AND datname = current_database()")
		closeConn(c)
	}
	if err != nil {
		p.t.Error(err)
	}
}

// parts are the parts that the subscriber has.
func (p *pair) parts() string {
	p.t.Helper()
	return pgtest.QueryString(p.t, p.sub, "SELECT count(*) FILTER (WHERE bound > 0), count(*), COALESCE(sum(rows), 0) FROM walferry.subscription_part")
}

// resumed runs the copy again and returns how many rows were there already and how many
// were sent.
func (p *pair) resumed(o Options, table string) (there, sent int64) {
	p.t.Helper()
	var last int64
	o.Events.TableStarted = func(pr Progress) {
		if pr.Table.SourceName == table {
			there = pr.Rows
		}
	}
	o.Events.TableProgress = func(pr Progress) {
		if pr.Table.SourceName == table {
			last = pr.Rows
		}
	}
	p.run(o)
	return there, last - there
}

const thing = "SELECT count(*), count(DISTINCT id), sum(id), md5(string_agg(id || ' ' || v, ',' ORDER BY id, v)) FROM "

func TestRun_ResumeGoesOnWithWhatIsMissing(t *testing.T) {
	smallParts(t)
	setup := func(t *testing.T, both string) (*pair, Options) {
		p := newPair(t, both, "INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 50000) g; DELETE FROM t WHERE id % 11 = 0", "")
		o := p.options("t")
		o.Workers = 3
		p.interrupt(o, 20000)
		p.wantNothingLeft()
		if s := p.parts(); strings.HasPrefix(s, "0|") {
			t.Fatalf("no part is there: %s", s)
		}
		return p, o
	}
	const plain, keyless = "CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE TABLE t (id int, v text)"
	check := func(t *testing.T, p *pair, table string) {
		t.Helper()
		p.same(thing + table)
		p.want(p.sub, "SELECT count(*), (SELECT count(*) FROM walferry.subscription_part) FROM walferry.subscription_table WHERE state = 'ready'", "1|0")
	}
	t.Run("nothing has changed", func(t *testing.T) {
		p, o := setup(t, plain)
		there, sent := p.resumed(o, "t")
		if there < 10000 || there+sent != 45455 {
			t.Errorf("%d rows were there, %d were sent", there, sent)
		}
		check(t, p, "t")
	})
	for name, both := range map[string]string{"with a key": plain, "without a key": keyless} {
		t.Run("rows were changed, "+name, func(t *testing.T) {
			p, o := setup(t, both)
			pgtest.Exec(t, p.pub, "UPDATE t SET v = 'new' WHERE id BETWEEN 900 AND 1000; DELETE FROM t WHERE id < 100; INSERT INTO t SELECT 100000 + g, 'more' FROM generate_series(1, 50) g")
			before := pgtest.QueryString(t, p.sub, "SELECT count(*) FROM t")
			there, sent := p.resumed(o, "t")
			t.Logf("%s rows were there, %d remained, %d were sent", before, there, sent)
			if there < 5000 || name == "with a key" && before < decimal(uint64(there)) {
				t.Errorf("%s rows were there, %d remained", before, there)
			}
			check(t, p, "t")
		})
		t.Run("every row was changed, "+name, func(t *testing.T) {
			p, o := setup(t, both)
			pgtest.Exec(t, p.pub, "UPDATE t SET v = v || 'y', id = -id")
			p.resumed(o, "t")
			check(t, p, "t")
		})
	}
	t.Run("rows have moved between parts", func(t *testing.T) {
		p, o := setup(t, plain)
		pgtest.Exec(t, p.pub, "DELETE FROM t WHERE id BETWEEN 2000 AND 4000")
		pgtest.Exec(t, p.pub, "VACUUM t")
		pgtest.Exec(t, p.pub, "UPDATE t SET v = 'moved' WHERE id > 45000; INSERT INTO t SELECT g, 'again' FROM generate_series(2000, 3000) g")
		p.resumed(o, "t")
		check(t, p, "t")
	})
	t.Run("rewritten on the publisher", func(t *testing.T) {
		p, o := setup(t, plain)
		pgtest.Exec(t, p.pub, "VACUUM FULL t")
		if there, _ := p.resumed(o, "t"); there != 0 {
			t.Errorf("%d rows of another file were kept", there)
		}
		check(t, p, "t")
	})
	t.Run("another column", func(t *testing.T) {
		p, o := setup(t, plain)
		pgtest.Exec(t, p.pub, "ALTER TABLE t ADD c int DEFAULT 7")
		pgtest.Exec(t, p.sub, "ALTER TABLE t ADD c int")
		if there, _ := p.resumed(o, "t"); there != 0 {
			t.Errorf("%d rows without the column were kept", there)
		}
		check(t, p, "t")
		p.same("SELECT sum(c) FROM t")
	})
	t.Run("emptied on the subscriber", func(t *testing.T) {
		p, o := setup(t, plain)
		pgtest.Exec(t, p.sub, "TRUNCATE t")
		if there, _ := p.resumed(o, "t"); there != 0 {
			t.Errorf("%d rows are said to be there", there)
		}
		check(t, p, "t")
	})
	t.Run("rows deleted on the subscriber", func(t *testing.T) {
		p, o := setup(t, plain)
		pgtest.Exec(t, p.sub, "DELETE FROM t WHERE ctid IN (SELECT ctid FROM t LIMIT 1)")
		p.resumed(o, "t")
		check(t, p, "t")
	})
	t.Run("rows of somebody else on the subscriber", func(t *testing.T) {
		p, o := setup(t, plain)
		pgtest.Exec(t, p.sub, "INSERT INTO t VALUES (-1, 'mine')")
		_, err := p.fail(o)
		if bad, ok := errors.AsType[*PlanError](err); !ok || !strings.Contains(bad.Error(), "holds 1 rows that an interrupted copy has not brought") {
			t.Errorf("error: %v", err)
		}
		p.want(p.sub, "SELECT v FROM t WHERE id = -1", "mine")
		o.OnExisting = Truncate
		p.resumed(o, "t")
		check(t, p, "t")
	})
	// It has an older number than transactions that the snapshot shows.
	t.Run("rows were changed by a transaction that had begun before", func(t *testing.T) {
		p := newPair(t, plain, "CREATE TABLE other (id int); INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 50000) g; DELETE FROM t WHERE id % 11 = 0", "")
		c, err := connect(t.Context(), p.pub, "early")
		if err != nil {
			t.Fatal(err)
		}
		defer closeConn(c)
		exec := func(sql string) {
			if err := execSQL(t.Context(), c, sql); err != nil {
				t.Fatal(err)
			}
		}
		exec("BEGIN; INSERT INTO public.other VALUES (1)")
		pgtest.Exec(t, p.pub, "INSERT INTO other VALUES (2)")
		o := p.options("t")
		o.Workers, o.Locked = 2, true // a slot would wait for the transaction
		p.interrupt(o, 20000)
		exec("UPDATE public.t SET v = 'late' WHERE id < 5000 AND id % 11 = 1; COMMIT")
		there, _ := p.resumed(o, "t")
		if there == 0 {
			t.Error("nothing was kept")
		}
		check(t, p, "t")
	})
	t.Run("interrupted again and again", func(t *testing.T) {
		p, o := setup(t, plain)
		for i := range 3 {
			pgtest.Exec(t, p.pub, fmt.Sprintf("UPDATE t SET v = 'round %d' WHERE id %% 1000 = %d; DELETE FROM t WHERE id BETWEEN %d AND %d", i, i, 5000*i, 5000*i+10))
			p.interrupt(o, 5000)
		}
		p.resumed(o, "t")
		check(t, p, "t")
	})
	t.Run("partitioned", func(t *testing.T) {
		smallParts(t)
		p := newPair(t, `CREATE TABLE t (id int, d int, v text, PRIMARY KEY (id, d)) PARTITION BY RANGE (d); CREATE TABLE p1 PARTITION OF t FOR VALUES FROM (0) TO (10);
			CREATE TABLE p2 (v text, d int NOT NULL, id int NOT NULL); ALTER TABLE t ATTACH PARTITION p2 FOR VALUES FROM (10) TO (100)`,
			"INSERT INTO t SELECT g, g % 20, repeat('x', 100) FROM generate_series(1, 50000) g", "")
		o := p.options("t")
		o.Workers = 2
		p.interrupt(o, 20000)
		pgtest.Exec(t, p.pub, "UPDATE t SET d = 19 - d WHERE id % 100 = 0; DELETE FROM t WHERE id < 50")
		there, _ := p.resumed(o, "t")
		if there == 0 {
			t.Error("nothing was kept")
		}
		check(t, p, "t")
		p.same("SELECT tableoid::regclass, count(*), sum(d) FROM t GROUP BY 1 ORDER BY 2")
	})
	t.Run("a trigger changes rows", func(t *testing.T) {
		p := newPair(t, plain, "INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 50000) g", `CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF NEW.id % 10 = 0 THEN RETURN NULL; END IF; NEW.id := -NEW.id; RETURN NEW; END $$; CREATE TRIGGER f BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f();
			ALTER TABLE t ENABLE ALWAYS TRIGGER f`)
		o := p.options("t")
		o.Workers = 2
		p.interrupt(o, 20000)
		pgtest.Exec(t, p.pub, "DELETE FROM t WHERE id < 50")
		p.resumed(o, "t")
		want := pgtest.QueryString(t, p.pub, "SELECT count(*), -sum(id) FROM t WHERE id % 10 <> 0")
		p.want(p.sub, "SELECT count(*), sum(id) FROM t", want)
	})
}

// What is copied in several interrupted runs under load is the state of the last
// snapshot.
func TestRun_ResumeUnderLoadIsOneState(t *testing.T) {
	smallParts(t)
	rounds := 4
	if testing.Short() {
		rounds = 1
	}
	for range rounds {
		seed := rand.Uint64()
		t.Run(fmt.Sprint(seed), func(t *testing.T) { resumeUnderLoad(t, rand.New(rand.NewPCG(seed, 0))) })
	}
}

func resumeUnderLoad(t *testing.T, rng *rand.Rand) {
	p := newPair(t, "CREATE TABLE a (id int PRIMARY KEY, n int NOT NULL, v text)", "INSERT INTO a SELECT g, 0, repeat('x', 80) FROM generate_series(1, 40000) g", "")
	ctx, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	var moved atomic.Int64
	defer load.Wait()
	defer stop()
	for range 2 {
		r := rand.New(rand.NewPCG(rng.Uint64(), 0))
		load.Go(func() { move(ctx, t, p.pub, r, &moved) })
	}
	o := p.options("a")
	o.Workers = 1 + rng.IntN(4)
	for range 1 + rng.IntN(3) {
		p.interrupt(o, rng.Int64N(35000))
	}
	p.run(o)
	// Amounts are moved from row to row and keys changed: every state has the same sum.
	p.want(p.sub, "SELECT count(*), sum(n) FROM a", "40000|0")
	if n := moved.Load(); n < 100 {
		t.Errorf("only %d transactions ran meanwhile", n)
	}
}

// move changes rows until ctx ends: the number of rows and the sum of n stay.
func move(ctx context.Context, t *testing.T, url string, rng *rand.Rand, moved *atomic.Int64) {
	c, err := connect(context.WithoutCancel(ctx), url, "load")
	if err == nil {
		err = execSQL(context.WithoutCancel(ctx), c, "SET search_path = public; SET synchronous_commit = off")
	}
	if err != nil {
		t.Error(err)
		return
	}
	defer closeConn(c)
	for ctx.Err() == nil {
		x := 1 + rng.IntN(20000)
		y := x + 20000
		sql := fmt.Sprintf("WITH u AS (UPDATE a SET n = n - 7 WHERE id IN (%d, -%d)) UPDATE a SET n = n + 7 WHERE id IN (%d, -%d)", x, x, y, y)
		switch rng.IntN(6) {
		case 0:
			sql = fmt.Sprintf("BEGIN; DELETE FROM a WHERE id = %d; INSERT INTO a SELECT %d, 0, 'again' WHERE NOT EXISTS (SELECT FROM a WHERE id = %d); ROLLBACK", x, x, x)
		case 1:
			sql = fmt.Sprintf("UPDATE a SET id = -id WHERE id IN (%d, -%d)", x, x)
		case 2:
			sql = fmt.Sprintf("BEGIN; SAVEPOINT s; UPDATE a SET v = 'later %d' WHERE id = %d; RELEASE s; UPDATE a SET v = v || '!' WHERE id = %d; COMMIT", x, x, y)
		}
		if err := execSQL(context.WithoutCancel(ctx), c, sql); err != nil {
			_ = execSQL(context.WithoutCancel(ctx), c, "ROLLBACK") // a deadlock, perhaps
			time.Sleep(time.Millisecond)
			continue
		}
		moved.Add(1)
	}
}
