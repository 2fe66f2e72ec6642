package snapshot

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/internal/pgtest"
)

const application = `
CREATE SCHEMA app; CREATE SCHEMA ext; CREATE EXTENSION citext SCHEMA ext; CREATE EXTENSION pg_trgm SCHEMA ext;
CREATE TYPE app.mood AS ENUM ('ok', 'bad'); CREATE TYPE app.pair AS (m app.mood, n int);
CREATE FUNCTION app.good(int) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT $1 > 0'; CREATE DOMAIN app.pos AS int CHECK (app.good(VALUE));
CREATE FUNCTION app.unused() RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE TYPE app.unused_type AS ENUM ('x');
CREATE SEQUENCE app.numbers START 100; CREATE TABLE app.elsewhere (id int PRIMARY KEY);
CREATE TABLE app.customer (id serial PRIMARY KEY, name ext.citext NOT NULL UNIQUE, m app.mood[] DEFAULT '{ok}', p app.pos, c app.pair);
CREATE TABLE app."Order %" (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, no int DEFAULT nextval('app.numbers'), customer int REFERENCES app.customer, other int REFERENCES app.elsewhere,
	note text CONSTRAINT short CHECK (length(note) < 100), twice int GENERATED ALWAYS AS (no * 2) STORED);
CREATE INDEX trgm ON app."Order %" USING gin (note ext.gin_trgm_ops); COMMENT ON COLUMN app."Order %".note IS E'line\n\\restrict';
CREATE TABLE app.event (id int, d int, PRIMARY KEY (id, d)) PARTITION BY RANGE (d); CREATE TABLE app.event1 PARTITION OF app.event FOR VALUES FROM (0) TO (10);
CREATE TABLE app.event2 PARTITION OF app.event FOR VALUES FROM (10) TO (20); CREATE TABLE app.kid (extra text) INHERITS (app.customer);
CREATE FUNCTION app.touch() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''must not run''; END';
CREATE TRIGGER touch BEFORE INSERT ON app.customer FOR EACH ROW EXECUTE FUNCTION app.touch(); ALTER TABLE app.customer ENABLE ALWAYS TRIGGER touch; ALTER TABLE app.customer DISABLE TRIGGER touch;
ALTER TABLE app."Order %" ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON app."Order %" USING (true);
CREATE STATISTICS app.st ON id, note FROM app."Order %"; ALTER TABLE app.event1 REPLICA IDENTITY FULL;
INSERT INTO app.customer (name, p, c) VALUES ('Ann', 1, '(bad,2)'), ('Bob', 2, NULL); INSERT INTO app.elsewhere VALUES (1);
INSERT INTO app."Order %" (customer, other, note) VALUES (1, 1, 'x'); INSERT INTO app.event SELECT g, g FROM generate_series(0,19) g; INSERT INTO app.kid (name, extra) VALUES ('Kid', 'e');
CREATE TABLE app.secret (x int)`

func appTables(names ...string) []TableMap {
	var out []TableMap
	for _, n := range names {
		out = append(out, TableMap{SourceSchema: "app", SourceName: n, TargetSchema: "app", TargetName: n})
	}
	return out
}

// testCreate runs on one version for both sides.
func testCreate(t *testing.T, version int) {
	c := pgtest.Shared(t, pgtest.WithVersion(version))
	t.Setenv("PATH", c.BinDir()+string(os.PathListSeparator)+os.Getenv("PATH"))
	p := &pair{t: t, pub: c.DB(t), sub: c.DB(t)}
	pgtest.Exec(t, p.pub, application)
	makeLedger(t, p.sub)
	pgtest.Exec(t, p.sub, "CREATE SCHEMA app") // a part that is there already
	o := p.options()
	o.CreateSchema = true
	o.Tables = appTables("customer", "Order %", "event", "kid")
	var created []TableMap
	o.Events.SchemaCreated = func(t []TableMap) { created = t }
	p.run(o)
	if len(created) != 4 {
		t.Errorf("SchemaCreated told of %d tables", len(created))
	}
	for _, q := range []string{
		"SELECT * FROM app.customer ORDER BY id", `SELECT * FROM app."Order %"`, "SELECT tableoid::regclass, * FROM app.event ORDER BY id", "SELECT * FROM app.kid",
		`SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attgenerated, pg_get_expr(d.adbin, d.adrelid) FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
		   LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum WHERE c.relnamespace = 'app'::regnamespace AND c.relkind IN ('r', 'p') AND a.attnum > 0 AND c.relname NOT IN ('elsewhere', 'secret') ORDER BY 1, a.attnum`,
		"SELECT indexdef FROM pg_indexes WHERE schemaname = 'app' AND tablename NOT IN ('elsewhere', 'secret') ORDER BY 1",
		"SELECT conrelid::regclass, conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid::regclass::text ~ '^app' AND pg_get_constraintdef(oid) !~ 'elsewhere' AND conrelid::regclass::text !~ 'elsewhere|secret' ORDER BY conrelid::regclass::text, conname",
		`SELECT col_description('app."Order %"'::regclass, 5)`, "SELECT relreplident FROM pg_class WHERE relname = 'event1'", "SELECT last_value FROM app.numbers", "SELECT last_value FROM app.customer_id_seq", "SELECT stxname FROM pg_statistic_ext",
	} {
		p.same(q)
	}
	p.want(p.sub, `SELECT (SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal), (SELECT count(*) FROM pg_policy), (SELECT count(*) FROM pg_class WHERE relrowsecurity),
		to_regclass('app.elsewhere'), to_regclass('app.secret'), to_regtype('app.unused_type'), to_regproc('app.unused')`, "0|0|0||||")
}

