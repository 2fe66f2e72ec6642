package apply

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/queue"
)

// A Reader returns the batches of a queue; *queue.Reader is one.
type Reader interface {
	// Next waits for the next batch. It is valid until the next call.
	Next(ctx context.Context) (*queue.Delivery, error)
	// Ready reports whether Next would return at once.
	Ready() bool
	Close() error
}

// OnUnknown says what to do with a table that walferry.subscription_table does
// not list as ready.
type OnUnknown int

// What to do with unknown tables.
const (
	Copy  OnUnknown = iota // return *NeedCopy
	Apply                  // list it as ready and apply its changes
)

// A Policy says what to do with a row that cannot be applied.
type Policy string

// The policies.
const (
	Stop   Policy = "stop"   // report and try again
	Skip   Policy = "skip"   // leave the row out and record it
	Upsert Policy = "upsert" // make the row what the publisher has, and record it
)

// Policies by class of failure; empty is Stop.
type Policies struct {
	InsertConflict Policy // a unique or exclusion constraint refuses the row
	UpdateMissing  Policy // the row to update is not there
	DeleteMissing  Policy // the row to delete is not there
	Other          Policy // anything else that is wrong with one row; upsert is stop
}

// Group bounds the transactions that are committed together. Zero values are
// defaults.
type Group struct {
	Rows  int           // 5000
	Bytes int           // 4 MiB
	Time  time.Duration // 200 ms
}

// Options of one subscription.
type Options struct {
	Subscription string // name; key of all rows in schema walferry
	Publisher    string // name of the publisher, for people
	Conn         string // connection string of the subscriber

	// OpenReader opens the queue at a position.
	OpenReader func(ctx context.Context, from change.LSN) (Reader, error)
	// Map names the target of a publisher's table; ok is false for tables that
	// are not part of the subscription. Nil: all tables, same names.
	Map       func(schema, table string) (targetSchema, targetTable string, ok bool)
	OnUnknown OnUnknown
	Policies  Policies
	Group     Group
	// ReplicationRole is "auto", "replica" or "origin"; empty is auto.
	ReplicationRole string
	// Report is told what is flushed on the subscriber: the queue may forget it.
	Report func(ctx context.Context, flushed change.LSN, seq uint64) error

	Events Events
	Logger *slog.Logger
}

func (o *Options) complete() error {
	if o.Subscription == "" || o.OpenReader == nil {
		return errors.New("apply: options lack subscription or reader")
	}
	if o.Map == nil {
		o.Map = func(s, t string) (string, string, bool) { return s, t, true }
	}
	if o.Group.Rows <= 0 {
		o.Group.Rows = 5000
	}
	if o.Group.Bytes <= 0 {
		o.Group.Bytes = 4 << 20
	}
	if o.Group.Time <= 0 {
		o.Group.Time = 200 * time.Millisecond
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Logger = o.Logger.With("subscription", o.Subscription)
	switch o.ReplicationRole {
	case "":
		o.ReplicationRole = "auto"
	case "auto", "replica", "origin":
	default:
		return fmt.Errorf("apply: replication role %q: want auto, replica or origin", o.ReplicationRole)
	}
	return nil
}

// Events are optional callbacks. They are called from the applying goroutine
// and must not block.
type Events struct {
	// OnState is told each new state: waiting, streaming, error.
	OnState func(state string)
	// OnCommit is told each commit on the subscriber.
	OnCommit func(Commit)
	// OnFlushed is told the position that is safe on the subscriber's disk.
	OnFlushed func(change.LSN)
	// OnError is told each failure that stops the subscription; it is tried
	// again at card.NextRetry.
	OnError func(*ErrorCard)
	// OnWaiting is told why nothing is applied: another applier holds the lock,
	// or the subscriber cannot be reached.
	OnWaiting func(reason string)
	// OnException is told each row that a policy left out or changed.
	OnException func(class, table string, policy Policy)
}

// A Commit describes one commit on the subscriber.
type Commit struct {
	Position   change.LSN // end LSN of the last transaction
	Sequence   uint64     // of the last batch that is applied as a whole
	Txns       int
	Inserts    int64
	Updates    int64
	Deletes    int64
	Truncates  int64
	Bytes      int64
	CommitTime time.Time // of the last transaction at the publisher; zero without one
	Took       time.Duration
}

// NeedCopy is returned by Run when a change belongs to a table that has not
// been copied. All transactions before are applied, nothing of this one is.
type NeedCopy struct{ Relation *change.Relation }

func (e *NeedCopy) Error() string {
	return fmt.Sprintf("table %s.%s has to be copied first", e.Relation.Schema, e.Relation.Name)
}

// ErrNoPosition is returned when walferry.subscription has no position for the
// subscription: SetPosition gives it one.
var ErrNoPosition = errors.New("the subscription has no position")

// ErrFenced is returned when somebody else moved the position.
var ErrFenced = errors.New("another applier moved the position of the subscription")
