package source

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"time"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/queue"
)

// Options say what to read and where to put it.
type Options struct {
	Name         string           // of the publisher, as in the queue
	Conn         string           // connection string of the published database
	Slot         string           // default: walferry_<Name>
	Publications []string         // used as they are; with Make, its own is added
	Make         *PublicationSpec // makes walferry's own publication; nil: none
	Queue        Queue            // see [UseQueue]

	// Streaming asks for transactions before they commit. They are kept under
	// SpoolDir until then, and the folder is emptied at start.
	Streaming bool
	SpoolDir  string

	Failover bool   // FAILOVER for a slot that is created, on servers that have it (17 and newer)
	Origin   string // "" or "any": all changes; "none": only those made here (16 and newer)

	// BatchBytes is the size at which batches are cut; default 256 KiB, and
	// never more than the queue takes.
	BatchBytes int
	// MaxInFlight is how many unacknowledged batches keep an idle stream from
	// sending a small one; default 1: a batch grows while the one before is being stored.
	MaxInFlight int

	StatusInterval time.Duration // between positions sent without a cause; default 1 s
	MarkInterval   time.Duration // between marks of an idle stream; default 10 s
	ReceiveTimeout time.Duration // silence of the server after which the connection is given up; default 60 s
	Heartbeat      time.Duration // write a message after so long without a transaction; 0: never

	// Once ends Run, without an error, when everything that was committed
	// before its start is durable.
	Once bool

	// ConfirmApplied, if set, bounds what is confirmed to the publisher: the
	// position that all subscriptions have applied. 0 means not known.
	ConfirmApplied func() change.LSN

	Events Events
	Logger *slog.Logger
}

// Queue is what the reader needs of the distribution queue.
type Queue interface {
	Exists(ctx context.Context) (bool, error)
	Create(ctx context.Context) error
	Tail(ctx context.Context) (queue.Tail, error)
	LastTransaction(ctx context.Context, tail queue.Tail) (change.BatchHeader, error)
	Info(ctx context.Context) (queue.Info, error)
	Renew(ctx context.Context, system uint64) error
	Claim(ctx context.Context, owner string) error
	MaxBatch() int
	NewAppender(ctx context.Context, tail queue.Tail) (Appender, error)
}

// Appender is the end of a queue; see [queue.Appender].
type Appender interface {
	Append(ctx context.Context, h *change.BatchHeader, body []byte) error
	Show(h *change.BatchHeader, body []byte)
	Durable() (end change.LSN, seq uint64)
	InFlight() int
	Progress() <-chan struct{}
	Err() error
	Flush(ctx context.Context) error
	Close() error
}

// UseQueue gives a queue the form that [Options.Queue] wants.
func UseQueue(q *queue.Queue, o queue.AppenderOptions) Queue { return natsQueue{q, o} }

type natsQueue struct {
	*queue.Queue
	o queue.AppenderOptions
}

// NewAppender makes sure that a nil *queue.Appender is no Appender.
func (q natsQueue) NewAppender(ctx context.Context, tail queue.Tail) (Appender, error) {
	a, err := q.Queue.NewAppender(ctx, tail, q.o)
	if err != nil {
		return nil, err
	}
	return a, nil
}

// slotName is PostgreSQL's rule (ReplicationSlotValidateName).
var slotName = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)

// SlotName makes a valid slot name for a publisher.
func SlotName(publisher string) string {
	b := []byte("walferry_" + publisher)
	for i, c := range b {
		switch {
		case c >= 'A' && c <= 'Z':
			b[i] = c + 'a' - 'A'
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
		default:
			b[i] = '_'
		}
	}
	return string(b[:min(len(b), 63)])
}

func (o *Options) setDefaults() {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	if o.Slot == "" {
		o.Slot = SlotName(o.Name)
	}
	if o.Make != nil && o.Make.Name == "" {
		m := *o.Make
		m.Name = PublicationName(o.Name)
		o.Make = &m
	}
	if o.BatchBytes <= 0 {
		o.BatchBytes = 256 << 10
	}
	if o.MaxInFlight <= 0 {
		o.MaxInFlight = 1
	}
	def(&o.StatusInterval, time.Second)
	def(&o.MarkInterval, 10*time.Second)
	def(&o.ReceiveTimeout, time.Minute)
	o.ReceiveTimeout = max(o.ReceiveTimeout, 2*o.StatusInterval)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

func (o *Options) validate() error {
	var errs []error
	bad := func(f string, v ...any) { errs = append(errs, fmt.Errorf(f, v...)) }
	if o.Name == "" {
		bad("name of the publisher is empty")
	}
	if o.Queue == nil {
		bad("no queue is given")
	}
	if !slotName.MatchString(o.Slot) {
		bad("slot name %q: use 1 to 63 of a-z, 0-9 and _", o.Slot)
	}
	if len(o.Publications) == 0 && o.Make == nil {
		bad("no publication is named and none is to be made")
	}
	if o.Streaming && o.SpoolDir == "" {
		bad("streaming needs a spool folder")
	}
	if o.Origin != "" && o.Origin != "any" && o.Origin != "none" {
		bad("origin %q: use any or none", o.Origin)
	}
	if o.BatchBytes < 4<<10 {
		bad("batches of %d bytes are too small: use at least 4096", o.BatchBytes)
	}
	return errors.Join(errs...)
}

// publications are the names to subscribe to.
func (o *Options) publications() []string {
	p := append([]string(nil), o.Publications...)
	if o.Make != nil {
		p = append(p, o.Make.Name)
	}
	return p
}

// State is what a log reader does.
type State string

// The states of a log reader.
const (
	Connecting State = "connecting"
	Standby    State = "standby"    // another reader uses the slot
	Streaming  State = "streaming"  // receiving
	QueueFull  State = "queue_full" // holding until the queue takes batches again
	Waiting    State = "waiting"    // before the next attempt, after an error
	Stopped    State = "stopped"
)

// Queued is one batch that was handed to the queue.
type Queued struct {
	End        change.LSN
	Total      uint64 // transactions in the stream since it was made
	Txns, Rows int
	Bytes      int
	CommitTime time.Time // of the last transaction; zero for a mark
}

// Events are called by the reader as things happen. Any may be nil. They run
// on the reader's goroutines and must return at once.
type Events struct {
	OnState     func(s State, detail string)
	OnReceive   func(messages int, bytes int64, walEnd change.LSN) // at most some hundred times a second
	OnQueued    func(Queued)
	OnConfirmed func(flush change.LSN) // was sent to the publisher
	OnReconnect func(err error, wait time.Duration)
	OnError     func(error) // the error that ends Run
}

func (e *Events) state(s State, detail string) {
	if e.OnState != nil {
		e.OnState(s, detail)
	}
}
