package pgtest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// DB creates a fresh database and returns its URL. At the end of the test the
// database is dropped with its connections, slots, subscriptions and prepared
// transactions.
func (c *Cluster) DB(t testing.TB) string {
	t.Helper()
	b := make([]byte, 6)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	name := "t" + hex.EncodeToString(b)
	Exec(t, c.URL("postgres"), "CREATE DATABASE "+name+" TEMPLATE template0")
	t.Cleanup(func() {
		if err := c.dropDB(name); err != nil {
			t.Logf("drop database %s: %v", name, err)
		}
	})
	return c.URL(name)
}

func (c *Cluster) dropDB(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	admin, err := pgx.Connect(ctx, c.URL("postgres"))
	if err != nil {
		return err
	}
	defer admin.Close(ctx)
	if err := c.clearDB(ctx, name); err != nil {
		return err
	}
	// A walsender needs a moment to end and let go of its slot; a client that
	// reconnects may take it again. So: close the door first, then retry.
	if _, err := admin.Exec(ctx, "ALTER DATABASE "+name+" ALLOW_CONNECTIONS false"); err != nil {
		return err
	}
	for {
		err := dropOnce(ctx, admin, name)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func dropOnce(ctx context.Context, admin *pgx.Conn, name string) error {
	for _, sql := range []string{
		"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = '" + name + "' AND active_pid IS NOT NULL",
		"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '" + name + "'",
		"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = '" + name + "' AND active_pid IS NULL",
		"DROP DATABASE IF EXISTS " + name + " WITH (FORCE)",
	} {
		if _, err := admin.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// clearDB removes what keeps DROP DATABASE from working, seen from inside.
func (c *Cluster) clearDB(ctx context.Context, name string) error {
	conn, err := pgx.Connect(ctx, c.URL(name))
	if err != nil {
		return nil //nolint:nilerr // dropped or closed by the test itself: nothing to clear
	}
	defer conn.Close(ctx)
	rows, err := conn.Query(ctx, `
		SELECT format('ALTER SUBSCRIPTION %I DISABLE; ALTER SUBSCRIPTION %I SET (slot_name = NONE); DROP SUBSCRIPTION %I', subname, subname, subname)
		FROM pg_subscription s JOIN pg_database d ON d.oid = s.subdbid WHERE d.datname = current_database()
		UNION ALL
		SELECT format('ROLLBACK PREPARED %L', gid) FROM pg_prepared_xacts WHERE database = current_database()`)
	if err != nil {
		return err
	}
	cmds, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, cmd := range cmds {
		for one := range strings.SplitSeq(cmd, "; ") {
			if _, err := conn.PgConn().Exec(ctx, one).ReadAll(); err != nil {
				return fmt.Errorf("%s: %w", one, err)
			}
		}
	}
	return nil
}

// Exec connects, runs each string (which may hold several statements) and
// disconnects; an error fails the test.
func Exec(t testing.TB, url string, sql ...string) {
	t.Helper()
	for i, res := range simple(t, url, sql) {
		if res.err != nil {
			t.Fatalf("exec %s: %v", sql[i], res.err)
		}
	}
}

// QueryString returns the result of the last statement as psql -At prints it:
// columns joined by |, rows by newline, NULL as the empty string.
func QueryString(t testing.TB, url, sql string) string {
	t.Helper()
	res := simple(t, url, []string{sql})[0]
	if res.err != nil {
		t.Fatalf("query %s: %v", sql, res.err)
	}
	if len(res.results) == 0 {
		return ""
	}
	var lines []string
	for _, row := range res.results[len(res.results)-1].Rows {
		cols := make([]string, len(row))
		for i, v := range row {
			cols[i] = string(v)
		}
		lines = append(lines, strings.Join(cols, "|"))
	}
	return strings.Join(lines, "\n")
}

// DropOrigin removes a replication origin, if it is there, as soon as no session
// holds it: one that has just ended may hold it a moment longer.
func DropOrigin(t testing.TB, url, name string) {
	t.Helper()
	where := " FROM pg_replication_origin WHERE roname = '" + name + "'"
	Eventually(t, 10*time.Second, func() error {
		Exec(t, url, "DO $$ BEGIN PERFORM pg_replication_origin_drop(roname)"+where+"; EXCEPTION WHEN object_in_use THEN NULL; END $$")
		if QueryString(t, url, "SELECT count(*)"+where) != "0" {
			return errors.New("a session holds replication origin " + name)
		}
		return nil
	})
}

type result struct {
	results []*pgconn.Result
	err     error
}

// simple runs strings by the simple query protocol on one connection; it stops
// at the first error, which is then the last result.
func simple(t testing.TB, url string, sql []string) []result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	conn, err := pgconn.Connect(ctx, url)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	defer conn.Close(ctx)
	var out []result
	for _, s := range sql {
		r, err := conn.Exec(ctx, s).ReadAll()
		out = append(out, result{r, err})
		if err != nil {
			break
		}
	}
	return out
}

// Eventually calls f until it returns nil. After d the test fails with f's last error.
func Eventually(t testing.TB, d time.Duration, f func() error) {
	t.Helper()
	deadline := time.Now().Add(d)
	pause := 2 * time.Millisecond
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %v", d, err)
		}
		time.Sleep(pause)
		pause = min(2*pause, 100*time.Millisecond)
	}
}
