package source

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// slice is the least time between small batches, and how long one waits
	// when too many are in flight. It packs transactions under load; a
	// transaction that comes alone is sent at once.
	slice = time.Millisecond
	// markDistance of WAL is confirmed without waiting for MarkInterval.
	markDistance = 16 << 20
	// tick is how often the reader looks up when nothing arrives.
	tick = 250 * time.Millisecond
	// stopTimeout bounds what is done after ctx has ended.
	stopTimeout = 10 * time.Second
)

// stream receives until ctx ends or something fails.
func (s *session) stream(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.fb.run(ctx); err != nil {
			cancel(err)
		}
	}()
	defer func() { cancel(nil); <-done }()
	// A read that blocks ends when ctx does.
	defer context.AfterFunc(ctx, s.w.interrupt)()
	s.setDeadline(s.now.Add(tick))
	for {
		if err := s.step(ctx); err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			return err
		}
	}
}

// step receives one message, after doing what is due if the input is empty.
func (s *session) step(ctx context.Context) error {
	if !s.w.buffered() {
		if err := s.idle(ctx); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil { // after the deadline was set: see stream
			return err
		}
		if d := s.coalesce.pause(s.w.in.last, s.age, s.now); d > 0 {
			s.w.sock.collect()
			time.Sleep(d)
		}
	}
	data, err := s.w.receive()
	if err != nil {
		if !errors.Is(err, errTimeout) {
			return err
		}
		if s.w.buffered() { // in the middle of a message
			s.setDeadline(time.Now().Add(tick))
			return s.tick(ctx)
		}
		s.deadline = time.Time{} // it may not be the one that was set here
		return ctx.Err()
	}
	return s.message(ctx, data)
}

// idle runs before a read that may block.
func (s *session) idle(ctx context.Context) error {
	s.now = time.Now()
	if !s.now.Before(s.nextTick) {
		if err := s.tick(ctx); err != nil {
			return err
		}
	}
	if s.fb.held.Load() {
		if err := s.join(); err != nil {
			return err
		}
	}
	next := s.now.Add(tick)
	if s.b.inTx {
		s.b.show()
		s.extendDeadline(next)
		return nil
	}
	if s.b.pending() {
		wait := slice - s.now.Sub(s.sent)
		switch {
		case wait > 0:
		case s.app.InFlight() >= s.o.MaxInFlight:
			s.fb.waiting.Store(true) // be interrupted; progress before this is seen a slice later
			wait = slice
		case s.w.drained():
			if err := s.b.flush(ctx); err != nil {
				return err
			}
		}
		s.b.show() // unless it was sent
		if s.b.pending() && wait > 0 {
			s.setDeadline(s.now.Add(wait))
			return nil
		}
	}
	if s.keepalive != 0 {
		waiting, err := s.consider(ctx)
		if err != nil {
			return err
		}
		if waiting {
			s.setDeadline(s.now.Add(slice))
			return nil
		}
	}
	s.extendDeadline(next)
	return nil
}

// join lets positions be confirmed once the seam is verified: by the first
// transaction after it, or by the server having got that far.
func (s *session) join() error {
	if s.b.seam != nil && !s.b.inTx && s.keepalive >= s.b.seam.end {
		if err := s.b.seam.closed(s.keepalive); err != nil {
			return err
		}
		s.b.seam = nil
	}
	if s.b.seam == nil {
		s.fb.held.Store(false)
		s.fb.wake()
	}
	return nil
}

// consider writes a mark if the server waits for one, or if one is due. It
// reports whether one is due that must wait for what is in flight.
func (s *session) consider(ctx context.Context) (waiting bool, err error) {
	distance := int64(s.keepalive) - int64(s.b.prev)
	if distance <= 0 || !s.b.canMark() {
		return false, nil
	}
	due := s.prompt || s.server.sync || distance > markDistance || s.now.Sub(s.marked) >= s.o.MarkInterval ||
		s.o.Once && s.keepalive >= s.target
	if !due {
		return false, nil
	}
	if end, _ := s.app.Durable(); end != s.b.prev || s.app.InFlight() > 0 {
		return true, nil
	}
	if err := s.b.mark(ctx, s.keepalive); err != nil {
		return false, err
	}
	s.marked = s.now
	s.prompt = false
	return false, nil
}

// tick looks up about four times a second.
func (s *session) tick(ctx context.Context) error {
	s.now = time.Now()
	s.nextTick = s.now.Add(tick)
	s.report()
	if s.o.Once {
		if end, _ := s.app.Durable(); end >= s.target && !s.b.inTx {
			return errDone
		}
	}
	silence := s.now.Sub(s.heard)
	switch {
	case silence >= s.o.ReceiveTimeout:
		return fmt.Errorf("%w for %v", errSilent, silence.Round(time.Second))
	case silence >= s.o.ReceiveTimeout/2 && !s.asked:
		s.asked = true
		s.fb.ask.Store(true)
		s.fb.wake()
	}
	return ctx.Err()
}

// report notes what was received since the last report.
func (s *session) report() {
	if s.got == 0 {
		return
	}
	s.heard, s.asked = s.now, false
	if f := s.o.Events.OnReceive; f != nil {
		f(s.got, s.gotBytes, s.walEnd)
	}
	s.got, s.gotBytes = 0, 0
}

func (s *session) setDeadline(t time.Time) {
	s.deadline = t
	_ = s.w.conn.SetReadDeadline(t) // fails only on a closed connection, and so will the read
}

// extendDeadline sets the deadline to about t. Setting it for each read would
// cost more than the read.
func (s *session) extendDeadline(t time.Time) {
	if t.Sub(s.deadline) > tick/2 {
		s.setDeadline(t)
	}
}

// close stores what is complete, confirms it and leaves the server. reason is
// why the stream ended.
func (s *session) close(ctx context.Context, reason error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	defer s.app.Close()
	if errors.Is(reason, errSilent) {
		defer s.w.conn.Close()
	} else {
		defer s.w.end()
	}
	if s.spool != nil {
		defer s.spool.close()
	}
	if err := s.app.Err(); err != nil {
		return err
	}
	s.b.abandon()
	if err := s.b.flush(ctx); err != nil {
		return err
	}
	if err := s.app.Flush(ctx); err != nil {
		return fmt.Errorf("flush queue: %w", err)
	}
	s.fb.advance()
	return s.fb.send()
}
