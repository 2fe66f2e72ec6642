package apply

import (
	"testing"

	"github.com/walferry/walferry/internal/pgtest"
)

func TestApply_UniqueSwapsPassOrdinaryIndexes(t *testing.T) { // A38
	f := newFlow(t, "", `CREATE TABLE u (id int PRIMARY KEY, e text, big text, CONSTRAINT ue UNIQUE (e) DEFERRABLE INITIALLY IMMEDIATE); ALTER TABLE u ALTER big SET STORAGE EXTERNAL;
		CREATE TABLE n (id int, v text); ALTER TABLE n REPLICA IDENTITY FULL`,
		`CREATE TABLE u (id int PRIMARY KEY, e text UNIQUE, big text, note text DEFAULT 'd'); CREATE TABLE n (id int UNIQUE, v text)`)
	f.run()
	f.through("INSERT INTO u SELECT g, 'e'||g, repeat('b', 4000+g) FROM generate_series(1,5) g", "INSERT INTO n SELECT g, 'x' FROM generate_series(1,4) g")
	pgtest.Exec(t, f.sub, "UPDATE u SET note='kept' WHERE id=2")
	f.through("UPDATE u SET e = CASE id WHEN 1 THEN 'e2' WHEN 2 THEN 'e1' ELSE e END", "UPDATE n SET id = id + 1",
		"BEGIN; UPDATE u SET id = 10 WHERE id = 1; UPDATE u SET id = 11 WHERE id = 10; UPDATE u SET e = CASE id WHEN 3 THEN 'e4' ELSE 'e3' END WHERE id IN (3,4); DELETE FROM u WHERE id = 5; INSERT INTO u VALUES (6,'e5',NULL); COMMIT")
	f.same("SELECT id, e, md5(big) FROM u ORDER BY id")
	f.same("SELECT * FROM n ORDER BY id")
	f.want("SELECT note FROM u WHERE id=2", "kept")
	if c := f.card(); c != nil {
		t.Errorf("a swap was reported as an error: %v", c)
	}
}

func TestApply_DuplicatesUnderADeferrableConstraintAreNotCommitted(t *testing.T) { // CB-081
	f := newFlow(t, "", "CREATE TABLE u (id int PRIMARY KEY, k int)", "CREATE TABLE u (id int PRIMARY KEY, k int, CONSTRAINT uk UNIQUE (k) DEFERRABLE INITIALLY DEFERRED)")
	f.run()
	f.through("INSERT INTO u VALUES (1,1),(2,2),(5,NULL),(6,NULL)")
	f.through("BEGIN; UPDATE u SET k=2 WHERE id=1; UPDATE u SET k=1 WHERE id=2; COMMIT")
	f.same("SELECT * FROM u ORDER BY id")
	f.publish("INSERT INTO u VALUES (3,1)")
	c := f.stopped("uk")
	if c.Class != ClassInsertConflict || c.Key != "(id)=(3)" || c.SQLState != "23505" {
		t.Errorf("card %+v", c)
	}
	f.want("SELECT count(*) FROM u", "4")
	pgtest.Exec(t, f.sub, "UPDATE u SET k=100 WHERE id=2")
	f.applied()
	f.want("SELECT id, k FROM u ORDER BY id", "1|2\n2|100\n3|1\n5|\n6|")
}

func TestApply_GenuineUniqueConflictOfAnUpdateStops(t *testing.T) {
	f := newFlow(t, "CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE)", "", "")
	f.run()
	f.through("INSERT INTO t VALUES (1,1),(2,2)")
	pgtest.Exec(t, f.sub, "INSERT INTO t VALUES (50,500)")
	f.publish("UPDATE t SET u=500 WHERE id=1")
	if c := f.stopped("t_u_key"); c.Class != ClassInsertConflict || c.Table != "public.t" {
		t.Errorf("card %+v", c)
	}
	pgtest.Exec(t, f.sub, "DELETE FROM t WHERE id=50")
	f.applied()
	f.same("SELECT * FROM t ORDER BY id")
}
