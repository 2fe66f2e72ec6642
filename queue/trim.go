package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/walferry/walferry/change"
)

// TrimResult says what Trim did and what holds the rest.
type TrimResult struct {
	Purged   uint64     // batches removed
	Left     uint64     // batches still stored
	FirstSeq uint64     // sequence number of the first of them
	Floor    change.LSN // position of the slowest subscription
	HeldBy   string     // its name; empty when no subscription is registered
}

// Trim removes the batches that every registered subscription has flushed and
// that are older than retention. Without a registered subscription nothing is
// removed. The last batch always stays, and so does every batch of a
// transaction of which one batch stays.
func (q *Queue) Trim(ctx context.Context, retention time.Duration) (TrimResult, error) {
	subs, err := q.Subscribers(ctx)
	if err != nil {
		return TrimResult{}, fmt.Errorf("trim queue: %w", err)
	}
	for range maxSearches {
		res, err := q.trimOnce(ctx, subs, retention)
		if !errors.Is(err, errNoMessage) {
			return res, err
		}
	}
	return TrimResult{}, q.unavailable("the queue is trimmed by somebody else at the same time", nil)
}

func (q *Queue) trimOnce(ctx context.Context, subs []Subscriber, retention time.Duration) (TrimResult, error) {
	info, err := q.streamInfo(ctx)
	if err != nil {
		return TrimResult{}, err
	}
	res := TrimResult{Left: info.State.Msgs, FirstSeq: info.State.FirstSeq}
	if len(subs) == 0 || info.State.Msgs < 2 {
		return res, nil
	}
	slowest := subs[0]
	for _, s := range subs[1:] {
		if s.Flushed < slowest.Flushed {
			slowest = s
		}
	}
	res.Floor, res.HeldBy = slowest.Flushed, slowest.Name

	keep, err := q.firstKept(ctx, info, slowest.Flushed, info.TimeStamp.Add(-retention))
	if err != nil || keep <= info.State.FirstSeq {
		return res, err
	}
	s, err := q.js.Stream(ctx, q.stream)
	if err != nil {
		return res, q.apiError(ctx, "trim queue", err)
	}
	if !s.CachedInfo().Created.Equal(info.Created) {
		return res, q.recreated(info.Created, s.CachedInfo().Created)
	}
	if err := s.Purge(ctx, jetstream.WithPurgeSequence(keep)); err != nil {
		return res, q.apiError(ctx, "trim queue", err)
	}
	res.Purged = keep - info.State.FirstSeq
	res.Left -= min(res.Left, res.Purged)
	res.FirstSeq = keep
	return res, nil
}

// firstKept is the sequence number of the first batch that must stay.
func (q *Queue) firstKept(ctx context.Context, info *jetstream.StreamInfo, floor change.LSN, cutoff time.Time) (uint64, error) {
	lo, hi := info.State.FirstSeq, info.State.LastSeq
	for lo < hi {
		mid := lo + (hi-lo)/2
		m, err := q.probe(ctx, mid)
		if err != nil {
			return 0, err
		}
		if m.header.End > floor || m.time.After(cutoff) {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	m, err := q.probe(ctx, lo)
	if err != nil {
		return 0, err
	}
	if m.header.Chunked {
		// An open chunk ends where its transaction begins: go back to the
		// first chunk of this one.
		if n := uint64(m.header.Chunk); n < lo {
			lo -= n
		}
	}
	return lo, nil
}
