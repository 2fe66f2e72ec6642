package isolation

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walferry/walferry/internal/faultnet"
	"github.com/walferry/walferry/internal/pgtest"
	"github.com/walferry/walferry/internal/testreq"
	"github.com/walferry/walferry/monitor"
)

var trouble = flag.Duration("isolation.trouble", 4*time.Second, "how long each trouble lasts")

// waitsFor wants the status to say that the subscription stands still for a cause
// that mentions each text.
func waitsFor(mention ...string) func(monitor.SubscriptionStatus) error {
	return func(s monitor.SubscriptionStatus) error {
		if s.State != monitor.Streaming || s.Waiting == nil {
			return fmt.Errorf("want a subscription that waits, have: %s", describe(s))
		}
		for _, m := range mention {
			if !strings.Contains(s.Waiting.For, m) {
				return fmt.Errorf("want %q in: %s", m, describe(s))
			}
		}
		return nil
	}
}

// proxied is a connection string that leads through a proxy.
func proxied(t *testing.T, db string) (string, *faultnet.Proxy) {
	t.Helper()
	u, err := url.Parse(db)
	if err != nil {
		t.Fatal(err)
	}
	p := faultnet.Start(t, u.Host)
	u.Host = p.Addr()
	return u.String(), p
}

func TestI7_LockOnASubscriberTable(t *testing.T) {
	hurt := pgtest.Shared(t).DB(t)
	pgtest.Exec(t, hurt, hurtTables)
	s := newSite(t, hurt, hurt)
	var holder *pgx.Conn
	var pid uint32
	s.suffer("a lock on a table of one subscriber", *trouble, func() {
		var err error
		if holder, err = pgx.Connect(t.Context(), hurt+"&application_name=nightly_report"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { holder.Close(context.Background()) })
		pid = holder.PgConn().PID()
		if _, err := holder.Exec(t.Context(), `BEGIN; LOCK TABLE public.a IN ACCESS EXCLUSIVE MODE`); err != nil {
			t.Fatal(err)
		}
	}, func(st monitor.SubscriptionStatus) error {
		return waitsFor(fmt.Sprintf("pid %d", pid), "nightly_report", "public.a", "idle in transaction")(st)
	}, func() {
		if _, err := holder.Exec(t.Context(), `ROLLBACK`); err != nil {
			t.Fatal(err)
		}
	})
}

// Every piece of data to and from the subscriber takes most of a second.
func TestI7_SlowSubscriber(t *testing.T) {
	hurt := pgtest.Shared(t).DB(t)
	pgtest.Exec(t, hurt, hurtTables)
	via, proxy := proxied(t, hurt)
	s := newSite(t, hurt, via)
	s.suffer("a slow network to one subscriber", *trouble, func() { proxy.Delay(800 * time.Millisecond) },
		func(st monitor.SubscriptionStatus) error {
			if st.State != monitor.Streaming || st.LagSeconds == nil || *st.LagSeconds < 0.8 {
				return fmt.Errorf("want a subscription that streams and lags, have: %s, lag %v", describe(st), st.LagSeconds)
			}
			return nil
		}, proxy.Heal)
}

// The network swallows everything and no connection ends.
func TestI7_SilentSubscriber(t *testing.T) {
	hurt := pgtest.Shared(t).DB(t)
	pgtest.Exec(t, hurt, hurtTables)
	via, proxy := proxied(t, hurt)
	s := newSite(t, hurt, via)
	s.suffer("a dead network to one subscriber", *trouble, proxy.Stall, waitsFor("does not answer"), proxy.Heal)
}

// full wants the status to say that a disk is full.
func full(s monitor.SubscriptionStatus) error {
	text := describe(s)
	if !strings.Contains(text, "No space left on device") {
		return fmt.Errorf("want a full disk in: %s", text)
	}
	return nil
}

// fill writes a file until the file system has no room left, and returns what
// removes it.
func fill(t *testing.T, dir string) (empty func()) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(f, zeros{})
	if !strings.Contains(fmt.Sprint(err), "no space left") {
		t.Fatalf("fill %s: %d bytes, %v", dir, n, err)
	}
	_ = f.Close() // what it holds does not matter
	return func() {
		if err := os.Remove(f.Name()); err != nil {
			t.Error(err)
		}
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// owner is the user that a cluster's server runs as.
func owner(t *testing.T, c *pgtest.Cluster) (uid, gid int) {
	t.Helper()
	fi, err := os.Stat(c.DataDir())
	if err != nil {
		testreq.Missing(t, fmt.Sprintf("the server's files are not on this machine: %v", err))
	}
	st := fi.Sys().(*syscall.Stat_t)
	return int(st.Uid), int(st.Gid)
}

// The disk of a subscriber's tables is full: its statements fail, its server works.
func TestI7_FullDiskOfASubscriber(t *testing.T) {
	c := pgtest.New(t)
	uid, gid := owner(t, c)
	dir := testreq.Tmpfs(t, 16<<20, uid, gid)
	hurt := c.DB(t)
	pgtest.Exec(t, hurt, fmt.Sprintf(`CREATE TABLESPACE small LOCATION '%s'`, dir), `SET default_tablespace = small; `+hurtTables)
	s := newSite(t, hurt, hurt)
	var empty func()
	s.suffer("a full disk of one subscriber", max(*trouble, 20*time.Second), func() { empty = fill(t, dir) }, full, func() { empty() })
}

// The disk of a subscriber's WAL is full: its server panics, and is started again
// when there is room.
func TestI7_FullWALDiskOfASubscriber(t *testing.T) {
	c := pgtest.New(t, pgtest.WithSetting("min_wal_size", "32MB"), pgtest.WithSetting("max_wal_size", "32MB"))
	uid, gid := owner(t, c)
	dir := testreq.Tmpfs(t, 96<<20, uid, gid)
	if err := c.Stop("fast"); err != nil {
		t.Fatal(err)
	}
	wal := filepath.Join(c.DataDir(), "pg_wal")
	for _, cmd := range [][]string{{"cp", "-a", wal, dir}, {"rm", "-r", wal}, {"ln", "-s", filepath.Join(dir, "pg_wal"), wal}} {
		if out, err := exec.Command(cmd[0], cmd[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", cmd, err, out)
		}
	}
	c.Start(t)
	hurt := c.DB(t)
	pgtest.Exec(t, hurt, hurtTables)
	s := newSite(t, hurt, hurt)
	var empty func()
	s.suffer("a full WAL disk of one subscriber", *trouble, func() {
		empty = fill(t, dir)
		pgtest.Eventually(t, 30*time.Second, func() error { // to the end of the segments that are there
			conn, err := pgx.Connect(t.Context(), hurt)
			if err != nil {
				return nil // gone
			}
			defer conn.Close(context.Background())
			if _, err = conn.Exec(t.Context(), `SELECT pg_switch_wal()`); err != nil {
				return nil
			}
			return fmt.Errorf("the server still has WAL segments")
		})
	}, waitsFor("does not answer"), func() {
		empty()
		c.Kill(t)
		c.Start(t)
	})
}
