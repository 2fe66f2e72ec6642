package soak

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

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/internal/pgtest"
)

const (
	writers  = 3
	accounts = 50
	balance  = 1000
	tags     = 40
	places   = 60

	bigRows = 3000 // of bigSize bytes: a transaction of 12 MB
	bigSize = 4000
)

// schema is what the load writes to. A transaction that is lost, doubled, seen in
// part or applied twice breaks one of the invariants of the tables:
//
//	account   the sum of the balances is constant
//	counter   one row a writer: its transactions, and the rows of bag
//	hist      a gapless history of each writer, as long as its counter says
//	journal   no key at all, so that a doubled insert meets no conflict:
//	          one row a transaction, none twice
//	bag       no key, rows that are equal to others; as many as the counters say,
//	          and their sum is zero
//	tag       a permutation in a unique column, whose values swap
//	place     the rows stay, their primary keys move
//	page, leaf   truncated and filled together, as many rows as page_count says
//	big       rows of large transactions, as many as big_count says
//	scratch   conflicts, updates and deletes by the thousand
const schema = `
CREATE TABLE account (id int PRIMARY KEY, name text UNIQUE, balance bigint NOT NULL, note text);
ALTER TABLE account ALTER note SET STORAGE EXTERNAL;
CREATE TABLE counter (id int PRIMARY KEY, n bigint NOT NULL, bag bigint NOT NULL);
CREATE TABLE hist (writer int, n bigint, amount bigint NOT NULL, PRIMARY KEY (writer, n));
CREATE TABLE journal (writer int NOT NULL, n bigint NOT NULL);
ALTER TABLE journal REPLICA IDENTITY FULL;
CREATE TABLE bag (writer int NOT NULL, k int NOT NULL);
ALTER TABLE bag REPLICA IDENTITY FULL;
CREATE TABLE tag (id int PRIMARY KEY, slot int NOT NULL UNIQUE);
CREATE TABLE place (pos bigint PRIMARY KEY, v int NOT NULL);
CREATE TABLE page (id int PRIMARY KEY, v text);
CREATE TABLE leaf (id int PRIMARY KEY, page int NOT NULL REFERENCES page);
CREATE TABLE page_count (id int PRIMARY KEY, n int NOT NULL);
CREATE TABLE big (writer int, i int, v text, PRIMARY KEY (writer, i));
ALTER TABLE big ALTER v SET STORAGE EXTERNAL;
CREATE TABLE big_count (writer int PRIMARY KEY, n int NOT NULL);
CREATE TABLE scratch (id bigint PRIMARY KEY, v text)`

// tables of schema.
var tables = strings.Fields("account counter hist journal bag tag place page leaf page_count big big_count scratch")

// fill makes the first rows on the publisher.
func fill(t testing.TB, url string) {
	t.Helper()
	pgtest.Exec(t, url,
		fmt.Sprintf(`INSERT INTO account SELECT g, 'name '||g, %d, repeat(md5(g::text), 200) FROM generate_series(1, %d) g`, balance, accounts),
		fmt.Sprintf(`INSERT INTO counter SELECT g, 0, 0 FROM generate_series(1, %d) g`, writers),
		fmt.Sprintf(`INSERT INTO tag SELECT g, g FROM generate_series(1, %d) g`, tags),
		fmt.Sprintf(`INSERT INTO place SELECT g, g FROM generate_series(1, %d) g`, places),
		`INSERT INTO page_count VALUES (1, 0)`,
		fmt.Sprintf(`INSERT INTO big_count SELECT g, 0 FROM generate_series(1, %d) g`, writers),
		`INSERT INTO scratch SELECT g, repeat('s', 200) FROM generate_series(20000, 30000) g`)
}

// load is what the writers have done.
type load struct {
	url                            string
	committed, rolledBack, retried atomic.Int64 // retried: deadlocks and broken connections
	large                          atomic.Int64 // of committed: 10 MB and more

	stop atomic.Bool
	wg   sync.WaitGroup
}

// start starts the writers. They end at finish or with ctx.
func (l *load) start(ctx context.Context, seed uint64) {
	for id := 1; id <= writers; id++ {
		w := &writer{load: l, id: id, rng: rand.New(rand.NewPCG(seed, uint64(10+id)))}
		l.wg.Go(func() { w.run(ctx) })
	}
}

func (l *load) finish() {
	l.stop.Store(true)
	l.wg.Wait()
}

// writer is one connection, made again when a fault breaks it.
type writer struct {
	*load
	id  int
	rng *rand.Rand
}

