package apply

import (
	"fmt"
	"testing"

	"github.com/walferry/walferry/internal/pgtest"
)

const everyRow = "SELECT count(*), md5(string_agg(t::text, ';' ORDER BY t::text)) FROM t"

// Runs of every length around the sizes of commands, with every kind of value.
func TestApply_RunsOfUpdatesAndDeletesKeepEveryRow(t *testing.T) {
	f := newFlow(t, `CREATE DOMAIN d AS varchar(20) CHECK (VALUE <> 'never');
		CREATE TABLE t (a int, b text, v d, n numeric(12,2), x bytea, j jsonb, s int GENERATED ALWAYS AS (a * 2) STORED, PRIMARY KEY (b, a))`,
		"", "ALTER TABLE t ADD own text DEFAULT 'mine'")
	f.run()
	f.publish(`INSERT INTO t SELECT g, 'k'||g%7, 'v'||g, g/3.0, decode('005c', 'hex'), '{"a": 1}' FROM generate_series(1, 3000) g`)
	id := 0
	for _, n := range []int{1, 2, 3, 4, 5, 7, 8, 9, 31, 33, 63, 64, 65, 127, 129, 200} {
		f.publish(
			fmt.Sprintf(`UPDATE t SET v = 'u'||a||E'\\', n = NULL, x = decode('0a', 'hex') WHERE a > %d AND a <= %d`, id, id+n),
			fmt.Sprintf(`UPDATE t SET j = NULL, v = NULL WHERE a > %d AND a <= %d`, id+n/2, id+n+3),
			fmt.Sprintf(`DELETE FROM t WHERE a > %d AND a <= %d`, id+n/3, id+n),
			fmt.Sprintf(`INSERT INTO t SELECT 10000+%d+g, 'new', E'q''\t', g, NULL, '[]' FROM generate_series(1, %d) g`, id, min(n, 29)))
		id += n
	}
	f.applied()
	same(f)
	f.want("SELECT count(*) FROM t WHERE own <> 'mine'", "0")
	f.noCards()
}

func same(f *flow) {
	f.t.Helper()
	f.same("SELECT count(*), md5(string_agg(ROW(a,b,v,n,x,j,s)::text, ';' ORDER BY a, b)) FROM t")
}

func TestApply_ARowThatChangesOftenEndsAsThePublisherHasIt(t *testing.T) {
	f := newFlow(t, "CREATE TABLE t (id int PRIMARY KEY, n int, v text); INSERT INTO t SELECT g, 0, '' FROM generate_series(1, 50) g", "", "")
	f.run()
	f.through(`DO $$ BEGIN FOR i IN 1..3000 LOOP UPDATE t SET n = n + 1, v = v || i % 10 WHERE id = 1 + (i * 7919 + i / 11) % 50; IF i % 37 = 0 THEN COMMIT; END IF; END LOOP; END $$`)
	f.same(everyRow)
	f.noCards()
}

// Keys that are equal and have different texts are the same row.
func TestApply_EqualKeysOfDifferentText(t *testing.T) {
	f := newFlow(t, "CREATE TABLE t (id numeric PRIMARY KEY, n int); INSERT INTO t SELECT g, 0 FROM generate_series(1, 20) g", "",
		"UPDATE t SET id = id::numeric(10,3)")
	f.run()
	f.through("UPDATE t SET n = 1; UPDATE t SET id = id::numeric(10,1) WHERE id < 9; UPDATE t SET n = n + 1 WHERE id < 15; DELETE FROM t WHERE id > 17")
	f.same("SELECT count(*), sum(n), string_agg(id::int || ':' || n, ',' ORDER BY id) FROM t")
	f.noCards()
}

// Rows that change places within one run: the order of the log counts.
func TestApply_KeysThatMoveWithinARun(t *testing.T) {
	f := newFlow(t, "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT g, 'v'||g FROM generate_series(1, 100) g", "", "")
	f.run()
	f.through(`DO $$ BEGIN FOR i IN REVERSE 100..1 LOOP UPDATE t SET id = id + 1 WHERE id = i; END LOOP; END $$`,
		"UPDATE t SET id = id + 1000, v = v || '!'", "BEGIN; UPDATE t SET v = 'a' WHERE id = 1050; UPDATE t SET id = 1 WHERE id = 1050; UPDATE t SET id = 1050 WHERE id = 1051; UPDATE t SET v = 'b' WHERE id IN (1, 1050); COMMIT")
	f.same(everyRow)
	f.noCards()
}

