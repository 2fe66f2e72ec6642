package apply

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/walferry/walferry/internal/pgtest"
)

const conflictTable = "CREATE TABLE t (id int PRIMARY KEY, v text)"

func TestApply_EverythingBeforeThePoisonTransactionIsCommitted(t *testing.T) {
	f := newFlow(t, conflictTable, "", "INSERT INTO t VALUES (500,'local')")
	var sql []string
	for i := 1; i <= 20; i++ {
		if i == 13 {
			sql = append(sql, "INSERT INTO t VALUES (13,'half'),(500,'remote')")
			continue
		}
		sql = append(sql, fmt.Sprintf("INSERT INTO t VALUES (%d,'x')", i))
	}
	f.publish(sql...)
	f.run()
	c := f.stopped("t_pkey")
	f.want("SELECT count(*), max(id) FROM t WHERE id < 500", "12|12")
	if c.Key != "(id)=(500)" || c.Operation != "insert" || c.Table != "public.t" || c.SQLState != "23505" || c.Class != ClassInsertConflict {
		t.Errorf("card %+v does not name the row", c)
	}
	if c.CommitLSN == "" || c.XID == 0 || c.CommitTime == nil || !strings.Contains(c.Remedy, c.CommitLSN) {
		t.Errorf("card %+v does not name the transaction or its remedy", c)
	}
	f.want("SELECT state, error->>'key', error_count > 0 FROM walferry.subscription_state", "error|(id)=(500)|t")
	pgtest.Exec(t, f.sub, "DELETE FROM t WHERE id=500")
	f.applied()
	f.same("SELECT * FROM t ORDER BY id")
	pgtest.Eventually(t, waitLong, func() error {
		if got := pgtest.QueryString(t, f.sub, "SELECT state, error FROM walferry.subscription_state"); got != "streaming|" {
			return fmt.Errorf("state %q", got)
		}
		return nil
	})
}

func TestApply_MissingRowStopsAndNamesTheRow(t *testing.T) { // CB-108
	f := newFlow(t, conflictTable, "", "")
	f.run()
	f.through("INSERT INTO t VALUES (41,'a'),(42,'b')")
	pgtest.Exec(t, f.sub, "DELETE FROM t WHERE id=42")
	f.publish("UPDATE t SET v='z'")
	c := f.stopped("not there")
	if c.Class != ClassUpdateMissing || c.Key != "(id)=(42)" || c.Table != "public.t" {
		t.Errorf("card %+v", c)
	}
	f.want("SELECT * FROM t", "41|a")
	pgtest.Exec(t, f.sub, "INSERT INTO t VALUES (42,'again')")
	f.applied()
	f.same("SELECT * FROM t ORDER BY id")
}

func TestApply_PoliciesSkipAndRecordTheRow(t *testing.T) {
	f := newFlow(t, "CREATE TABLE t (id int PRIMARY KEY, v text, n int)", "", "ALTER TABLE t ADD CHECK (n < 100)")
	f.opts.Policies = Policies{InsertConflict: Skip, UpdateMissing: Skip, DeleteMissing: Skip, Other: Skip}
	f.run()
	f.through("INSERT INTO t SELECT g, 'r', 1 FROM generate_series(1,5) g")
	pgtest.Exec(t, f.sub, "DELETE FROM t WHERE id IN (2,3)", "INSERT INTO t VALUES (9,'local',0)")
	f.publish("BEGIN; UPDATE t SET v='u' WHERE id<=2; DELETE FROM t WHERE id=3; INSERT INTO t VALUES (9,'remote',2),(10,'big',1000),(11,'ok',3); COMMIT")
	f.applied()
	f.want("SELECT * FROM t ORDER BY id", "1|u|1\n4|r|1\n5|r|1\n9|local|0\n11|ok|3")
	f.want("SELECT class, operation, policy, key->>'id', new_row->>'v', sqlstate FROM walferry.exceptions ORDER BY id",
		"update_missing|update|skip|2|u|\ndelete_missing|delete|skip|3||\ninsert_conflict|insert|skip|9|remote|23505\nrow|insert|skip|10|big|23514")
	if d := cmp.Diff(4, len(f.exceptions)); d != "" {
		t.Error(d)
	}
}

func TestApply_UpsertMakesTheRowThePublishers(t *testing.T) {
	f := newFlow(t, conflictTable, "", "")
	f.opts.Policies = Policies{InsertConflict: Upsert, UpdateMissing: Upsert, DeleteMissing: Upsert}
	f.run()
	f.through("INSERT INTO t VALUES (1,'a'),(2,'b'),(3,'c')")
	pgtest.Exec(t, f.sub, "DELETE FROM t WHERE id>=2", "INSERT INTO t VALUES (7,'local')")
	f.through("INSERT INTO t VALUES (7,'remote')", "UPDATE t SET v='B' WHERE id=2", "DELETE FROM t WHERE id=3")
	f.same("SELECT * FROM t ORDER BY id")
	f.want("SELECT string_agg(class, ' ' ORDER BY id) FROM walferry.exceptions", "insert_conflict update_missing delete_missing")
}

