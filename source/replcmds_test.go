package source_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/internal/pgtest"
	"github.com/walferry/walferry/source"
	"github.com/walferry/walferry/source/pgoutput"
)

// TestPeekCommands_A30 peeks twice: the answers are equal, and the slot stays
// where it is.
func TestPeekCommands_A30(t *testing.T) {
	url := pgtest.Shared(t).DB(t)
	pgtest.Exec(t, url, `CREATE TABLE t (id int PRIMARY KEY, v text)`, `CREATE PUBLICATION peek_pub FOR TABLE t`,
		`SELECT pg_create_logical_replication_slot('peek_' || (SELECT oid FROM pg_database WHERE datname = current_database()), 'pgoutput')`)
	slot := pgtest.QueryString(t, url, `SELECT slot_name FROM pg_replication_slots WHERE database = current_database()`)
	pgtest.Exec(t, url, `BEGIN; INSERT INTO t VALUES (1, 'a'); UPDATE t SET id = 2; COMMIT`, `TRUNCATE t`)
	before := pgtest.QueryString(t, url, `SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE database = current_database()`)

	ctx := context.Background()
	conn, err := pgconn.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	first, err := source.PeekCommands(ctx, conn, slot, []string{"peek_pub"}, 100)
	if err != nil {
		t.Fatal(err)
	}
	second, err := source.PeekCommands(ctx, conn, slot, []string{"peek_pub"}, 100)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(first, second); d != "" {
		t.Errorf("the second look differs (-first +second):\n%s", d)
	}
	var kinds []pgoutput.Kind
	for _, c := range first {
		kinds = append(kinds, c.Kind)
	}
	want := []pgoutput.Kind{
		pgoutput.Begin, pgoutput.Insert, pgoutput.Update, pgoutput.Commit,
		pgoutput.Begin, pgoutput.Truncate, pgoutput.Commit,
	}
	if d := cmp.Diff(want, kinds); d != "" {
		t.Errorf("commands (-want +got):\n%s", d)
	}
	if got := string(first[2].New[0].Data); got != "2" {
		t.Errorf("new key of the update is %q, want 2", got)
	}
	if after := pgtest.QueryString(t, url, `SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE database = current_database()`); after != before {
		t.Errorf("confirmed_flush_lsn moved from %s to %s", before, after)
	}
	if n := pgtest.QueryString(t, url, `SELECT count(*) FROM pg_replication_slots WHERE database = current_database()`); n != "1" {
		t.Errorf("%s slots are left, want 1", n)
	}
}
