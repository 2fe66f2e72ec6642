package apply

import "testing"

// BenchmarkApply measures 100000 rows of each kind from queue to commit, the
// server's work included. The publisher's part is not in the time.
func BenchmarkApply(b *testing.B) {
	const rows = 100000
	for _, c := range []struct{ name, before, sql string }{
		{"insert_one_transaction", "", "INSERT INTO t SELECT g, 'some text '||g, g FROM generate_series(1,100000) g"},
		{"insert_transactions_of_10", "", "DO $$ BEGIN FOR i IN 0..9999 LOOP INSERT INTO t SELECT i*10+g, 'some text '||g, g FROM generate_series(1,10) g; COMMIT; END LOOP; END $$"},
		{"update", "INSERT INTO t SELECT g, 'some text '||g, g FROM generate_series(1,100000) g", "UPDATE t SET n = n + 1"},
		{"delete", "INSERT INTO t SELECT g, 'some text '||g, g FROM generate_series(1,100000) g", "DELETE FROM t"},
	} {
		b.Run(c.name, func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				f := newFlow(b, "CREATE TABLE t (id int PRIMARY KEY, v text, n int)", "", "")
				f.pack = 2000
				f.run()
				if c.before != "" {
					f.through(c.before)
				}
				b.StartTimer()
				took, mallocs := f.drained(c.sql)
				b.StopTimer()
				b.ReportMetric(float64(took.Nanoseconds())/rows, "ns/row")
				b.ReportMetric(float64(mallocs)/rows, "allocs/row")
				f.halt()
			}
		})
	}
}
