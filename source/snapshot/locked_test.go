package snapshot

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/walferry/walferry/internal/pgtest"
)

// A7: writers wait from before the first row until the last one, and then go on.
func TestRun_LockedKeepsWritersOut_A7(t *testing.T) {
	for _, version := range []int{15, 17, 18} {
		t.Run(fmt.Sprint(version), func(t *testing.T) { lockedKeepsWritersOut(t, pgtest.Shared(t, pgtest.WithVersion(version))) })
	}
}

func lockedKeepsWritersOut(t *testing.T, c *pgtest.Cluster) {
	p := newPairOn(t, c, "CREATE TABLE a (id int PRIMARY KEY, v text); CREATE TABLE b (id int) PARTITION BY RANGE (id); CREATE TABLE b1 PARTITION OF b FOR VALUES FROM (0) TO (1000)",
		"INSERT INTO a SELECT g, 'old' FROM generate_series(1, 20000) g; INSERT INTO b SELECT generate_series(1, 100)", "")
	o := p.options("a", "b")
	o.Locked, o.Workers, o.BytesPerSecond = true, 2, 1<<20
	began := make(chan struct{})
	var once sync.Once
	o.Events.TableProgress = func(Progress) { once.Do(func() { close(began) }) }
	written := make(chan error, 1)
	var at time.Time
	go func() {
		<-began
		w, err := connect(t.Context(), p.pub, "writer")
		if err == nil {
			err = execSQL(t.Context(), w, "UPDATE public.a SET v = 'new' WHERE id = 1; INSERT INTO public.b1 VALUES (500)")
			at = time.Now()
			closeConn(w)
		}
		written <- err
	}()
	var copied time.Time
	o.Events.TableDone = func(r TableResult, _ error) { copied = time.Now() }
	r := p.run(o)
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	if at.Before(copied) {
		t.Errorf("the writer went on %v before the last table was copied", copied.Sub(at))
	}
	p.want(p.sub, "SELECT count(*), count(*) FILTER (WHERE v = 'old'), (SELECT count(*) FROM b) FROM a", "20000|20000|100")
	p.want(p.pub, "SELECT '"+r.ConsistentPoint.String()+"' < pg_current_wal_insert_lsn()", "t")
	p.wantNothingLeft()
}

// A copy that cannot have its locks lets those go on that it would keep waiting.
func TestRun_LockedGivesWayWhileItWaits_A7(t *testing.T) {
	p := newPair(t, "CREATE TABLE a (id int); CREATE TABLE b (id int)", "INSERT INTO a VALUES (1)", "")
	holder, err := connect(t.Context(), p.pub, "holder")
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn(holder)
	if err := execSQL(t.Context(), holder, "BEGIN; INSERT INTO public.b VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	o := p.options("a", "b")
	o.Locked = true
	done := make(chan error, 1)
	go func() {
		_, err := Run(t.Context(), o)
		done <- err
	}()
	waits := func() string {
		return pgtest.QueryString(t, p.pub, "SELECT count(*) FROM pg_locks WHERE mode = 'ShareLock' AND NOT granted AND relation = 'b'::regclass")
	}
	pgtest.Eventually(t, 20*time.Second, func() error {
		if waits() != "1" {
			return fmt.Errorf("the copy does not wait for the lock")
		}
		return nil
	})
	// Somebody who writes to a, which the copy holds, goes on before the holder does.
	pgtest.Exec(t, p.pub, "INSERT INTO a VALUES (2)")
	if err := execSQL(t.Context(), holder, "COMMIT"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	p.same("SELECT count(*), (SELECT count(*) FROM b) FROM a")
}

// A21: the copy reads no faster than it is told.
func TestRun_ThrottleBoundsTheRate_A21(t *testing.T) {
	p := newPair(t, "CREATE TABLE t (id int, v text)", "INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1, 3000) g", "")
	o := p.options("t")
	o.BytesPerSecond = 2 << 20
	began := time.Now()
	r := p.run(o)
	least := time.Duration(float64(r.Tables[0].Bytes-2<<17) / float64(o.BytesPerSecond) * float64(time.Second))
	if took := time.Since(began); took < least {
		t.Errorf("%d bytes took %v, want %v", r.Tables[0].Bytes, took, least)
	}
	p.same("SELECT count(*), sum(id) FROM t")
}
