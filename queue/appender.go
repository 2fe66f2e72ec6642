package queue

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/walferry/walferry/change"
)

// AppenderOptions bound what an appender keeps in flight.
type AppenderOptions struct {
	MaxBytes   int64         // body bytes; zero is 16 MiB. One batch may always be in flight.
	MaxMsgs    int           // batches; zero is 64
	AckTimeout time.Duration // for one batch; zero is 30 s
}

func (o *AppenderOptions) setDefaults() {
	if o.MaxBytes <= 0 {
		o.MaxBytes = 16 << 20
	}
	if o.MaxMsgs <= 0 {
		o.MaxMsgs = 64
	}
	if o.AckTimeout <= 0 {
		o.AckTimeout = 30 * time.Second
	}
}

// An Appender adds batches to the end of a queue. Append, Show and Flush are called
// by one goroutine at a time; the other methods by any.
//
// The batches in flight are a first-in first-out list. A batch leaves it when
// it and all before it are acknowledged with the sequence numbers they were
// given here. The first thing that goes otherwise ends the appender: its error
// stays, Durable stays, and the owner makes a new appender from a new Tail.
type Appender struct {
	q       *Queue
	o       AppenderOptions
	attempt string // used by Append only: part of message ids: sequence number after which this appender, or a transaction's latest attempt, began
	inbox   string
	sub     *nats.Subscription
	acks    chan *nats.Msg
	status  chan nats.Status
	stop    chan struct{}
	once    sync.Once
	wg      sync.WaitGroup

	// Used by Append only.
	chain chain
	next  uint64 // sequence number of the next batch
	shown uint64 // that of the last one of which a part was shown
	msg   nats.Msg
	vals  [32]string

	progress chan struct{} // for the owner
	wake     chan struct{} // for Append and Flush

	mu      sync.Mutex
	flights []flight // oldest first
	bytes   int64
	durable change.LSN
	seq     uint64
	err     error
}

// flight is a batch that is not yet durable.
type flight struct {
	seq   uint64
	end   change.LSN
	bytes int64
	sent  time.Time
	acked bool
}

// NewAppender returns an appender that continues after tail. It fails with
// ErrFenced when the queue has moved on since tail was read, and with ErrLost
// when the stream is another one or ends before tail.
func (q *Queue) NewAppender(ctx context.Context, tail Tail, o AppenderOptions) (*Appender, error) {
	o.setDefaults()
	info, err := q.streamInfo(ctx)
	if err != nil {
		return nil, err
	}
	if err := q.verify(info); err != nil {
		return nil, err
	}
	if !info.Created.Equal(tail.StreamCreated) {
		return nil, q.recreated(tail.StreamCreated, info.Created)
	}
	if have := info.State.LastSeq; have < tail.Seq {
		return nil, q.lost(tail.Seq, have)
	}
	a := &Appender{
		q: q, o: o,
		attempt:  strconv.FormatUint(tail.Seq, 10),
		inbox:    q.nc.NewInbox(),
		acks:     make(chan *nats.Msg, 2*o.MaxMsgs+16),
		stop:     make(chan struct{}),
		next:     tail.Seq + 1,
		progress: make(chan struct{}, 1),
		wake:     make(chan struct{}, 1),
		seq:      tail.Seq,
	}
	a.msg = nats.Msg{Subject: q.subject, Header: nats.Header{}}
	if !tail.Empty {
		a.chain = chainAfter(tail.Header)
		a.durable = tail.Header.End
	}
	a.status = q.nc.StatusChanged(nats.DISCONNECTED, nats.RECONNECTING, nats.CLOSED)
	a.sub, err = q.nc.ChanSubscribe(a.inbox+".*", a.acks)
	if err != nil {
		q.nc.RemoveStatusListener(a.status)
		return nil, q.unavailable("subscribe to acknowledgements", err)
	}
	if err := a.barrier(ctx, tail.Seq); err != nil {
		a.release()
		return nil, err
	}
	q.recent.begin(a, tail.StreamCreated, tail.Seq)
	a.wg.Go(a.run)
	return a, nil
}

