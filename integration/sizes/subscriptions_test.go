package sizes

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/walferry/walferry/internal/pgtest"
)

// 50 subscriptions on one queue: they cost the publisher one connection more than
// one does, and memory stays within its bound while all catch up.
func TestSize_ManySubscriptions(t *testing.T) {
	n, rows := scaled(6, 50), scaled(10_000, 400_000)
	pub := pgtest.New(t, pgtest.WithSetting("max_connections", "100")).DB(t)
	target := pgtest.New(t, pgtest.WithSetting("max_connections", strconv.Itoa(4*n+20)), pgtest.WithSetting("max_replication_slots", strconv.Itoa(n+4)))
	pgtest.Exec(t, pub, `CREATE TABLE public.r (id bigint PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp(), v text)`,
		`INSERT INTO r SELECT g, now(), 'copied' FROM generate_series(1, 100) g`)
	var text strings.Builder
	fmt.Fprintf(&text, "queue: {max_bytes: 4GiB}\npublishers:\n  - {name: main, url: %q, slot: %q}\nsubscriptions:\n", pub, slot())
	subs := make([]string, n)
	for i := range subs {
		subs[i] = target.DB(t)
		fmt.Fprintf(&text, "  - {name: copy%d, url: %q}\n", i+1, subs[i])
	}
	f := startFerry(t, text.String())
	f.within(t, 0, fmt.Sprintf("%d subscriptions: start and initial copy", n), f.wait(t, patience()))
	f.idle(t, pub, subs[0], fmt.Sprintf("%d subscriptions", n))
	if got := walferrys(t, pub); got > 4 {
		t.Errorf("%d subscriptions hold %d connections to the publisher, want at most 4", n, got)
	}
	if got := walferrys(t, subs[0]); got > 3*n {
		t.Errorf("%d subscriptions hold %d connections to the subscriber, want at most 3 each", n, got)
	}

	began := time.Now()
	for from := 1000; from < rows+1000; from += rows / 20 {
		pgtest.Exec(t, pub, fmt.Sprintf(`INSERT INTO r SELECT g, clock_timestamp(), repeat(md5(g::text), 4) FROM generate_series(%d, %d) g`, from, from+rows/20-1))
	}
	f.wait(t, patience())
	f.within(t, 0, fmt.Sprintf("%d rows to each of %d subscriptions", rows, n), time.Since(began))
	want := pgtest.QueryString(t, pub, digest("public.r"))
	for i, s := range subs {
		if got := pgtest.QueryString(t, s, digest("public.r")); got != want {
			t.Errorf("subscription copy%d has %s, publisher %s", i+1, got, want)
		}
	}

	// Idle latency: how long a single row takes to the first and last of them.
	var worst time.Duration
	for i := range 10 {
		began := time.Now()
		pgtest.Exec(t, pub, fmt.Sprintf(`INSERT INTO r VALUES (%d, clock_timestamp(), 'single')`, -1-i))
		for _, s := range []string{subs[0], subs[n-1]} {
			pgtest.Eventually(t, 20*time.Second, func() error {
				if pgtest.QueryString(t, s, fmt.Sprintf(`SELECT count(*) FROM r WHERE id = %d`, -1-i)) != "1" {
					return fmt.Errorf("row %d is not there", -1-i)
				}
				return nil
			})
		}
		worst = max(worst, time.Since(began))
	}
	t.Logf("FIGURES %d subscriptions: a single row reaches first and last within %v at most, of ten", n, worst.Round(time.Millisecond))
}

// walferrys counts the connections of walferry to the server of a database.
func walferrys(t *testing.T, url string) int {
	t.Helper()
	n, err := strconv.Atoi(pgtest.QueryString(t, url, `SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'walferry%' AND backend_type IN ('client backend', 'walsender')`))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// idle reports what walferry costs when nothing happens: its own processor time,
// connections and statements on both servers.
func (f *ferry) idle(t *testing.T, pub, sub, what string) {
	t.Helper()
	period := time.Duration(scaled(1, 10)) * time.Second
	count := func(url string) (xacts int64, cpu float64) {
		xacts, err := strconv.ParseInt(pgtest.QueryString(t, url, `SELECT pg_stat_force_next_flush(); SELECT pg_stat_clear_snapshot(); SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database`), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		for pid := range strings.SplitSeq(pgtest.QueryString(t, url, `SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'walferry%'`), "\n") {
			cpu += serverCPU(pid)
		}
		return xacts, cpu
	}
	pubX, pubCPU := count(pub)
	subX, subCPU := count(sub)
	own := f.cpu(t)
	time.Sleep(period)
	ownAfter := f.cpu(t)
	pubX2, pubCPU2 := count(pub)
	subX2, subCPU2 := count(sub)
	share := func(s float64) float64 { return 100 * s / period.Seconds() }
	t.Logf("FIGURES %s idle: walferry %.1f %% of a processor; publisher %d connections, %.1f transactions/s, %.1f %% of a processor; subscriber's server %d connections, %.1f transactions/s, %.1f %%",
		what, share((ownAfter - own).Seconds()), walferrys(t, pub), float64(pubX2-pubX)/period.Seconds(), share(pubCPU2-pubCPU),
		walferrys(t, sub), float64(subX2-subX)/period.Seconds(), share(subCPU2-subCPU))
	if s := share(pubCPU2 - pubCPU); s > 10 {
		t.Errorf("%s: idle, walferry's connections use %.1f %% of a processor on the publisher, want at most 10", what, s)
	}
}

// serverCPU is the processor time in seconds of a backend; 0 when it is gone.
func serverCPU(pid string) float64 {
	b, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return 0
	}
	v := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	user, _ := strconv.ParseInt(v[11], 10, 64)
	system, _ := strconv.ParseInt(v[12], 10, 64)
	return float64(user+system) / 100 // USER_HZ
}
