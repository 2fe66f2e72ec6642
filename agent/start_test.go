package agent_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walferry/walferry/agent"
	"github.com/walferry/walferry/config"
	"github.com/walferry/walferry/internal/natstest"
	"github.com/walferry/walferry/internal/pgtest"
	"github.com/walferry/walferry/monitor"
	"github.com/walferry/walferry/queue"
)

func TestMain(m *testing.M) {
	natstest.Serve()
	os.Exit(pgtest.Run(m))
}

// running is an agent of this process.
type running struct {
	cfg   *config.Config
	state *monitor.State
	stop  func() error // interrupts it and returns its error
}

func parse(t *testing.T, text string) *config.Config {
	t.Helper()
	c, err := config.Parse("test.yaml", []byte(text), func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// start runs the roles of a configuration until the test ends.
func start(t *testing.T, cfg *config.Config, roles agent.Roles) *running {
	t.Helper()
	state := monitor.NewState("test")
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	go func() { ended <- agent.Run(ctx, cfg, agent.Options{Roles: roles, Logger: log, State: state}) }()
	var once error
	stopped := false
	stop := func() error {
		if !stopped {
			stopped = true
			cancel()
			select {
			case once = <-ended:
			case <-time.After(30 * time.Second):
				once = errors.New("the agent did not end")
			}
		}
		return once
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("agent: %v", err)
		}
	})
	return &running{cfg: cfg, state: state, stop: stop}
}

func (r *running) wait(t *testing.T, d time.Duration) error {
	t.Helper()
	return agent.Wait(t.Context(), r.cfg, agent.WaitOptions{Timeout: d, Out: t.Output()})
}

