package snapshot

import (
	"os"
	"testing"

	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Run(m)) }

// pair is a publisher and a subscriber database.
type pair struct {
	t        testing.TB
	pub, sub string
}

// newPair makes two databases, runs both on both sides, and pub and sub on
// theirs.
func newPair(t testing.TB, both, pub, sub string) *pair {
	t.Helper()
	return newPairOn(t, pgtest.Shared(t), both, pub, sub)
}

func newPairOn(t testing.TB, c *pgtest.Cluster, both, pub, sub string) *pair {
	t.Helper()
	p := &pair{t: t, pub: c.DB(t), sub: c.DB(t)}
	makeLedger(t, p.sub)
	for _, s := range []string{both, pub} {
		if s != "" {
			pgtest.Exec(t, p.pub, s)
		}
	}
	for _, s := range []string{both, sub} {
		if s != "" {
			pgtest.Exec(t, p.sub, s)
		}
	}
	return p
}

// makeLedger makes schema walferry.
func makeLedger(t testing.TB, url string) {
	t.Helper()
	c, err := connect(t.Context(), url, "test")
	if err == nil {
		err = sqlw.EnsureSchema(t.Context(), c)
		closeConn(c)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// options copies tables of schema public under their own name.
func (p *pair) options(tables ...string) Options {
	o := Options{Publisher: p.pub, Subscriber: p.sub, Subscription: "s"}
	for _, n := range tables {
		o.Tables = append(o.Tables, TableMap{SourceSchema: "public", SourceName: n, TargetSchema: "public", TargetName: n})
	}
	return o
}

func (p *pair) run(o Options) Result {
	p.t.Helper()
	r, err := Run(p.t.Context(), o)
	if err != nil {
		p.t.Fatalf("Run: %v", err)
	}
	return r
}

func (p *pair) fail(o Options) (Result, error) {
	p.t.Helper()
	r, err := Run(p.t.Context(), o)
	if err == nil {
		p.t.Fatal("Run succeeded, want an error")
	}
	return r, err
}

// same compares the answer to a query on both sides.
func (p *pair) same(sql string) {
	p.t.Helper()
	got, want := pgtest.QueryString(p.t, p.sub, sql), pgtest.QueryString(p.t, p.pub, sql)
	if got != want {
		p.t.Errorf("%s\n on the subscriber: %s\n on the publisher:  %s", sql, clip(got), clip(want))
	}
}

func (p *pair) want(url, sql, want string) {
	p.t.Helper()
	if got := pgtest.QueryString(p.t, url, sql); got != want {
		p.t.Errorf("%s\n got  %s\n want %s", sql, clip(got), clip(want))
	}
}

func clip(s string) string {
	if len(s) > 1000 {
		return s[:1000] + "..."
	}
	return s
}
