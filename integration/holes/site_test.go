package holes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walferry/walferry/agent"
	"github.com/walferry/walferry/config"
	"github.com/walferry/walferry/internal/natstest"
	"github.com/walferry/walferry/internal/pgtest"
	"github.com/walferry/walferry/monitor"
)

const (
	queued  = "queued"
	applied = "applied"
	stream  = "WALFERRY_main"
	// patience is how long something may take that takes a moment.
	patience = 60 * time.Second
	// statusPause is how often the status is asked for, which costs connections.
	statusPause = 200 * time.Millisecond
)

// bothModes runs a test for both meanings of confirm.
func bothModes(t *testing.T, f func(t *testing.T, confirm string)) {
	t.Parallel()
	for _, c := range []string{queued, applied} {
		t.Run(c, func(t *testing.T) { t.Parallel(); f(t, c) })
	}
}

// site is one publisher, a NATS server and subscribers, each with an applier of
// its own. Subscriber live is always on; behind is switched off by tests so that
// it needs what the queue holds.
type site struct {
	t        *testing.T
	h        *history
	nats     *natstest.Process
	natsURL  string
	embedded bool   // the queue is in data_dir
	pub      string // connection string
	slot     string
	suffix   string // replication origins belong to the whole cluster, and so do their names
	confirm  string
	subs     map[string]string // connection strings
	watches  map[string]*watch
	running  map[string]*agents // by subscription; "" is the reader
}

var sites atomic.Int64

// newSite makes databases of the shared cluster.
func newSite(t *testing.T, confirm string) *site {
	return newSiteOf(t, confirm, pgtest.Shared(t), pgtest.Shared(t))
}

func newSiteOf(t *testing.T, confirm string, pub, sub *pgtest.Cluster) *site {
	t.Helper()
	n := natstest.StartProcess(t)
	s := &site{
		t: t, h: newHistory(), nats: n, natsURL: n.URL(), pub: pub.DB(t), confirm: confirm,
		suffix: fmt.Sprintf("_%d_%d", os.Getpid(), sites.Add(1)),
		subs:   map[string]string{}, watches: map[string]*watch{}, running: map[string]*agents{},
	}
	s.slot = "holes" + s.suffix
	pgtest.Exec(t, s.pub, tables)
	for _, name := range []string{"live", "behind"} {
		s.subs[name] = sub.DB(t)
		pgtest.Exec(t, s.subs[name], tables)
		s.watches[name] = startWatch(t, s.h, name, s.subs[name])
	}
	t.Cleanup(s.stopAll)
	return s
}

// begin starts everything and lets some transactions through.
func (s *site) begin() {
	s.t.Helper()
	s.startAll()
	s.commit(1)
	s.equal("live", "behind")
	s.commit(3) // by way of the queue
	s.equal("live", "behind")
}

func (s *site) text() string {
	var b strings.Builder
	url := fmt.Sprintf("url: %q, ", s.natsURL)
	if s.embedded {
		url = ""
	}
	fmt.Fprintf(&b, `
data_dir: %q
queue: {%smax_bytes: 64MB}
publishers: [{name: main, url: %q, slot: %s, confirm: %s, tables: {include: ['public.*']}}]
subscriptions:
`, s.t.TempDir(), url, s.pub, s.slot, s.confirm)
	for _, name := range slices.Sorted(maps.Keys(s.subs)) {
		fmt.Fprintf(&b, "  - {name: %s, url: %q}\n", name+s.suffix, s.subs[name])
	}
	return b.String()
}

