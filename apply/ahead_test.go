package apply

import (
	"context"
	"testing"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/queue"
)

// withdrawing is a reader that once, after two batches, fails as one does that has been
// shown what is not stored. Until then it is ready, so that the group stays open.
type withdrawing struct {
	Reader
	left *int
}

func (r *withdrawing) Ready() bool { return *r.left > 0 || r.Reader.Ready() }

func (r *withdrawing) Next(ctx context.Context) (*queue.Delivery, error) {
	if *r.left == 0 {
		return r.Reader.Next(ctx)
	}
	if *r.left--; *r.left == 0 {
		return nil, &queue.Error{Kind: queue.ErrWithdrawn}
	}
	return r.Reader.Next(ctx)
}

// An applier whose reader was shown what the queue does not have goes on at its
// position: what the open group held is applied once.
func TestApply_WithdrawnBatchesAreAppliedOnce(t *testing.T) {
	f := newFlow(t, "CREATE TABLE a (id int PRIMARY KEY, n int)", "", "")
	left, opened := 3, 0
	f.opts.OpenReader = func(ctx context.Context, from change.LSN) (Reader, error) {
		opened++
		r, err := f.openReader(ctx, from)
		return &withdrawing{Reader: r, left: &left}, err
	}
	f.publish("INSERT INTO a VALUES (1, 0)")
	f.publish("UPDATE a SET n = n + 1")
	f.publish("UPDATE a SET n = n + 1", "INSERT INTO a VALUES (2, 7)")
	f.run()
	f.applied()
	f.same("SELECT * FROM a ORDER BY id")
	f.noCards()
	_ = f.halt()
	if left != 0 || opened != 2 || len(f.waits) != 0 {
		t.Errorf("%d left, opened %d times, waits %q; want 0, 2 and none", left, opened, f.waits)
	}
}
