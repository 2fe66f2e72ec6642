package source

import (
	"errors"
	"testing"
	"time"

	"github.com/walferry/walferry/internal/pgtest"
)

// While a batch is being stored, the next one grows, and what is complete of it is
// shown. The queue's stand-in verifies what is shown.
func TestReader_ShowsTransactionsThatWaitForTheQueue(t *testing.T) {
	db := pgtest.Shared(t).DB(t)
	q := newMemQueue()
	r := run(t, options(t, db, q))
	awaitStreaming(t, r)
	q.setHold(true)
	pgtest.Exec(t, db, `INSERT INTO t VALUES (1)`)
	pgtest.Eventually(t, 10*time.Second, func() error {
		if q.waiting() == 0 {
			return errors.New("nothing in flight")
		}
		return nil
	})
	for i := 1; i <= 2; i++ {
		pgtest.Exec(t, db, `INSERT INTO t SELECT max(id) + 1 FROM t`)
		pgtest.Eventually(t, 10*time.Second, func() error {
			q.mu.Lock()
			defer q.mu.Unlock()
			if q.badShow != nil {
				t.Fatal(q.badShow)
			}
			if have := q.current.shown.h.Txns; have != i || q.shows < i {
				return errors.New("not shown")
			}
			return nil
		})
	}
	if n := q.waiting(); n != 1 {
		t.Errorf("%d batches in flight, want one", n)
	}
	q.crash()
	r.cancel()
	_ = r.wait(t)
}
