package containers_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walferry/walferry/internal/pgtest"
	"github.com/walferry/walferry/internal/testreq"
)

// docker runs the command-line client and returns its output.
func docker(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("docker", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("docker %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// cluster is a PostgreSQL in a container that is reached at its own address, with
// no proxy of Docker between: when the container leaves its network, packets
// vanish.
type cluster struct {
	t                 *testing.T
	id, network, addr string
}

func newNetwork(t *testing.T) (name, prefix string) {
	t.Helper()
	for range 20 {
		prefix = fmt.Sprintf("10.%d.%d.", 200+rand.IntN(50), rand.IntN(250))
		name = fmt.Sprintf("walferry-%d", rand.Uint32())
		if exec.Command("docker", "network", "create", "--subnet", prefix+"0/24", name).Run() == nil {
			t.Cleanup(func() { docker(t, "network", "rm", name) })
			return name, prefix
		}
	}
	t.Fatal("no free network")
	return "", ""
}

func newCluster(t *testing.T, network, addr string) *cluster {
	t.Helper()
	c := &cluster{t: t, network: network, addr: addr}
	c.id = docker(t, "run", "-d", "--pull", "never", "--network", network, "--ip", addr, "-e", "POSTGRES_HOST_AUTH_METHOD=trust", image,
		"postgres", "-c", "wal_level=logical", "-c", "fsync=off", "-c", "wal_sender_timeout=4s")
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := exec.Command("docker", "logs", "--tail", "30", c.id).CombinedOutput()
			t.Logf("log of %s:\n%s", addr, out)
		}
		docker(t, "rm", "-f", "-v", c.id)
	})
	pgtest.Eventually(t, time.Minute, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		conn, err := pgx.Connect(ctx, c.url())
		if err != nil {
			return err
		}
		return conn.Close(ctx)
	})
	return c
}

func (c *cluster) url() string {
	return "postgres://postgres@" + c.addr + "/postgres?sslmode=disable"
}

func (c *cluster) disconnect() { docker(c.t, "network", "disconnect", c.network, c.id) }
func (c *cluster) connect()    { docker(c.t, "network", "connect", "--ip", c.addr, c.network, c.id) }
func (c *cluster) pause()      { docker(c.t, "pause", c.id) }
func (c *cluster) unpause()    { docker(c.t, "unpause", c.id) }

// TestNetwork_CutAndHalfOpenContainersLoseNothing takes the network of publisher
// and subscriber away, and freezes them, while transactions are committed.
func TestNetwork_CutAndHalfOpenContainersLoseNothing(t *testing.T) {
	testreq.Image(t, image)
	network, prefix := newNetwork(t)
	pub, sub := newCluster(t, network, prefix+"10"), newCluster(t, network, prefix+"11")
	const schema = `CREATE TABLE account (id int PRIMARY KEY, balance int NOT NULL);
		CREATE TABLE journal (n int NOT NULL); ALTER TABLE journal REPLICA IDENTITY FULL`
	pgtest.Exec(t, pub.url(), schema, "INSERT INTO account SELECT g, 100 FROM generate_series(1, 20) g")
	pgtest.Exec(t, sub.url(), schema)

	p := startWalferry(t, buildWalferry(t), fmt.Sprintf(`
data_dir: %q
publishers:
  - {name: main, url: %q, tables: {include: ['public.*']}}
subscriptions:
  - {name: copy, publisher: main, url: %q}
`, t.TempDir(), pub.url(), sub.url()))

	ctx, cancel := context.WithCancel(t.Context())
	var committed, reads atomic.Int64
	var wrong atomic.Pointer[string]
	var wg sync.WaitGroup
	stop := func() { cancel(); wg.Wait() }
	defer stop()
	wg.Go(func() {
		each(ctx, pub.url(), func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, fmt.Sprintf(`BEGIN; UPDATE account SET balance = balance - 1 WHERE id = %d; UPDATE account SET balance = balance + 1 WHERE id = %d;
				INSERT INTO journal SELECT count(*) + 1 FROM journal; COMMIT`, 1+rand.IntN(20), 1+rand.IntN(20)))
			if err == nil {
				committed.Add(1)
			}
			return err
		})
	})
	equal := func() error {
		if err := p.alive(); err != nil {
			return err
		}
		const digest = `SELECT (SELECT md5(string_agg(a::text, ',' ORDER BY id)) FROM account a), (SELECT count(*) FROM journal), (SELECT count(DISTINCT n) FROM journal)`
		if want, got := pgtest.QueryString(t, pub.url(), digest), pgtest.QueryString(t, sub.url(), digest); want != got {
			return fmt.Errorf("subscriber has %s, publisher %s", got, want)
		}
		return nil
	}
	follows := func() {
		t.Helper()
		n := pgtest.QueryString(t, pub.url(), "SELECT count(*) FROM journal")
		pgtest.Eventually(t, time.Minute, func() error {
			if got := pgtest.QueryString(t, sub.url(), "SELECT count(*) >= "+n+" FROM journal"); got != "t" {
				return fmt.Errorf("the subscriber has not reached %s transactions", n)
			}
			return p.alive()
		})
	}
	follows()
	wg.Go(func() {
		each(ctx, sub.url(), func(ctx context.Context, conn *pgx.Conn) error {
			var sum, rows, different, top int
			err := conn.QueryRow(ctx, `SELECT (SELECT sum(balance) FROM account), count(*), count(DISTINCT n), max(n) FROM journal`).Scan(&sum, &rows, &different, &top)
			if err == nil && (sum != 2000 || rows != different || rows != top) {
				text := fmt.Sprintf("sum of balances %d, %d rows, %d different, up to %d", sum, rows, different, top)
				wrong.Store(&text)
			}
			if err == nil {
				reads.Add(1)
			}
			return err
		})
	})
	for _, f := range []struct {
		name     string
		do, undo func()
		hold     time.Duration
	}{
		{"freeze the subscriber", sub.pause, sub.unpause, time.Second},
		{"freeze the publisher", pub.pause, pub.unpause, time.Second},
		{"cut the subscriber", sub.disconnect, sub.connect, 2 * time.Second},
		{"cut the publisher", pub.disconnect, pub.connect, 2 * time.Second},
		{"cut the publisher, longer than wal_sender_timeout", pub.disconnect, pub.connect, 6 * time.Second},
		{"freeze the publisher, longer than wal_sender_timeout", pub.pause, pub.unpause, 6 * time.Second},
	} {
		t.Log(f.name)
		f.do()
		time.Sleep(f.hold)
		f.undo()
		follows()
	}
	stop()
	pgtest.Eventually(t, time.Minute, equal)
	if s := wrong.Load(); s != nil {
		t.Errorf("the subscriber showed a state that never was: %s", *s)
	}
	t.Logf("%d transactions, subscriber read %d times", committed.Load(), reads.Load())
	if err := p.interrupt(t); err != nil {
		t.Errorf("walferry after an interrupt: %v", err)
	}
}

// each calls f again and again until ctx ends, on a connection that is made anew
// when it is broken.
func each(ctx context.Context, url string, f func(context.Context, *pgx.Conn) error) {
	for ctx.Err() == nil {
		once, cancel := context.WithTimeout(ctx, 10*time.Second)
		conn, err := pgx.Connect(once, url)
		for err == nil && ctx.Err() == nil {
			step, done := context.WithTimeout(ctx, 10*time.Second)
			err = f(step, conn)
			done()
			time.Sleep(5 * time.Millisecond)
		}
		if conn != nil {
			_ = conn.Close(once) // broken
		}
		cancel()
	}
}
