package apply

import (
	"net/url"
	"strings"
	"testing"

	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/internal/pgtest"
)

func TestApply_WorksWithoutSuperuserGivenTheDocumentedGrants(t *testing.T) {
	f := newFlow(t, `CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE r (id int PRIMARY KEY, v text); ALTER TABLE r ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON r USING (false)`, "",
		"CREATE TABLE log (op text); CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.log VALUES (TG_OP); RETURN NULL; END $$; CREATE TRIGGER tr AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION f()")
	role := "applier_" + f.slot
	pgtest.Exec(t, f.sub, "CREATE ROLE "+role+" LOGIN PASSWORD 'x'", "DROP SCHEMA walferry CASCADE", "CREATE SCHEMA walferry AUTHORIZATION "+role,
		"GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON t, r TO "+role, "GRANT INSERT ON log TO "+role)
	t.Cleanup(func() { pgtest.Exec(t, f.sub, "DROP OWNED BY "+role, "DROP ROLE "+role) })
	u, err := url.Parse(f.sub)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(role, "x")
	f.opts.Conn = u.String()
	conn := dial(t, f.opts.Conn)
	if err := sqlw.EnsureSchema(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	if err := SetPosition(t.Context(), conn, f.opts.Subscription, f.end, 0); err != nil {
		t.Fatal(err)
	}
	f.run()
	f.through("INSERT INTO t VALUES (1,'a'),(2,'b')", "UPDATE t SET v='c' WHERE id=1", "DELETE FROM t WHERE id=2", "TRUNCATE t", "INSERT INTO t VALUES (3,'d')")
	f.same("SELECT * FROM t")
	f.want("SELECT count(*) FROM log", "3") // origin role: ordinary triggers fire
	f.publish("INSERT INTO r VALUES (1,'secret')")
	c := f.stopped("row-level security")
	if !strings.Contains(c.Table, "r") || c.SQLState != "42501" {
		t.Errorf("card %+v", c)
	}
	pgtest.Exec(t, f.sub, "ALTER ROLE "+role+" BYPASSRLS")
	f.applied()
	f.same("SELECT * FROM r")
}

func TestApply_DDLOnTheSubscriberIsNoticed(t *testing.T) { // CB-068
	f := newFlow(t, "CREATE TABLE t (id int PRIMARY KEY, v varchar(3), n int)", "", "")
	f.run()
	f.through("INSERT INTO t VALUES (1,'a',1)", "UPDATE t SET v='b'")
	pgtest.Exec(t, f.sub, "ALTER TABLE t ADD x int DEFAULT 4, ALTER v TYPE text, ALTER n TYPE bigint")
	f.through("ALTER TABLE t ALTER v TYPE text, ALTER n TYPE bigint", "INSERT INTO t VALUES (2,'long text',3000000000)", "UPDATE t SET v='longer text' WHERE id=1", "DELETE FROM t WHERE id=2")
	f.same("SELECT id, v, n FROM t")
	pgtest.Exec(t, f.sub, "DROP TABLE t; CREATE TABLE t (n bigint, id int PRIMARY KEY, v text)")
	f.through("INSERT INTO t VALUES (5,'new',5)", "UPDATE t SET n=6 WHERE id=5")
	f.want("SELECT id, v, n FROM t", "5|new|6")
	if c := f.card(); c != nil {
		t.Errorf("reported an error: %v", c)
	}
}

func TestApply_TruncateLeavesOtherTablesAlone(t *testing.T) { // CB-077
	f := newFlow(t, "CREATE TABLE pa (id int PRIMARY KEY)", "", "CREATE TABLE local (id int REFERENCES pa); INSERT INTO pa VALUES (1); INSERT INTO local VALUES (1)")
	f.run()
	f.publish("INSERT INTO pa VALUES (2)", "TRUNCATE pa CASCADE")
	if c := f.stopped("public.local"); c.Class != ClassTruncate || c.Remedy == "" {
		t.Errorf("card %+v", c)
	}
	f.want("SELECT count(*) FROM local", "1")
	pgtest.Exec(t, f.sub, "DROP TABLE local")
	f.applied()
	f.want("SELECT count(*) FROM pa", "0")
}

func TestApply_TruncateKeepsATableThatWasCopiedLater(t *testing.T) {
	f := newFlow(t, "CREATE TABLE pa (id int PRIMARY KEY); CREATE TABLE pb (id int PRIMARY KEY REFERENCES pa)", "", "SET session_replication_role = replica; INSERT INTO pa VALUES (1); INSERT INTO pb VALUES (2)")
	pgtest.Exec(t, f.sub, `INSERT INTO walferry.subscription_table (subscription, schema_name, table_name, target_schema, target_table, state, copy_lsn)
		VALUES ('`+f.opts.Subscription+`', 'public', 'pb', 'public', 'pb', 'ready', 'F/0')`)
	f.run()
	f.through("INSERT INTO pa VALUES (3)", "TRUNCATE pa, pb", "INSERT INTO pa VALUES (2)")
	f.want("SELECT string_agg(id::text, ',') FROM pa", "2")
	f.want("SELECT string_agg(id::text, ',') FROM pb", "2")
	if c := f.card(); c != nil {
		t.Errorf("reported an error: %v", c)
	}
}

func TestApply_HostileOperatorsAreNotUsed(t *testing.T) {
	f := newFlow(t, "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE f (id int, v text); ALTER TABLE f REPLICA IDENTITY FULL", "",
		"CREATE FUNCTION eq(int,int) RETURNS bool LANGUAGE sql AS 'SELECT false'; CREATE OPERATOR public.= (leftarg=int, rightarg=int, function=eq)")
	f.run()
	f.through("INSERT INTO t VALUES (1,'a'),(2,'b')", "UPDATE t SET v='B' WHERE id=2", "DELETE FROM t WHERE id=1",
		"INSERT INTO f VALUES (1,'a'),(2,'b')", "UPDATE f SET v='x' WHERE id=2", "DELETE FROM f WHERE id=1")
	f.same("SELECT * FROM t")
	f.same("SELECT * FROM f")
}
