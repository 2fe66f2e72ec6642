package pgtest

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// DefaultVersion is the major version used when neither the test nor
// PGTEST_VERSION names one.
const DefaultVersion = 15

// required lists the versions whose absence is a failure under CI=true.
var required = []int{15, 17}

// Cluster is one PostgreSQL server.
type Cluster struct {
	version  int
	srv      Server
	settings map[string]string
}

// Option changes how a cluster is made.
type Option func(*options)

type options struct {
	version  int
	settings map[string]string
	provider Provider
}

// WithVersion asks for a major version.
func WithVersion(major int) Option { return func(o *options) { o.version = major } }

// WithSetting sets one server parameter, overriding the defaults of this package.
func WithSetting(name, value string) Option {
	return func(o *options) { o.settings[name] = value }
}

// WithFsync makes the server durable against a crash of the machine, as in production.
func WithFsync() Option {
	return func(o *options) {
		o.settings["fsync"] = "on"
		o.settings["full_page_writes"] = "on"
	}
}

func newOptions(opts []Option) options {
	o := options{version: defaultVersion(), settings: defaultSettings()}
	for _, f := range opts {
		f(&o)
	}
	return o
}

func (o options) key() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d|%t", o.version, o.provider != nil)
	for _, k := range slices.Sorted(maps.Keys(o.settings)) {
		fmt.Fprintf(&b, "|%s=%s", k, o.settings[k])
	}
	return b.String()
}

func defaultVersion() int {
	if n, err := strconv.Atoi(os.Getenv("PGTEST_VERSION")); err == nil {
		return n
	}
	return DefaultVersion
}

func defaultSettings() map[string]string {
	return map[string]string{
		"wal_level":                       "logical",
		"max_connections":                 "200",
		"max_replication_slots":           "32",
		"max_wal_senders":                 "32",
		"max_worker_processes":            "24",
		"max_logical_replication_workers": "12",
		"max_prepared_transactions":       "10",
		"max_locks_per_transaction":       "256",
		"track_commit_timestamp":          "on",
		"shared_buffers":                  "64MB",
		"fsync":                           "off",
		"full_page_writes":                "off",
		"timezone":                        "UTC",
		"log_timezone":                    "UTC",
		"lc_messages":                     "C",
		"wal_retrieve_retry_interval":     "100ms",
		"log_line_prefix":                 "%m [%p] %q%d/%a ",
	}
}

// shared holds the clusters of this test process; Run stops them.
var shared struct {
	sync.Mutex
	clusters map[string]*Cluster
	used     map[string]bool
}

// Shared returns the cluster of this test process for the options, starting it
// at the first call. The caller must not stop or restart it.
func Shared(t testing.TB, opts ...Option) *Cluster {
	t.Helper()
	o := newOptions(opts)
	shared.Lock()
	defer shared.Unlock()
	if c := shared.clusters[o.key()]; c != nil {
		return c
	}
	c := launch(t, o)
	if shared.clusters == nil {
		shared.clusters = map[string]*Cluster{}
	}
	shared.clusters[o.key()] = c
	return c
}

// New starts a private cluster and removes it when the test ends. If the test
// failed, the end of the server log is added to the test's output.
func New(t testing.TB, opts ...Option) *Cluster {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	c := launch(t, newOptions(opts))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of PostgreSQL %d on port %d:\n%s", c.version, c.Port(), c.srv.LogTail())
		}
		c.srv.Remove()
	})
	return c
}

// launch must be called with shared locked: starts are serialised, so that two
// tests do not both make the template or take the same port.
func launch(t testing.TB, o options) *Cluster {
	t.Helper()
	srv, what, err := provide(o)
	if err != nil {
		if os.Getenv("CI") == "true" && slices.Contains(required, o.version) {
			t.Fatalf("PostgreSQL %d is required with CI=true: %v", o.version, err)
		}
		t.Skipf("PostgreSQL %d is not available: %v", o.version, err)
	}
	if err := srv.Start(); err != nil {
		tail := srv.LogTail()
		srv.Remove()
		t.Fatalf("start PostgreSQL %d: %v\n%s", o.version, err, tail)
	}
	if shared.used == nil {
		shared.used = map[string]bool{}
	}
	shared.used[what] = true
	return &Cluster{version: o.version, srv: srv, settings: o.settings}
}

// Run runs the tests of a package for its TestMain, removes the shared clusters
// and prints the versions that were used. It returns the exit code.
func Run(m *testing.M) int {
	code := m.Run()
	shared.Lock()
	defer shared.Unlock()
	for _, c := range shared.clusters {
		c.srv.Remove()
	}
	shared.clusters = nil
	removeProcessDir()
	if len(shared.used) == 0 {
		fmt.Println("pgtest: no PostgreSQL server was used")
	} else {
		fmt.Println("pgtest: used", strings.Join(slices.SortedFunc(maps.Keys(shared.used), cmp.Compare[string]), ", "))
	}
	return code
}

// URL is the connection string of a database of the cluster, as superuser postgres.
func (c *Cluster) URL(db string) string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", c.Port(), db)
}

// Version is the major version.
func (c *Cluster) Version() int { return c.version }

// Port is the TCP port on 127.0.0.1; it stays the same over restarts.
func (c *Cluster) Port() int { return c.srv.Port() }

// DataDir is the data directory on this machine, empty when the server runs in a container.
func (c *Cluster) DataDir() string { return c.srv.DataDir() }

// BinDir is the folder of pg_dump, pg_basebackup and the like of the cluster's
// version, empty when the server runs in a container.
func (c *Cluster) BinDir() string { return c.srv.BinDir() }

// Log returns the last lines of the server's log.
func (c *Cluster) Log() string { return c.srv.LogTail() }

// Stop shuts the server down. Mode is smart, fast or immediate, as in pg_ctl.
func (c *Cluster) Stop(mode string) error {
	if err := c.srv.Stop(mode); err != nil {
		return fmt.Errorf("stop PostgreSQL %d: %w", c.version, err)
	}
	return nil
}

// Start starts a stopped or killed server again, on the same port, and waits
// until it accepts connections.
func (c *Cluster) Start(t testing.TB) {
	t.Helper()
	if err := c.srv.Start(); err != nil {
		t.Fatalf("start PostgreSQL %d: %v\n%s", c.version, err, c.srv.LogTail())
	}
}

// Restart is Stop and Start.
func (c *Cluster) Restart(t testing.TB, mode string) {
	t.Helper()
	if err := c.Stop(mode); err != nil {
		t.Fatal(err)
	}
	c.Start(t)
}

// Kill ends the postmaster and all its children by SIGKILL, as a power failure
// would (what the kernel already holds of their files survives).
func (c *Cluster) Kill(t testing.TB) {
	t.Helper()
	if err := c.srv.Kill(); err != nil {
		t.Fatalf("kill PostgreSQL %d: %v", c.version, err)
	}
}
