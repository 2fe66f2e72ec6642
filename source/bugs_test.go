package source

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/internal/faultnet"
	"github.com/walferry/walferry/internal/pgtest"
	m "github.com/walferry/walferry/source/pgoutput/pgoutputtest"
)

// with adds settings of the session to a connection string.
func with(conn string, settings ...string) string {
	return conn + "&options=" + strings.ReplaceAll(url.QueryEscape("-c "+strings.Join(settings, " -c ")), "+", "%20")
}

func TestCB001_KeepaliveDoesNotConfirmWhatIsNotDurable(t *testing.T) {
	db := pgtest.Shared(t).DB(t)
	q := newMemQueue()
	o := options(t, db, q)
	o.StatusInterval, o.MarkInterval = 20*time.Millisecond, 20*time.Millisecond
	r := run(t, o)
	awaitStreaming(t, r)
	q.setHold(true)
	before := confirmed(t, db, o.Slot)
	pgtest.Exec(t, db, `INSERT INTO t VALUES (1)`)
	pgtest.Eventually(t, 10*time.Second, func() error {
		if q.waiting() == 0 {
			return errors.New("nothing in flight")
		}
		return nil
	})
	commit := q.inFlight[0].h.First
	// Keepalives come with every bit of foreign log.
	for range 20 {
		pgtest.Exec(t, db, `CREATE TABLE IF NOT EXISTS noise (a int); INSERT INTO noise VALUES (1)`)
	}
	if c := confirmed(t, db, o.Slot); c > commit || c < before {
		t.Fatalf("%v is confirmed although the transaction of %v is not durable", c, commit)
	}
	q.crash()
	r.cancel()
	_ = r.wait(t)
	if c := confirmed(t, db, o.Slot); c > commit {
		t.Fatalf("after the crash %v is confirmed, the transaction is at %v", c, commit)
	}
	q.setHold(false)
	r = run(t, o)
	if rows := awaitRows(t, q, 1); rows[0] != "I 1 " {
		t.Errorf("row is %q", rows[0])
	}
	r.stop(t)
}

func TestCB002_ConfirmedRisesDuringCatchUpAndIsNeverZero(t *testing.T) {
	db := pgtest.Shared(t).DB(t)
	q := newMemQueue()
	o := options(t, db, q)
	o.BatchBytes = 8 << 10
	r := run(t, o)
	awaitStreaming(t, r)
	r.stop(t)
	start := confirmed(t, db, o.Slot)
	pgtest.Exec(t, db, `DO $$ BEGIN FOR i IN 1..3000 LOOP INSERT INTO t VALUES (i, repeat('x', 50)); COMMIT; END LOOP; END $$`)
	var mu sync.Mutex
	var sent []change.LSN
	o.Events.OnConfirmed = func(l change.LSN) {
		mu.Lock()
		defer mu.Unlock()
		sent = append(sent, l)
	}
	q.delay = 3 * time.Millisecond // some 40 batches: longer than a few statusGap
	r = run(t, o)
	awaitRows(t, q, 3000)
	r.stop(t)
	mu.Lock()
	defer mu.Unlock()
	distinct := map[change.LSN]bool{}
	for i, l := range sent {
		if l < start || i > 0 && l < sent[i-1] {
			t.Fatalf("confirmed %v after %v, the slot stood at %v", l, sent[max(i-1, 0)], start)
		}
		distinct[l] = true
	}
	if len(distinct) < 5 {
		t.Errorf("only %d positions were confirmed during the catch-up", len(distinct))
	}
}

func TestCB005_ConfirmsWithoutBeingAsked(t *testing.T) {
	db := pgtest.Shared(t).DB(t)
	q := newMemQueue()
	o := options(t, with(db, "wal_sender_timeout=0"), q)
	o.MarkInterval = 50 * time.Millisecond
	r := run(t, o)
	awaitStreaming(t, r)
	pgtest.Exec(t, db, `CREATE TABLE noise (a int); INSERT INTO noise SELECT generate_series(1, 10000)`)
	want, err := change.ParseLSN(pgtest.QueryString(t, db, `SELECT pg_current_wal_lsn()`))
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Eventually(t, 20*time.Second, func() error {
		if c := confirmed(t, db, o.Slot); c < want {
			return fmt.Errorf("%v is confirmed, the log is at %v", c, want)
		}
		return nil
	})
	r.stop(t)
	if n := len(inserted(t, q)); n != 0 {
		t.Errorf("%d transactions are queued, want marks only", n)
	}
}

