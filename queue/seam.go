package queue

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/walferry/walferry/change"
)

// missingBetween is how many batches between the first and the last one are
// not stored: those that were deleted, and those at the end of which only the
// number is left.
func missingBetween(st *jetstream.StreamState) int {
	if st.LastSeq < st.FirstSeq || st.Msgs == 0 {
		return 0
	}
	return int(st.LastSeq - st.FirstSeq + 1 - min(st.Msgs, st.LastSeq-st.FirstSeq+1))
}

// LastTransaction returns the header of the batch in which the queue's last
// whole transaction ends. When that cannot be read any more, it is the header of
// the oldest batch after it, in which no transaction ends, like in all that
// follow: Prev says from where on the queue knows of none.
func (q *Queue) LastTransaction(ctx context.Context, tail Tail) (change.BatchHeader, error) {
	if tail.Empty || tail.Header.Txns > 0 {
		return tail.Header, nil
	}
	for range maxSearches {
		info, err := q.streamInfo(ctx)
		if err != nil {
			return change.BatchHeader{}, err
		}
		found := tail.Header
		lo, hi := info.State.FirstSeq, tail.Seq
		for lo < hi && err == nil {
			mid := lo + (hi-lo)/2
			var m *stored
			if m, err = q.probe(ctx, mid); err != nil {
				break
			}
			if m.header.Total >= tail.Header.Total {
				hi, found = mid, m.header
			} else {
				lo = mid + 1
			}
		}
		switch {
		case errors.Is(err, ErrHole), errors.Is(err, ErrCorrupt):
			return found, nil // for those to report who need what is missing
		case !errors.Is(err, errNoMessage):
			return found, err
		}
	}
	return change.BatchHeader{}, q.unavailable("the queue is trimmed faster than it can be searched", nil)
}

// Renew deletes a stream that has lost batches and makes an empty one in its
// place. The registry of subscriptions stays. It refuses a stream that holds
// batches of another cluster than system.
func (q *Queue) Renew(ctx context.Context, system uint64) error {
	info, err := q.streamInfo(ctx)
	if err != nil && !errors.Is(err, ErrNoStream) {
		return err
	}
	if err == nil && info.State.Msgs > 0 {
		m, err := q.get(ctx, info.State.FirstSeq)
		switch {
		case errors.Is(err, ErrCorrupt), errors.Is(err, errNoMessage): // says nothing of its origin
		case err != nil:
			return err
		case m.header.System != system:
			return &Error{
				Kind: ErrFork, Stream: q.stream, Seq: m.seq, Remedy: remedyFork,
				Detail: fmt.Sprintf("it is of system %d, the publisher is system %d", m.header.System, system),
			}
		}
	}
	if err := q.js.DeleteStream(ctx, q.stream); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return q.apiError(ctx, "delete stream", err)
	}
	return q.Create(ctx)
}