func parse(t testing.TB, text string) *config.Config {
	t.Helper()
	c, err := config.Parse("test.yaml", []byte(text), func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// agents are what one process runs.
type agents struct {
	cfg  *config.Config
	stop func()
}

// run starts roles of a configuration in this process.
func run(t *testing.T, cfg *config.Config, roles agent.Roles, name string) *agents {
	return runWith(t, cfg, roles, name, monitor.NewState("test"))
}

func runWith(t *testing.T, cfg *config.Config, roles agent.Roles, name string, state *monitor.State) *agents {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	log := slog.New(slog.NewTextHandler(t.Output(), nil)).With("agent", name)
	go func() { ended <- agent.Run(ctx, cfg, agent.Options{Roles: roles, Logger: log, State: state}) }()
	return &agents{
		cfg: cfg,
		stop: func() {
			cancel()
			select {
			case err := <-ended:
				if err != nil {
					t.Errorf("agent %s: %v", name, err)
				}
			case <-time.After(40 * time.Second):
				t.Errorf("agent %s does not end", name)
			}
		},
	}
}

// start runs the reader ("") or the applier of a subscription.
func (s *site) start(names ...string) {
	s.t.Helper()
	for _, name := range names {
		cfg, roles := parse(s.t, s.text()), agent.RoleReader
		if name != "" {
			roles = agent.RoleApplier
			cfg.Subscriptions = slices.DeleteFunc(cfg.Subscriptions, func(c config.Subscription) bool { return c.Name != name+s.suffix })
		}
		s.running[name] = run(s.t, cfg, roles, name)
	}
}

func (s *site) startAll() {
	s.t.Helper()
	s.start("", "live", "behind")
}

func (s *site) stop(names ...string) {
	for _, name := range names {
		if a := s.running[name]; a != nil {
			delete(s.running, name)
			a.stop()
		}
	}
}

func (s *site) stopAll() { s.stop("behind", "live", "") }

func (s *site) commit(n int) {
	s.t.Helper()
	for range n {
		pgtest.Exec(s.t, s.pub, s.h.next())
	}
}

// equal waits until subscribers show what the publisher has.
func (s *site) equal(subs ...string) {
	s.t.Helper()
	want := pgtest.QueryString(s.t, s.pub, stateOf)
	for _, name := range subs {
		s.reach(name, want)
		s.watches[name].off.Store(false)
	}
}

func (s *site) reach(name, want string) {
	s.t.Helper()
	var conn *pgx.Conn
	defer func() { closeConn(conn) }()
	got := ""
	for end := time.Now().Add(patience); got != want; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			s.explain(name)
			s.t.Fatalf("subscriber %s shows %s, the publisher %s; status: %s", name, got, want, s.problems())
		}
		if state, err := look(s.t.Context(), &conn, s.subs[name]); err == nil {
			got = state
		}
	}
}

// explain logs what a subscription that does not move waits for.
func (s *site) explain(name string) {
	s.t.Helper()
	s.t.Logf("sessions:\n%s", pgtest.QueryString(s.t, s.subs[name], `SELECT application_name, state, wait_event, left(query, 100) FROM pg_stat_activity WHERE datname = current_database()`))
	s.t.Logf("position: %s", pgtest.QueryString(s.t, s.subs[name], `SELECT position, last_commit, updated_at FROM walferry.subscription`))
	s.t.Logf("tables: %s", pgtest.QueryString(s.t, s.subs[name], `SELECT table_name, state, copy_lsn FROM walferry.subscription_table`))
	s.t.Logf("publisher: %s", pgtest.QueryString(s.t, s.pub, `SELECT pg_current_wal_insert_lsn(), slot_name, active, confirmed_flush_lsn FROM pg_replication_slots WHERE database = current_database()`))
	for _, p := range s.status("").Publishers {
		s.t.Logf("reader: %s, queued %v, queue %+v", p.State, p.QueuedLSN, p.Queue)
	}
}

