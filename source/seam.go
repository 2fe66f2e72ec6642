package source

import (
	"fmt"
	"time"

	"github.com/walferry/walferry/change"
)

// A seam is where the log that the server sends joins the end of the queue. A
// publisher that was put back to an earlier state by a copy of its files keeps
// its system identifier and its timeline, and as soon as it has written as
// much as it lost, no position tells the two histories apart: what was
// committed at the old positions would be left out. So wherever the slot still
// has what the queue has, the server is asked for the queue's last transaction
// once more. It must come, and nothing that the queue does not have may come
// with it.
//
// All methods may be called on nil, which verifies nothing.
type seam struct {
	slot   string
	commit change.LSN // of the queue's last transaction; 0: it has come, or the server need not send it
	xid    change.XID
	time   time.Time  // the same work done again gets the same positions and numbers
	end    change.LSN // End of the queue
	last   change.LSN // commit LSN of that transaction, for people; 0: not known
}

// overlap says where to start replication before end, the end of the queue,
// and what must come from there. h is the header of the queue's last whole
// transaction, or of the oldest of the marks and open chunks after it.
func overlap(confirmed, end change.LSN, h *change.BatchHeader) (from change.LSN, s *seam) {
	s = &seam{end: end}
	if h.Txns == 0 {
		return min(max(confirmed, h.Prev), end), s
	}
	s.last = h.Last
	if confirmed > h.Last {
		return confirmed, s
	}
	s.commit, s.xid, s.time = h.Last, h.XID, h.CommitTime
	return h.Last, s
}

// duplicate is told of a transaction before the end of the queue. strange says
// that the queue does not have it, which matters if it holds a change.
func (s *seam) duplicate(commit change.LSN, xid change.XID, at time.Time) (strange bool, err error) {
	switch {
	case s == nil, commit < s.last:
		return false, nil
	case commit == s.last && s.commit == 0: // seen already
		return false, nil
	case commit == s.commit && xid == s.xid && at.Equal(s.time):
		s.commit = 0
		return false, nil
	case commit == s.commit:
		return false, s.fail("transaction %d of %s was committed at %v, the queue has transaction %d of %s there",
			xid, at.UTC().Format(time.RFC3339Nano), commit, s.xid, s.time.Format(time.RFC3339Nano))
	}
	return true, nil
}

// foreign is called for a transaction that the queue should have.
func (s *seam) foreign(commit change.LSN, xid change.XID) error {
	return s.fail("transaction %d, committed at %v, is not in the queue, which has everything up to %v", xid, commit, s.end)
}

// closed is told that everything before at has come.
func (s *seam) closed(at change.LSN) error {
	if s == nil || s.commit == 0 {
		return nil
	}
	return s.fail("transaction %d, committed at %v, is in the queue but no longer in the publisher's log (which was read up to %v)", s.xid, s.commit, at)
}

func (s *seam) fail(f string, v ...any) error {
	return &Error{
		Kind: ErrPublisherBehind, Slot: s.slot, Queue: s.end, Detail: fmt.Sprintf(f, v...),
		Hint: "the publisher was put back to an earlier state and has gone another way since: compare it with the subscribers, then " + hintCopyAll +
			". If only publications or origin were changed in the configuration: put the old ones back, wait until nothing lags, stop walferry, and change them then",
	}
}