func TestCB006_FastShutdownDoesNotWaitForTheReader(t *testing.T) {
	c := pgtest.New(t)
	db := c.DB(t)
	q := newMemQueue()
	o := options(t, db, q)
	r := run(t, o)
	awaitStreaming(t, r)
	for i, busy := range []bool{false, true} {
		if busy {
			pgtest.Exec(t, db, `INSERT INTO t SELECT g FROM generate_series(1000, 60000) g`)
		} else {
			pgtest.Exec(t, db, `CREATE TABLE noise (a int); INSERT INTO noise SELECT generate_series(1, 1000)`)
		}
		began := time.Now()
		if err := c.Stop("fast"); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d > 5*time.Second {
			t.Errorf("shutdown %d took %v", i, d)
		}
		c.Start(t)
		pgtest.Exec(t, db, fmt.Sprintf(`INSERT INTO t VALUES (%d)`, i))
		pgtest.Eventually(t, 30*time.Second, func() error {
			if s := strings.Join(inserted(t, q), ","); !strings.Contains(s, fmt.Sprintf("I %d ", i)) {
				return errors.New("not reconnected")
			}
			return nil
		})
	}
	r.stop(t)
}

func TestCB012_SlotAheadOfTheQueueIsReported(t *testing.T) {
	db := pgtest.Shared(t).DB(t)
	q := newMemQueue()
	o := options(t, db, q)
	r := run(t, o)
	pgtest.Eventually(t, 20*time.Second, func() error {
		if q.end() == 0 {
			return errors.New("no start mark")
		}
		return nil
	})
	for i := range 3 {
		pgtest.Exec(t, db, fmt.Sprintf(`INSERT INTO t VALUES (%d)`, i))
		awaitRows(t, q, i+1)
	}
	r.stop(t)
	q.batches = q.batches[:2] // acknowledged batches are lost
	slot := confirmed(t, db, o.Slot)
	r = run(t, o)
	err := r.wait(t)
	var e *Error
	if !errors.Is(err, ErrQueueBehind) || !errors.As(err, &e) {
		t.Fatalf("Run = %v, want ErrQueueBehind", err)
	}
	if e.Queue != q.end() || e.Server != slot || e.Hint == "" {
		t.Errorf("error names queue %v, slot %v, hint %q", e.Queue, e.Server, e.Hint)
	}
}

func TestCB013_WipedQueueStartsAtTheSlotNotNow(t *testing.T) {
	db := pgtest.Shared(t).DB(t)
	q := newMemQueue()
	o := options(t, db, q)
	r := run(t, o)
	awaitStreaming(t, r)
	pgtest.Exec(t, db, `INSERT INTO t VALUES (1)`)
	awaitRows(t, q, 1)
	r.stop(t)
	slot := confirmed(t, db, o.Slot)
	pgtest.Exec(t, db, `INSERT INTO t VALUES (2)`)
	q = newMemQueue()
	o.Queue = q
	r = run(t, o)
	if rows := awaitRows(t, q, 1); rows[0] != "I 2 " {
		t.Errorf("row is %q", rows[0])
	}
	if h := q.all()[0].h; h.Prev != slot {
		t.Errorf("the new queue begins at %v, the slot stood at %v", h.Prev, slot)
	}
	r.stop(t)
}

func streaming(t *testing.T, db string, q Queue) Options {
	o := options(t, with(db, "logical_decoding_work_mem=64kB"), q)
	o.Streaming, o.SpoolDir = true, t.TempDir()
	return o
}

