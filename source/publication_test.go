package source

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/internal/pgtest"
)

func TestEnsurePublication_FollowsTheSpecAndLeavesOthersAlone(t *testing.T) {
	db := pgtest.Shared(t).DB(t)
	pgtest.Exec(t, db, `CREATE SCHEMA app`, `CREATE SCHEMA walferry`,
		`CREATE TABLE app.a (id int PRIMARY KEY)`, `CREATE TABLE app."b c" (id int PRIMARY KEY)`, `CREATE TABLE walferry.x (id int PRIMARY KEY)`,
		`CREATE TABLE app.p (id int PRIMARY KEY) PARTITION BY RANGE (id)`, `CREATE TABLE app.p1 PARTITION OF app.p FOR VALUES FROM (0) TO (9)`,
		`CREATE UNLOGGED TABLE app.u (id int PRIMARY KEY)`, `CREATE PUBLICATION theirs FOR TABLE app.a`)
	ctx, conn := context.Background(), raw(t, db, "test")
	tables := func() string {
		return pgtest.QueryString(t, db, `SELECT string_agg(schemaname || '.' || tablename, ' ' ORDER BY tablename) FROM pg_publication_tables WHERE pubname = 'mine'`)
	}
	spec := PublicationSpec{Name: "mine", Match: func(s, n string) bool { return s == "app" || s == "walferry" }}
	for i, want := range []bool{true, false} {
		res, err := EnsurePublication(ctx, conn, spec)
		if err != nil || res.Changed != want {
			t.Fatalf("call %d: %+v, %v", i, res, err)
		}
	}
	if got := tables(); got != "app.a app.b c app.p" {
		t.Errorf("published: %s", got)
	}
	spec.Match = nil
	spec.Tables = []TableName{{"app", "b c"}, {"app", "p1"}}
	if _, err := EnsurePublication(ctx, conn, spec); err != nil {
		t.Fatal(err)
	}
	if got := tables(); got != "app.b c app.p1" {
		t.Errorf("published after the change: %s", got)
	}
	spec.Name = "theirs"
	if _, err := EnsurePublication(ctx, conn, spec); !errors.Is(err, ErrForeignPub) {
		t.Errorf("a publication of others: %v", err)
	}
	if ok, err := DropPublication(ctx, conn, "theirs"); ok || err != nil {
		t.Errorf("dropping a publication of others: %v, %v", ok, err)
	}
	if ok, err := DropPublication(ctx, conn, "mine"); !ok || err != nil {
		t.Errorf("dropping our own: %v, %v", ok, err)
	}
	spec = PublicationSpec{Name: "mine", Tables: []TableName{{"app", "gone"}}}
	if _, err := EnsurePublication(ctx, conn, spec); err == nil {
		t.Error("a table that does not exist is accepted")
	}
}

func TestCB057_TablesWithoutIdentityAreRefusedWithRemedy(t *testing.T) {
	db := pgtest.Shared(t).DB(t)
	pgtest.Exec(t, db, `CREATE TABLE nopk (a int)`, `CREATE TABLE ok (id int PRIMARY KEY)`,
		`CREATE TABLE part (id int) PARTITION BY RANGE (id)`, `CREATE TABLE part1 PARTITION OF part FOR VALUES FROM (0) TO (9)`, `ALTER TABLE part REPLICA IDENTITY FULL`)
	ctx, conn := context.Background(), raw(t, db, "test")
	all := PublicationSpec{Name: "mine", Match: func(string, string) bool { return true }}
	_, err := EnsurePublication(ctx, conn, all)
	if !errors.Is(err, ErrNoIdentity) || !strings.Contains(err.Error(), `ALTER TABLE "public"."nopk" REPLICA IDENTITY FULL;`) {
		t.Fatalf("EnsurePublication = %v", err)
	}
	if !strings.Contains(err.Error(), `"part"`) {
		t.Errorf("a root whose leaf has no identity is accepted (CB-026): %v", err)
	}
	pgtest.Exec(t, db, `INSERT INTO nopk VALUES (0)`, `UPDATE nopk SET a = 1`)
	// Once the publication exists, such a table does not stop the reader.
	some := PublicationSpec{Name: "mine", Match: func(_, n string) bool { return n == "ok" }}
	if _, err := EnsurePublication(ctx, conn, some); err != nil {
		t.Fatal(err)
	}
	res, err := EnsurePublication(ctx, conn, all)
	if err != nil || res.Changed || len(res.Without) != 2 {
		t.Errorf("EnsurePublication = %+v, %v", res, err)
	}
	pgtest.Exec(t, db, `UPDATE nopk SET a = 2`)
	all.AllowNoIdentity = true
	if res, err := EnsurePublication(ctx, conn, all); err != nil || !res.Changed {
		t.Errorf("EnsurePublication = %+v, %v", res, err)
	}
}