func (q *Queue) recreated(want, have time.Time) *Error {
	return &Error{
		Kind: ErrLost, Stream: q.stream,
		Detail: fmt.Sprintf("stream was created anew at %s, it used to be the one of %s", have.Format(time.RFC3339Nano), want.Format(time.RFC3339Nano)),
		Remedy: remedyLost,
	}
}

// impossibleSeq is an expected sequence number that no stream has.
const impossibleSeq = 1 << 62

// barrier waits until the server has worked off all that was published before
// over this connection, and verifies that the stream then ends at want. It
// publishes a message that the server must refuse; the refusal names the last
// sequence number.
func (a *Appender) barrier(ctx context.Context, want uint64) error {
	ctx, cancel := context.WithTimeoutCause(ctx, a.o.AckTimeout, errAPITimeout)
	defer cancel()
	m := &nats.Msg{Subject: a.q.subject, Reply: a.inbox + ".0", Header: nats.Header{}}
	m.Header.Set(nats.ExpectedLastSeqHdr, strconv.FormatUint(impossibleSeq, 10))
	if err := a.q.nc.PublishMsg(m); err != nil {
		return a.q.apiError(callerCtx{ctx}, "probe the end of the queue", err)
	}
	select {
	case <-ctx.Done():
		return a.q.apiError(callerCtx{ctx}, "probe the end of the queue", errAPITimeout)
	case m := <-a.acks:
		ack, err := parseAck(m)
		switch {
		case err != nil:
			return a.q.unavailable("probe the end of the queue", err)
		case ack.Error == nil:
			return &Error{Kind: ErrConfig, Stream: a.q.stream, Detail: "the server ignores expected sequence numbers", Remedy: "use nats-server 2.10 or newer"}
		}
		have, known := ack.Error.lastSequence()
		switch {
		case !known && ack.Error.ErrCode == codeWrongLastSequenceRepl:
			return a.q.unavailable("probe the end of the queue", ack.Error)
		case !known:
			return a.classify(ack.Error, want+1, want, false)
		case have > want:
			return a.moved(ctx, want, have)
		case have < want:
			return a.q.lost(want, have)
		}
		return nil
	}
}

// moved says why the stream ends at have and not at want. A server that has
// found a damaged store counts on from where the store used to end, whereas
// its messages end earlier.
func (a *Appender) moved(ctx context.Context, want, have uint64) error {
	info, err := a.q.streamInfo(ctx)
	if err != nil {
		return err
	}
	if last := info.State.LastSeq; info.Config.Replicas <= 1 && last < have {
		return a.q.lost(have, last)
	}
	return a.fenced(want, have)
}

// Append sends one batch. It blocks while the window is full and returns when
// the batch is on its way; Durable tells when it is stored. Total of h is set,
// and the format version when it has none. body is copied.
//
// An error other than that of ctx or ErrChain is the appender's last: see
// [Retryable].
func (a *Appender) Append(ctx context.Context, h *change.BatchHeader, body []byte) error {
	if err := a.Err(); err != nil {
		return err
	}
	if h.Version == 0 {
		h.Version = change.FormatVersion
	}
	if limit := a.q.MaxBatch(); len(body) > limit {
		return &Error{Kind: ErrChain, Stream: a.q.stream, Detail: fmt.Sprintf("body of %d bytes, the server takes %d", len(body), limit)}
	}
	h.Total = a.chain.prev.Total + uint64(h.Txns)
	restart, b := a.chain.check(h)
	if b != nil {
		return &Error{Kind: ErrChain, Stream: a.q.stream, Want: b.want, Have: b.have, Detail: b.detail}
	}
	if restart {
		a.attempt = strconv.FormatUint(a.next-1, 10)
	}
	if err := a.admit(ctx, h, int64(len(body))); err != nil {
		return err
	}
	if a.q.readers.Load() > 0 || a.shown == a.next {
		a.q.recent.add(a, a.next, h, body, false)
	}
	a.fill(h, body)
	if err := a.q.nc.PublishMsg(&a.msg); err != nil {
		return a.fail(a.publishError(err))
	}
	a.chain = chainAfter(*h)
	a.next++
	return nil
}