func TestRun_CreatesAbsentTablesWithWhatTheyNeed(t *testing.T) { testCreate(t, 15) }

func TestRun_CreatesAbsentTablesOn18(t *testing.T) { testCreate(t, 18) }

func TestRun_CreatesOnlyWhatIsAbsent(t *testing.T) {
	p := newPair(t, "", "CREATE TABLE a (x int); CREATE TABLE b (x int, y int); INSERT INTO a VALUES (1); INSERT INTO b VALUES (1, 2)", "CREATE TABLE a (x int, local text DEFAULT 'l')")
	o := p.options("a", "b")
	o.CreateSchema = true
	p.run(o)
	p.want(p.sub, "SELECT a, b FROM a, b", "(1,l)|(1,2)")
}

func TestRun_RenamedTableIsNotCreated(t *testing.T) {
	p := newPair(t, "", "CREATE TABLE a (x int)", "")
	o := p.options("a")
	o.CreateSchema = true
	o.Tables[0].TargetName = "b"
	_, err := p.fail(o)
	if !strings.Contains(err.Error(), "renamed") || !strings.Contains(err.Error(), "by hand") {
		t.Errorf("error: %v", err)
	}
}

func TestRun_FailedSchemaNamesTheObjectAndLeavesNothing(t *testing.T) {
	p := newPair(t, "", "CREATE TABLE a (x int); CREATE TABLE b (x int)", "CREATE TYPE b AS ENUM ('taken')")
	o := p.options("a", "b")
	o.CreateSchema = true
	_, err := p.fail(o)
	var se *SchemaError
	if !errors.As(err, &se) || !strings.Contains(err.Error(), `type "b"`) {
		t.Errorf("error: %v", err)
	}
	p.want(p.sub, "SELECT to_regclass('a'), to_regclass('b'), (SELECT count(*) FROM walferry.subscription_pending)", "||0")
}

// Indexes come after the rows, and whoever comes after a failure goes on with what
// is missing.
func TestRun_IndexThatFailsIsMadeByTheNextRun(t *testing.T) {
	p := newPair(t, "", `CREATE TABLE a (x int PRIMARY KEY); CREATE TABLE b (x int REFERENCES a, s serial); CREATE INDEX taken ON b (x); CREATE INDEX last ON b (s);
		INSERT INTO a SELECT generate_series(1, 100); INSERT INTO b SELECT x FROM a`, "CREATE TABLE taken (x int)")
	o := p.options("a", "b")
	o.CreateSchema = true
	r, err := p.fail(o)
	var se *SchemaError
	if !errors.As(err, &se) || !strings.Contains(err.Error(), "index public.taken") {
		t.Errorf("error: %v", err)
	}
	if len(r.Tables) != 2 {
		t.Errorf("%d tables were copied", len(r.Tables))
	}
	p.want(p.sub, "SELECT (SELECT count(*) FROM b), (SELECT string_agg(DISTINCT state, ',') FROM walferry.subscription_table)", "100|copied")
	pgtest.Exec(t, p.sub, "DROP TABLE taken")
	pgtest.Exec(t, p.pub, "INSERT INTO b SELECT x FROM a") // not a second time: the stream brings it
	r = p.run(o)
	for _, table := range r.Tables {
		if !table.Skipped {
			t.Errorf("%s was copied again", table.Source())
		}
	}
	p.want(p.sub, "SELECT (SELECT count(*) FROM b), (SELECT string_agg(DISTINCT state, ',') FROM walferry.subscription_table), (SELECT count(*) FROM walferry.subscription_pending)", "100|ready|0")
	p.same("SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1")
	p.same("SELECT conname, pg_get_constraintdef(oid), convalidated FROM pg_constraint WHERE connamespace = 'public'::regnamespace ORDER BY 1")
	p.same("SELECT last_value, is_called FROM b_s_seq")
	p.want(p.sub, "SELECT reltuples FROM pg_class WHERE relname = 'b'", "100") // analyzed
}

// A foreign key to a table that is behind the copied one is made all the same.
func TestRun_ForeignKeyWithoutAPartnerYetIsNotValidated(t *testing.T) {
	p := newPair(t, "", "CREATE TABLE a (x int PRIMARY KEY); CREATE TABLE b (x int REFERENCES a); INSERT INTO a VALUES (1); INSERT INTO b VALUES (1)",
		"CREATE TABLE a (x int PRIMARY KEY)")
	o := p.options("b")
	o.CreateSchema = true
	p.run(o)
	p.want(p.sub, "SELECT conname, convalidated FROM pg_constraint WHERE contype = 'f'", "b_x_fkey|f")
	pgtest.Exec(t, p.sub, "INSERT INTO a VALUES (1); ALTER TABLE b VALIDATE CONSTRAINT b_x_fkey")
}

