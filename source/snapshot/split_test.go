package snapshot

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/walferry/walferry/internal/pgtest"
)

// smallParts makes parts small for a test.
func smallParts(t *testing.T) {
	old := partBytes
	partBytes = 64 << 10
	t.Cleanup(func() { partBytes = old })
}

func TestRun_LargeTablesAreCopiedInParts(t *testing.T) {
	smallParts(t)
	p := newPair(t, `CREATE TABLE plain (id int PRIMARY KEY, v text, g int GENERATED ALWAYS AS (id * 2) STORED); CREATE TABLE filtered (id int PRIMARY KEY, v text);
		CREATE TABLE parted (id int, d int, v text, PRIMARY KEY (id, d)) PARTITION BY RANGE (d); CREATE TABLE p1 PARTITION OF parted FOR VALUES FROM (0) TO (10) PARTITION BY LIST (d);
		CREATE TABLE p11 PARTITION OF p1 DEFAULT; CREATE TABLE p2 (d int NOT NULL, gone int, id int NOT NULL, v text); ALTER TABLE p2 DROP gone;
		ALTER TABLE parted ATTACH PARTITION p2 FOR VALUES FROM (10) TO (100); CREATE TABLE mother (id int, v text); CREATE TABLE child () INHERITS (mother)`,
		`INSERT INTO plain (id, v) SELECT g, repeat('x', 50) FROM generate_series(1, 20000) g; UPDATE plain SET v = 'y' WHERE id % 3 = 0; DELETE FROM plain WHERE id % 7 = 0;
		INSERT INTO filtered SELECT id, v FROM plain; INSERT INTO parted SELECT id, id % 20, v FROM plain; INSERT INTO mother SELECT id, v FROM plain; INSERT INTO child SELECT id, v FROM plain`, "")
	o := p.options("plain", "filtered", "parted", "mother")
	o.Workers = 4
	o.Tables[1].RowFilter = "(id % 2 = 0)"
	stop := make(chan struct{})
	var writes sync.WaitGroup
	var once sync.Once
	o.Events.TableStarted = func(Progress) { // what changes later is not copied
		once.Do(func() {
			writes.Go(func() {
				c, err := connect(t.Context(), p.pub, "test")
				if err != nil {
					t.Error(err)
					return
				}
				defer closeConn(c)
				for i := uint64(0); ; i++ {
					select {
					case <-stop:
						return
					default:
						if err := execSQL(t.Context(), c, "UPDATE public.plain SET v = 'later', id = -id WHERE id % 50 = "+decimal(i%50)); err != nil {
							t.Error(err)
							return
						}
					}
				}
			})
		})
	}
	before := pgtest.QueryString(t, p.pub, "SELECT count(*), sum(id), md5(string_agg(v, ',' ORDER BY id)) FROM plain")
	last := map[string]int64{}
	o.Events.TableProgress = func(pr Progress) { last[pr.Table.SourceName] = pr.Rows }
	r := p.run(o)
	close(stop)
	writes.Wait()
	p.want(p.sub, "SELECT count(*), sum(id), md5(string_agg(v, ',' ORDER BY id)) FROM plain", before)
	p.want(p.sub, "SELECT count(*) FROM plain WHERE g <> id * 2", "0")
	p.want(p.sub, "SELECT count(*) FILTER (WHERE id % 2 <> 0) FROM filtered", "0")
	p.same("SELECT count(*), sum(id) FROM filtered WHERE id % 2 = 0")
	p.same("SELECT tableoid::regclass, count(*), sum(id), sum(d), max(v) FROM parted GROUP BY 1 ORDER BY 3")
	p.same("SELECT count(*), sum(id) FROM ONLY mother")
	p.want(p.sub, "SELECT count(*) FROM child", "0")
	p.want(p.sub, "SELECT count(*), (SELECT count(*) FROM walferry.subscription_part) FROM walferry.subscription_table WHERE state = 'ready'", "4|0")
	for _, table := range r.Tables {
		if got := pgtest.QueryString(t, p.sub, "SELECT count(*) FROM ONLY "+table.Target()); table.SourceName != "parted" && got != decimal(uint64(table.Rows)) {
			t.Errorf("%s: %d rows are reported, there are %s", table.Source(), table.Rows, got)
		}
		if last[table.SourceName] != table.Rows {
			t.Errorf("%s: the last progress is %d of %d rows", table.Source(), last[table.SourceName], table.Rows)
		}
	}
}

// A part that fails ends the table; other tables come all the same.
func TestRun_PartThatFailsIsToldOnce(t *testing.T) {
	smallParts(t)
	p := newPair(t, "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE small (id int)", "INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 50000) g; INSERT INTO small VALUES (1)",
		"ALTER TABLE t ADD CONSTRAINT never CHECK (id <> 25000)")
	o := p.options("t", "small")
	o.Workers = 3
	told := 0
	o.Events.TableDone = func(r TableResult, err error) {
		if r.SourceName == "t" {
			told++
		}
	}
	_, err := p.fail(o)
	if !strings.Contains(err.Error(), "never") || strings.Count(err.Error(), "copy table") != 1 || told != 1 {
		t.Errorf("told %d times: %v", told, err)
	}
	p.want(p.sub, "SELECT string_agg(table_name || ' ' || state, ',' ORDER BY table_name) FROM walferry.subscription_table", "small ready,t copying")
	pgtest.Exec(t, p.sub, "ALTER TABLE t DROP CONSTRAINT never")
	began := time.Now()
	o.Events = Events{}
	p.run(o)
	t.Logf("the second run took %v", time.Since(began).Round(time.Millisecond))
	p.same("SELECT count(*), sum(id) FROM t")
}