func (w *writer) run(ctx context.Context) {
	var conn *pgx.Conn
	for ctx.Err() == nil && !w.stop.Load() {
		if conn == nil {
			var err error
			if conn, err = pgx.Connect(ctx, w.url); err != nil {
				pause(ctx, 50*time.Millisecond)
				continue
			}
		}
		sql, commits, large := w.transaction()
		if _, err := conn.Exec(ctx, sql); err != nil {
			w.retried.Add(1)
			var pe *pgconn.PgError
			if !errors.As(err, &pe) || conn.IsClosed() || rollback(ctx, conn) != nil {
				_ = conn.Close(ctx) // broken by a fault
				conn = nil
			}
			continue
		}
		switch {
		case !commits:
			w.rolledBack.Add(1)
		case large:
			w.large.Add(1)
			fallthrough
		default:
			w.committed.Add(1)
		}
		pause(ctx, time.Duration(15+w.rng.IntN(90))*time.Millisecond)
	}
	if conn != nil {
		_ = conn.Close(context.Background())
	}
}

func rollback(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, "ROLLBACK")
	return err
}

// transaction is one transaction as a simple query. It keeps every invariant of
// schema, whatever the other writers do.
func (w *writer) transaction() (sql string, commits, large bool) {
	var b strings.Builder
	add := func(format string, args ...any) { fmt.Fprintf(&b, format+";\n", args...) }
	add("BEGIN")
	a, c, amount := 1+w.rng.IntN(accounts), 1+w.rng.IntN(accounts), 1+w.rng.IntN(50)
	count := func() {
		add("UPDATE counter SET n = n + 1 WHERE id = %d", w.id)
		add("INSERT INTO hist SELECT id, n, %d FROM counter WHERE id = %d", amount, w.id)
		add("INSERT INTO journal SELECT id, n FROM counter WHERE id = %d", w.id)
	}
	first := w.rng.IntN(2) == 0 // the transaction counts itself at its beginning or its end
	if first {
		count()
	}
	add("UPDATE account SET balance = balance - %d WHERE id = %d", amount, a)
	add("UPDATE account SET balance = balance + %d WHERE id = %d", amount, c)
	large = w.extra(add, a, c)
	if w.rng.IntN(12) == 0 {
		add("SAVEPOINT extra")
		w.extra(add, c, a)
		add([]string{"RELEASE extra", "ROLLBACK TO extra", "ROLLBACK TO extra; RELEASE extra"}[w.rng.IntN(3)])
	}
	if !first {
		count()
	}
	commits = w.rng.IntN(25) > 0
	if commits {
		b.WriteString("COMMIT")
	} else {
		b.WriteString("ROLLBACK")
	}
	return b.String(), commits, large
}

