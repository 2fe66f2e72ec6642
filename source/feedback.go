package source

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/walferry/walferry/change"
)

// statusGap is the least time between two statuses that nobody asked for: each
// wakes the walsender. A server that may wait for them gets each at once.
const statusGap = 5 * time.Millisecond

// feedback sends positions to the server: when the queue's durable end moves,
// when it is asked to, and every interval.
type feedback struct {
	w         *wire
	app       Appender
	applied   func() change.LSN // nil: what is queued counts
	interval  time.Duration
	gap       time.Duration // statusGap, or 0
	confirmed func(change.LSN)

	received atomic.Uint64 // end LSN of the last transaction that was received whole
	ask      atomic.Bool   // ask the server for a reply
	waiting  atomic.Bool   // the stream waits for progress of app while it reads
	held     atomic.Bool   // nothing more is confirmed: the server may not be who has what the queue holds, see seam
	kick     chan struct{} // capacity 1

	flush change.LSN // highest that was sent, or where the slot stood
	write change.LSN
}

// wake makes run send a status soon.
func (f *feedback) wake() {
	select {
	case f.kick <- struct{}{}:
	default:
	}
}

// run sends positions until ctx ends or something fails.
func (f *feedback) run(ctx context.Context) error {
	t := time.NewTicker(f.interval)
	defer t.Stop()
	var sent time.Time
	var later <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.app.Progress():
			if err := f.app.Err(); err != nil {
				return err
			}
			if f.waiting.Swap(false) {
				f.w.interrupt()
			}
			if later != nil || !f.advance() {
				continue
			}
			if rest := f.gap - time.Since(sent); rest > 0 {
				later = time.After(rest)
				continue
			}
		case <-later:
			later = nil
			f.advance()
		case <-f.kick:
			f.advance()
		case <-t.C:
			f.advance()
		}
		if err := f.send(); err != nil {
			return err
		}
		sent = time.Now()
	}
}

// advance moves the flush position to what is safe, and reports whether it
// moved.
func (f *feedback) advance() bool {
	if f.held.Load() {
		return false
	}
	safe, _ := f.app.Durable()
	if f.applied != nil {
		safe = min(safe, f.applied())
	}
	f.write = max(f.write, f.flush, change.LSN(f.received.Load()))
	if safe <= f.flush {
		return false
	}
	f.flush = safe
	f.write = max(f.write, safe)
	return true
}

func (f *feedback) send() error {
	if f.flush == 0 {
		return nil // nothing is better than a zero, which confirms the write position (CB-002)
	}
	if err := f.w.sendStatus(f.write, f.flush, f.flush, f.ask.Swap(false)); err != nil {
		return err
	}
	if f.confirmed != nil {
		f.confirmed(f.flush)
	}
	return nil
}
