package source

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Run(m)) }

// running is a log reader in the background.
type running struct {
	cancel context.CancelFunc
	done   chan error
	mu     sync.Mutex
	states []State
	errs   []error
}

func (r *running) seen(s State) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range r.states {
		if x == s {
			return true
		}
	}
	return false
}

// stop ends the reader cleanly and fails if it ended otherwise.
func (r *running) stop(t testing.TB) {
	t.Helper()
	r.cancel()
	if err := r.wait(t); err != nil {
		t.Errorf("reader ended with %v", err)
	}
}

func (r *running) wait(t testing.TB) error {
	t.Helper()
	select {
	case err := <-r.done:
		r.done <- err
		return err
	case <-time.After(30 * time.Second):
		t.Fatal("reader does not end")
		return nil
	}
}

func run(t testing.TB, o Options) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{cancel: cancel, done: make(chan error, 1)}
	onState, onReconnect := o.Events.OnState, o.Events.OnReconnect
	o.Events.OnState = func(s State, d string) {
		r.mu.Lock()
		r.states = append(r.states, s)
		r.mu.Unlock()
		if onState != nil {
			onState(s, d)
		}
	}
	o.Events.OnReconnect = func(err error, d time.Duration) {
		r.mu.Lock()
		r.errs = append(r.errs, err)
		r.mu.Unlock()
		if onReconnect != nil {
			onReconnect(err, d)
		}
	}
	if o.Logger == nil && testing.Verbose() {
		o.Logger = slog.New(slog.NewTextHandler(testWriter{t}, nil))
	}
	go func() { r.done <- Run(ctx, o) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-r.done:
			r.done <- err
		case <-time.After(30 * time.Second):
			t.Error("reader does not end")
		}
	})
	return r
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

// options are those of a reader of db with one published table t(id, v).
func options(t testing.TB, db string, q Queue) Options {
	t.Helper()
	pgtest.Exec(t, db, `CREATE TABLE IF NOT EXISTS t (id int PRIMARY KEY, v text)`)
	return Options{
		Name: "test", Conn: db, Slot: "s_" + dbName(db), Queue: q,
		Make: &PublicationSpec{Match: func(_, table string) bool { return table == "t" }},
	}
}

func dbName(url string) string {
	_, rest, _ := strings.Cut(url[strings.Index(url, "//")+2:], "/")
	name, _, _ := strings.Cut(rest, "?")
	return name
}

// inserted lists the transactions that have rows, as id lists.
func inserted(t testing.TB, q *memQueue) []string {
	t.Helper()
	txs, err := transactions(q.all())
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, tx := range txs {
		out = append(out, strings.Join(tx.msgs, ","))
	}
	return out
}

// awaitRows waits until the queue holds n row changes, and returns them in order.
func awaitRows(t testing.TB, q *memQueue, n int) []string {
	t.Helper()
	var rows []string
	pgtest.Eventually(t, 30*time.Second, func() error {
		rows = rows[:0]
		txs, err := transactions(q.all())
		if err != nil {
			return err
		}
		for _, tx := range txs {
			rows = append(rows, tx.msgs...)
		}
		if len(rows) < n {
			return fmt.Errorf("%d rows are queued, want %d", len(rows), n)
		}
		return nil
	})
	return rows
}

func confirmed(t testing.TB, db, slot string) change.LSN {
	t.Helper()
	l, err := change.ParseLSN(pgtest.QueryString(t, db, `SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '`+slot+`'`))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func awaitStreaming(t testing.TB, r *running) {
	t.Helper()
	pgtest.Eventually(t, 20*time.Second, func() error {
		select {
		case err := <-r.done:
			r.done <- err
			return fmt.Errorf("reader ended: %w", err)
		default:
		}
		if !r.seen(Streaming) {
			return errors.New("not streaming")
		}
		return nil
	})
}

func TestRun_TransactionsArriveWholeAndInCommitOrder(t *testing.T) {
	c := pgtest.Shared(t)
	db := c.DB(t)
	q := newMemQueue()
	r := run(t, options(t, db, q))
	awaitStreaming(t, r)
	pgtest.Exec(t, db,
		`INSERT INTO t VALUES (1, 'a'), (2, 'b')`,
		`BEGIN; INSERT INTO t VALUES (3, 'c'); ROLLBACK`,
		`UPDATE t SET v = 'x' WHERE id = 1; DELETE FROM t WHERE id = 2`,
		`CREATE TABLE unpublished (a int); INSERT INTO unpublished VALUES (1)`,
		`TRUNCATE t`)
	awaitRows(t, q, 5)
	r.stop(t)
	got := strings.Join(inserted(t, q), " | ")
	if want := "I 1 a,I 2 b | U 1 x,D 2 | T"; got != want && got != strings.Replace(want, "D 2", "D 2 ", 1) {
		t.Errorf("queued %q, want %q", got, want)
	}
	if c, e := confirmed(t, db, "s_"+dbName(db)), q.end(); c != e {
		t.Errorf("after a clean stop %v is confirmed, the queue ends at %v", c, e)
	}
}

func TestRun_RestartContinuesExactly(t *testing.T) {
	c := pgtest.Shared(t)
	db := c.DB(t)
	q := newMemQueue()
	o := options(t, db, q)
	for i := range 4 {
		r := run(t, o)
		awaitStreaming(t, r)
		pgtest.Exec(t, db, fmt.Sprintf(`INSERT INTO t VALUES (%d)`, 2*i))
		awaitRows(t, q, 2*i+1)
		r.stop(t)
		pgtest.Exec(t, db, fmt.Sprintf(`INSERT INTO t VALUES (%d)`, 2*i+1))
	}
	r := run(t, o)
	rows := awaitRows(t, q, 8)
	r.stop(t)
	for i, row := range rows {
		if !strings.HasPrefix(row, "I "+strconv.Itoa(i)+" ") {
			t.Fatalf("row %d is %q", i, row)
		}
	}
}

func TestRun_SessionsThatStoreSomethingDoNotMakeTheReaderWaitLonger(t *testing.T) {
	db := pgtest.Shared(t).DB(t)
	q := newMemQueue()
	o := options(t, db, q)
	waits := make(chan time.Duration, 100)
	o.Events.OnReconnect = func(_ error, d time.Duration) { waits <- d }
	r := run(t, o)
	awaitStreaming(t, r)
	for i := range 4 {
		pgtest.Exec(t, db, fmt.Sprintf(`INSERT INTO t VALUES (%d)`, i))
		awaitRows(t, q, i+1)
		pgtest.Exec(t, db, `SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '`+o.Slot+`'`)
		if d := <-waits; d > 1500*time.Millisecond {
			t.Errorf("after interruption %d the reader waits %v", i+1, d)
		}
	}
	r.stop(t)
}
