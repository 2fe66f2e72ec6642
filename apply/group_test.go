package apply

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/internal/pgtest"
	"github.com/walferry/walferry/source/pgoutput/pgoutputtest"
)

func TestApply_RunsOfInsertsKeepEveryRow(t *testing.T) { // CB-102
	f := newFlow(t, "CREATE TABLE t (id int PRIMARY KEY, v text, b bytea)", "", "")
	f.pack = 1
	f.run()
	f.through(`INSERT INTO t SELECT g, 'v'||g||E'\t\n\\', decode(repeat('5c', g % 7), 'hex') FROM generate_series(1,5000) g`,
		"INSERT INTO t SELECT g, NULL, NULL FROM generate_series(5001,5029) g", "INSERT INTO t SELECT g, repeat('long', 20000), NULL FROM generate_series(6001,6040) g")
	f.same("SELECT count(*), count(DISTINCT v), md5(string_agg(t::text, ';' ORDER BY id)) FROM t")
}

func TestApply_ATransactionIsNeverSplit(t *testing.T) {
	f := newFlow(t, "CREATE TABLE t (id int PRIMARY KEY, tx int)", "", "ALTER TABLE t ADD at xid8 DEFAULT pg_current_xact_id()")
	f.chunk = 7
	f.opts.Group = Group{Rows: 10, Bytes: 100, Time: time.Hour}
	var sql []string
	for i := range 8 {
		sql = append(sql, fmt.Sprintf("INSERT INTO t SELECT %d*1000+g, %d FROM generate_series(1,%d) g", i, i, 1+i*20))
	}
	f.publish(sql...)
	f.run()
	f.applied()
	f.same("SELECT count(*) FROM t")
	f.want("SELECT count(*) FROM (SELECT tx FROM t GROUP BY tx HAVING count(DISTINCT at::text) > 1) x", "0")
}

func TestApply_ATransactionBegunAgainIsAppliedOnce(t *testing.T) {
	f := newFlow(t, "", "", "CREATE TABLE t (id int PRIMARY KEY)")
	rel := &change.Relation{OID: 9, Schema: "public", Name: "t", Identity: change.IdentityDefault, Columns: []change.Column{{Name: "id", Type: 23, TypeMod: -1, Key: true}}}
	at, lsn := time.Now(), f.end+50
	begin := func() []byte {
		b := change.AppendRecord(nil, pgoutputtest.Relation(rel))
		b = change.AppendRecord(b, pgoutputtest.Begin(lsn, at, 3))
		return change.AppendRecord(b, pgoutputtest.Insert(9, pgoutputtest.Row{"1"}))
	}
	h := change.BatchHeader{Version: 1, Prev: f.end, First: lsn, Last: lsn, End: f.end, Chunked: true, Open: true}
	f.batches = append(f.batches, batch{h, begin()}, batch{h, begin()})
	h.Chunk, h.Open, h.End, h.Txns = 1, false, lsn+20, 1
	body := change.AppendRecord(nil, pgoutputtest.Insert(9, pgoutputtest.Row{"2"}))
	f.batches = append(f.batches, batch{h, change.AppendRecord(body, pgoutputtest.Commit(lsn, lsn+20, at))})
	f.end = lsn + 20
	f.run()
	f.applied()
	f.want("SELECT * FROM t ORDER BY id", "1\n2")
}

func TestApply_KilledConnectionsLoseAndDoubleNothing(t *testing.T) {
	f := newFlow(t, "CREATE TABLE t (id int, v int)", "", "")
	f.pack = 3
	f.opts.Group.Rows = 20
	var sql []string
	for i := range 200 {
		sql = append(sql, fmt.Sprintf("INSERT INTO t SELECT %d, g FROM generate_series(1,%d) g", i, 1+i%40))
	}
	f.publish(sql...)
	f.run()
	for range 10 {
		pgtest.Exec(t, f.sub, "SELECT pg_terminate_backend(pid), pg_sleep(0.02) FROM pg_stat_activity WHERE application_name = 'walferry applier "+f.opts.Subscription+"'")
	}
	f.applied()
	f.same("SELECT id, count(*), sum(v) FROM t GROUP BY id ORDER BY id")
}

func TestApply_UnknownTableAsksForACopyBeforeItsTransaction(t *testing.T) {
	f := newFlow(t, "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)", "", "")
	f.opts.OnUnknown = Copy
	pgtest.Exec(t, f.sub, "INSERT INTO walferry.subscription_table VALUES ('"+f.opts.Subscription+"','public','a','public','a','ready','0/0')")
	f.publish("INSERT INTO a VALUES (1)", "INSERT INTO a VALUES (2)", "BEGIN; INSERT INTO a VALUES (3); INSERT INTO b VALUES (3); COMMIT")
	f.run()
	var need *NeedCopy
	select {
	case err := <-f.result:
		f.result <- err
		if !errors.As(err, &need) || need.Relation.Name != "b" {
			t.Fatalf("Run returned %v, want NeedCopy for b", err)
		}
	case <-time.After(waitLong):
		t.Fatal("Run does not return")
	}
	f.want("SELECT * FROM a ORDER BY id", "1\n2")
	_ = f.halt()
	pgtest.Exec(t, f.sub, "INSERT INTO walferry.subscription_table VALUES ('"+f.opts.Subscription+"','public','b','public','b','ready','"+f.end.String()+"')")
	f.run()
	f.applied()
	f.want("SELECT * FROM a ORDER BY id", "1\n2\n3")
	f.want("SELECT count(*) FROM b", "0") // the copy had it
}

