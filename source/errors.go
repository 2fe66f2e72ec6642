package source

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/change"
)

// Kinds of an [*Error], for errors.Is. All are permanent: [Run] returns them
// and trying again cannot help before a person acts.
var (
	ErrQueueBehind      = errors.New("the queue lost batches that it had acknowledged")
	ErrPublisherBehind  = errors.New("the publisher has lost transactions that are in the queue")
	ErrForeignPublisher = errors.New("the publisher is another database cluster")
	ErrTimelineFork     = errors.New("the publisher's history forked before the end of the queue")
	ErrSlotLost         = errors.New("the replication slot is lost")
	ErrSlotForeign      = errors.New("the replication slot belongs to something else")
	ErrUnsupported      = errors.New("the publisher cannot be read")
	ErrNoIdentity       = errors.New("published tables have no replica identity")
	ErrNoPublication    = errors.New("a publication does not exist")
	ErrForeignPub       = errors.New("the publication was not made by walferry")
	ErrProtocol         = errors.New("the server sent what the protocol does not allow")
	ErrSpool            = errors.New("the spool folder cannot be used")
)

// An Error says what is wrong between publisher, slot and queue, and what
// resolves it.
type Error struct {
	Kind   error // one of the Err values of this package
	Slot   string
	Queue  change.LSN // End of the queue; 0 when it does not matter
	Server change.LSN // the server's position that disagrees with it
	Detail string
	Hint   string // what to do
	Err    error  // cause; may be nil
}

func (e *Error) Error() string {
	s := e.Kind.Error()
	if e.Slot != "" {
		s += fmt.Sprintf(" (slot %s)", e.Slot)
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	if e.Hint != "" {
		s += ": " + e.Hint
	}
	return s
}

// Unwrap gives the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

const (
	hintCopyAll = "stop walferry, run walferry drop --empty, which removes slot, queue and the replicated rows, and start it: every subscription gets a new initial copy"
	hintRenew   = "stop walferry, run walferry drop --queue, start it: a new queue begins where the slot stands, and a subscription that needs more than that says so"
)

func sqlstate(err error) string {
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		return pe.Code
	}
	return ""
}

// Errors that only decide how the next session begins.
var (
	errSlotBusy = errors.New("another reader uses the slot")
	errRestart  = errors.New("transaction is begun anew")
	errMoved    = errors.New("queue moved while the slot was taken over")
	errSilent   = errors.New("server is silent")
	errEnded    = errors.New("server ended the stream")
	errDone     = errors.New("caught up")
)
