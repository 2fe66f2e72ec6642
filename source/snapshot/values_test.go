package snapshot

import (
	"fmt"
	"strings"
	"testing"

	"github.com/walferry/walferry/internal/pgtest"
)

const allTypes = `
CREATE SCHEMA x; CREATE EXTENSION hstore SCHEMA x; CREATE EXTENSION citext SCHEMA x;
CREATE TYPE mood AS ENUM ('ok', 'bad''s'); CREATE DOMAIN pos AS int CHECK (VALUE > 0); CREATE TYPE pair AS (a int, b text);
CREATE TYPE span AS RANGE (subtype = float8);
CREATE TABLE t (id int PRIMARY KEY, i2 int2, i8 int8, n numeric, f4 float4, f8 float8, tx text, vc varchar(20), ch char(8), bc "char", b bytea, bo bool,
 d date, ts timestamp, tz timestamptz, ti time, tt timetz, iv interval, u uuid, j json, jb jsonb, x xml, m money, ip inet, ci cidr, mac macaddr,
 bi bit(5), vb varbit, pt point, po polygon, tsv tsvector, tsq tsquery, lsn pg_lsn, oi oid, rc regclass, r4 int4range, mr int4multirange,
 e mood, es mood[], p pos, c pair, cs pair[], s span, aa int[], ta text[], h x.hstore, ct x.citext, jp jsonpath, nm name)`

const allValues = `INSERT INTO t VALUES
 (1, -32768, 9223372036854775807, 12345678901234567890.123456789000, 'NaN', 0.1::float8 + 0.2, E'tab\tnl\nback\\slash \\. \\N', 'v', 'pad', 'c', '\x00ff10', true,
  '4713-01-01 BC', 'infinity', '2024-02-29 23:59:59.999999+05:30', '24:00:00', '12:00:00.5-08', '-1 year 2 mons -3 days 04:05:06.789', gen_random_uuid(),
  '{"a": 1,  "a":2}', '{"b":[1,null]}', '<a>x</a>text', '-1234.56', '::1/64', '10.0.0.0/8', '08:00:2b:01:02:03', B'10101', B'1', '(1.5,-2)', '((0,0),(1,1),(1,0))',
  'a:1A b', 'a & !b', '16/B374D848', 4294967295, 'pg_class', '[1,5)', '{[1,2),[7,9)}', 'bad''s', '{ok,NULL,"bad''s"}', 3, '(1,"x ""y"", z")', ARRAY['(1,a)','(,)']::pair[],
  '[1.5,2.5]', '{{1,2},{3,NULL}}', ARRAY['', 'NULL', NULL, '{"', E'\\'], 'k=>"v,\"q"', 'CaSe', '$.a[*]', 'n');
 INSERT INTO t VALUES (2, NULL, NULL, 'NaN', '-Infinity', '-0', '', '', '', '', '', false, 'infinity', '-infinity', 'infinity', '00:00', '00:00+00', '0', NULL, 'null', 'null', '', '0', '10.1.2.3', '::/0', NULL,
  B'00000', B'', NULL, NULL, '', '', '0/0', 0, NULL, 'empty', '{}', 'ok', '{}', NULL, ROW(NULL,NULL), '{}', NULL, '{}', '{}', '', '', NULL, '');
 INSERT INTO t VALUES (3)`