func TestApply_SecondApplierWaits(t *testing.T) {
	f := newFlow(t, "CREATE TABLE t (id int PRIMARY KEY)", "", "")
	f.run()
	f.through("INSERT INTO t VALUES (1)")
	ctx, cancel := context.WithCancel(t.Context())
	waiting, done := make(chan string, 8), make(chan error, 1)
	o := f.opts
	o.Events = Events{OnWaiting: func(s string) { waiting <- s }}
	go func() { done <- Run(ctx, o) }()
	select {
	case <-waiting:
	case <-time.After(waitLong):
		t.Error("the second applier does not wait")
	}
	f.through("INSERT INTO t VALUES (2)")
	if err := f.halt(); err != nil {
		t.Error(err)
	}
	f.publish("INSERT INTO t VALUES (3)")
	pgtest.Eventually(t, waitLong, func() error {
		if got := pgtest.QueryString(t, f.sub, "SELECT count(*) FROM t"); got != "3" {
			return fmt.Errorf("%s rows", got)
		}
		return nil
	})
	cancel()
	<-done
}

// An applier that was displaced and comes back says so: to its listeners and in
// the row that the other one has written meanwhile.
func TestApply_DisplacedApplierShowsItsStateAgain(t *testing.T) {
	f := newFlow(t, "CREATE TABLE t (id int PRIMARY KEY)", "", "")
	states := make(chan string, 100)
	f.opts.Events.OnState = func(s string) { states <- s }
	f.run()
	f.through("INSERT INTO t VALUES (1)")
	want := func(state string) {
		t.Helper()
		select {
		case s := <-states:
			if s != state {
				t.Fatalf("state %q, want %q", s, state)
			}
		case <-time.After(waitLong):
			t.Fatalf("no state, want %q", state)
		}
	}
	want("streaming")

	other := dial(t, f.sub) // takes the subscription the moment it is free
	name := [][]byte{[]byte(f.opts.Subscription)}
	taken := make(chan error, 1)
	go func() {
		taken <- other.ExecParams(t.Context(), "SELECT pg_advisory_lock(hashtextextended('walferry subscription ' || $1, 7))", name, nil, nil, nil).Read().Err
	}()
	pgtest.Eventually(t, waitLong, func() error {
		if n := pgtest.QueryString(t, f.sub, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"); n != "1" {
			return fmt.Errorf("%s sessions wait for the lock, want 1", n)
		}
		return nil
	})
	pgtest.Exec(t, f.sub, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'walferry applier "+f.opts.Subscription+"'")
	if err := <-taken; err != nil {
		t.Fatal(err)
	}
	want("waiting")
	pgtest.Exec(t, f.sub, "UPDATE walferry.subscription_state SET state = 'error', error = '{}'")
	if err := other.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	want("streaming")
	f.through("INSERT INTO t VALUES (2)")
	f.want("SELECT state, error FROM walferry.subscription_state", "streaming|")
}

func TestApply_MovedPositionEndsTheApplier(t *testing.T) {
	f := newFlow(t, "CREATE TABLE t (id int PRIMARY KEY)", "", "")
	f.run()
	f.through("INSERT INTO t VALUES (1)")
	if err := SetPosition(t.Context(), dial(t, f.sub), f.opts.Subscription, f.end+1000, 0); err != nil {
		t.Fatal(err)
	}
	f.publish("INSERT INTO t VALUES (2)")
	select {
	case err := <-f.result:
		f.result <- nil
		if !errors.Is(err, ErrFenced) {
			t.Errorf("Run returned %v, want ErrFenced", err)
		}
	case <-time.After(waitLong):
		t.Fatal("Run goes on although the position is not its own")
	}
	f.want("SELECT * FROM t", "1")
}

func TestApply_ReportsOnlyFlushedPositions(t *testing.T) {
	f := newFlow(t, "CREATE TABLE t (id int PRIMARY KEY)", "", "")
	reported := make(chan change.LSN, 100)
	f.opts.Report = func(_ context.Context, l change.LSN, _ uint64) error { reported <- l; return nil }
	f.run()
	f.through("INSERT INTO t VALUES (1)")
	deadline := time.After(waitLong)
	for {
		select {
		case l := <-reported:
			if l >= f.end {
				return
			}
		case <-deadline:
			t.Fatal("the applied position is never reported as flushed")
		}
	}
}
