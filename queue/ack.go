package queue

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// pubAck is JetStream's answer to a published message.
type pubAck struct {
	Stream    string      `json:"stream"`
	Sequence  uint64      `json:"seq"`
	Duplicate bool        `json:"duplicate"`
	Error     *apiFailure `json:"error"`
}

func parseAck(m *nats.Msg) (*pubAck, error) {
	if st := m.Header.Get("Status"); st != "" {
		if st == "503" {
			return nil, errors.New("no JetStream server takes messages for this subject")
		}
		return nil, fmt.Errorf("%s %s", st, m.Header.Get("Description"))
	}
	a := new(pubAck)
	if err := json.Unmarshal(m.Data, a); err != nil {
		return nil, fmt.Errorf("read acknowledgement: %w", err)
	}
	return a, nil
}

// lastSequence reads the last sequence number out of the refusal of an
// expected one.
func (e *apiFailure) lastSequence() (uint64, bool) {
	if e.ErrCode != codeWrongLastSequence {
		return 0, false
	}
	_, num, ok := strings.Cut(e.Description, "wrong last sequence: ")
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(num), 10, 64)
	return n, err == nil
}

// run receives acknowledgements until the appender fails or is closed.
func (a *Appender) run() {
	t := time.NewTicker(max(a.o.AckTimeout/8, 10*time.Millisecond))
	defer t.Stop()
	for {
		var err error
		select {
		case <-a.stop:
			return
		case m := <-a.acks:
			err = a.ack(m)
		case st, ok := <-a.status:
			if !ok || st == nats.CLOSED {
				err = &Error{Kind: ErrClosed, Stream: a.q.stream, Detail: "connection to NATS is closed"}
			} else {
				err = a.q.unavailable("connection to NATS is lost with batches in flight", nil)
			}
		case <-t.C:
			err = a.overdue()
		}
		if err != nil {
			_ = a.fail(err)
			return
		}
	}
}

// ack marks one batch as stored, or says why it is not.
func (a *Appender) ack(m *nats.Msg) error {
	seq, err := strconv.ParseUint(m.Subject[len(a.inbox)+1:], 10, 64)
	if err != nil {
		return a.q.unavailable("read acknowledgement", err)
	}
	ack, err := parseAck(m)
	if err != nil {
		return a.q.unavailable(fmt.Sprintf("append sequence %d", seq), err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case ack.Error != nil:
		first := len(a.flights) > 0 && a.flights[0].seq == seq
		return a.classify(ack.Error, seq, a.seq, !first)
	case ack.Stream != a.q.stream:
		return &Error{Kind: ErrConfig, Stream: a.q.stream, Seq: seq, Detail: "subject " + a.q.subject + " is stored in stream " + ack.Stream, Remedy: "delete the other stream or its subject"}
	case ack.Duplicate:
		return a.q.unavailable(fmt.Sprintf("batch for sequence %d is already stored as %d", seq, ack.Sequence), nil)
	case ack.Sequence != seq:
		return a.fenced(seq-1, ack.Sequence)
	}
	if len(a.flights) == 0 || seq < a.flights[0].seq || seq > a.flights[len(a.flights)-1].seq {
		return nil // answered before
	}
	a.flights[seq-a.flights[0].seq].acked = true
	a.advance()
	return nil
}

// advance moves Durable over the batches that are stored. a.mu is held.
func (a *Appender) advance() {
	n := 0
	for n < len(a.flights) && a.flights[n].acked {
		f := &a.flights[n]
		a.durable, a.seq = f.end, f.seq
		a.bytes -= f.bytes
		n++
	}
	if n > 0 {
		a.flights = append(a.flights[:0], a.flights[n:]...)
		a.q.recent.acknowledge(a, a.seq, time.Now())
		a.signal()
	}
}

func (a *Appender) signal() {
	for _, c := range []chan struct{}{a.progress, a.wake} {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

func (a *Appender) overdue() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.flights) == 0 {
		return nil
	}
	f := &a.flights[0]
	if d := time.Since(f.sent); d > a.o.AckTimeout {
		return a.q.unavailable(fmt.Sprintf("sequence %d was not acknowledged within %v", f.seq, a.o.AckTimeout), nil)
	}
	return nil
}

// fail ends the appender with its first error and returns that.
func (a *Appender) fail(err error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err == nil {
		a.err = err
		a.q.recent.end(a)
		a.signal()
	}
	return a.err
}

// classify turns the refusal of the batch for sequence seq into an error.
// durable is the last sequence known to be stored, behind whether earlier
// batches are still unanswered.
func (a *Appender) classify(e *apiFailure, seq, durable uint64, behind bool) error {
	switch e.ErrCode {
	case codeWrongLastSequence, codeWrongLastSequenceRepl:
		have, known := e.lastSequence()
		switch {
		case known && have < durable:
			return a.q.lost(durable, have)
		case behind, known && have < seq-1:
			return a.q.unavailable(fmt.Sprintf("a batch before sequence %d was not stored", seq), e)
		}
		return a.fenced(seq-1, have)
	case codeStorageExceeded, codeInsufficientResources:
		return a.full(e)
	case codeStoreFailed:
		if strings.Contains(e.Description, "maximum bytes") || strings.Contains(e.Description, "no space") {
			return a.full(e)
		}
	case codeStreamMismatch:
		return &Error{Kind: ErrConfig, Stream: a.q.stream, Seq: seq, Err: e}
	case codeTooManyRequests:
		return a.q.unavailable(fmt.Sprintf("append sequence %d", seq), e)
	}
	return a.q.unavailable(fmt.Sprintf("append sequence %d", seq), e)
}

func (a *Appender) full(e error) *Error {
	return &Error{
		Kind: ErrFull, Stream: a.q.stream, Err: e,
		Remedy: "nothing is lost, the publisher keeps its log; see which subscription lags with walferry status, or raise queue.max_bytes",
	}
}

func (a *Appender) fenced(want, have uint64) *Error {
	e := &Error{
		Kind: ErrFenced, Stream: a.q.stream, Seq: want,
		Detail: fmt.Sprintf("queue should end at sequence %d", want),
		Remedy: "if this repeats, see that one log reader only runs for this publisher",
	}
	if have > 0 {
		e.Detail += fmt.Sprintf(" but ends at %d", have)
	}
	return e
}

func (q *Queue) lost(want, have uint64) *Error {
	return &Error{
		Kind: ErrLost, Stream: q.stream, Seq: want,
		Detail: fmt.Sprintf("sequence %d was acknowledged, but the stream ends at %d", want, have),
		Remedy: remedyLost,
	}
}