func TestCB016_InterleavedStreamedTransactionsAreWhole(t *testing.T) {
	db := pgtest.Shared(t).DB(t)
	q := newMemQueue()
	r := run(t, streaming(t, db, q))
	awaitStreaming(t, r)
	a, b := connect(t, db), connect(t, db)
	for i := range 20 {
		for j, c := range []sqlConn{a, b} {
			if i == 0 {
				c.exec(t, `BEGIN`)
			}
			c.exec(t, fmt.Sprintf(`INSERT INTO t SELECT g, repeat('x', 500) FROM generate_series(%d, %d) g`, j*100000+i*200, j*100000+i*200+199))
		}
	}
	b.exec(t, `COMMIT`)
	a.exec(t, `COMMIT`)
	awaitRows(t, q, 8000)
	r.stop(t)
	txs, err := transactions(q.all())
	if err != nil {
		t.Fatal(err)
	}
	if len(txs) != 2 {
		t.Fatalf("%d transactions, want 2", len(txs))
	}
	for i, x := range txs {
		first := (1 - i) * 100000
		for k, row := range x.msgs {
			if row != fmt.Sprintf("I %d #500", first+k) {
				t.Fatalf("transaction %d, row %d is %q", i, k, row)
			}
		}
	}
}

func TestCB017_SubtransactionAbortDropsOnlyItsOwn(t *testing.T) {
	db := pgtest.Shared(t).DB(t)
	q := newMemQueue()
	o := streaming(t, db, q)
	r := run(t, o)
	awaitStreaming(t, r)
	pgtest.Exec(t, db,
		`BEGIN; INSERT INTO t SELECT g, repeat('x', 500) FROM generate_series(1, 500) g; SAVEPOINT s;
		 ALTER TABLE t ADD COLUMN extra int; INSERT INTO t SELECT g, repeat('y', 500), 7 FROM generate_series(501, 1000) g; ROLLBACK TO s;
		 INSERT INTO t SELECT g FROM generate_series(1001, 1005) g; COMMIT`,
		`BEGIN; INSERT INTO t SELECT g, repeat('z', 500) FROM generate_series(2000, 3000) g; ROLLBACK`,
		`DO $$ BEGIN FOR i IN 1..300 LOOP BEGIN INSERT INTO t VALUES (5000 + i, repeat('x', 500));
		   IF i % 3 = 0 THEN RAISE 'no'; END IF; EXCEPTION WHEN OTHERS THEN NULL; END; END LOOP; END $$`)
	rows := awaitRows(t, q, 705)
	r.stop(t)
	if len(rows) != 705 {
		t.Errorf("%d rows, want 705", len(rows))
	}
	for _, row := range rows {
		if strings.Contains(row, " 7") && strings.HasSuffix(row, " 7") {
			t.Errorf("row of the aborted subtransaction: %q", row)
		}
	}
	if want := pgtest.QueryString(t, db, `SELECT count(*) FROM t`); want != "705" {
		t.Fatalf("the table has %s rows", want)
	}
}

func TestCB018_StrayStreamAbortIsIgnored(t *testing.T) {
	f := newFeeder(4096)
	f.must(t, m.Begin(200, at, 1), table(1, "a", "t", 1), m.StreamAbort(1, 2), m.Insert(1, m.Row{"1"}), m.Commit(200, 208, at), m.StreamAbort(1, 3))
	if txs := f.flush(t); len(txs) != 1 || f.s.dec.StrayAborts != 2 {
		t.Errorf("%d transactions, %d stray aborts", len(txs), f.s.dec.StrayAborts)
	}
	if err := f.feed([]byte{'~', 1, 2, 3}); !errors.Is(err, ErrProtocol) || !strings.Contains(err.Error(), "7e 01 02 03") {
		t.Errorf("unknown message: %v", err)
	}
}

