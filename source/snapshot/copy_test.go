package snapshot

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/walferry/walferry/change"
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
	o := p.options("t", "u")
	o.OnExisting = Append
	r, err := p.fail(o)
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
	o := p.options("t")
	o.OnExisting = Append
	p.run(o)
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
	if r.point, err = r.openPoint(ctx); err != nil {
		t.Fatal(err)
	}
	r.worker = &worker{r: r}
	if err := r.worker.open(ctx); err != nil {
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
	pgtest.Exec(t, p.sub, "GRANT INSERT, SELECT ON a, b, c TO "+role+"; GRANT USAGE ON SCHEMA walferry TO "+role+"; GRANT ALL ON walferry.subscription_table, walferry.subscription_part, walferry.subscription_pending TO "+role)
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
			o := p.options("u")
			o.OnExisting = Append
			_, err := p.fail(o)
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

// Each worker has a table of its own: one that is locked holds up none of the others.
func TestRun_WorkersCopyTablesAtTheSameTime(t *testing.T) {
	p := newPair(t, "CREATE TABLE a (x int); CREATE TABLE b (x int); CREATE TABLE c (x int); CREATE TABLE d (x int PRIMARY KEY)",
		"INSERT INTO a SELECT generate_series(1, 1000); INSERT INTO b SELECT x FROM a; INSERT INTO c SELECT x FROM a; INSERT INTO d SELECT x FROM a", "")
	o := p.options("a", "b", "c", "d")
	o.Workers = 2
	holder, err := connect(t.Context(), p.sub, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn(holder)
	o.Events.ConsistentPoint = func(change.LSN) { // before it the transaction would be waited for
		if err := execSQL(t.Context(), holder, "BEGIN; LOCK TABLE public.b IN SHARE MODE"); err != nil {
			t.Error(err)
		}
	}
	var done []string
	o.Events.TableDone = func(r TableResult, _ error) {
		if done = append(done, r.SourceName); len(done) == 3 {
			if err := execSQL(t.Context(), holder, "ROLLBACK"); err != nil {
				t.Error(err)
			}
		}
	}
	p.run(o)
	if len(done) != 4 || done[3] != "b" {
		t.Errorf("order of tables: %v, want b last", done)
	}
	for _, table := range []string{"a", "b", "c", "d"} {
		p.same("SELECT count(*), sum(x) FROM " + table)
	}
	p.want(p.sub, "SELECT string_agg(table_name, ',' ORDER BY table_name) FROM walferry.subscription_table WHERE state = 'ready'", "a,b,c,d")
}

// An error of a connection ends all workers, and their tables are left as they were.
func TestRun_WorkersEndTogether(t *testing.T) {
	p := newPair(t, "CREATE TABLE a (x int, v text); CREATE TABLE b (x int, v text); CREATE TABLE c (x int, v text)",
		"INSERT INTO a SELECT g, repeat('x', 500) FROM generate_series(1, 200000) g; INSERT INTO b SELECT * FROM a; INSERT INTO c SELECT * FROM a", "")
	o := p.options("a", "b", "c")
	o.Workers = 3
	var once sync.Once
	o.Events.TableProgress = func(pr Progress) {
		if pr.Rows > 10 {
			once.Do(func() {
				pgtest.Exec(t, p.sub, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'walferry copy writer' ORDER BY pid LIMIT 1")
			})
		}
	}
	r, err := p.fail(o)
	if len(r.Tables) == 3 {
		t.Errorf("all tables were copied in spite of %v", err)
	}
	if strings.Contains(err.Error(), "another worker") {
		t.Errorf("the error names what was ended instead of what failed: %v", err)
	}
	p.wantNothingLeft()
	o.Events = Events{}
	p.run(o)
	for _, table := range []string{"a", "b", "c"} {
		p.same("SELECT count(*), sum(x) FROM " + table)
	}
}

func TestRun_TableThatHoldsRowsIsLeftAlone(t *testing.T) {
	p := newPair(t, "CREATE TABLE t (x int)", "INSERT INTO t VALUES (1), (2)", "INSERT INTO t VALUES (7)")
	o := p.options("t")
	if _, err := p.fail(o); !strings.Contains(err.Error(), "on_existing") || !strings.Contains(err.Error(), "TRUNCATE") {
		t.Errorf("error: %v", err)
	}
	p.want(p.sub, "SELECT string_agg(x::text, ',') FROM t", "7")
	o.OnExisting = Append
	p.run(o)
	p.want(p.sub, "SELECT string_agg(x::text, ',' ORDER BY x) FROM t", "1,2,7")
	p.run(p.options("t")) // copied: nothing to do

	o = p.options("t")
	o.Subscription, o.OnExisting = "other", Truncate
	p.run(o)
	p.want(p.sub, "SELECT string_agg(x::text, ',' ORDER BY x) FROM t", "1,2")
}

// Each worker marks its rows, and no origin but that of the applier is left.
func TestRun_WorkersHaveOriginsOfTheirOwn(t *testing.T) {
	p := newPair(t, "CREATE TABLE a (x int); CREATE TABLE b (x int); CREATE TABLE c (x int)", "INSERT INTO a VALUES (1); INSERT INTO b VALUES (1); INSERT INTO c VALUES (1)", "")
	slot := "o_" + dbName(t, p.sub)
	pgtest.Exec(t, p.sub, "SELECT pg_create_logical_replication_slot('"+slot+"', 'test_decoding')")
	o := p.options("a", "b", "c")
	o.Workers = 3
	o.Origin = "walferry_" + slot
	t.Cleanup(func() { pgtest.DropOrigin(t, p.sub, o.Origin) })
	p.run(o)
	for option, want := range map[string]string{"on": "0", "off": "3"} {
		p.want(p.sub, "SELECT count(*) FROM pg_logical_slot_peek_changes('"+slot+"', NULL, NULL, 'only-local', '"+option+"') WHERE data ~ 'public.[abc]:'", want)
	}
	p.want(p.sub, "SELECT string_agg(roname, ',') FROM pg_replication_origin WHERE starts_with(roname, '"+o.Origin+"')", o.Origin)
}
