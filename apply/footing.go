package apply

import (
	"errors"
	"fmt"
	"time"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/queue"
	"github.com/walferry/walferry/source/pgoutput"
)

// A footing is what a position stands on: the cluster whose log it is in, and
// the last transaction before it. A position alone is a number that any history
// reaches sooner or later: that of another cluster, or that of a publisher
// which was put back to an earlier state together with its queue. So reading
// begins with that last transaction, which is in the queue unless it was
// trimmed, and nothing is applied before it has been seen.
type footing struct {
	system uint64     // 0: not known
	commit change.LSN // of the last transaction; 0: none yet
	xid    change.XID
	time   time.Time
}

// ErrHistory says that the queue holds another history than the one that the
// subscription has followed.
var ErrHistory = errors.New("the queue does not continue what the subscription has applied")

// A HistoryError says how the queue and the subscription differ.
type HistoryError struct{ Detail, Remedy string }

func (e *HistoryError) Error() string { return ErrHistory.Error() + ": " + e.Detail + ": " + e.Remedy }
func (e *HistoryError) Unwrap() error { return ErrHistory }

// Hint is what to do.
func (e *HistoryError) Hint() string { return e.Remedy }

// openReader opens the queue at the last transaction before the position. When
// that is no longer there, the position has to do.
func (e *engine) openReader() (err error) {
	e.began, e.back, e.seen = e.pos, e.foot.commit != 0 && e.foot.commit < e.pos, false
	if e.back {
		e.reader, err = e.o.OpenReader(e.ctx, e.foot.commit)
	}
	if !e.back || errors.Is(err, queue.ErrHole) {
		e.back = false
		e.reader, err = e.o.OpenReader(e.ctx, e.pos)
	}
	if err != nil {
		return fmt.Errorf("open the queue at %v: %w", e.pos, err)
	}
	return nil
}

// ahead reports whether err only concerns batches before the position, which
// nobody needs, and opens the queue there.
func (e *engine) ahead(err error) (bool, error) {
	if !e.back || !errors.Is(err, queue.ErrHole) {
		return false, err
	}
	e.back = false
	if e.tx.open { // an old one
		e.msgs.Discard()
		e.tx = transaction{}
	}
	_ = e.reader.Close() // nothing is written through it
	r, err := e.o.OpenReader(e.ctx, e.pos)
	if err != nil {
		return false, fmt.Errorf("open the queue at %v: %w", e.pos, err)
	}
	e.reader = r
	return true, nil
}

// recognize refuses a batch of another cluster.
func (e *engine) recognize(h *change.BatchHeader) error {
	if s := e.foot.system; s != 0 && s != h.System {
		return &HistoryError{
			Detail: fmt.Sprintf("batch %d is of the cluster with system identifier %d, the subscription was made from %d", e.seq, h.System, s),
			Remedy: "connect reader and applier to the queue and the publisher that the subscription was made from; or, to follow this one, " + remedyCopy(e.o.Subscription),
		}
	}
	e.grp.foot.system = h.System
	return nil
}

// prove compares the transactions around the position with the footing.
func (e *engine) prove(m *pgoutput.Message) error {
	f := &e.foot
	switch {
	case !e.back, m.LSN < f.commit:
		return nil
	case m.LSN == f.commit && m.XID == f.xid && m.Time.Equal(f.time):
		e.seen = true
		return nil
	case m.LSN >= e.began && e.seen:
		e.back = false
		return nil
	}
	return &HistoryError{
		Detail: fmt.Sprintf("the last transaction applied is %d, committed at %v (%s); the queue has %d, committed at %v (%s), in its place",
			f.xid, f.commit, f.time.Format(time.RFC3339Nano), m.XID, m.LSN, m.Time.UTC().Format(time.RFC3339Nano)),
		Remedy: "the publisher, or the publisher and the queue, were put back to an earlier state and have gone another way since: compare them with the subscriber, then " +
			remedyCopy(e.o.Subscription),
	}
}

func remedyCopy(subscription string) string {
	return "copy the subscription again: stop walferry, run walferry drop --subscription " + subscription + " --empty, start it"
}
