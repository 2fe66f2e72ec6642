package queue

import (
	"context"
	"errors"
	"fmt"

	"github.com/walferry/walferry/change"
)

// start is where a reader begins.
type start struct {
	seq   uint64
	chain chain // knows the batch before seq, if that is still stored
}

// maxSearches bounds how often a search begins anew because the queue was
// trimmed meanwhile.
const maxSearches = 16

// locate finds the first batch that a subscriber at position from needs.
func (q *Queue) locate(ctx context.Context, from change.LSN) (start, error) {
	for range maxSearches {
		info, err := q.streamInfo(ctx)
		if err != nil {
			return start{}, err
		}
		if err := q.verify(info); err != nil {
			return start{}, err
		}
		first, last := info.State.FirstSeq, info.State.LastSeq
		if info.State.Msgs == 0 {
			return start{seq: last + 1}, nil
		}
		s, err := q.search(ctx, from, first, last)
		if !errors.Is(err, errNoMessage) {
			return s, err
		}
	}
	return start{}, q.unavailable("the queue is trimmed faster than it can be searched", nil)
}

// search looks between first and last. errNoMessage says that the queue was
// trimmed meanwhile.
func (q *Queue) search(ctx context.Context, from change.LSN, first, last uint64) (start, error) {
	tail, err := q.probe(ctx, last)
	if err != nil {
		return start{}, err
	}
	if key(&tail.header) < from {
		return start{seq: last + 1, chain: chainAfter(tail.header)}, nil
	}
	found := tail
	for lo, hi := first, last; lo < hi; {
		mid := lo + (hi-lo)/2
		m, err := q.probe(ctx, mid)
		if err != nil {
			return start{}, err
		}
		if key(&m.header) >= from {
			hi, found = mid, m
		} else {
			lo = mid + 1
		}
	}
	if n := uint64(found.header.Chunk); found.header.Chunked && n > 0 {
		if found.seq < first+n {
			return start{}, q.cutOff(found, first)
		}
		if found, err = q.probe(ctx, found.seq-n); err != nil {
			return start{}, err
		}
		if !found.header.Chunked || found.header.Chunk != 0 {
			return start{}, q.cutOff(found, first)
		}
	}
	if found.seq == first {
		return start{seq: first}, q.reaches(found, from)
	}
	prev, err := q.probe(ctx, found.seq-1)
	if err != nil {
		return start{}, err
	}
	return start{seq: found.seq, chain: chainAfter(prev.header)}, nil
}

// probe reads the batch at seq. A batch that is missing behind the queue's
// first one is a hole.
func (q *Queue) probe(ctx context.Context, seq uint64) (*stored, error) {
	m, err := q.get(ctx, seq)
	if !errors.Is(err, errNoMessage) {
		return m, err
	}
	info, ierr := q.streamInfo(ctx)
	if ierr != nil {
		return nil, ierr
	}
	if seq < info.State.FirstSeq {
		return nil, errNoMessage
	}
	return nil, q.missing(seq)
}

func (q *Queue) missing(seq uint64) *Error {
	return &Error{
		Kind: ErrHole, Stream: q.stream, Seq: seq,
		Detail: fmt.Sprintf("sequence %d was deleted or lost", seq), Remedy: remedyCopy,
	}
}

func (q *Queue) cutOff(m *stored, first uint64) *Error {
	return &Error{
		Kind: ErrHole, Stream: q.stream, Seq: m.seq, Want: m.header.First, Have: m.header.First,
		Detail: fmt.Sprintf("the queue begins at sequence %d, in the middle of transaction %v", first, m.header.First), Remedy: remedyCopy,
	}
}

// reaches verifies that the queue's first batch m joins a subscriber at from.
func (q *Queue) reaches(m *stored, from change.LSN) error {
	if m.header.Prev <= from {
		return nil
	}
	return &Error{
		Kind: ErrHole, Stream: q.stream, Seq: m.seq, Want: from, Have: m.header.Prev,
		Detail: fmt.Sprintf("the subscription needs transactions from %v on, the queue begins at %v (sequence %d)", from, m.header.Prev, m.seq),
		Remedy: remedyCopy,
	}
}
