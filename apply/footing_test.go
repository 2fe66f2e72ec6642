package apply

import (
	"errors"
	"testing"
	"time"

	"github.com/walferry/walferry/internal/pgtest"
)

// The queue must hold the transaction that the position stands on; what does
// not continue it is not applied.
func TestApply_AnotherHistoryIsRefused(t *testing.T) {
	for name, change := range map[string]string{
		"another transaction": "last_xid = last_xid + 1",
		"another time":        "last_time = last_time + interval '1 microsecond'",
		"another place":       "last_commit = last_commit - 1",
		"another cluster":     "system_id = '5'",
	} {
		t.Run(name, func(t *testing.T) {
			f := newFlow(t, "CREATE TABLE t (id int PRIMARY KEY)", "", "")
			f.run()
			f.through("INSERT INTO t VALUES (1)")
			if err := f.halt(); err != nil {
				t.Fatal(err)
			}
			pgtest.Exec(t, f.sub, "UPDATE walferry.subscription SET "+change)
			f.publish("INSERT INTO t VALUES (2)")
			f.run()
			select {
			case err := <-f.result:
				f.result <- nil
				var h *HistoryError
				if !errors.Is(err, ErrHistory) || !errors.As(err, &h) || h.Hint() == "" {
					t.Errorf("Run returned %v, want ErrHistory with a remedy", err)
				}
			case <-time.After(waitLong):
				t.Fatal("Run goes on")
			}
			f.want("SELECT * FROM t", "1")
			if err := SetPosition(t.Context(), dial(t, f.sub), f.opts.Subscription, f.batches[1].header.Prev, 0); err != nil {
				t.Fatal(err)
			}
			f.halt()
			f.run()
			f.applied()
			f.want("SELECT * FROM t ORDER BY id", "1\n2")
		})
	}
}
