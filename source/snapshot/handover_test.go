package snapshot

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/internal/pgtest"
)

// write runs small transactions, subtransactions and prepared transactions
// until ctx ends.
func write(ctx context.Context, t *testing.T, url string, worker int) {
	c, err := pgconn.Connect(context.WithoutCancel(ctx), url)
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close(context.WithoutCancel(ctx))
	for n := 0; ctx.Err() == nil; n++ {
		id := worker*1_000_000 + n*10
		sql := fmt.Sprintf("BEGIN; INSERT INTO t VALUES (%d); SAVEPOINT a; INSERT INTO t VALUES (%d); RELEASE a; DELETE FROM t WHERE id = %d; ", id, id+1, id-10)
		steps := []string{sql + "COMMIT"}
		if n%5 == 0 {
			gid := fmt.Sprintf("'h%d_%d'", c.PID(), id)
			steps = []string{sql + "PREPARE TRANSACTION " + gid, "COMMIT PREPARED " + gid}
		}
		for _, step := range steps {
			if _, err := c.Exec(context.WithoutCancel(ctx), step).ReadAll(); err != nil {
				t.Errorf("%s: %v", step, err)
				return
			}
		}
	}
}

// TestRun_HandoverToTheStreamIsExact_CB089 replays what a slot that is older
// than the copy decodes from the consistent point on: nothing may be missing
// or come twice.
func TestRun_HandoverToTheStreamIsExact_CB089(t *testing.T) {
	p := newPair(t, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT -g FROM generate_series(1,20000) g", "")
	slot := "h_" + dbName(t, p.pub)
	pgtest.Exec(t, p.pub, "SELECT pg_create_logical_replication_slot('"+slot+"', 'test_decoding')")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var wg sync.WaitGroup
	for w := range 3 {
		wg.Go(func() { write(ctx, t, p.pub, w+1) })
	}
	const runs = 5
	type copied struct {
		at  change.LSN
		ids map[int]bool
	}
	var copies []copied
	for i := range runs {
		o := p.options("t")
		o.Subscription = fmt.Sprint("s", i)
		r := p.run(o)
		c := copied{r.ConsistentPoint, map[int]bool{}}
		for id := range strings.SplitSeq(pgtest.QueryString(t, p.sub, "SELECT id FROM t"), "\n") {
			n, err := strconv.Atoi(id)
			if err != nil {
				t.Fatal(err)
			}
			c.ids[n] = true
		}
		copies = append(copies, c)
		pgtest.Exec(t, p.sub, "TRUNCATE t")
	}
	stop()
	wg.Wait()
	decoded := strings.Split(pgtest.QueryString(t, p.pub, "SELECT lsn, data FROM pg_logical_slot_peek_changes('"+slot+"', NULL, NULL, 'include-xids', '0', 'skip-empty-xacts', '1')"), "\n")
	final := map[int]bool{}
	for id := range strings.SplitSeq(pgtest.QueryString(t, p.pub, "SELECT id FROM t"), "\n") {
		n, _ := strconv.Atoi(id)
		final[n] = true
	}
	replayed := 0
	for i, c := range copies {
		n := replay(t, decoded, c.at, c.ids)
		replayed += n
		if !maps.Equal(c.ids, final) {
			t.Errorf("copy %d at %s: %d rows after %d replayed transactions, publisher has %d", i, c.at, len(c.ids), n, len(final))
		}
	}
	if replayed == 0 {
		t.Error("no transaction was replayed: the test proves nothing")
	}
}

// replay applies the transactions that end behind a position and returns their
// number.
func replay(t *testing.T, decoded []string, from change.LSN, ids map[int]bool) int {
	var tx []string
	n := 0
	for _, line := range decoded {
		at, data, _ := strings.Cut(line, "|")
		switch {
		case data == "BEGIN":
			tx = tx[:0]
		case data == "COMMIT":
			end, err := change.ParseLSN(at) // of a COMMIT: its end LSN
			if err != nil {
				t.Fatal(err)
			}
			if end <= from {
				continue
			}
			n++
			for _, d := range tx {
				_, v, _ := strings.Cut(d, "id[integer]:")
				id, err := strconv.Atoi(v)
				insert := strings.Contains(d, "INSERT")
				if err != nil || ids[id] == insert {
					t.Fatalf("%s of the transaction that ends at %s does not fit the copy at %s", d, at, from)
				}
				if insert {
					ids[id] = true
				} else {
					delete(ids, id)
				}
			}
		default:
			tx = append(tx, data)
		}
	}
	return n
}

func TestRun_TellsWhichTransactionTheConsistentPointWaitsFor_CB094(t *testing.T) {
	p := newPair(t, "CREATE TABLE t (a int)", "", "")
	ctx := t.Context()
	open, err := pgconn.Connect(ctx, p.pub+"&application_name=nightly_job")
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close(ctx)
	if err := execSQL(ctx, open, "BEGIN; INSERT INTO t VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	o := p.options("t")
	var once sync.Once
	var got string
	o.Events.Waiting = func(w Wait) {
		once.Do(func() {
			got = w.Side + ": " + w.Reason
			if err := execSQL(ctx, open, "COMMIT"); err != nil {
				t.Error(err)
			}
		})
	}
	p.run(o)
	for _, s := range []string{"publisher", fmt.Sprint("pid ", open.PID()), "nightly_job", "xact_start", "consistent point"} {
		if !strings.Contains(got, s) {
			t.Errorf("report %q does not mention %s", got, s)
		}
	}
	p.want(p.sub, "SELECT count(*) FROM t", "1")
}

func TestRun_TellsWhichLockTheSubscriberWaitsFor_CB094(t *testing.T) {
	p := newPair(t, "CREATE TABLE t (a int)", "INSERT INTO t VALUES (1)", "")
	ctx := t.Context()
	open, err := pgconn.Connect(ctx, p.sub+"&application_name=vacuum_script")
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close(ctx)
	o := p.options("t")
	o.Events.ConsistentPoint = func(change.LSN) {
		if err := execSQL(ctx, open, "BEGIN; LOCK TABLE t IN ACCESS EXCLUSIVE MODE"); err != nil {
			t.Error(err)
		}
	}
	var once sync.Once
	var got string
	o.Events.Waiting = func(w Wait) {
		once.Do(func() {
			got = w.Side + ": " + w.Reason
			if err := execSQL(ctx, open, "COMMIT"); err != nil {
				t.Error(err)
			}
		})
	}
	p.run(o)
	if !strings.Contains(got, "subscriber") || !strings.Contains(got, "vacuum_script") {
		t.Errorf("report %q does not name the subscriber's lock holder", got)
	}
}

// leftovers counts what an ended copy may have left on the publisher.
func (p *pair) leftovers() string {
	db := dbName(p.t, p.pub)
	return pgtest.QueryString(p.t, p.pub, "SELECT (SELECT count(*) FROM pg_replication_slots WHERE database = '"+db+"'), (SELECT count(*) FROM pg_stat_activity WHERE datname = '"+db+"' AND application_name LIKE 'walferry%')")
}

func (p *pair) wantNothingLeft() {
	p.t.Helper()
	pgtest.Eventually(p.t, 5*time.Second, func() error {
		if got := p.leftovers(); got != "0|0" {
			return fmt.Errorf("left on the publisher (slots|connections): %s", got)
		}
		if got := pgtest.QueryString(p.t, p.sub, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'walferry%'"); got != "0" {
			return fmt.Errorf("connections left on the subscriber: %s", got)
		}
		return nil
	})
}

func TestRun_CancelWhileWaitingForTransactionsLeavesNothing(t *testing.T) {
	p := newPair(t, "CREATE TABLE t (a int)", "", "")
	open, err := pgconn.Connect(t.Context(), p.pub)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close(context.Background())
	if err := execSQL(t.Context(), open, "BEGIN; INSERT INTO t VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := Run(ctx, p.options("t"))
		ended <- err
	}()
	pgtest.Eventually(t, 10*time.Second, func() error {
		if got := p.leftovers(); got[0] == '0' {
			return fmt.Errorf("no slot yet: %s", got)
		}
		return nil
	})
	cancel()
	if err := <-ended; err == nil {
		t.Error("Run succeeded after cancel")
	}
	p.wantNothingLeft()
}

func TestRun_CancelDuringTheCopyLeavesNothing(t *testing.T) {
	p := newPair(t, "CREATE TABLE small (a int); CREATE TABLE t (a int, v text)", "INSERT INTO small VALUES (1); INSERT INTO t SELECT g, repeat('x', 500) FROM generate_series(1,200000) g", "")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o := p.options("small", "t")
	o.Events.TableProgress = func(pr Progress) {
		if pr.Table.SourceName == "t" && pr.Rows > 10 {
			cancel()
		}
	}
	r, err := Run(ctx, o)
	if err == nil {
		t.Fatal("Run succeeded after cancel")
	}
	if len(r.Tables) != 1 {
		t.Errorf("finished tables: %d, want the first", len(r.Tables))
	}
	p.wantNothingLeft()
	p.want(p.sub, "SELECT (SELECT count(*) FROM t), (SELECT string_agg(table_name || ' ' || state, ',') FROM walferry.subscription_table)", "0|small copied")
}

func TestRun_KilledConnectionLeavesNothing(t *testing.T) {
	for _, side := range []string{"publisher", "subscriber"} {
		t.Run(side, func(t *testing.T) {
			p := newPair(t, "CREATE TABLE t (a int, v text)", "INSERT INTO t SELECT g, repeat('x', 500) FROM generate_series(1,200000) g", "")
			url, app := p.pub, "walferry copy reader"
			if side == "subscriber" {
				url, app = p.sub, "walferry copy writer"
			}
			o := p.options("t")
			var once sync.Once
			o.Events.TableProgress = func(Progress) {
				once.Do(func() {
					pgtest.Exec(t, url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = '"+app+"'")
				})
			}
			_, err := p.fail(o)
			if !strings.Contains(err.Error(), side) {
				t.Errorf("error does not name the %s: %v", side, err)
			}
			p.wantNothingLeft()
			p.want(p.sub, "SELECT (SELECT count(*) FROM t), (SELECT count(*) FROM walferry.subscription_table)", "0|0")
			p.run(p.options("t"))
			p.same("SELECT count(*), sum(a) FROM t")
		})
	}
}

func TestRun_TableAddedWhileATransactionOnItIsOpenIsWhole_CB025(t *testing.T) {
	p := newPair(t, "CREATE TABLE u (a int)", "CREATE PUBLICATION p", "")
	ctx := t.Context()
	open, err := pgconn.Connect(ctx, p.pub)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close(ctx)
	if err := execSQL(ctx, open, "BEGIN; INSERT INTO u VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, p.pub, "ALTER PUBLICATION p ADD TABLE u; INSERT INTO u VALUES (10)")
	o := p.options("u")
	var once sync.Once
	o.Events.Waiting = func(Wait) {
		once.Do(func() {
			if err := execSQL(ctx, open, "INSERT INTO u VALUES (2); COMMIT"); err != nil {
				t.Error(err)
			}
		})
	}
	p.run(o)
	// The open transaction is older than the consistent point, so all of it is
	// in the copy and its decoding does not matter.
	got := strings.Split(pgtest.QueryString(t, p.sub, "SELECT a FROM u ORDER BY a"), "\n")
	if !slices.Equal(got, []string{"1", "2", "10"}) {
		t.Errorf("copied %v", got)
	}
}