func TestApply_UpsertNeverWritesHalfARow(t *testing.T) {
	f := newFlow(t, "CREATE TABLE t (id int PRIMARY KEY, n int, big text); ALTER TABLE t ALTER big SET STORAGE EXTERNAL", "", "")
	f.opts.Policies = Policies{UpdateMissing: Upsert}
	f.run()
	f.through("INSERT INTO t VALUES (1,1,repeat('x',9000))")
	pgtest.Exec(t, f.sub, "DELETE FROM t")
	f.publish("UPDATE t SET n=2")
	if c := f.stopped("not there"); c.Class != ClassUpdateMissing {
		t.Errorf("card %+v", c)
	}
	f.want("SELECT count(*) FROM t", "0")
}

func TestApply_SkippedTransactionIsLeftOutWholeAndRecorded(t *testing.T) {
	f := newFlow(t, conflictTable, "", "INSERT INTO t VALUES (2,'local')")
	f.run()
	f.publish("INSERT INTO t VALUES (1,'one')", "BEGIN; INSERT INTO t VALUES (3,'three'); INSERT INTO t VALUES (2,'remote'); COMMIT", "INSERT INTO t VALUES (4,'four')")
	c := f.stopped("t_pkey")
	pgtest.Exec(t, f.sub, "UPDATE walferry.subscription_state SET skip_lsn = '"+c.CommitLSN+"'")
	f.applied()
	f.want("SELECT * FROM t ORDER BY id", "1|one\n2|local\n4|four")
	f.want("SELECT new_row->>'id', class, commit_lsn FROM walferry.exceptions ORDER BY ordinal", "3|transaction|"+c.CommitLSN+"\n2|transaction|"+c.CommitLSN)
	f.want("SELECT skip_lsn FROM walferry.subscription_state", "")
}

func TestApply_FailureAtCommitNamesTheTransaction(t *testing.T) { // CB-109
	f := newFlow(t, "CREATE TABLE pa (id int PRIMARY KEY); CREATE TABLE ch (id int PRIMARY KEY, p int)", "",
		"ALTER TABLE ch ADD CONSTRAINT fk2 FOREIGN KEY (p) REFERENCES pa DEFERRABLE INITIALLY DEFERRED")
	f.opts.ReplicationRole = "origin"
	f.run()
	f.publish("INSERT INTO pa VALUES (1)", "INSERT INTO ch SELECT g, 1 FROM generate_series(1,60) g", "INSERT INTO ch VALUES (61, 99)", "INSERT INTO ch VALUES (62, 1)")
	c := f.stopped("fk2")
	if c.Class != ClassCommit || c.CommitLSN == "" || c.SQLState != "23503" {
		t.Errorf("card %+v", c)
	}
	f.want("SELECT count(*) FROM ch", "60")
	pgtest.Exec(t, f.sub, "INSERT INTO pa VALUES (99)")
	f.applied()
	f.same("SELECT * FROM ch ORDER BY id")
}

func TestApply_RaisingTriggerNamesItsRow(t *testing.T) { // CB-109
	f := newFlow(t, conflictTable, "", `CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.id = 37 THEN RAISE EXCEPTION 'no 37'; END IF; RETURN NEW; END $$;
		CREATE TRIGGER tr BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f(); ALTER TABLE t ENABLE ALWAYS TRIGGER tr`)
	f.run()
	f.publish("INSERT INTO t SELECT g, 'x' FROM generate_series(1,100) g")
	if c := f.stopped("no 37"); c.Key != "(id)=(37)" || c.SQLState != "P0001" {
		t.Errorf("card %+v", c)
	}
	f.want("SELECT count(*) FROM t", "0")
}

func TestApply_MissingColumnAndTableStopAndHeal(t *testing.T) {
	f := newFlow(t, conflictTable, "", "")
	f.run()
	f.publish("ALTER TABLE t ADD newcol int", "INSERT INTO t VALUES (1,'a',11)")
	if c := f.stopped("newcol"); c.Class != ClassMissingColumn || c.Table != "public.t" {
		t.Errorf("card %+v", c)
	}
	pgtest.Exec(t, f.sub, "ALTER TABLE t ADD newcol int")
	f.applied()
	f.publish("CREATE TABLE nosuch (a int PRIMARY KEY)", "INSERT INTO nosuch VALUES (1)", "INSERT INTO t VALUES (2,'b',2)")
	if c := f.stopped("nosuch"); c.Class != ClassMissingTable {
		t.Errorf("card %+v", c)
	}
	pgtest.Exec(t, f.sub, "CREATE TABLE nosuch (a int PRIMARY KEY)")
	f.applied()
	f.same("SELECT * FROM t ORDER BY id")
	f.same("SELECT * FROM nosuch")
}
