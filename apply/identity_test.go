package apply

import (
	"testing"
	"time"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/internal/pgtest"
	"github.com/walferry/walferry/source/pgoutput/pgoutputtest"
)

func TestApply_FullIdentityChangesExactlyOneOfEqualRows(t *testing.T) {
	f := newFlow(t, "CREATE TABLE nk (a json, p point, x xml, f float8, c char(5)); ALTER TABLE nk REPLICA IDENTITY FULL", "", "")
	f.run()
	f.through(
		`INSERT INTO nk VALUES ('{"a":1}','(1,2)','<a/>','NaN','x'),('{ "a":1 }','(1,2)','<a/>','NaN','x'),('{"a":1}','(1,2)','<a/>','NaN','x'),(NULL,NULL,NULL,'-0',NULL),('[1]',NULL,NULL,0,'')`,
		`UPDATE nk SET f = 5 WHERE ctid = (SELECT ctid FROM nk WHERE a::text = '{"a":1}' LIMIT 1)`,
		`DELETE FROM nk WHERE a::text = '{ "a":1 }'`,
		`UPDATE nk SET c = 'zero' WHERE a IS NULL`)
	const q = "SELECT a::text, p::text, x::text, f::text, c FROM nk ORDER BY 1 NULLS FIRST, 4, 5"
	f.same(q)
	if got := pgtest.QueryString(t, f.sub, "SELECT count(*) FROM nk"); got != "4" {
		t.Errorf("%s rows, want 4", got)
	}
}

func TestApply_FullIdentityUsesTheSubscribersKeyOnlyWhereTheOldRowHasIt(t *testing.T) {
	f := newFlow(t, "", "CREATE TABLE t (id int, b text, c int); ALTER TABLE t REPLICA IDENTITY FULL",
		"CREATE TABLE t (id int UNIQUE, b text, c int, local text DEFAULT 'mine')")
	f.run()
	f.through("INSERT INTO t VALUES (1,'x',1),(NULL,'n',1),(NULL,'n',2),(NULL,'n',2)", "UPDATE t SET c=9 WHERE id=1",
		"UPDATE t SET c=3 WHERE ctid = (SELECT ctid FROM t WHERE c=2 LIMIT 1)", "DELETE FROM t WHERE c=1", "UPDATE t SET id=5 WHERE c=2")
	f.same("SELECT id, b, c FROM t ORDER BY id, c")
}

func TestApply_DeferrableKeyOfTheSubscriberFindsRows(t *testing.T) { // CB-082
	f := newFlow(t, "", "CREATE TABLE dp (id int PRIMARY KEY, v int)", "CREATE TABLE dp (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, v int)")
	f.run()
	f.through("INSERT INTO dp VALUES (1,1),(2,2)")
	f.through("UPDATE dp SET v=20 WHERE id=2")
	f.same("SELECT * FROM dp ORDER BY id")
	f.through("UPDATE dp SET id=3 WHERE id=1", "DELETE FROM dp WHERE id=2")
	f.same("SELECT * FROM dp ORDER BY id")
}

func TestApply_MissingKeyIndexStopsAndGoesOnWhenItIsThere(t *testing.T) {
	f := newFlow(t, "", "CREATE TABLE t (id int PRIMARY KEY, v int)", "CREATE TABLE t (id int, v int)")
	f.run()
	f.publish("INSERT INTO t VALUES (1,1)", "UPDATE t SET v=2")
	c := f.stopped("public.t")
	if c.Class != ClassIdentity || c.Remedy == "" {
		t.Errorf("card %+v: want class identity and a remedy", c)
	}
	pgtest.Exec(t, f.sub, "ALTER TABLE t ADD PRIMARY KEY (id)")
	f.applied()
	f.same("SELECT * FROM t")
}

func TestApply_UnchangedToastIsKept(t *testing.T) {
	f := newFlow(t, `CREATE TABLE d (id int PRIMARY KEY, n int, doc text, arr int[] NOT NULL);
		CREATE TABLE fl (id int, n int, doc text); ALTER TABLE fl REPLICA IDENTITY FULL;
		ALTER TABLE d ALTER doc SET STORAGE EXTERNAL; ALTER TABLE fl ALTER doc SET STORAGE EXTERNAL`, "", "")
	f.run()
	f.through("INSERT INTO d SELECT i, 0, repeat('x', 5000+i), (SELECT array_agg(g) FROM generate_series(1,3000) g) FROM generate_series(1,3) i",
		"INSERT INTO fl SELECT id, n, doc FROM d")
	f.through("UPDATE d SET n=1 WHERE id=1; UPDATE d SET n=2 WHERE id=1; UPDATE d SET id=20 WHERE id=2", "UPDATE d SET doc=NULL, n=7 WHERE id=3",
		"UPDATE fl SET n=5 WHERE id=1", "UPDATE fl SET doc=NULL WHERE id=2")
	f.same("SELECT id, n, md5(doc), md5(arr::text) FROM d ORDER BY id")
	f.same("SELECT id, n, md5(doc) FROM fl ORDER BY id")
}