func TestRun_AllTypesArriveUnchanged_CB041(t *testing.T) {
	// Extra types first on the subscriber: its OIDs differ (CB-042).
	p := newPair(t, "", allTypes, "CREATE TYPE other1 AS ENUM ('z'); CREATE DOMAIN other2 AS text; "+allTypes)
	pgtest.Exec(t, p.pub, allValues)
	for _, url := range []string{p.pub, p.sub} { // hostile defaults of the databases
		pgtest.Exec(t, url, "ALTER DATABASE "+dbName(t, url)+" SET DateStyle = 'SQL, DMY'; ALTER DATABASE "+dbName(t, url)+" SET IntervalStyle = 'sql_standard'; ALTER DATABASE "+
			dbName(t, url)+" SET bytea_output = 'escape'; ALTER DATABASE "+dbName(t, url)+" SET extra_float_digits = -5; ALTER DATABASE "+dbName(t, url)+" SET TimeZone = 'Asia/Tokyo'; ALTER DATABASE "+
			dbName(t, url)+" SET xmloption = 'document'; ALTER DATABASE "+dbName(t, url)+" SET search_path = 'x'")
	}
	p.run(p.options("t"))
	p.same("SET DateStyle = ISO; SET extra_float_digits = 3; SELECT t.* FROM public.t ORDER BY id")
}

func TestRun_QuotedNamesAndRenames(t *testing.T) {
	p := newPair(t, "", `CREATE SCHEMA "My ""S"; CREATE TABLE "My ""S"."ta.b le" ("Col ""1" int, "sel\ect" text); INSERT INTO "My ""S"."ta.b le" VALUES (1, 'x')`,
		`CREATE SCHEMA "new's"; CREATE TABLE "new's"."tä%s" (extra int DEFAULT 5, "sel\ect" text, "Col ""1" int)`)
	o := p.options()
	o.Subscription = `it's "s"`
	o.Tables = []TableMap{{SourceSchema: `My "S`, SourceName: "ta.b le", TargetSchema: "new's", TargetName: "tä%s"}}
	p.run(o)
	p.want(p.sub, `SELECT * FROM "new's"."tä%s"`, "5|x|1")
	p.want(p.sub, "SELECT subscription, schema_name, table_name, target_schema, target_table FROM walferry.subscription_table", `it's "s"|My "S|ta.b le|new's|tä%s`)
}

func TestRun_SameNameInTwoSchemasIsKeptApart_CB066(t *testing.T) {
	p := newPair(t, "CREATE SCHEMA app; CREATE TABLE app.o (id int); CREATE TABLE o (id int)", "INSERT INTO app.o VALUES (1); INSERT INTO o VALUES (2)", "")
	o := p.options("o")
	o.Tables = append(o.Tables, TableMap{SourceSchema: "app", SourceName: "o", TargetSchema: "app", TargetName: "o"})
	p.run(o)
	p.want(p.sub, "SELECT (SELECT sum(id) FROM app.o), (SELECT sum(id) FROM public.o)", "1|2")
}

func TestRun_ColumnListAndRowFilter(t *testing.T) {
	p := newPair(t, "", "CREATE TABLE t (a int PRIMARY KEY, b text, secret text); INSERT INTO t SELECT g, 'b'||g, 's' FROM generate_series(1,10) g; CREATE PUBLICATION p FOR TABLE t (a, b) WHERE (a > 5 AND b <> 'b7')",
		"CREATE TABLE t (b text, a int PRIMARY KEY)")
	o := p.options("t")
	o.Tables[0].Columns = []string{"a", "b"}
	o.Tables[0].RowFilter = pgtest.QueryString(t, p.pub, "SET search_path = ''; SELECT rowfilter FROM pg_publication_tables")
	r := p.run(o)
	p.want(p.sub, "SELECT string_agg(a::text, ',' ORDER BY a) FROM t", "6,8,9,10")
	if r.Tables[0].Rows != 4 {
		t.Errorf("rows: %d", r.Tables[0].Rows)
	}
}

func TestRun_ZeroColumns(t *testing.T) {
	p := newPair(t, "CREATE TABLE n ()", "INSERT INTO n SELECT FROM generate_series(1,3); CREATE TABLE m (); INSERT INTO m SELECT FROM generate_series(1,2); CREATE TABLE e ()",
		"CREATE TABLE m (x int DEFAULT 7); CREATE TABLE e ()")
	p.run(p.options("n", "m", "e"))
	p.want(p.sub, "SELECT (SELECT count(*) FROM n), (SELECT sum(x) FROM m), (SELECT count(*) FROM e)", "3|14|0")
}

