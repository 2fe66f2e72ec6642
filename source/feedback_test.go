package source

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/walferry/walferry/change"
)

// steps is an appender of which every batch is durable at once.
type steps struct {
	end      atomic.Uint64
	progress chan struct{}
}

func (s *steps) Append(context.Context, *change.BatchHeader, []byte) error { return nil }
func (s *steps) Show(*change.BatchHeader, []byte)                          {}
func (s *steps) Durable() (change.LSN, uint64)                             { return change.LSN(s.end.Load()), 0 }
func (s *steps) InFlight() int                                             { return 0 }
func (s *steps) Progress() <-chan struct{}                                 { return s.progress }
func (s *steps) Flush(context.Context) error                               { return nil }
func (s *steps) Err() error                                                { return nil }
func (s *steps) Close() error                                              { return nil }

func (s *steps) step() {
	s.end.Add(8)
	s.progress <- struct{}{}
}

// startFeedback runs a feedback against a server that notes the flush positions it is told.
func startFeedback(t *testing.T, gap time.Duration) (f *feedback, app *steps, statuses func() (n int, flushed change.LSN)) {
	t.Helper()
	ours, theirs := net.Pipe()
	var count, last atomic.Uint64
	app = &steps{progress: make(chan struct{})}
	f = &feedback{w: &wire{conn: ours}, app: app, interval: time.Hour, gap: gap, kick: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	ran, read := make(chan error, 1), make(chan struct{})
	go func() { ran <- f.run(ctx) }()
	go func() {
		defer close(read)
		m := make([]byte, 1+4+34)
		for {
			if _, err := io.ReadFull(theirs, m); err != nil {
				return
			}
			last.Store(binary.BigEndian.Uint64(m[5+1+8:]))
			count.Add(1)
		}
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
		_ = theirs.Close()
		_ = ours.Close()
		<-read
	})
	return f, app, func() (int, change.LSN) { return int(count.Load()), change.LSN(last.Load()) }
}

func awaitFlushed(t *testing.T, statuses func() (int, change.LSN), want change.LSN) int {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		n, flushed := statuses()
		if flushed == want {
			return n
		}
		if time.Now().After(deadline) {
			t.Fatalf("%v is confirmed, want %v", flushed, want)
		}
	}
}

func TestFeedback_StatusesAreSpacedUnlessTheServerWaitsForThem(t *testing.T) {
	const steps = 100
	_, app, statuses := startFeedback(t, 0)
	for i := range steps {
		app.step()
		if n := awaitFlushed(t, statuses, change.LSN(8*(i+1))); n != i+1 {
			t.Fatalf("%d statuses for %d steps to a server that waits", n, i+1)
		}
	}

	_, app, statuses = startFeedback(t, time.Second) // longer than the steps take
	began := time.Now()
	for range steps {
		app.step()
	}
	n := awaitFlushed(t, statuses, 8*steps)
	if limit := 1 + int(time.Since(began)/time.Second); n > limit+1 {
		t.Errorf("%d statuses in %v, want one a second", n, time.Since(began))
	}
}

func TestFeedback_AQuestionIsAnsweredAtOnce(t *testing.T) {
	f, app, statuses := startFeedback(t, time.Hour)
	app.step()
	app.step()
	awaitFlushed(t, statuses, 8)
	f.wake()
	awaitFlushed(t, statuses, 16)
}

// What waits for a batch in flight goes on when that is durable.
func TestFeedback_ProgressInterruptsAStreamThatWaits(t *testing.T) {
	f, app, _ := startFeedback(t, 0)
	f.waiting.Store(true)
	failed := make(chan error, 1)
	go func() {
		_, err := f.w.conn.Read(make([]byte, 1))
		failed <- err
	}()
	app.step()
	select {
	case err := <-failed:
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read ends with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the read goes on")
	}
	if f.waiting.Load() {
		t.Error("the next progress interrupts again")
	}
}