// extra adds one of the kinds of work.
func (w *writer) extra(add func(string, ...any), a, c int) (large bool) {
	switch n := w.rng.IntN(4000); {
	case n < 250: // unique names swap
		add("UPDATE account SET name = '~' || name WHERE id IN (%d, %d)", a, c)
		add("UPDATE account t SET name = substr(o.name, 2) FROM account o WHERE t.id IN (%[1]d, %[2]d) AND o.id IN (%[1]d, %[2]d) AND (o.id <> t.id OR %[1]d = %[2]d)", a, c)
	case n < 600: // places in a permutation swap
		x, y := 1+w.rng.IntN(tags), 1+w.rng.IntN(tags)
		add("UPDATE tag SET slot = -slot WHERE id IN (%d, %d)", x, y)
		add("UPDATE tag t SET slot = -o.slot FROM tag o WHERE t.id IN (%[1]d, %[2]d) AND o.id IN (%[1]d, %[2]d) AND (o.id <> t.id OR %[1]d = %[2]d)", x, y)
	case n < 850: // primary keys move onto each other's old values
		x := 1 + w.rng.IntN(places-3)
		add("UPDATE place SET pos = -pos WHERE v BETWEEN %d AND %d", x, x+3)
		add("UPDATE place t SET pos = -o.pos FROM place o WHERE t.v BETWEEN %[1]d AND %[1]d + 3 AND o.v = %[1]d + (t.v - %[1]d + 1) %% 4", x)
	case n < 900: // and to new ones
		add("UPDATE place SET pos = %d WHERE v = %d", 1+w.rng.IntN(1_000_000_000), 1+w.rng.IntN(places))
	case n < 1200: // unchanged TOAST in the other transactions
		add("UPDATE account SET note = repeat(md5(random()::text), 150) WHERE id = %d", a)
	case n < 1500: // savepoints, one of them taken back
		add("SAVEPOINT s1; UPDATE account SET balance = 0 WHERE id = %d; INSERT INTO journal VALUES (%d, -1); ROLLBACK TO s1", a, w.id)
		add("SAVEPOINT s2; INSERT INTO scratch VALUES (%d, 'kept') ON CONFLICT DO NOTHING; SAVEPOINT s3; UPDATE scratch SET v = 'gone' WHERE id < 100; ROLLBACK TO s3; RELEASE s2", w.rng.IntN(1000))
	case n < 1650:
		add("TRUNCATE scratch")
		add("INSERT INTO scratch SELECT g, 'after' FROM generate_series(1, %d) g", w.rng.IntN(500))
	case n < 1850: // two tables truncated together and filled again
		rows := w.rng.IntN(300)
		add("UPDATE page_count SET n = %d", rows)
		add("TRUNCATE page, leaf")
		add("INSERT INTO page SELECT g, md5(g::text) FROM generate_series(1, %d) g", rows)
		add("INSERT INTO leaf SELECT g, g FROM generate_series(1, %d) g", rows)
	case n < 2250: // rows without a key come, equal ones too
		k := 1 + w.rng.IntN(4)
		add("INSERT INTO bag VALUES (%d, %d), (%d, %d), (%d, %d), (%d, %d)", w.id, k, w.id, -k, w.id, k, w.id, -k)
		add("UPDATE counter SET bag = bag + 4 WHERE id = %d", w.id)
	case n < 2650: // and go
		add(`WITH gone AS (DELETE FROM bag WHERE ctid = ANY (ARRAY(SELECT ctid FROM bag WHERE writer = %[1]d AND k = %[2]d LIMIT 2) ||
			ARRAY(SELECT ctid FROM bag WHERE writer = %[1]d AND k = -%[2]d LIMIT 2)) RETURNING 1)
			UPDATE counter SET bag = bag - (SELECT count(*) FROM gone) WHERE id = %[1]d`, w.id, 1+w.rng.IntN(4))
	case n < 2750: // and change their sign, all of a kind
		add("UPDATE bag SET k = -k WHERE writer = %d AND abs(k) = %d", w.id, 1+w.rng.IntN(4))
	case n < 2900: // thousands of rows
		add("INSERT INTO scratch SELECT g, repeat('x', 100) FROM generate_series(10000, 13000) g ON CONFLICT (id) DO UPDATE SET v = left(scratch.v, 90) || 'y'")
	case n < 3100: // keys move by the hundred
		add("DELETE FROM scratch WHERE id >= 100000")
		add("UPDATE scratch SET id = id + 100000 WHERE id < 1000")
	case n < 3300:
		add("DELETE FROM scratch WHERE id %% 7 = %d", w.rng.IntN(7))
	case n < 3312: // a large transaction
		w.fillBig(add, 0, bigRows)
		return true
	case n < 3320: // a large one in subtransactions, of which one is taken back
		w.fillBig(add, 0, bigRows/3)
		add("SAVEPOINT b1")
		w.fillBig(add, bigRows/3, bigRows/2)
		add("ROLLBACK TO b1; SAVEPOINT b2")
		w.fillBig(add, bigRows/3, bigRows)
		add("RELEASE b2")
		return true
	case n < 3400:
		add("DELETE FROM big WHERE writer = %d AND i >= %d", w.id, w.rng.IntN(bigRows))
		add("UPDATE big_count SET n = (SELECT count(*) FROM big WHERE writer = %d) WHERE writer = %d", w.id, w.id)
	case n < 3450: // keys of rows with large values move, the values stay
		add("DELETE FROM big WHERE writer = %d AND i >= 100000", w.id)
		add("UPDATE big SET i = i + 100000 WHERE writer = %d AND i < 50", w.id)
		add("UPDATE big_count SET n = (SELECT count(*) FROM big WHERE writer = %d) WHERE writer = %d", w.id, w.id)
	}
	return false
}

// fillBig makes rows of the writer in big, from one number on.
func (w *writer) fillBig(add func(string, ...any), from, rows int) {
	add("DELETE FROM big WHERE writer = %d AND i >= %d", w.id, from)
	add("INSERT INTO big SELECT %d, g, substr(repeat(md5(random()::text), %d), 1, %d) FROM generate_series(%d, %d) g",
		w.id, bigSize/32+1, bigSize, from, from+rows-1)
	add("UPDATE big_count SET n = (SELECT count(*) FROM big WHERE writer = %d) WHERE writer = %d", w.id, w.id)
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
