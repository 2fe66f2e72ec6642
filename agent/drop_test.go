package agent_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walferry/walferry/agent"
	"github.com/walferry/walferry/internal/pgtest"
)

type lines struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lines) Write(b []byte) (int, error) { l.mu.Lock(); defer l.mu.Unlock(); return l.b.Write(b) }

func (l *lines) String() string { l.mu.Lock(); defer l.mu.Unlock(); return l.b.String() }

// A session that reads the tables in another order than drop locks them in must not
// be ended by a deadlock, nor end drop by one.
func TestDrop_EmptyGivesWayToReaders(t *testing.T) {
	pub, sub := pgtest.Shared(t).DB(t), pgtest.Shared(t).DB(t)
	const tables = "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)"
	pgtest.Exec(t, pub, tables, "INSERT INTO a VALUES (1); INSERT INTO b VALUES (1)")
	pgtest.Exec(t, sub, tables)
	r := start(t, parse(t, fmt.Sprintf(`
data_dir: %q
publishers: [{name: main, url: %q, slot: walferry_drop_%d, tables: {include: ['public.*']}}]
subscriptions: [{name: dropped, publisher: main, url: %q}]
`, t.TempDir(), pub, os.Getpid(), sub)), agent.RoleAll)
	if err := r.wait(t, 30*time.Second); err != nil {
		t.Fatal(err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	reader, err := pgx.Connect(t.Context(), sub+"&application_name=report")
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close(context.Background())
	if _, err := reader.Exec(t.Context(), "SET deadlock_timeout = 600; BEGIN; TABLE b"); err != nil {
		t.Fatal(err)
	}
	var out lines
	dropped := make(chan error, 1)
	go func() {
		dropped <- agent.Drop(t.Context(), r.cfg, agent.DropOptions{Subscriptions: []string{"dropped"}, Empty: true, Out: &out})
	}()
	pgtest.Eventually(t, 20*time.Second, func() error {
		if n := pgtest.QueryString(t, sub, "SELECT count(*) FROM pg_locks WHERE relation = 'a'::regclass AND mode = 'AccessExclusiveLock' AND granted"); n != "1" {
			return fmt.Errorf("table a is locked by %s sessions, want 1", n)
		}
		return nil
	})
	if _, err := reader.Exec(t.Context(), "TABLE a"); err != nil { // locked by drop, which waits for b
		t.Errorf("the reader: %v", err)
	}
	pgtest.Eventually(t, 20*time.Second, func() error {
		if !strings.Contains(out.String(), "waiting for the sessions that use its tables: pid ") || !strings.Contains(out.String(), "(report)") {
			return fmt.Errorf("drop says %q", out.String())
		}
		return nil
	})
	if _, err := reader.Exec(t.Context(), "COMMIT"); err != nil {
		t.Errorf("the reader: %v", err)
	}
	if err := <-dropped; err != nil {
		t.Errorf("drop: %v\n%s", err, out.String())
	}
	if got := pgtest.QueryString(t, sub, "SELECT (SELECT count(*) FROM a) + (SELECT count(*) FROM b)"); got != "0" {
		t.Errorf("%s rows are left", got)
	}
	if !strings.Contains(out.String(), "2 tables emptied") {
		t.Errorf("drop says %q", out.String())
	}
	if err := agent.Drop(t.Context(), r.cfg, agent.DropOptions{Out: t.Output()}); err != nil {
		t.Error(err)
	}
}

// The server notices some time later that a walferry has ended.
func TestDrop_WaitsForAnApplierThatIsLeaving(t *testing.T) {
	pub, sub := pgtest.Shared(t).DB(t), pgtest.Shared(t).DB(t)
	pgtest.Exec(t, pub, "CREATE TABLE a (id int PRIMARY KEY)")
	r := start(t, parse(t, fmt.Sprintf(`
data_dir: %q
publishers: [{name: main, url: %q, slot: walferry_leave_%d, tables: {include: ['public.*']}}]
subscriptions: [{name: leaving, publisher: main, url: %q}]
`, t.TempDir(), pub, os.Getpid(), sub)), agent.RoleAll)
	if err := r.wait(t, 30*time.Second); err != nil {
		t.Fatal(err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	applier, err := pgx.Connect(ctx, sub+"&application_name=walferry%20applier%20leaving")
	if err != nil {
		t.Fatal(err)
	}
	defer applier.Close(ctx)
	var out lines
	drop := func() error {
		return agent.Drop(ctx, r.cfg, agent.DropOptions{Subscriptions: []string{"leaving"}, Out: &out})
	}
	if err := drop(); err == nil || !strings.Contains(err.Error(), "stop walferry first") {
		t.Errorf("drop while an applier is connected: %v", err)
	}
	time.AfterFunc(time.Second, func() { _ = applier.Close(ctx) })
	if err := drop(); err != nil {
		t.Errorf("drop while an applier leaves: %v\n%s", err, out.String())
	}
}
