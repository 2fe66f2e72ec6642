package snapshot

import (
	"errors"
	"strings"
	"testing"

	"github.com/walferry/walferry/internal/pgtest"
)

func TestRun_CopiesRowsAndRecordsTheTableAsReady(t *testing.T) {
	p := newPair(t, "CREATE TABLE t (a int PRIMARY KEY, v text)", "INSERT INTO t SELECT g, 'row '||g FROM generate_series(1,5000) g; ANALYZE t", "")
	r := p.run(p.options("t"))
	p.same("SELECT count(*), sum(a), md5(string_agg(v, ',' ORDER BY a)) FROM t")
	p.want(p.sub, "SELECT subscription, schema_name, table_name, target_schema, target_table, state, copy_lsn, rows FROM walferry.subscription_table",
		"s|public|t|public|t|ready|"+r.ConsistentPoint.String()+"|5000")
	p.want(p.pub, "SELECT system_identifier FROM pg_control_system() WHERE system_identifier::text = '"+decimal(r.SystemID)+"'", decimal(r.SystemID))
	if r.Timeline != 1 || len(r.Tables) != 1 || r.Tables[0].Rows != 5000 || r.Tables[0].Bytes == 0 {
		t.Errorf("result: %+v", r)
	}
}

func TestRun_ReadyTableIsNotCopiedAgain(t *testing.T) {
	p := newPair(t, "CREATE TABLE t (a int)", "INSERT INTO t VALUES (1),(2)", "")
	first := p.run(p.options("t"))
	pgtest.Exec(t, p.pub, "INSERT INTO t VALUES (3)")
	second := p.run(p.options("t"))
	p.want(p.sub, "SELECT count(*) FROM t", "2")
	if !second.Tables[0].Skipped || second.Tables[0].CopyLSN != first.ConsistentPoint {
		t.Errorf("second run: %+v, want skipped with copy LSN %s", second.Tables[0], first.ConsistentPoint)
	}
}

func TestRun_EmptyTableListGivesAConsistentPoint(t *testing.T) {
	p := newPair(t, "", "", "")
	if r := p.run(p.options()); r.ConsistentPoint == 0 {
		t.Error("no consistent point")
	}
}

func TestRun_ConflictNamesTableAndConstraintAndSucceedsOnceRemoved(t *testing.T) {
	p := newPair(t, "CREATE TABLE t (a int PRIMARY KEY); CREATE TABLE u (a int)", "INSERT INTO t SELECT generate_series(1,10); INSERT INTO u VALUES (7)", "INSERT INTO t VALUES (5)")
	r, err := p.fail(p.options("t", "u"))
	for _, s := range []string{"t_pkey", `"public"."t"`, "(a)=(5)"} {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("error does not mention %s: %v", s, err)
		}
	}
	if len(r.Tables) != 1 || r.Tables[0].SourceName != "u" {
		t.Errorf("the other table was not copied: %+v", r.Tables)
	}
	p.want(p.sub, "SELECT count(*) FROM t", "1")
	p.want(p.sub, "SELECT table_name, state FROM walferry.subscription_table", "u|ready")
	pgtest.Exec(t, p.sub, "DELETE FROM t")
	p.run(p.options("t", "u"))
	p.same("SELECT count(*), sum(a) FROM t")
	p.same("SELECT count(*), sum(a) FROM u")
}

func TestRun_LocalRowsStay(t *testing.T) {
	p := newPair(t, "CREATE TABLE t (a int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1,'r')", "INSERT INTO t VALUES (100,'local')")
	p.run(p.options("t"))
	p.want(p.sub, "SELECT * FROM t ORDER BY a", "1|r\n100|local")
}

func TestRun_RowLostOnTheSubscriberIsAnError_CB092(t *testing.T) {
	p := newPair(t, "CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t SELECT g, CASE g WHEN 99990 THEN 7777 ELSE 1 END FROM generate_series(1,100000) g",
		"ALTER TABLE t ADD CONSTRAINT odd CHECK (v <> 7777)")
	_, err := p.fail(p.options("t"))
	if !strings.Contains(err.Error(), "odd") {
		t.Errorf("error does not name the constraint: %v", err)
	}
	p.want(p.sub, "SELECT count(*), (SELECT count(*) FROM walferry.subscription_table) FROM t", "0|0")
}

func TestTransfer_DifferingCountsAreAnError_CB092(t *testing.T) {
	p := newPair(t, "CREATE TABLE t (id int)", "INSERT INTO t SELECT generate_series(1,10)",
		`CREATE FUNCTION drop_odd() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF NEW.id % 2 = 1 THEN RETURN NULL; END IF; RETURN NEW; END'`)
	o := p.options("t")
	r := &run{o: o, log: testLog(t)}
	r.stall = newStall(o.Publisher, o.Subscriber, nil, r.log)
	defer r.close()
	ctx := t.Context()
	var err error
	if r.point, err = openPoint(ctx, o.Publisher, r.stall); err != nil {
		t.Fatal(err)
	}
	if r.in, err = openReader(ctx, o.Publisher, r.point, r.stall); err != nil {
		t.Fatal(err)
	}
	if r.out, err = openWriter(ctx, &r.o, r.stall); err != nil {
		t.Fatal(err)
	}
	plans, err := r.plan(ctx)
	if err != nil {
		t.Fatal(err)
	}
	// A trigger that the plan has not seen stands for whatever loses rows.
	pgtest.Exec(t, p.sub, "CREATE TRIGGER d BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION drop_odd(); ALTER TABLE t ENABLE ALWAYS TRIGGER d")
	_, err = r.copyTable(ctx, plans[0])
	var count *CountError
	if !errors.As(err, &count) || count.Sent != 10 || count.Stored != 5 {
		t.Fatalf("got %v, want a CountError with 10 sent and 5 stored", err)
	}
	p.want(p.sub, "SELECT count(*), (SELECT count(*) FROM walferry.subscription_table) FROM t", "0|0")
}

