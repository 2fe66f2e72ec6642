package scenarios

import (
	"fmt"
	"testing"

	"github.com/walferry/walferry/internal/pgtest"
	_ "github.com/walferry/walferry/internal/pgtest/pgcontainer" // versions without binaries
)

// Server is a PostgreSQL server that may be restarted.
type Server interface {
	URL(db string) string
	BinDir() string // empty: unknown
	Restart(mode string) error
}

// settings are what the scenarios need over the defaults of package pgtest.
var settings = map[string]string{
	"shared_buffers":            "128MB",
	"max_wal_size":              "2GB",
	"max_prepared_transactions": "20",
	"autovacuum":                "off",
	"jit":                       "off",
	"lc_monetary":               "C",
}

// StartServers starts a publisher and a subscriber that live as long as t.
func StartServers(t testing.TB, version int) (pub, sub Server) {
	t.Helper()
	start := func() Server {
		opts := []pgtest.Option{pgtest.WithVersion(version)}
		for k, v := range settings {
			opts = append(opts, pgtest.WithSetting(k, v))
		}
		return &cluster{pgtest.New(t, opts...)}
	}
	return start(), start()
}

type cluster struct{ *pgtest.Cluster }

// Restart stops the server in a mode of pg_ctl and starts it again.
func (c *cluster) Restart(mode string) error {
	if err := c.Stop(mode); err != nil {
		return err
	}
	return Guard("scenarios", func(t testing.TB) { c.Start(t) })
}

// guard is a testing.TB outside of a test: what would end the test is an error of
// [Guard], what it prints goes nowhere unless it ends the test.
type guard struct {
	testing.TB
	name     string
	cleanups []func()
}

type guardFailure struct{ msg string }

// Guard runs f, which may use a testing.TB as the helpers of package pgtest do, and
// then what it gave to Cleanup.
func Guard(name string, f func(testing.TB)) (err error) {
	g := &guard{name: name}
	defer func() {
		if r := recover(); r != nil {
			fail, ok := r.(guardFailure)
			if !ok {
				panic(r)
			}
			err = fmt.Errorf("%s", fail.msg)
		}
	}()
	defer func() {
		for i := len(g.cleanups) - 1; i >= 0; i-- {
			g.cleanups[i]()
		}
	}()
	f(g)
	return nil
}

func (g *guard) Helper()                       {}
func (g *guard) Name() string                  { return g.name }
func (g *guard) Failed() bool                  { return false }
func (g *guard) Log(...any)                    {}
func (g *guard) Logf(string, ...any)           {}
func (g *guard) Cleanup(f func())              { g.cleanups = append(g.cleanups, f) }
func (g *guard) Fatal(a ...any)                { panic(guardFailure{fmt.Sprint(a...)}) }
func (g *guard) Fatalf(f string, a ...any)     { panic(guardFailure{fmt.Sprintf(f, a...)}) }
func (g *guard) Skip(a ...any)                 { panic(guardFailure{fmt.Sprint(a...)}) }
func (g *guard) Skipf(format string, a ...any) { panic(guardFailure{fmt.Sprintf(format, a...)}) }
