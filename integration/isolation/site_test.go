package isolation

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/walferry/walferry/agent"
	"github.com/walferry/walferry/internal/pgtest"
	"github.com/walferry/walferry/monitor"
	"github.com/walferry/walferry/queue/natsd"
)

// site is a publisher with two subscriptions under load: one whose subscriber gets
// into trouble, and one that must not notice.
type site struct {
	fleet
	pub, steady, hurt string
	load              *load
}

// hurtTables are those of the subscriber in trouble.
const hurtTables = `CREATE TABLE public.a (id bigint PRIMARY KEY, at timestamptz); CREATE TABLE public.b (id bigint PRIMARY KEY, v text)`

// newSite starts everything. The tables of hurt exist; via is the connection string
// by which walferry reaches it.
func newSite(t *testing.T, hurt, via string) *site {
	t.Helper()
	s := &site{pub: pgtest.Shared(t).DB(t), steady: pgtest.Shared(t).DB(t), hurt: hurt}
	pgtest.Exec(t, s.pub,
		`CREATE TABLE public.a (id bigint PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp())`,
		`CREATE TABLE public.b (id bigint PRIMARY KEY, v text)`)
	pgtest.Exec(t, s.steady, `CREATE SCHEMA app; CREATE TABLE app.a (id bigint PRIMARY KEY, at timestamptz); CREATE TABLE app.b (id bigint PRIMARY KEY, v text)`)
	nats, err := natsd.Start(natsd.Options{StoreDir: t.TempDir(), Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nats.Shutdown)
	s.fleet = fleet{t: t, text: fmt.Sprintf(`
queue: {url: %q, retention: 0s}
publishers:
  - {name: main, url: %q, slot: %q, tables: {include: ['public.*']}}
`, nats.URL(), s.pub, "walferry_isolation_"+strconv.Itoa(os.Getpid()))}
	s.subs = map[string]string{
		"steady": fmt.Sprintf(`{name: steady, url: %q, rename: {schemas: {public: app}}}`, s.steady),
		"hurt":   fmt.Sprintf(`{name: hurt, url: %q}`, via),
	}
	t.Cleanup(s.start("", agent.RoleReader))
	t.Cleanup(s.start("steady", agent.RoleApplier))
	t.Cleanup(s.start("hurt", agent.RoleApplier))
	s.load = startLoad(t, s.pub)
	s.wait("steady", "hurt")
	return s
}

// status is that of the subscription in trouble.
func (s *site) status() monitor.SubscriptionStatus {
	return s.states["hurt"].Document().Subscriptions[0]
}

// suffer causes trouble, waits until the status of hurt is as shown wants it, goes
// on for d, ends the trouble, and waits for hurt to come back by itself. Lag of the
// steady subscriber and slot are watched all the while.
func (s *site) suffer(what string, d time.Duration, cause func(), shown func(monitor.SubscriptionStatus) error, heal func()) {
	t := s.t
	t.Helper()
	quiet := sample(t, s.pub, s.steady, 3*time.Second)
	before := slotPosition(t, s.pub)
	cause()
	began := time.Now()
	pgtest.Eventually(t, 45*time.Second, func() error { return shown(s.status()) })
	t.Logf("status after %v: %s", time.Since(began).Round(100*time.Millisecond), describe(s.status()))
	during := sample(t, s.pub, s.steady, d)
	after := slotPosition(t, s.pub)
	lag := hurtLag(t, s)
	pgtest.Eventually(t, 10*time.Second, func() error { return shown(s.status()) }) // still
	heal()
	healed := time.Now()
	s.wait("hurt")
	back := time.Since(healed)
	s.load.stop()
	s.wait("steady", "hurt")

	t.Logf("FIGURES %s, for %v: lag of the other subscriber p50 %v, max %v before; p50 %v, max %v during; slot %s -> %s; the affected one was %v behind and back after %v",
		what, time.Since(began).Round(time.Second), quiet[len(quiet)/2], quiet[len(quiet)-1], during[len(during)/2], during[len(during)-1], before, after, lag.Round(100*time.Millisecond), back.Round(100*time.Millisecond))
	if m := slices.Max(during); m > lagLimit {
		t.Errorf("%s: the other subscriber was %v behind, limit %v", what, m, lagLimit)
	}
	if after <= before {
		t.Errorf("%s: the slot stood still at %s", what, after)
	}
	if st := s.states["steady"].Document().Subscriptions[0]; st.State != monitor.Streaming || st.Waiting != nil {
		t.Errorf("%s: subscription steady: %s", what, describe(st))
	}
	pgtest.Eventually(t, 20*time.Second, func() error {
		if st := s.status(); st.State != monitor.Streaming || st.Waiting != nil || st.Error != nil {
			return fmt.Errorf("status after the trouble: %s", describe(st))
		}
		return nil
	})
	for _, table := range []string{"a", "b"} {
		count := `SELECT count(*), sum(id), count(DISTINCT id) FROM `
		want := pgtest.QueryString(t, s.pub, count+"public."+table)
		for url, schema := range map[string]string{s.steady: "app.", s.hurt: "public."} {
			if got := pgtest.QueryString(t, url, count+schema+table); got != want {
				t.Errorf("%s: %s%s: count, sum, distinct = %s, want %s", what, schema, table, got, want)
			}
		}
	}
}

// hurtLag is how old the oldest row is that the subscriber in trouble lacks, as
// walferry tells.
func hurtLag(t *testing.T, s *site) time.Duration {
	t.Helper()
	if l := s.status().LagSeconds; l != nil {
		return time.Duration(*l * float64(time.Second))
	}
	return -1
}

func describe(s monitor.SubscriptionStatus) string {
	text := "state " + s.State
	if s.Waiting != nil {
		text += ", waiting for " + s.Waiting.For
	}
	if s.Error != nil {
		text += fmt.Sprintf(", error %q, detail %q, SQLSTATE %s, remedy %q", s.Error.Message, s.Error.Detail, s.Error.SQLState, s.Error.Remedy)
	}
	return text
}
