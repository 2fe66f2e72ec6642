package source

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/walferry/walferry/queue"
)

// Run reads the publisher's log into the queue until ctx ends, which returns
// nil after a clean stop, or until something is wrong that a person must
// mend, which returns an [*Error], a [*queue.Error] or the server's error.
// Everything else is tried again.
func Run(ctx context.Context, o Options) error {
	o.setDefaults()
	if err := o.validate(); err != nil {
		return fmt.Errorf("log reader options: %w", err)
	}
	r := &reader{o: &o}
	if o.Heartbeat > 0 {
		r.beat = &heartbeat{conn: o.Conn, interval: o.Heartbeat, warn: func(err error) {
			o.Logger.Warn("heartbeat is not written", "error", err)
		}}
		hctx, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() { defer close(done); r.beat.run(hctx) }()
		defer func() { cancel(); <-done }()
	}
	err := r.loop(ctx)
	if err != nil && o.Events.OnError != nil {
		o.Events.OnError(err)
	}
	o.Events.state(Stopped, "")
	return err
}

// healthy is how long a session must have lasted, when it had nothing to store,
// for the next error to be tried again soon. One that has stored something was
// healthy however short it was: where connections do not live long, waits that
// grow would keep the queue behind.
const healthy = 30 * time.Second

func (r *reader) loop(ctx context.Context) error {
	b := &backoff.ExponentialBackOff{InitialInterval: time.Second, RandomizationFactor: 0.25, Multiplier: 2, MaxInterval: 30 * time.Second}
	b.Reset()
	for {
		began := time.Now()
		r.moved = false
		err := r.run(ctx)
		switch {
		case ctx.Err() != nil, errors.Is(err, errDone):
			return nil
		case errors.Is(err, errRestart):
			r.anew = true
			r.o.Logger.Warn("the transaction at the end of the queue came back different and is begun anew")
			continue
		case errors.Is(err, errMoved):
			continue
		case r.permanent(err):
			return err
		}
		if r.moved || time.Since(began) > healthy {
			b.Reset()
		}
		wait := b.NextBackOff()
		switch {
		case errors.Is(err, errSlotBusy):
			wait = min(wait, 5*time.Second)
			r.o.Events.state(Standby, "slot "+r.o.Slot+" is used by another reader")
		case errors.Is(err, queue.ErrFull):
			wait = min(wait, 5*time.Second)
			r.o.Events.state(QueueFull, err.Error())
		default:
			r.o.Events.state(Waiting, err.Error())
			r.o.Logger.Warn("log reader is interrupted", "error", err, "retry_in", wait.Round(time.Millisecond))
		}
		if f := r.o.Events.OnReconnect; f != nil {
			f(err, wait)
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-t.C:
		}
	}
}

// permanent reports whether err ends Run. What the server refuses before the
// first stream is a mistake in the configuration; later it may be a
// maintenance.
func (r *reader) permanent(err error) bool {
	var own *Error
	var qe *queue.Error
	if errors.As(err, &own) {
		return true
	}
	if errors.As(err, &qe) {
		return !queue.Retryable(err)
	}
	if r.ready {
		return false
	}
	switch sqlstate(err) {
	case "28000", "28P01", // authentication
		"3D000", // no such database
		"42501", // no privilege
		"42704", // no such object
		"0A000", // not supported
		"53400": // all replication slots are in use
		return true
	}
	return false
}