func TestRun_ReplicaTriggerMayDropRows(t *testing.T) {
	p := newPair(t, "CREATE TABLE t (id int PRIMARY KEY, v int); CREATE TABLE log (x int)", "INSERT INTO t SELECT g, g FROM generate_series(1,10) g",
		`CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF NEW.id = 10 THEN RETURN NULL; END IF; NEW.v := NEW.v * 100; RETURN NEW; END';
		 CREATE TRIGGER r BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f(); ALTER TABLE t ENABLE REPLICA TRIGGER r;
		 CREATE FUNCTION g() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO public.log VALUES (1); RETURN NULL; END';
		 CREATE TRIGGER o AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION g()`)
	p.run(p.options("t"))
	p.want(p.sub, "SELECT count(*), sum(v), (SELECT count(*) FROM log) FROM t", "9|4500|0")
}

func TestRun_ForeignKeysDoNotStopTheCopyInReplicaRole(t *testing.T) {
	p := newPair(t, "CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child (id int REFERENCES parent)", "INSERT INTO parent VALUES (1); INSERT INTO child VALUES (1)", "")
	p.run(p.options("child", "parent"))
	p.same("SELECT count(*) FROM child")
}

func TestRun_WithoutReplicaRoleParentsComeFirst(t *testing.T) {
	p := newPair(t, `CREATE TABLE c (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY REFERENCES c); CREATE TABLE a (id int REFERENCES b)`,
		"INSERT INTO c VALUES (1); INSERT INTO b VALUES (1); INSERT INTO a VALUES (1)", "")
	role := newRole(t, p.sub, "LOGIN")
	pgtest.Exec(t, p.sub, "GRANT INSERT ON a, b, c TO "+role+"; GRANT USAGE ON SCHEMA walferry TO "+role+"; GRANT ALL ON walferry.subscription_table TO "+role)
	o := p.options("a", "b", "c")
	o.Subscriber = as(p.sub, role)
	r := p.run(o)
	if r.Tables[0].SourceName != "c" || r.Tables[2].SourceName != "a" {
		t.Errorf("order: %v", r.Tables)
	}
	p.same("SELECT count(*) FROM a")
	o.ReplicationRole = "replica"
	if _, err := p.fail(o); !strings.Contains(err.Error(), "session_replication_role") {
		t.Errorf("replica role without the right: %v", err)
	}
}

func TestRun_DuplicatesUnderDeferrableConstraintsAreRefused_CB081(t *testing.T) {
	for name, c := range map[string]struct{ constraint, local string }{
		"unique":  {"CONSTRAINT dup UNIQUE (k) DEFERRABLE INITIALLY DEFERRED", "(99, 1, NULL)"},
		"exclude": {"CONSTRAINT dup EXCLUDE USING gist (r WITH &&) DEFERRABLE", "(99, 0, '[5,6]')"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, "", "CREATE TABLE u (id int, k int, r int4range); INSERT INTO u VALUES (1, 1, '[1,9]'), (2, 2, '[20,30]'), (3, NULL, NULL), (4, NULL, NULL)",
				"CREATE TABLE u (id int, k int, r int4range, "+c.constraint+"); INSERT INTO u VALUES "+c.local)
			_, err := p.fail(p.options("u"))
			var dup *DuplicateError
			if !errors.As(err, &dup) || dup.Constraint != "dup" {
				t.Fatalf("got %v, want a DuplicateError of constraint dup", err)
			}
			pgtest.Exec(t, p.sub, "DELETE FROM u")
			p.run(p.options("u"))
			p.same("SELECT count(*) FROM u")
		})
	}
}

func TestRun_CopiedRowsCarryTheOrigin(t *testing.T) {
	p := newPair(t, "CREATE TABLE t (a int PRIMARY KEY)", "INSERT INTO t VALUES (1)", "")
	slot := "o_" + dbName(t, p.sub)
	pgtest.Exec(t, p.sub, "SELECT pg_create_logical_replication_slot('"+slot+"', 'test_decoding')")
	o := p.options("t")
	o.Origin = "walferry_" + slot
	t.Cleanup(func() { pgtest.DropOrigin(t, p.sub, o.Origin) })
	p.run(o)
	p.want(p.sub, "SELECT count(*) FROM pg_logical_slot_peek_changes('"+slot+"', NULL, NULL, 'only-local', 'on') WHERE data LIKE '%public.t%'", "0")
	p.want(p.sub, "SELECT count(*) FROM pg_logical_slot_peek_changes('"+slot+"', NULL, NULL, 'only-local', 'off') WHERE data LIKE '%public.t%'", "1")
}