// A row that is not there among many that are: the error names it, and none
// of its transaction is visible.
func TestApply_AMissingRowInARunIsNamed(t *testing.T) {
	for _, c := range []struct{ name, sql string }{{"update", "UPDATE t SET n = n + 1"}, {"delete", "DELETE FROM t"}} {
		t.Run(c.name, func(t *testing.T) {
			f := newFlow(t, "CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t SELECT g, 0 FROM generate_series(1, 90) g", "", "DELETE FROM t WHERE id = 47")
			f.publish("INSERT INTO t VALUES (1000, 0)", c.sql)
			f.run()
			f.stopped("47")
			f.want("SELECT count(*), sum(n) FROM t", "90|0")
			pgtest.Exec(t, f.sub, "INSERT INTO t VALUES (47, 0)")
			f.applied()
			f.same("SELECT count(*), coalesce(sum(n), 0) FROM t")
		})
	}
}

// What looks at single rows gets single rows.
func TestApply_TriggersSeeEachRow(t *testing.T) {
	f := newFlow(t, "CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t SELECT g, 0 FROM generate_series(1, 40) g", "", `
		CREATE TABLE seen (k bigserial, op text, id int, total bigint);
		CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO public.seen (op, id, total) SELECT TG_OP, coalesce(NEW.id, OLD.id), coalesce(sum(n), 0) FROM public.t; RETURN NULL; END $$;
		CREATE TRIGGER see AFTER INSERT OR UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION see();
		ALTER TABLE t ENABLE ALWAYS TRIGGER see`)
	f.run()
	f.through("UPDATE t SET n = 1", "DELETE FROM t WHERE id <= 10", "INSERT INTO t SELECT g, 2 FROM generate_series(101, 105) g")
	f.same(everyRow)
	f.want("SELECT op, count(*), count(DISTINCT total), min(total), max(total) FROM seen GROUP BY op ORDER BY op", "DELETE|10|10|30|39\nINSERT|5|5|32|40\nUPDATE|40|40|1|40")
}

// An index that is not unique may find several rows: they are counted one by one.
func TestApply_AKeyThatIsNotUniqueOnTheSubscriber(t *testing.T) {
	f := newFlow(t, "", "CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t SELECT g, 0 FROM generate_series(1, 20) g",
		"CREATE TABLE t (id int, n int); CREATE INDEX ON t (id); INSERT INTO t SELECT CASE WHEN g = 9 THEN 8 ELSE g END, 0 FROM generate_series(1, 20) g")
	f.publish("UPDATE t SET n = 1")
	f.run()
	f.stopped("2 rows")
	f.want("SELECT sum(n) FROM t", "0")
}

// noCards fails when anything had to be reported.
func (f *flow) noCards() {
	f.t.Helper()
	if c := f.card(); c != nil {
		f.t.Errorf("error card %v", c)
	}
}

// Rows of several tables between each other: each table keeps its order.
func TestApply_TablesBetweenEachOther(t *testing.T) {
	const tables = `CREATE TABLE t (id int PRIMARY KEY, n int); CREATE TABLE few (id int PRIMARY KEY, n int); CREATE TABLE hist (id int PRIMARY KEY, v text UNIQUE);
		CREATE TABLE big (id int PRIMARY KEY, v text); CREATE TABLE nokey (a int, b text);
		INSERT INTO t SELECT g, 0 FROM generate_series(1, 300) g; INSERT INTO few SELECT g, 0 FROM generate_series(1, 3) g; INSERT INTO big VALUES (1, '')`
	f := newFlow(t, tables, "ALTER TABLE nokey REPLICA IDENTITY FULL", "")
	f.run()
	f.through(`DO $$ BEGIN FOR i IN 1..900 LOOP
		UPDATE t SET n = n + i WHERE id = 1 + i * 7 % 300; UPDATE few SET n = n + 1 WHERE id = 1 + i % 3; INSERT INTO hist VALUES (i, 'h' || i % 10 || '/' || i);
		IF i % 10 = 0 THEN DELETE FROM hist WHERE id = i - 5; INSERT INTO hist VALUES (-i, 'h' || (i - 5) % 10 || '/' || i - 5); END IF;
		IF i % 50 = 0 THEN UPDATE big SET v = repeat(i::text, 3000); INSERT INTO nokey VALUES (i, 'x'); UPDATE nokey SET b = b || 'y' WHERE a = i; END IF;
		IF i % 100 = 0 THEN UPDATE few SET id = -id WHERE id > 0; UPDATE few SET id = -id; TRUNCATE nokey; END IF;
		IF i % 4 = 0 THEN COMMIT; END IF; END LOOP; END $$`)
	for _, table := range []string{"t", "few", "hist", "big", "nokey"} {
		f.same("SELECT '" + table + "', count(*), md5(string_agg(x::text, ';' ORDER BY x::text)) FROM " + table + " x")
	}
	f.noCards()
}
