package soak

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/walferry/walferry/internal/faultnet"
	"github.com/walferry/walferry/internal/natstest"
	"github.com/walferry/walferry/internal/pgtest"
	"github.com/walferry/walferry/monitor"
)

// The layouts.
const (
	embedded = "embedded" // one walferry, its queue inside
	split    = "split"    // reader, applier and nats-server are processes of their own
)

// system is everything that runs and can be broken.
type system struct {
	t        *testing.T
	binary   string
	dir      string
	logs     string
	pub, sub *pgtest.Cluster
	pubURL   string // past the proxies, for load, watcher and comparison
	subURL   string
	direct   string // configuration past the proxies, for wait and status
	links    []link

	walferry        *process // embedded
	reader, applier *process // split
	nats            *natstest.Process
	all             []*process
}

// link is a network connection between two parts.
type link struct {
	name  string
	proxy *faultnet.Proxy
}

// newSystem makes the servers and configurations; the settings are the seed's.
func newSystem(t *testing.T, layout string, seed uint64, rng *rand.Rand) *system {
	t.Helper()
	s := &system{t: t, binary: build(t), dir: t.TempDir(), logs: t.TempDir()}
	if *logsFlag != "" {
		s.logs = filepath.Join(*logsFlag, fmt.Sprintf("%s-%d", layout, seed))
		if err := os.MkdirAll(s.logs, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	short := []pgtest.Option{pgtest.WithSetting("wal_sender_timeout", "5s"), pgtest.WithSetting("deadlock_timeout", "50ms")}
	s.pub = pgtest.New(t, append(short, pgtest.WithSetting("logical_decoding_work_mem", "256kB"))...)
	s.sub = pgtest.New(t, short...)
	s.pubURL, s.subURL = s.pub.DB(t), s.sub.DB(t)

	settings := settings{
		streaming: pick(rng, "on", "off"), confirm: pick(rng, "queued", "queued", "applied"), retention: pick(rng, "1s", "48h"),
	}
	pubLink := s.link("publisher", fmt.Sprintf("127.0.0.1:%d", s.pub.Port()))
	subLink := s.link("subscriber", fmt.Sprintf("127.0.0.1:%d", s.sub.Port()))
	t.Logf("settings: %+v", settings)
	through := settings
	through.pub, through.sub = via(s.pubURL, s.pub.Port(), pubLink), via(s.subURL, s.sub.Port(), subLink)
	settings.pub, settings.sub = s.pubURL, s.subURL
	if layout == split {
		s.nats = natstest.StartProcess(t)
		settings.nats = s.nats.URL()
		natsReader, natsApplier := s.link("NATS to reader", s.nats.Addr()), s.link("NATS to applier", s.nats.Addr())
		through.nats = "nats://" + natsReader.Addr()
		s.reader = s.process("reader", s.config("reader", through))
		through.nats = "nats://" + natsApplier.Addr()
		s.applier = s.process("applier", s.config("applier", through))
	} else {
		s.walferry = s.process("run", s.config("run", through))
	}
	s.direct = s.config("direct", settings)
	return s
}

func pick(rng *rand.Rand, of ...string) string { return of[rng.IntN(len(of))] }

// via sends a connection string through a proxy.
func via(url string, port int, p *faultnet.Proxy) string {
	return strings.Replace(url, fmt.Sprintf("127.0.0.1:%d", port), p.Addr(), 1)
}

func (s *system) link(name, target string) *faultnet.Proxy {
	p := faultnet.Start(s.t, target)
	s.links = append(s.links, link{name, p})
	return p
}

// settings of a configuration.
type settings struct {
	pub, sub, nats                string
	streaming, confirm, retention string
}

// config writes a configuration file. All have the same data_dir.
func (s *system) config(name string, c settings) string {
	s.t.Helper()
	queue := ""
	if c.nats != "" {
		queue = fmt.Sprintf(", url: %q", c.nats)
	}
	file := filepath.Join(s.dir, name+".yaml")
	text := fmt.Sprintf(`
data_dir: %q
queue: {max_bytes: 3GiB, retention: %s%s}
publishers:
  - {name: main, url: %q, tables: {include: ['public.*']}, streaming: '%s', confirm: %s}
subscriptions:
  - {name: copy, publisher: main, url: %q}
log: {format: text}
`, filepath.Join(s.dir, "data"), c.retention, queue, c.pub, c.streaming, c.confirm, c.sub)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return file
}

func (s *system) process(verb, config string) *process {
	p := newProcess(s.t, filepath.Join(s.logs, fmt.Sprintf("%s-%d.log", verb, len(s.all))), s.binary, verb, "-c", config)
	s.all = append(s.all, p)
	return p
}

// another is a second process like p, to run beside it.
func (s *system) another(p *process) *process { return s.process(p.args[1], p.args[3]) }

// start starts every walferry process.
func (s *system) start() {
	for _, p := range s.all {
		p.start()
	}
}

// check fails when a process has ended by itself.
func (s *system) check() {
	s.t.Helper()
	for _, p := range s.all {
		p.check()
	}
}

// wait returns when the subscriber has what is committed now.
func (s *system) wait(limit time.Duration) {
	s.t.Helper()
	out, err := exec.Command(s.binary, "wait", "--timeout", limit.String(), "-c", s.direct).CombinedOutput()
	if err != nil {
		s.t.Fatalf("walferry wait: %v\n%s", err, out)
	}
}

// healthy fails unless status has nothing to complain about.
func (s *system) healthy() {
	s.t.Helper()
	pgtest.Eventually(s.t, 30*time.Second, func() error {
		out, err := exec.Command(s.binary, "status", "--json", "-c", s.direct).Output()
		if err != nil {
			return fmt.Errorf("walferry status: %w", err)
		}
		var d monitor.Document
		if err := json.Unmarshal(out, &d); err != nil {
			return err
		}
		if len(d.Publishers) != 1 || len(d.Subscriptions) != 1 {
			return fmt.Errorf("status shows %d publishers, %d subscriptions", len(d.Publishers), len(d.Subscriptions))
		}
		p, c := d.Publishers[0], d.Subscriptions[0]
		if p.State != monitor.Streaming || p.LastError != "" || c.State != monitor.Streaming || c.Error != nil || c.LagBytes != 0 {
			return fmt.Errorf("status is not healthy: %s", out)
		}
		return nil
	})
}

// end stops every process and looks for what is left.
func (s *system) end() {
	s.t.Helper()
	for _, p := range s.all {
		if p.cmd != nil {
			p.stop()
		}
	}
	for _, url := range []string{s.pubURL, s.subURL} {
		pgtest.Eventually(s.t, 10*time.Second, func() error {
			left := pgtest.QueryString(s.t, url, `SELECT pid, application_name, state, query FROM pg_stat_activity WHERE application_name LIKE 'walferry%'
				UNION ALL SELECT active_pid, slot_name, 'slot', plugin FROM pg_replication_slots WHERE active OR temporary
				UNION ALL SELECT transaction::text::int, gid, 'prepared', '' FROM pg_prepared_xacts`)
			if left != "" {
				return fmt.Errorf("left behind: %s", left)
			}
			return nil
		})
	}
	spool := filepath.Join(s.dir, "data", "spool")
	err := filepath.WalkDir(spool, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			s.t.Errorf("left behind: spool file %s", path)
		}
		return nil
	})
	if err != nil {
		s.t.Error(err)
	}
}