func TestRun_GeneratedColumns_CB062(t *testing.T) {
	p := newPair(t, "", "CREATE TABLE gboth (a int, b int GENERATED ALWAYS AS (a*2) STORED); INSERT INTO gboth VALUES (1); CREATE TABLE src (a int, b int GENERATED ALWAYS AS (a*2) STORED); INSERT INTO src VALUES (1)",
		"CREATE TABLE gboth (a int, b int GENERATED ALWAYS AS (a*22) STORED); CREATE TABLE src (a int, b int DEFAULT 77)")
	o := p.options("gboth", "src")
	o.Tables[1].Columns = []string{"a", "b"} // as pg_publication_tables of 15 lists them
	p.run(o)
	p.want(p.sub, "SELECT (SELECT b FROM gboth), (SELECT b FROM src)", "22|77")
}

func TestRun_GeneratedOnTheSubscriberOnlyIsAnError_CB062(t *testing.T) {
	p := newPair(t, "", "CREATE TABLE t (a int, bcol int); INSERT INTO t VALUES (1, 100)", "CREATE TABLE t (a int, bcol int GENERATED ALWAYS AS (a*2) STORED)")
	if _, err := p.fail(p.options("t")); !strings.Contains(err.Error(), `"bcol"`) || !strings.Contains(err.Error(), "DROP EXPRESSION") {
		t.Errorf("error: %v", err)
	}
	pgtest.Exec(t, p.sub, "ALTER TABLE t ALTER bcol DROP EXPRESSION")
	p.run(p.options("t"))
	p.same("SELECT * FROM t")
}

func TestRun_PublishedGeneratedColumnIsCopiedOn18_CB062(t *testing.T) {
	c := pgtest.Shared(t, pgtest.WithVersion(18))
	p := &pair{t: t, pub: c.DB(t), sub: c.DB(t)}
	makeLedger(t, p.sub)
	pgtest.Exec(t, p.sub, "CREATE TABLE t (a int, b int)")
	pgtest.Exec(t, p.pub, "CREATE TABLE t (a int, b int GENERATED ALWAYS AS (a*2) STORED); INSERT INTO t VALUES (21)")
	o := p.options("t")
	o.Tables[0].Columns = []string{"a", "b"}
	p.run(o)
	p.want(p.sub, "SELECT * FROM t", "21|42")
}

func TestRun_IdentityAlways_CB064(t *testing.T) {
	p := newPair(t, "CREATE TABLE i (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text)", "INSERT INTO i OVERRIDING SYSTEM VALUE VALUES (41, 'a'), (7, 'b')", "")
	p.run(p.options("i"))
	p.same("SELECT * FROM i ORDER BY id")
}

const partitioned = `CREATE TABLE m (id int, d int, PRIMARY KEY (id, d)) PARTITION BY RANGE (d); CREATE TABLE m1 PARTITION OF m FOR VALUES FROM (0) TO (10);
	CREATE TABLE m2 (d int NOT NULL, gone int, id int NOT NULL); ALTER TABLE m2 DROP gone; ALTER TABLE m ATTACH PARTITION m2 FOR VALUES FROM (10) TO (20);`

