package apply

import (
	"testing"
)

func TestApply_InsertUpdateDeleteReachTheSubscriber(t *testing.T) {
	f := newFlow(t, "CREATE TABLE t (id int PRIMARY KEY, v text)", "", "")
	f.run()
	f.through("INSERT INTO t VALUES (1,'a'),(2,NULL),(3,'c')", "UPDATE t SET v='B' WHERE id=2", "DELETE FROM t WHERE id=3", "UPDATE t SET id=10 WHERE id=1")
	f.want("SELECT * FROM t ORDER BY id", "2|B\n10|a")
	f.through("INSERT INTO t SELECT g, 'v'||g FROM generate_series(100,5099) g", "UPDATE t SET v=v||'x' WHERE id>5000", "TRUNCATE t", "INSERT INTO t VALUES (7,E'tab\\tnl\\nbs\\\\ \\\\N')")
	f.same("SELECT * FROM t ORDER BY id")
}
