package soak

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walferry/walferry/internal/pgtest"
)

var (
	seedFlag   = flag.Uint64("seed", 0, "seed of the faults and the load; 0: a new one")
	roundsFlag = flag.Int("rounds", 12, "faults")
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(pgtest.Run(m))
}

const (
	accounts = 50
	balance  = 1000
)

const schema = `
CREATE TABLE account (id int PRIMARY KEY, name text UNIQUE, balance bigint NOT NULL, note text);
CREATE TABLE counter (id int PRIMARY KEY, n bigint NOT NULL);
CREATE TABLE hist (n bigint PRIMARY KEY, amount bigint NOT NULL);
CREATE TABLE scratch (id bigint PRIMARY KEY, v text);
ALTER TABLE account ALTER note SET STORAGE EXTERNAL`

// TestSoak_KillsLoseNothingAndDoubleNothing runs a load whose every transaction
// keeps three invariants, breaks something every moment, and reads the
// invariants on the subscriber all the time. Replay a run with
// -seed: the order of the faults is the same.
func TestSoak_KillsLoseNothingAndDoubleNothing(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("replay with: go test ./integration/soak -run Soak -seed %d -rounds %d", seed, *roundsFlag)
	rng := rand.New(rand.NewPCG(seed, 1))

	pub, sub := pgtest.New(t), pgtest.New(t)
	pubURL, subURL := pub.DB(t), sub.DB(t)
	pgtest.Exec(t, pubURL, schema,
		fmt.Sprintf(`INSERT INTO account SELECT g, 'name '||g, %d, repeat(md5(g::text), 200) FROM generate_series(1, %d) g`, balance, accounts),
		`INSERT INTO counter VALUES (1, 0)`)
	pgtest.Exec(t, subURL, schema)
	f := newFerry(t, pubURL, subURL)
	f.start()
	f.wait(time.Minute)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	var writes, looks atomic.Int64
	l := &load{url: pubURL, rng: rand.New(rand.NewPCG(seed, 2)), done: &writes, end: make(chan struct{})}
	wg.Go(func() { l.run(ctx) })
	broken := make(chan error, 1)
	wg.Go(func() {
		if err := watch(ctx, subURL, &looks); err != nil {
			broken <- err
		}
	})

	faults := []struct {
		name string
		do   func()
	}{
		{"kill walferry", func() { f.kill(); f.start() }},
		{"stop walferry", func() { f.stop(); f.start() }},
		{"kill the subscriber", func() { sub.Kill(t); sub.Start(t) }},
		{"kill the publisher", func() { pub.Kill(t); pub.Start(t) }},
		{"end the walsender", func() { tryExec(pubURL, `SELECT pg_terminate_backend(pid) FROM pg_stat_replication`) }},
		{"end the applier's backend", func() {
			tryExec(subURL, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'walferry applier%'`)
		}},
		{"hold a lock on the subscriber", func() {
			tryExec(subURL, `BEGIN; LOCK TABLE account IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(0.7); COMMIT`)
		}},
	}
	for i := range *roundsFlag {
		pause := time.Duration(200+rng.IntN(1300)) * time.Millisecond
		select {
		case err := <-broken:
			t.Fatalf("after %d faults: %v", i, err)
		case <-time.After(pause):
		}
		n := rng.IntN(len(faults))
		t.Logf("fault %d after %v: %s", i+1, pause, faults[n].name)
		faults[n].do()
	}
	l.stop.Store(true)
	<-l.end
	f.wait(3 * time.Minute)
	cancel()
	wg.Wait()
	select {
	case err := <-broken:
		t.Fatal(err)
	default:
	}
	for _, q := range []string{
		`SELECT count(*), sum(balance), md5(string_agg(id || name || balance || md5(note), ',' ORDER BY id)) FROM account`,
		`SELECT count(*), sum(n), sum(amount), md5(string_agg(n || ':' || amount, ',' ORDER BY n)) FROM hist`,
		`SELECT count(*), md5(string_agg(id || v, ',' ORDER BY id)) FROM scratch`, `TABLE counter`,
	} {
		if p, s := pgtest.QueryString(t, pubURL, q), pgtest.QueryString(t, subURL, q); p != s {
			t.Errorf("publisher and subscriber differ:\n%s\npublisher  %s\nsubscriber %s", q, p, s)
		}
	}
	t.Logf("%d faults, %d transactions committed, subscriber read %d times; transactions on it: %s",
		*roundsFlag, writes.Load(), looks.Load(), pgtest.QueryString(t, subURL, `SELECT count(*) FROM hist`))
	if writes.Load() == 0 || looks.Load() == 0 {
		t.Error("nothing was written or nothing was read: the run proves nothing")
	}
	f.stop()
}

// load writes transactions, each of which moves an amount between accounts,
// counts itself and notes the amount.
type load struct {
	url  string
	rng  *rand.Rand
	done *atomic.Int64
	stop atomic.Bool

	end chan struct{} // closed when run returns
}

func (l *load) run(ctx context.Context) {
	defer close(l.end)
	var conn *pgx.Conn
	for ctx.Err() == nil && !l.stop.Load() {
		if conn == nil {
			var err error
			if conn, err = pgx.Connect(ctx, l.url); err != nil {
				pause(ctx, 50*time.Millisecond)
				continue
			}
		}
		if _, err := conn.Exec(ctx, l.transaction()); err != nil {
			_ = conn.Close(ctx) // broken by a fault
			conn = nil
			continue
		}
		l.done.Add(1)
	}
	if conn != nil {
		_ = conn.Close(context.Background())
	}
}

// transaction is one transaction as a simple query.
func (l *load) transaction() string {
	a, b, amount := 1+l.rng.IntN(accounts), 1+l.rng.IntN(accounts), 1+l.rng.IntN(50)
	move := fmt.Sprintf(`UPDATE account SET balance = balance - %d WHERE id = %d; UPDATE account SET balance = balance + %d WHERE id = %d;
		UPDATE counter SET n = n + 1; INSERT INTO hist SELECT n, %d FROM counter;`, amount, a, amount, b, amount)
	extra := ""
	switch l.rng.IntN(12) {
	case 0: // swap of unique names
		extra = fmt.Sprintf(`UPDATE account SET name = 'swap' WHERE id = %d; UPDATE account SET name = 'name ' || %d WHERE id = %d AND name <> 'swap'; UPDATE account SET name = 'name '||id WHERE name = 'swap';`, a, b, b)
	case 1: // TOAST
		extra = fmt.Sprintf(`UPDATE account SET note = repeat(md5(random()::text), 150) WHERE id = %d;`, a)
	case 2: // savepoints
		extra = fmt.Sprintf(`SAVEPOINT s; UPDATE account SET balance = 0; ROLLBACK TO s; SAVEPOINT s2; INSERT INTO scratch VALUES (%d, 'kept') ON CONFLICT DO NOTHING; RELEASE s2;`, l.rng.IntN(1000))
	case 3: // a large transaction
		extra = `INSERT INTO scratch SELECT g, repeat('x', 100) FROM generate_series(10000, 14000) g ON CONFLICT (id) DO UPDATE SET v = excluded.v || 'y' WHERE length(scratch.v) < 110;`
	case 4:
		extra = `TRUNCATE scratch;`
	case 5: // keys move
		extra = `UPDATE scratch SET id = id + 100000 WHERE id < 1000;`
	case 6:
		extra = `DELETE FROM scratch WHERE id % 7 = 0;`
	}
	return "BEGIN;" + move + extra + "COMMIT"
}

// watch reads the invariants on the subscriber until ctx ends.
func watch(ctx context.Context, url string, looks *atomic.Int64) error {
	for ctx.Err() == nil {
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			pause(ctx, 50*time.Millisecond)
			continue
		}
		err = look(ctx, conn, looks)
		_ = conn.Close(context.Background())
		if err != nil {
			return err
		}
	}
	return nil
}

func look(ctx context.Context, conn *pgx.Conn, looks *atomic.Int64) error {
	for ctx.Err() == nil {
		var sum, n, count, top int64
		err := conn.QueryRow(ctx, `SELECT (SELECT coalesce(sum(balance), 0) FROM account), (SELECT coalesce(max(n), 0) FROM counter),
			(SELECT count(*) FROM hist), (SELECT coalesce(max(n), 0) FROM hist)`).Scan(&sum, &n, &count, &top)
		if err != nil {
			return nil // the connection fell to a fault
		}
		if sum != accounts*balance || count != n || top != n {
			return fmt.Errorf("the subscriber shows a state that never was: sum of balances %d (want %d), counter %d, history of %d up to %d",
				sum, accounts*balance, n, count, top)
		}
		looks.Add(1)
		pause(ctx, 5*time.Millisecond)
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// tryExec runs SQL on a server that may be down.
func tryExec(url, sql string) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return
	}
	_, _ = conn.Exec(ctx, sql) // the fault may hit this session too
	_ = conn.Close(ctx)
}

// ferry is the real binary.
type ferry struct {
	t      *testing.T
	binary string
	args   []string
	log    string
	cmd    *exec.Cmd
}

func newFerry(t *testing.T, pub, sub string) *ferry {
	t.Helper()
	dir := t.TempDir()
	f := &ferry{t: t, binary: filepath.Join(dir, "walferry"), log: filepath.Join(dir, "log")}
	if out, err := exec.Command("go", "build", "-o", f.binary, "github.com/walferry/walferry/cmd/walferry").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	f.args = []string{"--from", pub, "--to", sub, "--data-dir", filepath.Join(dir, "data"), "--log-format", "text"}
	t.Cleanup(func() {
		if f.cmd != nil {
			f.kill()
		}
		if t.Failed() {
			b, _ := os.ReadFile(f.log)
			if len(b) > 20000 {
				b = b[len(b)-20000:]
			}
			t.Logf("walferry's log ends with:\n%s", b)
		}
	})
	return f
}

func (f *ferry) start() {
	f.t.Helper()
	log, err := os.OpenFile(f.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		f.t.Fatal(err)
	}
	defer log.Close()
	f.cmd = exec.Command(f.binary, append([]string{"run"}, f.args...)...)
	f.cmd.Stdout, f.cmd.Stderr = log, log
	if err := f.cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
}

func (f *ferry) kill() {
	_ = f.cmd.Process.Kill()
	_ = f.cmd.Wait() // killed
	f.cmd = nil
}

func (f *ferry) stop() {
	f.t.Helper()
	if err := f.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		f.t.Fatalf("walferry ended by itself: %v", err)
	}
	ended := make(chan error, 1)
	cmd := f.cmd
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			f.t.Fatalf("walferry stopped with %v", exit)
		}
	case <-time.After(20 * time.Second):
		_ = cmd.Process.Signal(syscall.SIGQUIT)
		<-ended
		f.t.Fatal("walferry did not stop within 20 s")
	}
	f.cmd = nil
}

func (f *ferry) wait(limit time.Duration) {
	f.t.Helper()
	out, err := exec.Command(f.binary, append([]string{"wait", "--timeout", limit.String()}, f.args...)...).CombinedOutput()
	if err != nil {
		f.t.Fatalf("walferry wait: %v\n%s", err, out)
	}
}
