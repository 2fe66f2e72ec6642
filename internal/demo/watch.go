package demo

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const watchEvery = 250 * time.Millisecond

// watch shows how far the rows have come until ctx ends. It asks from the end to
// the beginning, so that no stage seems to be ahead of the one before it.
func (s *show) watch(ctx context.Context) error {
	pub, err := connect(ctx, s.pubURL())
	if err != nil {
		return ended(ctx, err)
	}
	defer closeConn(pub)
	sub, err := connect(ctx, s.subURL())
	if err != nil {
		return ended(ctx, err)
	}
	defer closeConn(sub)
	before, err := s.reader.queuedRows(ctx)
	if err != nil {
		return ended(ctx, err)
	}
	began := time.Now()
	var queued int64
	for pause(ctx, watchEvery) {
		applied, err := readLedger(ctx, sub)
		if err != nil {
			return ended(ctx, err)
		}
		// A reader that is too busy to answer keeps its last number.
		if rows, err := s.reader.queuedRows(ctx); err == nil {
			queued = rows - before
		} else if !errors.Is(err, errNoStatus) || s.reader.died() != nil {
			return ended(ctx, errors.Join(err, s.reader.died()))
		}
		written, err := readLedger(ctx, pub)
		if err != nil {
			return ended(ctx, err)
		}
		// The reader reports from time to time only; what is applied was queued.
		queued = max(queued, applied.rows)
		s.d.progress(progressLine(time.Since(began), written.rows, queued, applied.rows, time.Since(applied.last)))
	}
	return nil
}

// ended is nil when the end of ctx is why something failed.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("watch progress: %w", err)
}