func TestRun_PartitionRoot(t *testing.T) {
	const rows = "INSERT INTO m SELECT g, g FROM generate_series(0,19) g"
	t.Run("to a flat table", func(t *testing.T) {
		p := newPair(t, "", partitioned+rows, "CREATE TABLE m (id int, d int)")
		if r := p.run(p.options("m")); r.Tables[0].Rows != 20 {
			t.Errorf("rows: %d", r.Tables[0].Rows)
		}
		p.same("SELECT count(*), sum(id) FROM m")
	})
	t.Run("to other partitions", func(t *testing.T) {
		p := newPair(t, "", partitioned+rows, "CREATE TABLE m (id int, d int) PARTITION BY HASH (id); CREATE TABLE ma PARTITION OF m FOR VALUES WITH (MODULUS 2, REMAINDER 0); CREATE TABLE mb PARTITION OF m FOR VALUES WITH (MODULUS 2, REMAINDER 1)")
		o := p.options("m")
		o.Tables[0].Kind, o.Tables[0].RowFilter = 'p', "(d < 15)"
		p.run(o)
		p.want(p.sub, "SELECT count(*) FROM m", "15")
	})
	t.Run("leaves one by one", func(t *testing.T) {
		p := newPair(t, partitioned, rows, "")
		p.run(p.options("m1", "m2"))
		p.same("SELECT count(*), sum(id) FROM m1")
		p.same("SELECT count(*), sum(id) FROM m2")
	})
	t.Run("flat to partitions", func(t *testing.T) {
		p := newPair(t, "", "CREATE TABLE m (id int, d int); "+rows, partitioned)
		p.run(p.options("m"))
		p.same("SELECT count(*), sum(id) FROM m")
	})
}

func TestRun_InheritanceParentIsCopiedWithoutItsChildren_CB093(t *testing.T) {
	p := newPair(t, "CREATE TABLE par (a int PRIMARY KEY); CREATE TABLE chi (b text, PRIMARY KEY (a)) INHERITS (par)",
		"INSERT INTO par VALUES (10),(20); INSERT INTO chi VALUES (0,'0'),(30,'30')", "")
	o := p.options("par", "chi")
	for i := range o.Tables {
		o.Tables[i].RowFilter = "(a > 15)"
	}
	p.run(o)
	p.want(p.sub, "SELECT tableoid::regclass, a FROM par ORDER BY a", "par|20\nchi|30")
	q := newPair(t, "CREATE TABLE par (a int PRIMARY KEY); CREATE TABLE chi () INHERITS (par)", "INSERT INTO par VALUES (1); INSERT INTO chi VALUES (2)", "")
	q.run(q.options("par", "chi"))
	q.want(q.sub, "SELECT tableoid::regclass, a FROM par ORDER BY a", "par|1\nchi|2")
}

func TestRun_RowSecurityIsAnErrorNotASubset_CB086(t *testing.T) {
	p := newPair(t, "CREATE TABLE t (id int PRIMARY KEY, owner text)", "INSERT INTO t VALUES (1,'a'),(2,'nobody')", "")
	role := newRole(t, p.pub, "LOGIN REPLICATION")
	rls := "ALTER TABLE t ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON t USING (owner = 'nobody'); "
	pgtest.Exec(t, p.pub, rls+"GRANT SELECT ON t TO "+role)
	o := p.options("t")
	o.Publisher = as(p.pub, role)
	for _, filter := range []string{"", "(id > 0)"} {
		o.Tables[0].RowFilter = filter
		if _, err := p.fail(o); !strings.Contains(err.Error(), "row-level security") || !strings.Contains(err.Error(), "publisher") {
			t.Errorf("publisher, filter %q: %v", filter, err)
		}
	}
	pgtest.Exec(t, p.pub, "ALTER ROLE "+role+" BYPASSRLS")
	o.Tables[0].RowFilter = ""
	other := newRole(t, p.sub, "LOGIN")
	pgtest.Exec(t, p.sub, rls+"GRANT ALL ON t TO "+other+"; GRANT USAGE ON SCHEMA walferry TO "+other+"; GRANT ALL ON walferry.subscription_table TO "+other)
	o.Subscriber = as(p.sub, other)
	if _, err := p.fail(o); !strings.Contains(err.Error(), "row-level security") || !strings.Contains(err.Error(), "subscriber") {
		t.Errorf("subscriber: %v", err)
	}
	o.Subscriber = p.sub
	p.run(o)
	p.same("SELECT * FROM t ORDER BY id")
}

