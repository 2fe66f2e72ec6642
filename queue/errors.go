package queue

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walferry/walferry/change"
)

// Kinds of an [*Error], for errors.Is.
var (
	// ErrFenced: somebody else has written to the queue. Read the tail again.
	ErrFenced = errors.New("another writer appended to the queue")
	// ErrFull: the queue takes nothing until it is trimmed or enlarged.
	ErrFull = errors.New("queue is full")
	// ErrLost: the queue no longer holds batches that it had acknowledged.
	ErrLost = errors.New("queue lost acknowledged batches")
	// ErrWithdrawn: a reader was shown what has not been stored since; see
	// [ReaderOptions.Ahead].
	ErrWithdrawn = errors.New("batches that were read ahead of the queue are not in it")
	// ErrUnavailable: NATS cannot be reached or did not answer; the state of
	// batches in flight is unknown until the tail is read again.
	ErrUnavailable = errors.New("queue is unavailable")
	// ErrHole: batches that the reader needs are not in the queue.
	ErrHole = errors.New("queue has a hole")
	// ErrFork: the queue holds the history of another cluster, or two
	// histories.
	ErrFork = errors.New("queue has a forked history")
	// ErrCorrupt: a stored batch is not what was written.
	ErrCorrupt = errors.New("queue is corrupt")
	// ErrVersion: a newer walferry wrote a batch.
	ErrVersion = errors.New("queue has a newer format")
	// ErrConfig: the stream is configured so that it could lose batches.
	ErrConfig = errors.New("queue stream is misconfigured")
	// ErrNoStream: the stream does not exist.
	ErrNoStream = errors.New("queue stream does not exist")
	// ErrChain: the caller tried to append a batch that does not follow the
	// one before. Nothing was stored.
	ErrChain = errors.New("batch does not follow the one before")
	// ErrNotRegistered: the subscription is not registered.
	ErrNotRegistered = errors.New("subscription is not registered")
	// ErrClosed: the appender, reader or connection was closed.
	ErrClosed = errors.New("closed")
)

// An Error says what is wrong with a queue, where, and what mends it.
type Error struct {
	Kind   error // one of the Err values of this package
	Stream string
	Seq    uint64 // sequence number that the error is about; 0: none

	// Want and Have are the positions that disagree; zero when the error is
	// not about positions.
	Want, Have change.LSN

	Detail string // what was found
	Remedy string // what to do; may be empty for errors that heal
	Err    error  // cause; may be nil
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("queue ")
	b.WriteString(e.Stream)
	b.WriteString(": ")
	b.WriteString(e.Kind.Error())
	if e.Detail != "" {
		b.WriteString(": ")
		b.WriteString(e.Detail)
	}
	if e.Err != nil {
		b.WriteString(": ")
		b.WriteString(e.Err.Error())
	}
	if e.Remedy != "" {
		b.WriteString(": ")
		b.WriteString(e.Remedy)
	}
	return b.String()
}

// Hint is what to do, for those who show errors.
func (e *Error) Hint() string { return e.Remedy }

// Unwrap gives the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

// Retryable reports whether the same work may succeed later without anybody
// mending the queue. An appender that failed with a retryable error is
// replaced by a new one from a freshly read [Queue.Tail].
func Retryable(err error) bool {
	return errors.Is(err, ErrUnavailable) || errors.Is(err, ErrFull) || errors.Is(err, ErrFenced) || errors.Is(err, ErrWithdrawn)
}

// Remedies that several errors share.
const (
	remedyCopy    = "copy the subscription again: stop walferry, run walferry drop --subscription NAME --empty, start it; if the subscription was away longer than the queue keeps batches, raise queue.retention"
	remedyLost    = "restore the queue's store; or stop walferry, run walferry drop --queue, start it: a new queue begins where the slot stands, and a subscription that needs more than that says so"
	remedyFork    = "point this walferry at the queue of its own publisher; or stop walferry, run walferry drop --queue, start it: a new queue begins where the slot stands, and a subscription that needs more than that says so"
	remedyCorrupt = "restore the queue's store from a replica; or stop walferry, run walferry drop --queue, start it: a new queue begins where the slot stands, and a subscription that needs more than that says so"
	remedyCreate  = "let the log reader create it; a subscription that needs more than the new queue holds says so"
)

// withdrawn says what became of a batch that was shown before it was stored.
func (q *Queue) withdrawn(seq uint64, what string) *Error {
	return &Error{Kind: ErrWithdrawn, Stream: q.stream, Seq: seq, Detail: fmt.Sprintf("sequence %d %s", seq, what)}
}

// unavailable wraps a failure of NATS as a transient error.
func (q *Queue) unavailable(detail string, err error) *Error {
	return &Error{Kind: ErrUnavailable, Stream: q.stream, Detail: detail, Err: err}
}

// apiError classifies an error of the JetStream API. Errors of ctx are
// returned as they are.
func (q *Queue) apiError(ctx context.Context, detail string, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return &Error{Kind: ErrNoStream, Stream: q.stream, Detail: detail, Remedy: remedyCreate}
	case errors.Is(err, nats.ErrConnectionClosed):
		return &Error{Kind: ErrClosed, Stream: q.stream, Detail: detail, Err: err}
	}
	return q.unavailable(detail, err)
}