func TestCB020_SlowQueueDoesNotTimeOutTheSender(t *testing.T) {
	db := pgtest.Shared(t).DB(t)
	q := newMemQueue()
	o := options(t, with(db, "wal_sender_timeout=1s"), q)
	o.BatchBytes, o.StatusInterval = 16<<10, 200*time.Millisecond
	r := run(t, o)
	awaitStreaming(t, r)
	q.delay = 8 * time.Millisecond
	pgtest.Exec(t, db, `INSERT INTO t SELECT g, repeat('x', 60) FROM generate_series(1, 60000) g`)
	began := time.Now()
	awaitRows(t, q, 60000)
	t.Logf("took %v", time.Since(began))
	r.stop(t)
	if len(r.errs) > 0 {
		t.Errorf("the connection was lost: %v", r.errs)
	}
	if n := len(inserted(t, q)); n != 1 {
		t.Errorf("%d transactions", n)
	}
}

func TestCB022_HalfOpenConnectionIsGivenUp(t *testing.T) {
	c := pgtest.Shared(t)
	db := c.DB(t)
	p := faultnet.Start(t, fmt.Sprintf("127.0.0.1:%d", c.Port()))
	q := newMemQueue()
	o := options(t, db, q)
	o.Conn = strings.Replace(db, fmt.Sprintf(":%d/", c.Port()), fmt.Sprintf(":%d/", p.Port()), 1)
	o.StatusInterval, o.ReceiveTimeout = 200*time.Millisecond, time.Second
	r := run(t, o)
	awaitStreaming(t, r)
	// Idle but alive: asking for replies keeps the connection.
	pgtest.Exec(t, db, `INSERT INTO t VALUES (1)`)
	awaitRows(t, q, 1)
	quiet := time.Now()
	pgtest.Eventually(t, 10*time.Second, func() error {
		if time.Since(quiet) < 2500*time.Millisecond {
			return errors.New("waiting")
		}
		return nil
	})
	if len(r.errs) > 0 {
		t.Fatalf("an idle server was given up: %v", r.errs)
	}
	p.Stall()
	pgtest.Exec(t, db, `INSERT INTO t VALUES (2)`)
	pgtest.Eventually(t, 15*time.Second, func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.errs) == 0 {
			return errors.New("not noticed")
		}
		return nil
	})
	if !errors.Is(r.errs[0], errSilent) {
		t.Errorf("ended with %v", r.errs[0])
	}
	p.Reset()
	p.Heal()
	awaitRows(t, q, 2)
	r.stop(t)
}

func TestCB021_PartedConnectionRecovers(t *testing.T) {
	c := pgtest.Shared(t)
	db := c.DB(t)
	p := faultnet.Start(t, fmt.Sprintf("127.0.0.1:%d", c.Port()))
	q := newMemQueue()
	o := options(t, db, q)
	o.Conn = strings.Replace(db, fmt.Sprintf(":%d/", c.Port()), fmt.Sprintf(":%d/", p.Port()), 1)
	o.BatchBytes = 16 << 10
	r := run(t, o)
	awaitStreaming(t, r)
	p.CutAfterBytes(300_000) // in the middle of the transaction
	pgtest.Exec(t, db, `INSERT INTO t SELECT g, repeat('x', 60) FROM generate_series(1, 20000) g`)
	rows := awaitRows(t, q, 20000)
	r.stop(t)
	if len(r.errs) == 0 {
		t.Fatal("the connection was not cut")
	}
	for i, row := range rows {
		if row != fmt.Sprintf("I %d #60", i+1) {
			t.Fatalf("row %d is %q", i, row)
		}
	}
	txs, _ := transactions(q.all())
	if len(txs) != 1 || txs[0].attempts != 1 {
		t.Errorf("%d transactions, begun %d times: the stored chunks were not continued", len(txs), txs[0].attempts)
	}
}