func TestPublishedTables_ColumnListsFiltersAndPartitions(t *testing.T) {
	for _, v := range pgtest.Versions() {
		t.Run(fmt.Sprint(v), func(t *testing.T) {
			db := pgtest.Shared(t, pgtest.WithVersion(v)).DB(t)
			pgtest.Exec(t, db,
				`CREATE TABLE a (id int, x text, y numeric(8,2), g int GENERATED ALWAYS AS (id * 2) STORED, PRIMARY KEY (id) INCLUDE (x))`,
				`ALTER TABLE a DROP COLUMN y`, `CREATE TABLE f (b int, c varchar(10))`, `ALTER TABLE f REPLICA IDENTITY FULL`,
				`CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)`, `CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (9)`,
				`CREATE TABLE e ()`,
				`CREATE PUBLICATION one FOR TABLE a (id) WHERE (id > 5), f, e`,
				`CREATE PUBLICATION root FOR TABLE p WITH (publish_via_partition_root = true)`,
				`CREATE PUBLICATION leaf FOR TABLE p`)
			ctx, conn := context.Background(), raw(t, db, "test")
			show := func(pubs ...string) string {
				t.Helper()
				tables, err := PublishedTables(ctx, conn, pubs)
				if err != nil {
					t.Fatal(err)
				}
				var out []string
				for _, x := range tables {
					s := x.Schema + "." + x.Name + "/" + x.Identity.String()
					for _, c := range x.Columns {
						s += " " + c.Name
						if c.Key {
							s += "*"
						}
					}
					if x.RowFilter != "" {
						s += " where " + x.RowFilter
					}
					if x.Partitioned {
						s += " partitioned"
					}
					out = append(out, s)
				}
				return strings.Join(out, "; ")
			}
			if diff := cmp.Diff("public.a/default id* where ((id > 5)); public.e/default; public.f/full b* c*", show("one")); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff("public.p/default id* partitioned", show("root")); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff("public.p1/default id*", show("leaf")); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff("public.p/default id* partitioned", show("leaf", "root")); diff != "" {
				t.Error(diff)
			}
			pgtest.Exec(t, db, `DROP PUBLICATION one`, `CREATE PUBLICATION everything FOR ALL TABLES`)
			if got := show("everything"); !strings.Contains(got, "public.a/default id* x;") {
				t.Errorf("all tables: %s", got)
			}
			if _, err := PublishedTables(ctx, conn, []string{"root", "nowhere"}); !errors.Is(err, ErrNoPublication) {
				t.Errorf("a publication that does not exist: %v", err)
			}
		})
	}
}

// The stream must agree with what PublishedTables says.
func TestPublishedTables_AgreesWithTheStream(t *testing.T) {
	db := pgtest.Shared(t).DB(t)
	q := newMemQueue()
	pgtest.Exec(t, db, `CREATE TABLE a (id int PRIMARY KEY, gone int, x varchar(7), z text)`, `ALTER TABLE a DROP COLUMN gone`, `CREATE PUBLICATION cols FOR TABLE a (id, x)`)
	o := options(t, db, q)
	o.Make, o.Publications = nil, []string{"cols"}
	r := run(t, o)
	awaitStreaming(t, r)
	pgtest.Exec(t, db, `INSERT INTO a VALUES (1, 'x', 'z')`)
	awaitRows(t, q, 1)
	r.stop(t)
	tables, err := PublishedTables(context.Background(), raw(t, db, "test"), o.Publications)
	if err != nil {
		t.Fatal(err)
	}
	var stream *change.Relation
	for _, b := range q.all() {
		stream = cmpRelation(t, b.body, stream)
	}
	want := &change.Relation{OID: tables[0].OID, Schema: tables[0].Schema, Name: tables[0].Name, Identity: tables[0].Identity, Columns: tables[0].Columns}
	if diff := cmp.Diff(want, stream); diff != "" {
		t.Error(diff)
	}
}

// Some thousand tables are added and dropped in several transactions, each once,
// and a new publication is finished by the last of them.
func TestPublicationSpec_ManyTablesTakeSeveralTransactions(t *testing.T) {
	var tables []TableName
	for i := range 2*lockBatch + 1 {
		tables = append(tables, TableName{"public", fmt.Sprintf("t%d", i)})
	}
	spec := PublicationSpec{Name: "many"}
	count := func(sql []string, word string) (n int) {
		for _, st := range sql {
			if locked := strings.Count(st, `"public"`) + strings.Count(st, "public."); locked > lockBatch {
				t.Errorf("%d tables in one transaction, want at most %d", locked, lockBatch)
			}
			if strings.Contains(st, word) {
				n++
			}
		}
		return n
	}
	made := spec.statements(false, false, nil, tables)
	if len(made) != 4 || count(made, "ADD TABLE") != 2 || !strings.Contains(made[0], pubUnfinished) || !strings.HasSuffix(made[3], "'"+pubComment+"'") {
		t.Errorf("%d transactions make it, the first ends with %.80q, the last is %q", len(made), made[0][max(0, len(made[0])-80):], made[len(made)-1])
	}
	if again := spec.statements(true, true, tables[:lockBatch], tables); len(again) != 3 || count(again, "ADD TABLE") != 2 {
		t.Errorf("%d transactions finish it, want 3", len(again))
	}
	if gone := spec.statements(true, false, tables, nil); len(gone) != 3 || count(gone, "DROP TABLE") != 3 {
		t.Errorf("%d transactions empty it, want 3", len(gone))
	}
	if none := spec.statements(true, false, tables, tables); len(none) != 0 {
		t.Errorf("nothing to do, and %d transactions", len(none))
	}
	if one := spec.statements(false, false, nil, tables[:3]); len(one) != 1 || strings.Contains(one[0], pubUnfinished) {
		t.Errorf("three tables take %d transactions", len(one))
	}
}
