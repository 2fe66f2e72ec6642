package preflight

import (
	"crypto/rand"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/walferry/walferry/config"
	"github.com/walferry/walferry/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Run(m)) }

// fixture is a publisher and a subscriber database with roles that have just
// the rights that walferry needs.
type fixture struct {
	t        *testing.T
	pub, sub string // as superuser
	role     string // owns the tables of both
	cfg      *config.Config
}

func newFixture(t *testing.T, opts ...pgtest.Option) *fixture {
	t.Helper()
	var c *pgtest.Cluster
	if len(opts) > 1 { // settings
		c = pgtest.New(t, opts...)
	} else {
		c = pgtest.Shared(t, opts...)
	}
	b := make([]byte, 5)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	f := &fixture{t: t, role: "r" + hex.EncodeToString(b)}
	pgtest.Exec(t, c.URL("postgres"), "CREATE ROLE "+f.role+" LOGIN REPLICATION")
	t.Cleanup(func() { pgtest.Exec(t, c.URL("postgres"), "DROP ROLE "+f.role) })
	f.pub, f.sub = c.DB(t), c.DB(t)
	for _, url := range []string{f.pub, f.sub} {
		db := pgtest.QueryString(t, url, "SELECT current_database()")
		pgtest.Exec(t, url, "CREATE SCHEMA app AUTHORIZATION "+f.role+"; GRANT CREATE ON DATABASE "+db+" TO "+f.role)
		// A database's own objects keep the role from being dropped.
		t.Cleanup(func() {
			pgtest.Exec(t, url, "SET transaction_read_only = off; DROP OWNED BY "+f.role+" CASCADE")
		})
	}
	// The right on the parameter comes by way of one role: the server does not
	// serialise changes of a parameter's rights, and these tests run in parallel.
	pgtest.Exec(t, c.URL("postgres"), `SELECT pg_advisory_xact_lock(1); DO $$ BEGIN IF to_regrole('may_replicate') IS NULL THEN
		CREATE ROLE may_replicate; GRANT SET ON PARAMETER session_replication_role TO may_replicate; END IF; END $$`)
	pgtest.Exec(t, c.URL("postgres"), "GRANT may_replicate TO "+f.role)
	f.exec(f.pub, "CREATE TABLE app.t (id int PRIMARY KEY, v text)")
	f.exec(f.sub, "CREATE TABLE app.t (id int PRIMARY KEY, v text)")
	set, err := config.NewTableSet([]string{"app.*"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	f.cfg = config.Default()
	f.cfg.DataDir = t.TempDir()
	p, s := config.DefaultPublisher(), config.DefaultSubscription()
	p.Name, p.URL, p.Slot, p.Tables = "main", as(f.pub, f.role), "pf_"+f.role, set
	s.Name, s.Publisher, s.URL, s.Tables = "x", "main", as(f.sub, f.role), set
	f.cfg.Publishers, f.cfg.Subscriptions = []config.Publisher{p}, []config.Subscription{s}
	return f
}

func as(url, role string) string { return strings.Replace(url, "postgres@", role+"@", 1) }

// exec runs SQL as the role, and what follows a line "-- super" as superuser.
func (f *fixture) exec(url, sql string) {
	f.t.Helper()
	own, super, _ := strings.Cut(strings.ReplaceAll(sql, "$r", f.role), "-- super")
	if strings.TrimSpace(own) != "" {
		pgtest.Exec(f.t, as(url, f.role), own)
	}
	if super != "" {
		pgtest.Exec(f.t, url, super)
	}
}

func (f *fixture) check() *Report {
	f.t.Helper()
	r, err := Check(f.t.Context(), f.cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	return r
}

func text(r *Report) string {
	var b strings.Builder
	_ = r.WriteText(&b) // a Builder takes everything
	return b.String()
}

// want describes one finding; empty fields are not compared.
type want struct {
	side, object    string
	severity        Severity
	problem, remedy string // parts
}

func (w want) find(r *Report) *Finding {
	for i, f := range r.Findings {
		if f.Side == w.side && f.Object == w.object && f.Severity == w.severity && strings.Contains(f.Problem, w.problem) && strings.Contains(f.Remedy, w.remedy) {
			return &r.Findings[i]
		}
	}
	return nil
}

const (
	onPub = "publisher main"
	onSub = "subscription x"
)

func TestCheck_SoundSetupHasNoErrorsAndNoWarnings(t *testing.T) {
	for _, v := range []int{15, 18} {
		f := newFixture(t, pgtest.WithVersion(v))
		if r := f.check(); r.Failed() || r.Count(Warning) > 0 {
			t.Errorf("version %d:\n%s", v, text(r))
		}
	}
}

func TestCheck_ChangesNothing(t *testing.T) {
	f := newFixture(t)
	const objects = "SELECT (SELECT count(*) FROM pg_class), (SELECT count(*) FROM pg_namespace), (SELECT count(*) FROM pg_publication), (SELECT count(*) FROM pg_replication_origin)"
	before := pgtest.QueryString(t, f.pub, objects) + pgtest.QueryString(t, f.sub, objects)
	f.check()
	if after := pgtest.QueryString(t, f.pub, objects) + pgtest.QueryString(t, f.sub, objects); after != before {
		t.Errorf("before %s, after %s", before, after)
	}
	if n := pgtest.QueryString(t, f.pub, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = '"+f.cfg.Publishers[0].Slot+"'"); n != "0" {
		t.Error("a slot was made")
	}
}

// fault is a set-up that is broken in one way.
type fault struct {
	name     string
	version  int
	pub, sub string // SQL; see fixture.exec
	edit     func(f *fixture)
	want     want
	mend     bool // the remedy as printed, run as superuser on that side, removes the finding
}

func publications(names ...string) func(*fixture) {
	return func(f *fixture) { f.cfg.Publishers[0].Publications = names }
}

func require(f *fixture) { f.cfg.Subscriptions[0].Schema = config.SchemaRequire }

var faults = []fault{
	// Connections.
	{
		name: "database missing", edit: func(f *fixture) {
			f.cfg.Subscriptions[0].URL = strings.Replace(f.cfg.Subscriptions[0].URL, "/t", "/nodb_t", 1)
		},
		want: want{onSub, "", Error, "cannot connect", "CREATE DATABASE nodb_t"},
	},
	{name: "no such role", edit: func(f *fixture) { f.cfg.Subscriptions[0].URL = as(f.sub, "nobody") }, want: want{onSub, "role nobody", Error, "cannot connect", "CREATE ROLE nobody LOGIN"}},
	{name: "nothing listens", edit: func(f *fixture) { f.cfg.Publishers[0].URL = "postgres://u:s3cr3t@127.0.0.1:1/db?sslmode=disable" }, want: want{onPub, "server 127.0.0.1:1", Error, "cannot connect", "start the server"}},
	{name: "not a connection string", edit: func(f *fixture) { f.cfg.Publishers[0].URL = "postgres://u:s3cr3t@h:x/db" }, want: want{onPub, "connection string", Error, "connection string", "correct"}},
	{name: "same database", edit: func(f *fixture) { f.cfg.Subscriptions[0].URL = f.cfg.Publishers[0].URL }, want: want{onSub, "", Error, "is the same database", "correct one of the urls"}},
	{name: "connect denied", sub: "-- super\nDO $$ BEGIN EXECUTE format('REVOKE CONNECT ON DATABASE %I FROM PUBLIC', current_database()); END $$", want: want{onSub, "role $r", Error, "cannot connect", "GRANT CONNECT ON DATABASE"}, mend: true},

	// Rights on the publisher.
	{name: "no REPLICATION", pub: "-- super\nALTER ROLE $r NOREPLICATION", want: want{onPub, "role $r", Error, "lacks REPLICATION", "ALTER ROLE $r REPLICATION;"}, mend: true},
	{name: "no SELECT", pub: "REVOKE SELECT ON app.t FROM $r", want: want{onPub, "app.t", Error, "lacks SELECT", "GRANT SELECT ON app.t TO $r;"}, mend: true},
	{name: "no USAGE", pub: "-- super\nALTER SCHEMA app OWNER TO postgres; ", want: want{onPub, "schema app", Error, "lacks USAGE", "GRANT USAGE ON SCHEMA app TO $r;"}, mend: true},
	{name: "not the owner", pub: "-- super\nALTER TABLE app.t OWNER TO postgres; GRANT SELECT ON app.t TO $r", want: want{onPub, "app.t", Error, "does not own", "CREATE PUBLICATION walferry_main FOR TABLE app.t"}},
	{name: "no CREATE for a publication", pub: "-- super\nDO $$ BEGIN EXECUTE format('REVOKE CREATE ON DATABASE %I FROM $r', current_database()); END $$", want: want{onPub, "", Error, "lacks CREATE", "GRANT CREATE ON DATABASE"}},
	{name: "publication of another owner", pub: "-- super\nCREATE PUBLICATION walferry_main", want: want{onPub, "publication walferry_main", Error, "belongs to another role", "OWNER TO $r;"}, mend: true},
	{name: "row security on the publisher", pub: "ALTER TABLE app.t ENABLE ROW LEVEL SECURITY; ALTER TABLE app.t FORCE ROW LEVEL SECURITY", want: want{onPub, "app.t", Error, "row-level security", "BYPASSRLS;"}, mend: true},

	// Publications and tables.
	{name: "publication missing", edit: publications("nopub"), want: want{onPub, "publication nopub", Error, "does not exist", "CREATE PUBLICATION nopub"}},
	{name: "publication empty", pub: "CREATE PUBLICATION p", edit: publications("p"), want: want{onPub, "publications", Error, "no table", "ADD TABLE"}},
	{name: "publishes some operations", pub: "CREATE PUBLICATION p FOR TABLE app.t WITH (publish = 'insert, delete')", edit: publications("p"), want: want{onPub, "publication p", Warning, "does not publish update, truncate", "ALTER PUBLICATION p SET (publish ="}, mend: true},
	{name: "pattern matches nothing", edit: func(f *fixture) {
		f.cfg.Publishers[0].Tables, _ = config.NewTableSet([]string{"app.t", "app.typo*"}, nil)
	}, want: want{onPub, "pattern app.typo*", Warning, "selects no table", "correct"}},
	{name: "no table at all", edit: func(f *fixture) { f.cfg.Publishers[0].Tables, _ = config.NewTableSet([]string{"none.*"}, nil) }, want: want{onPub, "tables", Error, "no table", "schema.table"}},
	{name: "subscription selects nothing", edit: func(f *fixture) { f.cfg.Subscriptions[0].Tables, _ = config.NewTableSet([]string{"none.*"}, nil) }, want: want{onSub, "tables", Error, "no table", "schema.table"}},
	{name: "no replica identity (CB-057)", pub: "CREATE TABLE app.n (a int)", want: want{onPub, "app.n", Error, "no primary key", "ADD PRIMARY KEY"}},
	{name: "replica identity nothing", pub: "ALTER TABLE app.t REPLICA IDENTITY NOTHING", want: want{onPub, "app.t", Error, "nothing", "REPLICA IDENTITY DEFAULT"}},
	{name: "index of the identity dropped", pub: "CREATE TABLE app.n (a int NOT NULL); CREATE UNIQUE INDEX n_a ON app.n (a); ALTER TABLE app.n REPLICA IDENTITY USING INDEX n_a; DROP INDEX app.n_a", want: want{onPub, "app.n", Error, "was dropped", "USING INDEX"}},
	{name: "deferrable primary key on the publisher", pub: "CREATE TABLE app.n (a int PRIMARY KEY DEFERRABLE)", want: want{onPub, "app.n", Error, "no replica identity", "REPLICA IDENTITY FULL"}},
	{
		name: "leaf without the root's identity (CB-026)", pub: "CREATE TABLE app.m (id int PRIMARY KEY) PARTITION BY RANGE (id); CREATE TABLE app.m1 PARTITION OF app.m DEFAULT; ALTER TABLE app.m REPLICA IDENTITY FULL",
		want: want{onPub, "app.m1", Warning, "is not that of its root app.m (full)", "ALTER TABLE app.m1 REPLICA IDENTITY FULL;"}, mend: true,
	},
	{name: "identity not in the column list", pub: "CREATE PUBLICATION p FOR TABLE app.t (v)", edit: publications("p"), want: want{onPub, "app.t", Error, "column id is part of its replica identity", "column list"}},
	{
		name: "generated column in a full identity on 18 (CB-058)", version: 18, pub: "CREATE TABLE app.g (id int, s int GENERATED ALWAYS AS (id*2) STORED); ALTER TABLE app.g REPLICA IDENTITY FULL; CREATE PUBLICATION p FOR TABLE app.g",
		edit: publications("p"), want: want{onPub, "app.g", Error, "generated column s", "publish_generated_columns = stored"},
	},

	// Slots.
	{name: "slot of another plugin", pub: "-- super\nSELECT pg_create_logical_replication_slot('pf_$r', 'test_decoding')", want: want{onPub, "slot pf_$r", Error, "test_decoding", "pg_drop_replication_slot"}},
	{name: "physical slot", pub: "-- super\nSELECT pg_create_physical_replication_slot('pf_$r')", want: want{onPub, "slot pf_$r", Error, "physical", "another slot name"}},
	{name: "slot of another database", sub: "-- super\nSELECT pg_create_logical_replication_slot('pf_$r', 'pgoutput')", want: want{onPub, "slot pf_$r", Error, "belongs to database", "another slot name"}},
	{name: "subscription from another server", sub: "CREATE SCHEMA walferry; CREATE TABLE walferry.subscription (name text, system_id text); INSERT INTO walferry.subscription VALUES ('x', '42')", want: want{onSub, "subscription x", Error, "system identifier 42", "walferry drop"}},

	// Tables of the subscriber.
	{name: "table missing", pub: "CREATE TABLE app.n (a int PRIMARY KEY)", edit: require, want: want{onSub, "app.n", Error, "does not exist", "schema: create"}},
	{name: "renamed table missing", edit: func(f *fixture) { f.cfg.Subscriptions[0].Rename.Schemas = map[string]string{"app": "other"} }, want: want{onSub, "other.t", Error, "renamed", "by hand"}},
	{name: "column missing", pub: "ALTER TABLE app.t ADD c numeric(5,2)", want: want{onSub, "app.t", Error, "column c is missing", "ALTER TABLE app.t ADD COLUMN c numeric(5,2);"}, mend: true},
	{name: "extra column NOT NULL", sub: "ALTER TABLE app.t ADD c int NOT NULL", want: want{onSub, "app.t", Error, "column c is NOT NULL without a default", "DROP NOT NULL"}},
	{name: "generated on the subscriber", pub: "ALTER TABLE app.t ADD c int", sub: "ALTER TABLE app.t ADD c int GENERATED ALWAYS AS (id) STORED", want: want{onSub, "app.t", Error, "column c is generated", "DROP EXPRESSION"}},
	{name: "type differs", sub: "ALTER TABLE app.t ALTER v TYPE varchar(10)", want: want{onSub, "app.t", Warning, "type character varying(10), on the publisher text", "TYPE text;"}, mend: true},
	{name: "not a table", sub: "DROP TABLE app.t; CREATE VIEW app.t AS SELECT 1 AS id, ''::text AS v", want: want{onSub, "app.t", Error, "is not a table", "rename"}},
	{name: "extension missing", pub: "-- super\nCREATE EXTENSION citext SCHEMA app; CREATE TABLE app.n (a app.citext PRIMARY KEY); ALTER TABLE app.n OWNER TO $r", edit: require, want: want{onSub, "type app.citext", Error, "extension citext is not installed", "CREATE EXTENSION citext SCHEMA app;"}, mend: true},
	{name: "type missing", pub: "CREATE TYPE app.mood AS ENUM ('ok'); CREATE TABLE app.n (a app.mood[] PRIMARY KEY)", edit: require, want: want{onSub, "type app.mood", Error, "is missing", "before its tables"}},
	{name: "targets collide", pub: "CREATE TABLE app.u (id int PRIMARY KEY, v text)", edit: func(f *fixture) {
		f.cfg.Subscriptions[0].Rename.Tables = map[config.TableName]config.TableName{{Schema: "app", Table: "u"}: {Schema: "app", Table: "t"}}
	}, want: want{onSub, "app.t", Error, "app.u", "rename or exclude"}},
	{name: "deferrable unique on the subscriber (CB-081)", sub: "ALTER TABLE app.t ADD CONSTRAINT d UNIQUE (v) DEFERRABLE", want: want{onSub, "app.t", Info, "unique constraint d is deferrable", "DROP CONSTRAINT d"}},
	{name: "deferrable primary key on the subscriber (CB-082)", sub: "DROP TABLE app.t; CREATE TABLE app.t (id int PRIMARY KEY DEFERRABLE, v text)", want: want{onSub, "app.t", Info, "primary key constraint t_pkey is deferrable", ""}},

	// Rights on the subscriber.
	{name: "no UPDATE, no TRUNCATE", sub: "REVOKE UPDATE, TRUNCATE ON app.t FROM $r", want: want{onSub, "app.t", Error, "lacks UPDATE, TRUNCATE", "GRANT UPDATE, TRUNCATE ON app.t TO $r;"}, mend: true},
	{name: "no CREATE for schema walferry", sub: "-- super\nDO $$ BEGIN EXECUTE format('REVOKE CREATE ON DATABASE %I FROM $r', current_database()); END $$", want: want{onSub, "", Error, "schema walferry", "GRANT CREATE ON DATABASE"}, mend: true},
	{name: "schema walferry of another role", sub: "-- super\nCREATE SCHEMA walferry", want: want{onSub, "schema walferry", Error, "may not use it", "GRANT USAGE, CREATE ON SCHEMA walferry TO $r;"}, mend: true},
	{name: "tables of schema walferry of another role", sub: "-- super\nCREATE SCHEMA walferry; GRANT ALL ON SCHEMA walferry TO $r; CREATE TABLE walferry.subscription (name text, system_id text)", want: want{onSub, "schema walferry", Error, "may not write table subscription", "GRANT ALL ON ALL TABLES"}, mend: true},
	{name: "no CREATE for tables", pub: "CREATE TABLE app.n (a int PRIMARY KEY)", sub: "-- super\nALTER SCHEMA app OWNER TO postgres; GRANT USAGE ON SCHEMA app TO $r", want: want{onSub, "schema app", Error, "lacks CREATE", "GRANT CREATE ON SCHEMA app TO $r;"}, mend: true},
	{name: "no replica role", sub: "-- super\nREVOKE may_replicate FROM $r", want: want{onSub, "session_replication_role", Warning, "triggers fire", "GRANT SET ON PARAMETER session_replication_role TO $r;"}, mend: true},
	{name: "no replica role, but asked for", sub: "-- super\nREVOKE may_replicate FROM $r", edit: func(f *fixture) { f.cfg.Subscriptions[0].ReplicationRole = config.RoleReplica }, want: want{onSub, "session_replication_role", Error, "asks for it", "GRANT SET ON PARAMETER"}},
	{name: "no replication origins", want: want{onSub, "replication origins", Info, "may not use them", "GRANT EXECUTE ON FUNCTION pg_replication_origin_create(text) TO $r;"}, mend: true},
	{name: "row security on the subscriber (CB-086)", sub: "ALTER TABLE app.t ENABLE ROW LEVEL SECURITY; ALTER TABLE app.t FORCE ROW LEVEL SECURITY", want: want{onSub, "app.t", Error, "row-level security", "BYPASSRLS"}},
	{name: "read-only by default", sub: "-- super\nDO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$", want: want{onSub, "default_transaction_read_only", Error, "nothing can be written", "SET default_transaction_read_only = off"}},

	// Sides beside each other.
	{name: "two subscriptions write one table", edit: func(f *fixture) {
		two := f.cfg.Subscriptions[0]
		two.Name = "y"
		f.cfg.Subscriptions = append(f.cfg.Subscriptions, two)
	}, want: want{"subscription y", "app.t", Error, "written by subscription x too", "exclude"}},
	{name: "loop", edit: loop, want: want{onSub, "app.t", Error, "come back", "origin: none"}},
	{name: "origin none before 16", edit: func(f *fixture) { f.cfg.Publishers[0].Origin = config.OriginNone }, want: want{onPub, "origin", Error, "needs version 16", "upgrade"}},
	{name: "data folder is a file", edit: func(f *fixture) {
		f.cfg.DataDir = filepath.Join(f.cfg.DataDir, "file")
		if err := os.WriteFile(f.cfg.DataDir, nil, 0o600); err != nil {
			f.t.Fatal(err)
		}
	}, want: want{"queue", "", Error, "is not a folder", "choose another"}},
	{name: "NATS is not there", edit: func(f *fixture) { f.cfg.Queue.URL = "nats://u:s3cr3t@127.0.0.1:1" }, want: want{"queue", "NATS", Error, "cannot connect", "start the NATS server"}},
}

// loop adds the way back.
func loop(f *fixture) {
	p, s := f.cfg.Publishers[0], f.cfg.Subscriptions[0]
	p.Name, p.URL, p.Slot = "back", as(f.sub, f.role), p.Slot+"_b"
	s.Name, s.Publisher, s.URL = "xback", "back", as(f.pub, f.role)
	f.cfg.Publishers = append(f.cfg.Publishers, p)
	f.cfg.Subscriptions = append(f.cfg.Subscriptions, s)
}

func TestCheck_FindsEveryFault(t *testing.T) {
	for _, ft := range faults {
		t.Run(ft.name, func(t *testing.T) {
			t.Parallel()
			var opts []pgtest.Option
			if ft.version != 0 {
				opts = append(opts, pgtest.WithVersion(ft.version))
			}
			f := newFixture(t, opts...)
			f.exec(f.pub, ft.pub)
			f.exec(f.sub, ft.sub)
			if ft.edit != nil {
				ft.edit(f)
			}
			w := ft.want
			w.object, w.remedy = strings.ReplaceAll(w.object, "$r", f.role), strings.ReplaceAll(w.remedy, "$r", f.role)
			r := f.check()
			got := find(r, w)
			if got == nil {
				t.Fatalf("no finding %+v in:\n%s", w, text(r))
			}
			if strings.Contains(text(r), "s3cr3t") {
				t.Errorf("a secret is shown:\n%s", text(r))
			}
			if !ft.mend {
				return
			}
			url := f.pub
			if w.side == onSub {
				url = f.sub
			}
			pgtest.Exec(t, url, strings.Split(got.Remedy, " or ALTER")[0])
			if again := find(f.check(), w); again != nil {
				t.Errorf("still there after %s: %+v", got.Remedy, again)
			}
		})
	}
}

// find allows any object when none is wanted.
func find(r *Report, w want) *Finding {
	for i, f := range r.Findings {
		if o := w; o.object == "" {
			o.object = f.Object
			if o.find(&Report{Findings: r.Findings[i : i+1]}) != nil {
				return &r.Findings[i]
			}
		}
	}
	return w.find(r)
}