// withEncoding makes a database of the shared cluster.
func withEncoding(t *testing.T, encoding string) string {
	t.Helper()
	c := pgtest.Shared(t)
	name := "e" + strings.ToLower(strings.ReplaceAll(encoding, "_", "")) + dbName(t, c.DB(t))
	pgtest.Exec(t, c.URL("postgres"), fmt.Sprintf("CREATE DATABASE %s TEMPLATE template0 ENCODING '%s' LC_COLLATE 'C' LC_CTYPE 'C'", name, encoding))
	t.Cleanup(func() { pgtest.Exec(t, c.URL("postgres"), "DROP DATABASE "+name+" WITH (FORCE)") })
	return c.URL(name)
}

func TestRun_Encodings_CB045(t *testing.T) {
	const hex = "SELECT id, encode(convert_to(v, getdatabaseencoding()::name), 'hex') FROM t ORDER BY id"
	tests := []struct {
		name, pub, sub, insert, want, err string
	}{
		{"LATIN1 to UTF8", "LATIN1", "UTF8", "VALUES (1, U&'Mot\\00f6r')", "1|4d6f74c3b672", ""},
		{"UTF8 to LATIN1", "UTF8", "LATIN1", "VALUES (1, U&'\\00e9')", "1|e9", ""},
		{"UTF8 to LATIN1, not representable", "UTF8", "LATIN1", "VALUES (1, U&'\\2014')", "", "0xe2 0x80 0x94"},
		{"SQL_ASCII to SQL_ASCII", "SQL_ASCII", "SQL_ASCII", `VALUES (1, E'\377\200')`, "1|ff80", ""},
		{"SQL_ASCII to UTF8", "SQL_ASCII", "UTF8", "VALUES (1, 'plain')", "", "SQL_ASCII"},
		{"UTF8 to SQL_ASCII", "UTF8", "SQL_ASCII", "VALUES (1, U&'\\00e9')", "1|c3a9", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := &pair{t: t, pub: withEncoding(t, tt.pub), sub: withEncoding(t, tt.sub)}
			makeLedger(t, p.sub)
			pgtest.Exec(t, p.sub, "CREATE TABLE t (id int, v text)")
			pgtest.Exec(t, p.pub, "CREATE TABLE t (id int, v text); INSERT INTO t "+tt.insert)
			if tt.err != "" {
				_, err := p.fail(p.options("t"))
				if !strings.Contains(err.Error(), tt.err) {
					t.Errorf("error %v does not mention %s", err, tt.err)
				}
				p.want(p.sub, "SELECT count(*), (SELECT count(*) FROM walferry.subscription_table) FROM t", "0|0")
				return
			}
			p.run(p.options("t"))
			p.want(p.sub, hex, tt.want)
		})
	}
}

func TestRun_MissingTablesAndColumnsAreNamedTogether(t *testing.T) {
	p := newPair(t, "", "CREATE TABLE a (x int, y numeric(5,2)); CREATE TABLE b (x int); CREATE TABLE v (x int)", `CREATE TABLE a (x int); CREATE VIEW v AS SELECT 1 AS x`)
	_, err := p.fail(p.options("a", "b", "v"))
	for _, s := range []string{`ALTER TABLE "public"."a" ADD COLUMN "y" numeric(5,2)`, `no table "public"."b"`, `"public"."v" on the subscriber is not a table`} {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("error does not mention %s: %v", s, err)
		}
	}
	if _, err := p.fail(p.options("a", "nowhere")); !strings.Contains(err.Error(), `publisher has no table "public"."nowhere"`) {
		t.Errorf("error: %v", err)
	}
}

func TestRun_LargeValues(t *testing.T) {
	p := newPair(t, "CREATE TABLE t (a int PRIMARY KEY, v text, b bytea)", "INSERT INTO t SELECT i, repeat(md5(i::text), 60000), decode(repeat(md5(i::text), 30000), 'hex') FROM generate_series(1,5) i; INSERT INTO t VALUES (6, repeat('x', 60000000), NULL)", "")
	p.run(p.options("t"))
	p.same("SELECT a, md5(v), md5(b) FROM t ORDER BY a")
}