func TestRun_CreatesWithAPasswordThatNeedsEscaping_CB128(t *testing.T) {
	p := newPair(t, "", "CREATE TABLE a (x int)", "")
	const pw = `p@ss:w/o%rd'"\ {}`
	role := newRole(t, p.pub, "LOGIN REPLICATION PASSWORD "+sqlw.QuoteLiteral(pw))
	pgtest.Exec(t, p.pub, "GRANT SELECT ON a TO "+role)
	o := p.options("a")
	o.CreateSchema = true
	cfg, err := pgconn.ParseConfig(p.pub)
	if err != nil {
		t.Fatal(err)
	}
	o.Publisher = "host=127.0.0.1 sslmode = disable port=" + decimal(uint64(cfg.Port)) + " user=" + role + " dbname=" + cfg.Database +
		` password='` + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(pw) + `'`
	p.run(o)
	p.want(p.sub, "SELECT count(*) FROM a", "0")
}

func TestLibpqEnv_HoldsTheSettingsOfTheString_CB128(t *testing.T) {
	for _, s := range []string{
		"postgres://a%40b:p%40ss%3Aw%2Fo%25rd@db.example:6000/my%20db?sslmode=require&sslrootcert=/a%20b/c.pem",
		`host=db.example port = 6000 user=a@b password='p@ss:w/o%rd' dbname='my db' sslmode=require sslrootcert='/a b/c.pem'`,
	} {
		got := connSettings(s)
		if got["sslmode"] != "require" || got["sslrootcert"] != "/a b/c.pem" {
			t.Errorf("%s: %v", s, got)
		}
		cfg := &pgconn.Config{Host: "db.example", Port: 6000, User: "a@b", Password: "p@ss:w/o%rd", Database: "my db"}
		env := strings.Join(libpqEnv(s, cfg, nil), "\n") + "\n"
		for _, want := range []string{"PGHOST=db.example", "PGPORT=6000", "PGUSER=a@b", "PGPASSWORD=p@ss:w/o%rd", "PGDATABASE=my db", "PGSSLMODE=require", "PGSSLROOTCERT=/a b/c.pem"} {
			if !strings.Contains(env, want+"\n") {
				t.Errorf("%s: environment lacks %s", s, want)
			}
		}
	}
}

// tool writes a program that only tells its version.
func tool(t *testing.T, dir, version string) {
	t.Helper()
	for _, n := range []string{"pg_dump", "pg_restore"} {
		script := "#!/bin/sh\necho '" + n + " (PostgreSQL) " + version + "'\n"
		if err := os.WriteFile(filepath.Join(dir, n), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFindTools_TakesTheOldestThatCanReadTheServer(t *testing.T) {
	a, b, c := t.TempDir(), t.TempDir(), t.TempDir()
	tool(t, a, "14.9")
	tool(t, b, "18beta1")
	tool(t, c, "16.2 (Debian 16.2-1)")
	got, err := findTools(context.Background(), 15, []string{"", a, b, t.TempDir(), c, a})
	if err != nil || got.Major != 16 || filepath.Dir(got.Dump) != c {
		t.Errorf("got %+v, %v", got, err)
	}
	_, err = findTools(context.Background(), 17, []string{a, c})
	var te *ToolsError
	if !errors.As(err, &te) || te.Found != 16 || !strings.Contains(err.Error(), "postgresql-client-17") || !strings.Contains(err.Error(), "by hand") {
		t.Errorf("error: %v", err)
	}
}

func TestCleanScript_RemovesOnlyMetaCommands(t *testing.T) {
	in := "\\restrict abC1\nSET transaction_timeout = 0;\nSELECT '\n\\restrict not this\n';\n\\unrestrict abC1\n"
	if got, want := cleanScript(in, 160000), "SELECT '\n\\restrict not this\n';\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := cleanScript(in, 170000); !strings.Contains(got, "transaction_timeout") {
		t.Error("a subscriber that knows transaction_timeout does not get it")
	}
}

func TestImportSnapshot_AnotherServerIsRefusedBeforeAnythingChanges_CB090(t *testing.T) {
	p := newPair(t, "CREATE TABLE t (a int)", "", "")
	other := pgtest.New(t)
	ctx := t.Context()
	st := newStall(p.pub, p.sub, nil, testLog(t))
	pt, err := (&run{o: p.options("t"), stall: st}).openPoint(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn(pt.conn)
	_, err = openReader(ctx, other.DB(t), pt, st)
	var se *ServerError
	if !errors.As(err, &se) || !strings.Contains(err.Error(), "load balancer") {
		t.Errorf("got %v, want a ServerError", err)
	}
	p.want(p.sub, "SELECT count(*) FROM walferry.subscription_table", "0")
}