func TestCB029_InvalidatedSlotNamesReasonAndRemedy(t *testing.T) {
	c := pgtest.New(t, pgtest.WithSetting("max_slot_wal_keep_size", "16MB"), pgtest.WithSetting("min_wal_size", "32MB"), pgtest.WithSetting("max_wal_size", "48MB"))
	db := c.DB(t)
	q := newMemQueue()
	o := options(t, db, q)
	r := run(t, o)
	awaitStreaming(t, r)
	pgtest.Exec(t, db, `INSERT INTO t VALUES (1)`)
	awaitRows(t, q, 1)
	r.stop(t)
	pgtest.Exec(t, db, `CREATE TABLE noise (a text)`)
	for range 6 {
		pgtest.Exec(t, db, `INSERT INTO noise SELECT repeat('x', 1000) FROM generate_series(1, 20000)`, `SELECT pg_switch_wal()`, `CHECKPOINT`)
	}
	err := run(t, o).wait(t)
	var e *Error
	if !errors.Is(err, ErrSlotLost) || !errors.As(err, &e) {
		t.Fatalf("Run = %v, want ErrSlotLost", err)
	}
	for _, s := range []string{o.Slot, "max_slot_wal_keep_size", "walferry drop", q.end().String()} {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%q is missing in: %v", s, err)
		}
	}
}

func TestRun_DroppedSlotIsNeverCreatedAgain(t *testing.T) {
	db := pgtest.Shared(t).DB(t)
	q := newMemQueue()
	o := options(t, db, q)
	r := run(t, o)
	awaitStreaming(t, r)
	pgtest.Exec(t, db, `INSERT INTO t VALUES (1)`)
	awaitRows(t, q, 1)
	r.stop(t)
	pgtest.Exec(t, db, `SELECT pg_drop_replication_slot('`+o.Slot+`')`)
	if err := run(t, o).wait(t); !errors.Is(err, ErrSlotLost) {
		t.Fatalf("Run = %v, want ErrSlotLost", err)
	}
	if n := pgtest.QueryString(t, db, `SELECT count(*) FROM pg_replication_slots WHERE slot_name = '`+o.Slot+`'`); n != "0" {
		t.Error("the slot was created again")
	}
}

func TestRun_SecondReaderStandsByAndTakesOver(t *testing.T) {
	db := pgtest.Shared(t).DB(t)
	q := newMemQueue()
	o := options(t, db, q)
	a := run(t, o)
	awaitStreaming(t, a)
	b := run(t, o)
	pgtest.Eventually(t, 10*time.Second, func() error {
		if !b.seen(Standby) {
			return errors.New("not standing by")
		}
		return nil
	})
	pgtest.Exec(t, db, `INSERT INTO t VALUES (1)`)
	awaitRows(t, q, 1)
	a.stop(t)
	pgtest.Exec(t, db, `INSERT INTO t VALUES (2)`)
	rows := awaitRows(t, q, 2)
	b.stop(t)
	if strings.Join(rows, ",") != "I 1 ,I 2 " {
		t.Errorf("rows %q", rows)
	}
}

func TestRun_OnceEndsWhenCaughtUp(t *testing.T) {
	db := pgtest.Shared(t).DB(t)
	q := newMemQueue()
	o := options(t, db, q)
	o.Once = true
	if err := run(t, o).wait(t); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, db, `INSERT INTO t VALUES (1)`)
	if err := run(t, o).wait(t); err != nil {
		t.Fatal(err)
	}
	if rows := awaitRows(t, q, 1); len(rows) != 1 {
		t.Errorf("rows %q", rows)
	}
}

func TestRun_ConfirmAppliedHoldsTheSlot(t *testing.T) {
	db := pgtest.Shared(t).DB(t)
	q := newMemQueue()
	o := options(t, db, q)
	o.StatusInterval = 20 * time.Millisecond
	var mu sync.Mutex
	applied := change.LSN(0)
	o.ConfirmApplied = func() change.LSN { mu.Lock(); defer mu.Unlock(); return applied }
	r := run(t, o)
	awaitStreaming(t, r)
	start := confirmed(t, db, o.Slot)
	pgtest.Exec(t, db, `INSERT INTO t VALUES (1)`)
	awaitRows(t, q, 1)
	pgtest.Exec(t, db, `INSERT INTO t VALUES (2)`)
	awaitRows(t, q, 2)
	if c := confirmed(t, db, o.Slot); c != start {
		t.Errorf("%v is confirmed, nothing after %v is applied", c, start)
	}
	mu.Lock()
	applied = q.end()
	mu.Unlock()
	pgtest.Eventually(t, 10*time.Second, func() error {
		if c := confirmed(t, db, o.Slot); c != q.end() {
			return fmt.Errorf("%v is confirmed, %v is applied", c, q.end())
		}
		return nil
	})
	r.stop(t)
}