func TestApply_ColumnsOfTheSubscriberOnlyAreLeftAlone(t *testing.T) { // CB-069
	f := newFlow(t, "", "CREATE TABLE t (id int PRIMARY KEY, a int, b int DEFAULT 5)",
		"CREATE TABLE t (note text DEFAULT 'local', b int DEFAULT 99, id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id*2) STORED, a int)")
	f.run()
	f.through("INSERT INTO t VALUES (1,1,1),(2,2,NULL)")
	pgtest.Exec(t, f.sub, "UPDATE t SET note='kept'")
	f.through("UPDATE t SET a=NULL", "UPDATE t SET id=30 WHERE id=2", "INSERT INTO t VALUES (4,4,NULL)")
	f.want("SELECT id, a, b, note, twice FROM t ORDER BY id", "1||1|kept|2\n4|4||local|8\n30|||kept|60")
}

func TestApply_AlwaysIdentityTakesThePublishersValues(t *testing.T) { // CB-064
	f := newFlow(t, `CREATE TABLE i (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text, big text);
		CREATE TABLE u (id int PRIMARY KEY, req bigint GENERATED ALWAYS AS IDENTITY, v text); ALTER TABLE i ALTER big SET STORAGE EXTERNAL`, "", "ALTER TABLE i ADD note text DEFAULT 'n'")
	f.run()
	f.through("INSERT INTO i(v,big) VALUES ('a', repeat('y',9000)),('c','small')", "UPDATE i SET v='b' WHERE id=1")
	pgtest.Exec(t, f.sub, "UPDATE i SET note='kept' WHERE id=1")
	f.through("UPDATE i SET id=DEFAULT WHERE id=1", "INSERT INTO u(id,v) VALUES (1,'x')", "UPDATE u SET req=DEFAULT", "UPDATE u SET v='y'",
		"INSERT INTO i OVERRIDING SYSTEM VALUE SELECT g, 'copy', NULL FROM generate_series(1000,1100) g")
	f.same("SELECT id, v, md5(big) FROM i ORDER BY id")
	f.same("SELECT * FROM u ORDER BY id")
	f.want("SELECT note FROM i WHERE v='b'", "kept")
}

func TestApply_OldRowWithUnknownColumnsFindsItsRowByKey(t *testing.T) { // CB-026
	f := newFlow(t, "", "", "CREATE TABLE p (id int PRIMARY KEY, v text, w text)")
	rel := &change.Relation{OID: 77, Schema: "public", Name: "p", Identity: change.IdentityFull, Columns: []change.Column{
		{Name: "id", Type: 23, TypeMod: -1, Key: true}, {Name: "v", Type: 25, TypeMod: -1, Key: true}, {Name: "w", Type: 25, TypeMod: -1, Key: true},
	}}
	f.run()
	at, lsn := time.Now(), f.end+100
	f.add([][]byte{
		pgoutputtest.Relation(rel), pgoutputtest.Begin(lsn, at, 1),
		pgoutputtest.Insert(77, pgoutputtest.Row{"1", "a", "b"}),
		pgoutputtest.Update(77, 'O', pgoutputtest.Row{"1", nil, nil}, pgoutputtest.Row{"2", "A", "B"}),
		pgoutputtest.Commit(lsn, lsn+10, at),
	})
	f.applied()
	f.want("SELECT * FROM p", "2|A|B")
}

func TestApply_KeysOfDomainsAreComparedWhole(t *testing.T) {
	f := newFlow(t, `CREATE TYPE e AS ENUM ('a','b'); CREATE DOMAIN de AS e; CREATE DOMAIN db AS bit(8); CREATE DOMAIN dc AS char(6);
		CREATE TABLE k (e de, b db, c dc, n int, PRIMARY KEY (e, b, c)); CREATE TABLE w (e de, b db, c dc, n int); ALTER TABLE w REPLICA IDENTITY FULL`, "", "")
	f.run()
	f.through("INSERT INTO k VALUES ('a', B'10000001', 'xy', 1), ('a', B'10000000', 'xy', 2), ('a', B'10000001', 'xz', 3)", "INSERT INTO w SELECT * FROM k",
		"UPDATE k SET n=10 WHERE n=1", "DELETE FROM k WHERE n=3", "UPDATE w SET n=10 WHERE n=1", "DELETE FROM w WHERE n=3")
	f.same("SELECT * FROM k ORDER BY n")
	f.same("SELECT * FROM w ORDER BY n")
}
