package snapshot

import (
	"sync"
	"testing"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/internal/pgtest"
)

// The snapshot of the copy is older than a statement that takes rows away from
// older snapshots too: what it would find is not the state at its LSN.
func TestRun_TableThatIsTruncatedOrRewrittenBeforeItsTurnIsCopiedAtALaterPoint(t *testing.T) {
	const partitioned = `CREATE TABLE t (id int PRIMARY KEY, v int) PARTITION BY LIST (id);
		CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1, 2, 3); CREATE TABLE t2 PARTITION OF t FOR VALUES IN (4, 5)`
	for name, tc := range map[string]struct{ schema, meanwhile string }{
		"truncate":           {"CREATE TABLE t (id int PRIMARY KEY, v int)", "TRUNCATE t"},
		"rewrite":            {"CREATE TABLE t (id int PRIMARY KEY, v int)", "DELETE FROM t WHERE id = 1; ALTER TABLE t ALTER v TYPE int USING v + 1"},
		"truncate partition": {partitioned, "TRUNCATE t1"},
		"drop partition":     {partitioned, "DROP TABLE t1"},
		"detach partition":   {partitioned, "ALTER TABLE t DETACH PARTITION t1"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, tc.schema+"; CREATE TABLE a (id int)", "INSERT INTO t SELECT g, g FROM generate_series(1, 5) g; INSERT INTO a VALUES (1)", "")
			o := p.options("a", "t")
			var once sync.Once
			o.Events.ConsistentPoint = func(change.LSN) { once.Do(func() { pgtest.Exec(t, p.pub, tc.meanwhile) }) }
			r := p.run(o)
			if len(r.Tables) != 2 || r.Tables[0].CopyLSN != r.ConsistentPoint || r.Tables[1].CopyLSN <= r.ConsistentPoint {
				t.Errorf("tables %+v, want a at the first consistent point %v and t at a later one", r.Tables, r.ConsistentPoint)
			}
			p.same("SELECT count(*), sum(v) FROM t")
			p.want(p.sub, "SELECT table_name, state, copy_lsn = '"+r.ConsistentPoint.String()+"' FROM walferry.subscription_table ORDER BY 1", "a|ready|t\nt|ready|f")
		})
	}
}

func TestRun_LocksNoTableButTheOneThatIsCopied(t *testing.T) {
	p := newPair(t, `CREATE TABLE a (id int); CREATE TABLE b (id int) PARTITION BY LIST (id); CREATE TABLE b1 PARTITION OF b FOR VALUES IN (1); CREATE TABLE c (id int)`,
		"INSERT INTO a VALUES (1); INSERT INTO b VALUES (1); INSERT INTO c VALUES (1)", "")
	o := p.options("a", "b", "c")
	o.Events.TableStarted = func(s Progress) {
		if s.Table.SourceName == "c" {
			pgtest.Exec(t, p.pub, "SET lock_timeout = '3s'; TRUNCATE a, b")
		}
	}
	if r := p.run(o); len(r.Tables) != 3 {
		t.Errorf("tables %+v", r.Tables)
	}
	p.want(p.sub, "SELECT (SELECT count(*) FROM a), (SELECT count(*) FROM b), (SELECT count(*) FROM c)", "1|1|1")
}