func TestRun_FullQueueIsRetried(t *testing.T) {
	db := pgtest.Shared(t).DB(t)
	q := newMemQueue()
	o := options(t, db, q)
	r := run(t, o)
	awaitStreaming(t, r)
	q.mu.Lock()
	q.refuse = errFull
	q.mu.Unlock()
	pgtest.Exec(t, db, `INSERT INTO t VALUES (1)`)
	pgtest.Eventually(t, 10*time.Second, func() error {
		if !r.seen(QueueFull) {
			return errors.New("no back-pressure")
		}
		return nil
	})
	q.mu.Lock()
	q.refuse = nil
	q.mu.Unlock()
	if rows := awaitRows(t, q, 1); rows[0] != "I 1 " {
		t.Errorf("rows %q", rows)
	}
	r.stop(t)
}

func TestRun_HeartbeatReachesTheQueueOfAnIdlePublisher(t *testing.T) {
	db := pgtest.Shared(t).DB(t)
	q := newMemQueue()
	o := options(t, db, q)
	o.Heartbeat = 50 * time.Millisecond
	r := run(t, o)
	awaitStreaming(t, r)
	pgtest.Exec(t, db, `CREATE TABLE noise (a int)`)
	rows := awaitRows(t, q, 1)
	r.stop(t)
	if !strings.HasPrefix(rows[0], "M "+HeartbeatPrefix) {
		t.Errorf("rows %q", rows)
	}
	if c := pgtest.QueryString(t, db, `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'walferry heartbeat' AND datname = current_database()`); c != "0" {
		t.Errorf("%s heartbeat connections are left", c)
	}
}

func TestRun_SynchronousCommitReturnsAtOnce(t *testing.T) {
	c := pgtest.New(t)
	db := c.DB(t)
	q := newMemQueue()
	o := options(t, db, q)
	o.Slot = "walferry_sync"
	pgtest.Exec(t, db, `ALTER SYSTEM SET synchronous_standby_names = 'walferry_sync'`)
	r := run(t, o)
	pgtest.Exec(t, db, `SELECT pg_reload_conf()`)
	awaitStreaming(t, r)
	r.stop(t) // the next session sees the setting
	r = run(t, o)
	awaitStreaming(t, r)
	// Commits of other databases wait too, for a mark.
	for what, url := range map[string]string{"published": db, "other database": c.URL("postgres")} {
		conn := connect(t, url)
		conn.exec(t, `CREATE TABLE IF NOT EXISTS sync (a int)`)
		var worst time.Duration
		began := time.Now()
		const n = 50
		for i := range n {
			one := time.Now()
			if what == "published" {
				conn.exec(t, fmt.Sprintf(`INSERT INTO t VALUES (%d)`, i))
			} else {
				conn.exec(t, `INSERT INTO sync VALUES (1)`)
			}
			worst = max(worst, time.Since(one))
		}
		mean := time.Since(began) / n
		t.Logf("%s: mean %v, worst %v", what, mean, worst)
		if mean > 100*time.Millisecond {
			t.Errorf("%s: a synchronous commit takes %v", what, mean)
		}
	}
	pgtest.Exec(t, db, `ALTER SYSTEM RESET synchronous_standby_names`, `SELECT pg_reload_conf()`)
	r.stop(t)
}

func TestRun_CanceledWhileConnecting(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := Run(ctx, Options{Name: "x", Conn: "postgres://127.0.0.1:1/x", Queue: newMemQueue(), Publications: []string{"p"}}); err != nil {
		t.Errorf("Run = %v, want nil", err)
	}
}
