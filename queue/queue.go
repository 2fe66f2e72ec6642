package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walferry/walferry/change"
)

// headerRoom is what a message's headers may take of the server's payload
// limit, in bytes.
const headerRoom = 8 << 10

// apiTimeout bounds one request to JetStream when ctx has no deadline.
const apiTimeout = 10 * time.Second

// Options name a queue and size it.
type Options struct {
	// Name is the publisher's name.
	Name string
	// MaxBytes bounds the stream; when it is full, appending stops and
	// nothing is dropped. Zero: no bound of its own.
	MaxBytes int64
	// Replicas of the stream; zero is one.
	Replicas int
	// Domain is the JetStream domain of the stream, where a leaf node is in
	// between. Usually empty.
	Domain string
	// Embedded says that nc leads to a server of package natsd, which syncs
	// before it acknowledges. It only changes what Durability reports.
	Embedded bool
	// Logger may be nil.
	Logger *slog.Logger
}

// A Queue is the distribution queue of one publisher. Its methods may be
// called by several goroutines.
type Queue struct {
	nc      *nats.Conn
	js      jetstream.JetStream
	opts    Options
	log     *slog.Logger
	stream  string
	subject string
	prefix  string // of the JetStream API, with its last dot

	readers atomic.Int64 // that are open
	ahead   atomic.Int64 // those of them that read ahead
	recent  recent
}

// Open returns the queue called o.Name, whose stream may or may not exist. nc
// stays the caller's and must outlive the queue; see [Connect] for how it
// should be configured.
func Open(ctx context.Context, nc *nats.Conn, o Options) (*Queue, error) {
	if o.Name == "" {
		return nil, errors.New("open queue: publisher name is empty")
	}
	if o.Replicas < 0 || o.Replicas > 5 {
		return nil, fmt.Errorf("open queue %q: %d replicas: want 1 to 5", o.Name, o.Replicas)
	}
	if o.MaxBytes < 0 {
		return nil, fmt.Errorf("open queue %q: max bytes %d is negative", o.Name, o.MaxBytes)
	}
	o.Replicas = max(o.Replicas, 1)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	q := &Queue{nc: nc, opts: o, stream: StreamName(o.Name), subject: Subject(o.Name), prefix: "$JS.API."}
	q.log = o.Logger.With("queue", q.stream)
	var err error
	if o.Domain == "" {
		q.js, err = jetstream.New(nc)
	} else {
		q.js, err = jetstream.NewWithDomain(nc, o.Domain)
		q.prefix = "$JS." + o.Domain + ".API."
	}
	if err != nil {
		return nil, fmt.Errorf("open queue %q: %w", o.Name, err)
	}
	info, err := q.streamInfo(ctx)
	switch {
	case errors.Is(err, ErrNoStream):
		return q, nil
	case err != nil:
		return nil, err
	}
	return q, q.verify(info)
}

// Name is the publisher's name, Stream that of its stream.
func (q *Queue) Name() string { return q.opts.Name }

// Stream is the name of the queue's stream.
func (q *Queue) Stream() string { return q.stream }

// Exists reports whether the stream exists.
func (q *Queue) Exists(ctx context.Context) (bool, error) {
	_, err := q.streamInfo(ctx)
	if errors.Is(err, ErrNoStream) {
		return false, nil
	}
	return err == nil, err
}

// MaxBatch is the longest batch body in bytes that the server takes at the
// moment. It may change when the connection moves to another server.
func (q *Queue) MaxBatch() int { return int(q.nc.MaxPayload()) - headerRoom }

// Drop deletes the stream and the registry of subscriptions. Deleting what
// does not exist is no error.
func (q *Queue) Drop(ctx context.Context) error {
	if err := q.js.DeleteStream(ctx, q.stream); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return q.apiError(ctx, "delete stream", err)
	}
	if err := q.js.DeleteKeyValue(ctx, bucketName(q.opts.Name)); err != nil &&
		!errors.Is(err, jetstream.ErrBucketNotFound) && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return q.apiError(ctx, "delete registry of subscriptions", err)
	}
	return nil
}

// Info describes the stream.
type Info struct {
	Created           time.Time
	Messages          uint64
	Bytes             uint64
	MaxBytes          int64 // -1: unlimited
	FirstSeq, LastSeq uint64
	Deleted           int       // batches that are missing between them
	FirstTime         time.Time // when the oldest batch was stored
	LastTime          time.Time
	Replicas          int
}

// Info asks the stream's leader for its state.
func (q *Queue) Info(ctx context.Context) (Info, error) {
	i, err := q.streamInfo(ctx)
	if err != nil {
		return Info{}, err
	}
	return Info{
		Created: i.Created, Messages: i.State.Msgs, Bytes: i.State.Bytes, MaxBytes: i.Config.MaxBytes,
		FirstSeq: i.State.FirstSeq, LastSeq: i.State.LastSeq, Deleted: missingBetween(&i.State), FirstTime: i.State.FirstTime, LastTime: i.State.LastTime,
		Replicas: i.Config.Replicas,
	}, nil
}

func (q *Queue) streamInfo(ctx context.Context) (*jetstream.StreamInfo, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, apiTimeout, errAPITimeout)
	defer cancel()
	s, err := q.js.Stream(ctx, q.stream)
	if err != nil {
		return nil, q.apiError(callerCtx{ctx}, "read stream state", err)
	}
	return s.CachedInfo(), nil
}

// Tail is the end of the queue.
type Tail struct {
	// Seq is the sequence number of the last batch, stored or removed.
	Seq uint64
	// Header is that of the last batch; unset when Empty.
	Header change.BatchHeader
	// Empty says that the stream holds no batch.
	Empty bool
	// StreamCreated tells one stream from another of the same name.
	StreamCreated time.Time
}

// Tail reads the last batch and verifies it.
func (q *Queue) Tail(ctx context.Context) (Tail, error) {
	info, err := q.streamInfo(ctx)
	if err != nil {
		return Tail{}, err
	}
	t := Tail{Seq: info.State.LastSeq, StreamCreated: info.Created, Empty: info.State.Msgs == 0}
	if t.Empty {
		return t, nil
	}
	m, err := q.get(ctx, t.Seq)
	if errors.Is(err, errNoMessage) {
		return Tail{}, &Error{Kind: ErrHole, Stream: q.stream, Seq: t.Seq, Detail: fmt.Sprintf("last batch, sequence %d, was deleted", t.Seq), Remedy: remedyLost}
	}
	if err != nil {
		return Tail{}, err
	}
	t.Header = m.header
	return t, nil
}
