package isolation

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/walferry/walferry/agent"
	"github.com/walferry/walferry/config"
	"github.com/walferry/walferry/internal/pgtest"
	"github.com/walferry/walferry/monitor"
	"github.com/walferry/walferry/queue/natsd"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Run(m)) }

// lagLimit is how far a healthy subscriber may be behind at any sample. It is
// far above what a machine under load needs and far below how long the faults
// of the test last.
const lagLimit = 1500 * time.Millisecond

// TestI7_OneStoppedOneFailingTheThirdDoesNotNotice runs one publisher with
// three subscriptions of different tables, names and policies, each applier on
// its own against a NATS server, stops one, makes one fail, and watches the
// third and the slot.
func TestI7_OneStoppedOneFailingTheThirdDoesNotNotice(t *testing.T) {
	pub := pgtest.Shared(t).DB(t)
	steady, failing, stopped := pgtest.Shared(t).DB(t), pgtest.Shared(t).DB(t), pgtest.Shared(t).DB(t)
	pgtest.Exec(t, pub,
		`CREATE TABLE public.a (id bigint PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp())`,
		`CREATE TABLE public.b (id bigint PRIMARY KEY, v text)`)
	pgtest.Exec(t, steady, `CREATE SCHEMA app; CREATE TABLE app.a (id bigint PRIMARY KEY, at timestamptz);
		CREATE TABLE app.copy_of_b (id bigint PRIMARY KEY, v text)`)
	for _, u := range []string{failing, stopped} {
		pgtest.Exec(t, u, `CREATE TABLE public.a (id bigint PRIMARY KEY, at timestamptz); CREATE TABLE public.b (id bigint PRIMARY KEY, v text)`)
	}
	nats, err := natsd.Start(natsd.Options{StoreDir: t.TempDir(), Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nats.Shutdown)

	f := fleet{t: t, text: fmt.Sprintf(`
queue: {url: %q, retention: 0s}
publishers:
  - {name: main, url: %q, slot: %q, tables: {include: ['public.*']}}
`, nats.URL(), pub, "walferry_isolation_"+strconv.Itoa(os.Getpid()))}
	f.subs = map[string]string{
		"steady":  fmt.Sprintf(`{name: steady, url: %q, rename: {schemas: {public: app}, tables: {public.b: app.copy_of_b}}}`, steady),
		"failing": fmt.Sprintf(`{name: failing, url: %q, tables: {exclude: ['public.b']}, policies: {insert_conflict: stop}}`, failing),
		"stopped": fmt.Sprintf(`{name: stopped, url: %q, tables: {include: ['public.b']}, policies: {insert_conflict: upsert}}`, stopped),
	}
	stopReader := f.start("", agent.RoleReader)
	defer stopReader()
	defer f.start("steady", agent.RoleApplier)()
	defer f.start("failing", agent.RoleApplier)()
	stopStopped := f.start("stopped", agent.RoleApplier)

	load := startLoad(t, pub)
	f.wait("steady", "failing", "stopped")
	quiet := sample(t, pub, steady, 3*time.Second)

	stopStopped()
	conflict := load.reserve()
	pgtest.Exec(t, failing, fmt.Sprintf(`INSERT INTO public.a VALUES (%d, now())`, conflict))
	pgtest.Eventually(t, 20*time.Second, func() error {
		d := f.states["failing"].Document()
		if s := d.Subscriptions[0]; s.State != monitor.Failed || s.Error == nil || !strings.Contains(s.Error.Message+s.Error.Constraint, "a_pkey") {
			return fmt.Errorf("subscription failing is in state %s with error %+v", s.State, s.Error)
		}
		return nil
	})
	slotBefore := slotPosition(t, pub)
	faulty := sample(t, pub, steady, 6*time.Second)
	slotAfter := slotPosition(t, pub)

	t.Logf("lag of the steady subscriber: p50 %v, max %v without faults; p50 %v, max %v with one stopped and one failing",
		quiet[len(quiet)/2], quiet[len(quiet)-1], faulty[len(faulty)/2], faulty[len(faulty)-1])
	if m := faulty[len(faulty)-1]; m > lagLimit {
		t.Errorf("the steady subscriber was %v behind, limit %v", m, lagLimit)
	}
	if slotAfter <= slotBefore {
		t.Errorf("the slot stood still at %s while one subscription failed", slotAfter)
	}
	if s := f.states["steady"].Document().Subscriptions[0]; s.State != monitor.Streaming {
		t.Errorf("subscription steady is in state %s", s.State)
	}

	// Both come back, and nothing was lost or doubled anywhere.
	pgtest.Exec(t, failing, fmt.Sprintf(`DELETE FROM public.a WHERE id = %d`, conflict))
	defer f.start("stopped", agent.RoleApplier)()
	load.stop()
	f.wait("steady", "failing", "stopped")
	count := `SELECT count(*), sum(id), count(DISTINCT id) FROM `
	wantA, wantB := pgtest.QueryString(t, pub, count+"public.a"), pgtest.QueryString(t, pub, count+"public.b")
	for _, c := range []struct{ url, table, want string }{
		{steady, "app.a", wantA},
		{steady, "app.copy_of_b", wantB},
		{failing, "public.a", wantA},
		{stopped, "public.b", wantB},
		{failing, "public.b", "0||0"},
		{stopped, "public.a", "0||0"},
	} {
		if got := pgtest.QueryString(t, c.url, count+c.table); got != c.want {
			t.Errorf("%s: count, sum, distinct = %s, want %s", c.table, got, c.want)
		}
	}
}

// fleet runs agents, each with a configuration of its own subscription.
type fleet struct {
	t      *testing.T
	text   string            // queue and publishers
	subs   map[string]string // YAML by name
	states map[string]*monitor.State
}

func (f *fleet) config(subs ...string) *config.Config {
	f.t.Helper()
	text := f.text + "data_dir: " + strconv.Quote(f.t.TempDir()) + "\n"
	if len(subs) > 0 {
		text += "subscriptions:\n"
		for _, s := range subs {
			text += "  - " + f.subs[s] + "\n"
		}
	}
	c, err := config.Parse("test.yaml", []byte(text), func(string) (string, bool) { return "", false })
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

// start runs the agent of one subscription, or the reader, and returns what
// stops it and waits for its end.
func (f *fleet) start(sub string, role agent.Roles) (stop func()) {
	f.t.Helper()
	var c *config.Config
	if sub == "" {
		c = f.config(slices.Sorted(maps.Keys(f.subs))...)
	} else {
		c = f.config(sub)
	}
	if f.states == nil {
		f.states = map[string]*monitor.State{}
	}
	state := monitor.NewState("test")
	f.states[sub] = state
	ctx, cancel := context.WithCancel(f.t.Context())
	ended := make(chan error, 1)
	log := slog.New(slog.NewTextHandler(f.t.Output(), nil))
	go func() { ended <- agent.Run(ctx, c, agent.Options{Roles: role, Logger: log, State: state}) }()
	var once sync.Once
	return func() {
		once.Do(func() {
			cancel()
			if err := <-ended; err != nil {
				f.t.Errorf("agent of %q: %v", sub, err)
			}
		})
	}
}

func (f *fleet) wait(subs ...string) {
	f.t.Helper()
	err := agent.Wait(f.t.Context(), f.config(subs...), agent.WaitOptions{Timeout: time.Minute, Out: f.t.Output()})
	if err != nil {
		f.t.Fatal(err)
	}
}

// load inserts some 200 rows a second into each table.
type load struct {
	mu     sync.Mutex
	next   int64
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}
}

func startLoad(t *testing.T, url string) *load {
	l := &load{next: 1, done: make(chan struct{})}
	l.ctx, l.cancel = context.WithCancel(t.Context())
	go func() {
		defer close(l.done)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for l.ctx.Err() == nil {
			l.mu.Lock()
			from := l.next
			l.next += 10
			l.mu.Unlock()
			pgtest.Exec(t, url, fmt.Sprintf(`INSERT INTO public.a SELECT g, clock_timestamp() FROM generate_series(%d, %d) g`, from, from+9),
				fmt.Sprintf(`INSERT INTO public.b SELECT g, 'v'||g FROM generate_series(%d, %d) g`, from, from+9))
			select {
			case <-tick.C:
			case <-l.ctx.Done():
			}
		}
	}()
	t.Cleanup(l.stop)
	return l
}

// reserve returns an id that will be inserted in a moment.
func (l *load) reserve() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.next + 95
}

func (l *load) stop() {
	l.cancel()
	<-l.done
}

// sample measures for a while how old the newest row is that is not on the
// subscriber yet, sorted.
func sample(t *testing.T, pub, sub string, d time.Duration) []time.Duration {
	t.Helper()
	var lags []time.Duration
	for end := time.Now().Add(d); time.Now().Before(end); {
		top := pgtest.QueryString(t, sub, `SELECT coalesce(max(id), 0) FROM app.a`)
		ms := pgtest.QueryString(t, pub, `SELECT coalesce(round(1000 * extract(epoch FROM clock_timestamp() - min(at))), 0) FROM public.a WHERE id > `+top)
		n, err := strconv.ParseInt(ms, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		lags = append(lags, time.Duration(n)*time.Millisecond)
	}
	slices.Sort(lags)
	return lags
}

func slotPosition(t *testing.T, pub string) string {
	t.Helper()
	return pgtest.QueryString(t, pub, `SELECT lpad(split_part(confirmed_flush_lsn::text, '/', 1), 8, '0') || lpad(split_part(confirmed_flush_lsn::text, '/', 2), 8, '0')
		FROM pg_replication_slots WHERE database = current_database()`)
}