// Show lets readers of this process that read ahead have the whole transactions
// of which the next batch consists so far; h and body are what Append would be
// given now. It sends nothing and does not block. The next batch that is appended must
// begin with the same bytes. body is copied.
func (a *Appender) Show(h *change.BatchHeader, body []byte) {
	if a.q.ahead.Load() == 0 {
		return
	}
	if h.Version == 0 {
		h.Version = change.FormatVersion
	}
	h.Total = a.chain.prev.Total + uint64(h.Txns)
	if restart, b := a.chain.check(h); restart || b != nil || h.Chunked {
		return // Append says what is wrong
	}
	a.q.recent.add(a, a.next, h, body, true)
	a.shown = a.next
}

// fill builds the message in place: NATS copies it while publishing.
func (a *Appender) fill(h *change.BatchHeader, body []byte) {
	clear(a.msg.Header)
	i := 0
	set := func(k, v string) {
		a.vals[i] = v
		a.msg.Header[k] = a.vals[i : i+1 : i+1]
		i++
	}
	h.Fields(body, set)
	set(nats.MsgIdHdr, a.msgID(h))
	set(nats.ExpectedLastSeqHdr, strconv.FormatUint(a.next-1, 10))
	a.msg.Data = body
	a.msg.Reply = a.inbox + "." + strconv.FormatUint(a.next, 10)
}

// msgID names a batch: timeline, first commit LSN, chunk and attempt. A mark has
// its End, and "mark" in place of the chunk: a transaction whose commit record
// begins at the End of a mark is another batch, and the server would take it for
// the same.
func (a *Appender) msgID(h *change.BatchHeader) string {
	b := make([]byte, 0, 64)
	b = strconv.AppendUint(b, uint64(h.Timeline), 10)
	b = append(b, '-')
	if h.IsMark() {
		b = append(b, h.End.String()...)
		b = append(b, "-mark-"...)
	} else {
		b = append(b, h.First.String()...)
		b = append(b, '-')
		b = strconv.AppendInt(b, int64(h.Chunk), 10)
		b = append(b, '-')
	}
	b = append(b, a.attempt...)
	return string(b)
}

// admit waits for room in the window and takes it.
func (a *Appender) admit(ctx context.Context, h *change.BatchHeader, n int64) error {
	for {
		a.mu.Lock()
		if a.err != nil {
			defer a.mu.Unlock()
			return a.err
		}
		if len(a.flights) == 0 || len(a.flights) < a.o.MaxMsgs && a.bytes+n <= a.o.MaxBytes {
			a.flights = append(a.flights, flight{seq: a.next, end: h.End, bytes: n, sent: time.Now()})
			a.bytes += n
			a.mu.Unlock()
			return nil
		}
		a.mu.Unlock()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-a.wake:
		}
	}
}

func (a *Appender) publishError(err error) error {
	if errors.Is(err, nats.ErrMaxPayload) {
		return a.q.unavailable("the server now takes smaller messages", err)
	}
	if errors.Is(err, nats.ErrConnectionClosed) {
		return &Error{Kind: ErrClosed, Stream: a.q.stream, Detail: "append", Err: err}
	}
	return a.q.unavailable("append", err)
}

// Durable returns the End of the last batch that is stored together with all
// before it, and its sequence number. At first they are those of the tail.
func (a *Appender) Durable() (end change.LSN, seq uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.durable, a.seq
}

// InFlight is the number of batches that are sent and not yet durable.
func (a *Appender) InFlight() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.flights)
}

// Progress is signalled when Durable moves or the appender fails. Signals that
// nobody fetched are merged.
func (a *Appender) Progress() <-chan struct{} { return a.progress }

// Err is why the appender failed, or nil.
func (a *Appender) Err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}

// Flush waits until nothing is in flight.
func (a *Appender) Flush(ctx context.Context) error {
	for {
		a.mu.Lock()
		err, n := a.err, len(a.flights)
		a.mu.Unlock()
		if err != nil || n == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-a.wake:
		}
	}
}

// Close ends the appender without waiting for acknowledgements. What is still
// in flight may be stored or not.
func (a *Appender) Close() error {
	a.once.Do(func() {
		close(a.stop)
		a.wg.Wait()
		a.release()
		_ = a.fail(&Error{Kind: ErrClosed, Stream: a.q.stream, Detail: "append"})
	})
	return nil
}

func (a *Appender) release() {
	_ = a.sub.Unsubscribe()
	a.q.nc.RemoveStatusListener(a.status)
}