// A slot can be made only when every transaction that runs at the time has
// ended. Until then it is listed without a position.
func TestRun_SubscriptionWaitsForASlotInCreation(t *testing.T) {
	pub, sub := pgtest.Shared(t).DB(t), pgtest.Shared(t).DB(t)
	const table = "CREATE TABLE t (id int PRIMARY KEY)"
	pgtest.Exec(t, pub, table)
	pgtest.Exec(t, sub, table)
	slot := fmt.Sprintf("walferry_start_%d", os.Getpid())
	open, err := pgx.Connect(t.Context(), pub)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close(context.Background())
	if _, err := open.Exec(t.Context(), "BEGIN; INSERT INTO t VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	r := start(t, parse(t, fmt.Sprintf(`
data_dir: %q
publishers: [{name: main, url: %q, slot: %s, tables: {include: [public.t]}}]
subscriptions: [{name: copy, publisher: main, url: %q, initial: none}]
`, t.TempDir(), pub, slot, sub)), agent.RoleAll)

	pgtest.Eventually(t, 20*time.Second, func() error {
		if got := pgtest.QueryString(t, pub, "SELECT count(*) FROM pg_replication_slots WHERE confirmed_flush_lsn IS NULL AND slot_name = '"+slot+"'"); got != "1" {
			return fmt.Errorf("%s slots in creation", got)
		}
		return nil
	})
	pgtest.Eventually(t, 30*time.Second, func() error {
		err := r.wait(t, 3*time.Second)
		if !errors.Is(err, agent.ErrWaitTimeout) || !strings.Contains(err.Error(), slot) || !strings.Contains(err.Error(), "open on the publisher") {
			return fmt.Errorf("wait while the slot is being made: %w", err)
		}
		return nil
	})
	for _, s := range r.state.Document().Subscriptions {
		if s.State == monitor.Failed || s.Error != nil {
			t.Errorf("subscription %s is in state %s with error %+v", s.Name, s.State, s.Error)
		}
	}
	if _, err := open.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	pgtest.Eventually(t, 20*time.Second, func() error { // the slot's own beginning is after the commit
		if got := pgtest.QueryString(t, sub, "SELECT count(*) FROM walferry.subscription WHERE name = 'copy' AND position IS NOT NULL"); got != "1" {
			return errors.New("the subscription has no position")
		}
		return nil
	})
	pgtest.Exec(t, pub, "INSERT INTO t VALUES (2)")
	if err := r.wait(t, 20*time.Second); err != nil {
		t.Error(err)
	}
	if got := pgtest.QueryString(t, sub, "SELECT string_agg(id::text, ' ') FROM t"); got != "2" {
		t.Errorf("rows on the subscriber: %s, want 2", got)
	}
}

func TestRun_WaitsForAQueueThatIsNotThereYet(t *testing.T) {
	pub, sub := pgtest.Shared(t).DB(t), pgtest.Shared(t).DB(t)
	pgtest.Exec(t, pub, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
	pgtest.Exec(t, sub, "CREATE TABLE t (id int PRIMARY KEY)")
	nats := natstest.StartProcess(t)
	nats.Kill()
	text := func(dir string) string {
		return fmt.Sprintf(`
data_dir: %q
queue: {url: %q, max_bytes: 64MB}
publishers: [{name: main, url: %q, slot: walferry_late_%d, tables: {include: [public.t]}}]
subscriptions: [{name: copy, publisher: main, url: %q}]
`, dir, nats.URL(), pub, os.Getpid(), sub)
	}
	applier := start(t, parse(t, text(t.TempDir())), agent.RoleApplier)
	reader := start(t, parse(t, text(t.TempDir())), agent.RoleReader)
	early := start(t, parse(t, text(t.TempDir())), agent.RoleApplier)
	time.Sleep(time.Second)
	if err := early.stop(); err != nil {
		t.Errorf("an interrupt while the queue is waited for: %v", err)
	}
	if n := len(applier.state.Document().Subscriptions); n != 1 {
		t.Errorf("the status shows %d subscriptions while the queue is waited for, want 1", n)
	}
	nats.Start()
	if err := reader.wait(t, 30*time.Second); err != nil {
		t.Error(err)
	}
	if got := pgtest.QueryString(t, sub, "SELECT string_agg(id::text, ' ') FROM t"); got != "1" {
		t.Errorf("rows on the subscriber: %s, want 1", got)
	}
}

func TestRun_RefusesAWrongQueueAtOnce(t *testing.T) {
	cfg := parse(t, fmt.Sprintf(`
data_dir: %q
queue: {url: 'nats://127.0.0.1:4222', credentials: /does/not/exist}
publishers: [{name: main, url: 'postgres://127.0.0.1:1/x', tables: {include: [public.t]}}]
`, t.TempDir()))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err := agent.Run(ctx, cfg, agent.Options{Roles: agent.RoleReader, Logger: slog.New(slog.DiscardHandler), State: monitor.NewState("test")})
	if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "/does/not/exist") {
		t.Errorf("got %v, %v", err, ctx.Err())
	}
}

func TestWait_NamesTheErrorOfTheLogReader(t *testing.T) {
	pub, sub := pgtest.Shared(t).DB(t), pgtest.Shared(t).DB(t)
	slot := fmt.Sprintf("walferry_physical_%d", os.Getpid())
	pgtest.Exec(t, pub, "CREATE TABLE t (id int PRIMARY KEY)", "SELECT pg_create_physical_replication_slot('"+slot+"')")
	t.Cleanup(func() { pgtest.Exec(t, pub, "SELECT pg_drop_replication_slot('"+slot+"')") })
	pgtest.Exec(t, sub, "CREATE TABLE t (id int PRIMARY KEY)")
	r := start(t, parse(t, fmt.Sprintf(`
data_dir: %q
publishers: [{name: main, url: %q, slot: %s, tables: {include: [public.t]}}]
subscriptions: [{name: copy, publisher: main, url: %q}]
`, t.TempDir(), pub, slot, sub)), agent.RoleAll)
	pgtest.Eventually(t, 30*time.Second, func() error {
		err := r.wait(t, 3*time.Second)
		if !errors.Is(err, agent.ErrWaitTimeout) || !strings.Contains(err.Error(), "log reader of publisher main cannot go on") || !strings.Contains(err.Error(), slot) {
			return fmt.Errorf("wait while the log reader fails: %w", err)
		}
		return nil
	})
}

// What is committed between a copy and the beginning of the queue would be in
// neither: the copy waits for the slot, however long the log reader needs for it.
func TestRun_CopyBeginsOnlyWhenTheSlotIsThere(t *testing.T) {
	pub, sub := pgtest.Shared(t).DB(t), pgtest.Shared(t).DB(t)
	const table = "CREATE TABLE t (id int PRIMARY KEY)"
	pgtest.Exec(t, pub, table, "INSERT INTO t VALUES (1)", "CREATE PUBLICATION p FOR TABLE t")
	pgtest.Exec(t, sub, table)
	nats := natstest.StartProcess(t)
	cfg := func() *config.Config {
		return parse(t, fmt.Sprintf(`
data_dir: %q
queue: {url: %q, max_bytes: 64MB}
publishers: [{name: main, url: %q, slot: walferry_first_%d, publications: [p]}]
subscriptions: [{name: copy, publisher: main, url: %q}]
`, t.TempDir(), nats.URL(), pub, os.Getpid(), sub))
	}
	// The log reader makes the stream before it makes the slot, and may fail between.
	conn, err := queue.Connect(nats.URL(), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	q, err := queue.Open(t.Context(), conn, queue.Options{Name: "main", MaxBytes: 64e6, Replicas: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Create(t.Context()); err != nil {
		t.Fatal(err)
	}
	applier := start(t, cfg(), agent.RoleApplier)
	pgtest.Eventually(t, 30*time.Second, func() error { // the applier may take a moment to begin
		if err := applier.wait(t, 3*time.Second); !errors.Is(err, agent.ErrWaitTimeout) || !strings.Contains(err.Error(), "no replication slot") {
			return fmt.Errorf("wait without a slot: %w", err)
		}
		return nil
	})
	pgtest.Exec(t, pub, "INSERT INTO t VALUES (2)")
	start(t, cfg(), agent.RoleReader)
	if err := applier.wait(t, 20*time.Second); err != nil {
		t.Error(err)
	}
	if got := pgtest.QueryString(t, sub, "SELECT string_agg(id::text, ' ' ORDER BY id) FROM t"); got != "1 2" {
		t.Errorf("rows on the subscriber: %s, want 1 2", got)
	}
}

// A table that is copied later than the others is ahead of them until the
// subscription has come to the moment of its copy.
func TestWait_LastsUntilTheLatestCopyIsReached(t *testing.T) {
	pub, sub := pgtest.Shared(t).DB(t), pgtest.Shared(t).DB(t)
	pgtest.Exec(t, pub, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
	pgtest.Exec(t, sub, "CREATE TABLE t (id int PRIMARY KEY)")
	r := start(t, parse(t, fmt.Sprintf(`
data_dir: %q
publishers: [{name: main, url: %q, slot: walferry_ahead_%d, tables: {include: [public.t]}}]
subscriptions: [{name: copy, publisher: main, url: %q}]
`, t.TempDir(), pub, os.Getpid(), sub)), agent.RoleAll)
	if err := r.wait(t, 20*time.Second); err != nil {
		t.Fatal(err)
	}
	later := pgtest.QueryString(t, pub, "SELECT pg_current_wal_insert_lsn() + 8000000")
	pgtest.Exec(t, sub, "UPDATE walferry.subscription_table SET copy_lsn = '"+later+"'")
	pgtest.Eventually(t, 30*time.Second, func() error { // a slow machine may not get so far at once
		err := r.wait(t, 2*time.Second)
		switch {
		case !errors.Is(err, agent.ErrWaitTimeout):
			t.Fatalf("wait before %s, the moment of the copy: %v", later, err)
		case !strings.Contains(err.Error(), later):
			return err
		}
		return nil
	})
	pgtest.Exec(t, pub, "SELECT pg_logical_emit_message(false, 'fill', repeat('x', 9000000))")
	if err := r.wait(t, 20*time.Second); err != nil {
		t.Error(err)
	}
}