// status is what walferry status shows of one process.
func (s *site) status(name string) *monitor.Document {
	s.t.Helper()
	a := s.running[name]
	if a == nil {
		return &monitor.Document{}
	}
	cfg := *a.cfg
	if name == "" {
		cfg.Subscriptions = nil // of other processes
	}
	d, err := agent.Status(s.t.Context(), &cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

func (s *site) readerError() string {
	for _, p := range s.status("").Publishers {
		if p.State == monitor.Failed {
			return p.LastError
		}
	}
	return ""
}

func (s *site) applierError(name string) *monitor.ErrorCard {
	for _, b := range s.status(name).Subscriptions {
		if b.Name == name+s.suffix && b.State == monitor.Failed {
			return b.Error
		}
	}
	return nil
}

func (s *site) problems() string {
	var out []string
	if e := s.readerError(); e != "" {
		out = append(out, "reader: "+e)
	}
	for name := range s.subs {
		if c := s.applierError(name); c != nil {
			out = append(out, name+": "+c.Message)
		}
	}
	return strings.Join(out, "; ")
}

// readerSays waits for an error of the log reader that holds all texts.
func (s *site) readerSays(texts ...string) (text string) {
	s.t.Helper()
	pgtest.Eventually(s.t, patience, func() error {
		time.Sleep(statusPause)
		text = s.readerError()
		return holds(text, texts)
	})
	s.t.Logf("reader: %s", text)
	return text
}

// applierSays waits for an error of a subscription whose message holds all
// texts, and returns the remedy.
func (s *site) applierSays(name string, texts ...string) (remedy string) {
	s.t.Helper()
	pgtest.Eventually(s.t, patience, func() error {
		time.Sleep(statusPause)
		c := s.applierError(name)
		if c == nil {
			return errors.New("no error")
		}
		remedy = c.Remedy
		return holds(c.Message, texts)
	})
	s.t.Logf("subscription %s: %s", name, s.applierError(name).Message)
	return remedy
}

func holds(text string, want []string) error {
	for _, w := range want {
		if !strings.Contains(text, w) {
			return fmt.Errorf("%q does not name %q", text, w)
		}
	}
	if text == "" {
		return errors.New("no error")
	}
	return nil
}

// untouched is asserted for those whom a fault does not concern.
func (s *site) untouched(names ...string) {
	s.t.Helper()
	for _, name := range names {
		if c := s.applierError(name); c != nil {
			s.t.Errorf("subscription %s is in error: %s", name, c.Message)
		}
	}
}

var command = regexp.MustCompile(`walferry (drop(?: --subscription [A-Za-z0-9_]+| --[a-z]+)*)`)

// follow does what a remedy says: it stops walferry, types the command that the
// text names, and starts it again.
func (s *site) follow(remedy string) {
	s.t.Helper()
	m := command.FindStringSubmatch(remedy)
	if m == nil {
		s.t.Fatalf("no command in the remedy %q", remedy)
	}
	was := slices.Collect(maps.Keys(s.running))
	s.stopAll()
	file := filepath.Join(s.t.TempDir(), "walferry.yaml")
	if err := os.WriteFile(file, []byte(s.text()), 0o600); err != nil {
		s.t.Fatal(err)
	}
	args := append(strings.Fields(m[1]), "--yes", "-c", file)
	s.t.Logf("walferry %s", strings.Join(args, " "))
	if strings.Contains(m[1], "--empty") {
		for name, w := range s.watches {
			if !strings.Contains(m[1], "--subscription") || strings.Contains(m[1], "--subscription "+name+s.suffix+" ") {
				w.off.Store(true)
			}
		}
	}
	out, err := exec.Command(binary(s.t), args...).CombinedOutput()
	s.t.Logf("%s", out)
	if err != nil {
		s.t.Fatalf("%s: %v", m[0], err)
	}
	s.start(was...)
}

// jetstream is a client beside walferry.
func (s *site) jetstream() jetstream.JetStream {
	s.t.Helper()
	nc, err := nats.Connect(s.natsURL)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		s.t.Fatal(err)
	}
	return js
}

func (s *site) stream() jetstream.Stream {
	s.t.Helper()
	st, err := s.jetstream().Stream(s.t.Context(), stream)
	if err != nil {
		s.t.Fatal(err)
	}
	return st
}

// last is the sequence number of the last batch.
func (s *site) last() uint64 {
	s.t.Helper()
	info, err := s.stream().Info(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return info.State.LastSeq
}

// hold keeps the applier of a subscription from going on until it is released.
func (s *site) hold(name string) (release func()) {
	s.t.Helper()
	conn, err := pgx.Connect(s.t.Context(), s.subs[name])
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { closeConn(conn) })
	if _, err := conn.Exec(s.t.Context(), "BEGIN; LOCK TABLE last IN SHARE MODE"); err != nil {
		s.t.Fatal(err)
	}
	return func() {
		if _, err := conn.Exec(s.t.Context(), "COMMIT"); err != nil {
			s.t.Fatal(err)
		}
	}
}

// registered waits until the queue knows the subscriptions.
func (s *site) registered(names ...string) {
	s.t.Helper()
	js := s.jetstream()
	pgtest.Eventually(s.t, patience, func() error {
		kv, err := js.KeyValue(s.t.Context(), "walferry_main")
		if err != nil {
			return err
		}
		for _, name := range names {
			if _, err := kv.Get(s.t.Context(), name+s.suffix); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return nil
	})
}
