package apply

import (
	"fmt"
	"runtime"
	"testing"
	"time"
)

// drained applies what sql logs and returns how long that took, from queue to
// commit, and how many allocations this process has made meanwhile.
func (f *flow) drained(sql string) (took time.Duration, mallocs uint64) {
	f.t.Helper()
	if err := f.halt(); err != nil {
		f.t.Fatal(err)
	}
	f.publish(sql)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	f.run()
	for end := began.Add(time.Minute); ; time.Sleep(time.Millisecond) { // the end of a measurement is polled
		f.mu.Lock()
		done := len(f.commits) > 0 && f.commits[len(f.commits)-1].Position >= f.end
		f.mu.Unlock()
		if done {
			break
		}
		if time.Now().After(end) {
			f.t.Fatalf("not applied within a minute; last card %v", f.card())
		}
	}
	took = time.Since(began)
	runtime.ReadMemStats(&after)
	return took, after.Mallocs - before.Mallocs
}

func TestApply_RowsAllocateNothingFromQueueToSocket(t *testing.T) {
	const few, many = 2000, 42000
	for _, c := range []struct{ name, sql string }{
		{"copy", "INSERT INTO t SELECT g, 'some text '||g, g FROM generate_series(%d, %d) g"},
		{"short runs of inserts", "DO $$ BEGIN FOR i IN %d..%d LOOP INSERT INTO t VALUES (i, 'text', i); IF i %% 5 = 0 THEN INSERT INTO other VALUES (i); END IF; END LOOP; END $$"},
		{"updates", "UPDATE full_rows SET n = n + 1 WHERE id BETWEEN %d AND %d"},
		{"updates in short runs", "DO $$ BEGIN FOR i IN %d..%d LOOP UPDATE full_rows SET n = i WHERE id = 1 + i %% 700; END LOOP; END $$"},
		{"deletes", "DELETE FROM full_rows WHERE id BETWEEN %d AND %d"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFlow(t, `CREATE TABLE t (id int PRIMARY KEY, v text, n int); CREATE TABLE other (id int PRIMARY KEY);
				CREATE TABLE full_rows (id int PRIMARY KEY, v text, n int); INSERT INTO full_rows SELECT g, 'some text '||g, g FROM generate_series(1, 60000) g`, "", "")
			f.drained(fmt.Sprintf(c.sql, 50001, 50001+few)) // first use of everything
			_, a := f.drained(fmt.Sprintf(c.sql, 1, few))
			_, b := f.drained(fmt.Sprintf(c.sql, few+1, few+many))
			per := (float64(b) - float64(a)) / (many - few)
			t.Logf("%.4f allocations a row", per)
			if per > 0.02 {
				t.Errorf("%.4f allocations a row: %d for %d rows, %d for %d", per, a, few, b, many)
			}
		})
	}
}
