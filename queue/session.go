package queue

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A session is one consumer of the stream: ephemeral, without
// acknowledgements, begun at one sequence number. It is thrown away whenever
// anything is not as expected. Pull requests bound by bytes and messages are
// sent ahead, so that one is being served while another waits.
type session struct {
	q        *Queue
	consumer string
	inbox    string
	sub      *nats.Subscription
	msgs     chan *nats.Msg

	bytes    int // requested and not received, never less than the server owes
	count    int // messages requested and not received
	requests uint64
	large    bool // the next message does not fit a usual request

	heard   time.Time // last message of any kind
	checked time.Time // last batch, or comparison with the stream
	broken  bool
}

// opening is an attempt to open a session that outlives the context of one
// call of Next.
type opening struct {
	done chan struct{}
	sess *session
	err  error
}

// open begins to open a session at r.next. With keep it only verifies the stream
// and keeps old, which may be nil, if the stream has nothing for the reader.
func (r *Reader) open(old *session, keep bool) {
	o := &opening{done: make(chan struct{})}
	r.opening = o
	next, proven := r.next, r.proven
	r.wg.Go(func() {
		defer close(o.done)
		o.sess, o.err = r.openRetrying(next, proven, old, keep)
	})
}

// join waits for the session that is being opened.
func (r *Reader) join(ctx context.Context) error {
	if r.opening == nil {
		r.open(nil, false)
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-r.opening.done:
	}
	o := r.opening
	r.opening = nil
	if o.err != nil {
		return o.err
	}
	r.proven = r.next - 1
	if r.sess != nil && r.sess != o.sess {
		r.reset()
	}
	r.sess = o.sess
	return nil
}

// noStreamGrace is how long a stream may be absent: a server that starts or a
// cluster that elects a leader may not know it yet.
const noStreamGrace = 15 * time.Second

func (r *Reader) openRetrying(next, proven uint64, old *session, keep bool) (*session, error) {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval = 50 * time.Millisecond
	b.MaxInterval = 5 * time.Second
	var absent time.Time
	for {
		s, err := r.openSession(r.life, next, proven, old, keep)
		switch {
		case err == nil:
			return s, nil
		case r.life.Err() != nil:
			return nil, &Error{Kind: ErrClosed, Stream: r.q.stream, Detail: "read"}
		case errors.Is(err, ErrNoStream):
			if absent.IsZero() {
				absent = time.Now()
			}
			if time.Since(absent) > noStreamGrace {
				return nil, err
			}
		case !errors.Is(err, ErrUnavailable):
			return nil, err
		}
		d := b.NextBackOff()
		r.q.log.Debug("queue cannot be read", "err", err, "retry", d)
		select {
		case <-r.life.Done():
		case <-time.After(d):
		}
	}
}

func (r *Reader) openSession(ctx context.Context, next, proven uint64, old *session, keep bool) (*session, error) {
	q := r.q
	info, err := q.streamInfo(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.verifyStream(ctx, info, next, proven); err != nil {
		return nil, err
	}
	if keep && info.State.LastSeq < next {
		if old != nil {
			old.checked = time.Now()
		}
		return old, nil
	}
	cctx, cancel := context.WithTimeoutCause(ctx, apiTimeout, errAPITimeout)
	defer cancel()
	c, err := q.js.CreateConsumer(cctx, q.stream, jetstream.ConsumerConfig{
		DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:       next,
		AckPolicy:         jetstream.AckNonePolicy,
		MemoryStorage:     true,
		Replicas:          1,
		MaxWaiting:        16,
		InactiveThreshold: 5 * time.Minute,
	})
	if err != nil {
		return nil, q.apiError(callerCtx{cctx}, "create consumer", err)
	}
	s := &session{
		q: q, consumer: c.CachedInfo().Name, inbox: q.nc.NewInbox(),
		msgs:  make(chan *nats.Msg, 4*prefetchMsgs),
		heard: time.Now(), checked: time.Now(),
	}
	if s.sub, err = q.nc.ChanSubscribe(s.inbox+".*", s.msgs); err != nil {
		return nil, q.unavailable("subscribe to batches", err)
	}
	if err := s.pull(); err != nil {
		s.close()
		return nil, q.unavailable("ask for batches", err)
	}
	return s, nil
}

// verifyStream compares the stream with what the reader knows of it. proven is the
// last batch of which it knows that it was stored.
func (r *Reader) verifyStream(ctx context.Context, info *jetstream.StreamInfo, next, proven uint64) error {
	q := r.q
	st := &info.State
	switch {
	case !info.Created.Equal(r.created):
		return q.recreated(r.created, info.Created)
	case st.LastSeq+1 < next && proven < next-1:
		return q.withdrawn(next-1, fmt.Sprintf("is not stored: the stream ends at %d", st.LastSeq))
	case st.LastSeq+1 < next:
		return &Error{
			Kind: ErrLost, Stream: q.stream, Seq: next - 1,
			Detail: fmt.Sprintf("sequence %d was read, but the stream ends at %d", next-1, st.LastSeq), Remedy: remedyLost,
		}
	case st.FirstSeq > next:
		return &Error{
			Kind: ErrHole, Stream: q.stream, Seq: next, Want: r.from,
			Detail: fmt.Sprintf("sequence %d is needed, the queue begins at %d", next, st.FirstSeq), Remedy: remedyCopy,
		}
	}
	if err := r.verifyLast(ctx, st, next-1, proven); err != nil || st.LastSeq < next {
		return err
	}
	_, err := q.probe(ctx, next)
	if errors.Is(err, errNoMessage) { // trimmed just now
		return q.missing(next)
	}
	return err
}

// verifyLast makes sure that the batch that was accepted last, if it is still
// stored, is the one of then: a server that was put back to an earlier state and
// filled again has other batches under the same numbers, perhaps with the same
// positions.
func (r *Reader) verifyLast(ctx context.Context, st *jetstream.StreamState, seq, proven uint64) error {
	if !r.chain.known || seq < st.FirstSeq || seq > st.LastSeq {
		return nil
	}
	m, err := r.q.get(ctx, seq)
	if errors.Is(err, errNoMessage) { // removed; nobody needs it here
		return nil
	}
	if err != nil {
		return err
	}
	a, b := m.header, r.chain.prev
	if equal := a.CommitTime.Equal(b.CommitTime); equal {
		a.CommitTime, b.CommitTime = time.Time{}, time.Time{}
	}
	switch {
	case a == b:
		return nil
	case proven < seq:
		return r.q.withdrawn(seq, "is another one than was read")
	}
	return &Error{
		Kind: ErrLost, Stream: r.q.stream, Seq: seq, Want: b.End, Have: a.End,
		Detail: fmt.Sprintf("sequence %d is no longer the batch that was read", seq), Remedy: remedyLost,
	}
}

// take accounts for a message and reports whether it holds a batch.
func (s *session) take(m *nats.Msg) bool {
	s.heard = time.Now()
	if isStatus(m) {
		s.control(m)
		return false
	}
	s.settle(1, m.Size())
	s.checked = s.heard
	s.large = false
	return true
}

// settle takes messages and bytes off what is requested. A request that ends
// because one of the two is used up leaves some of the other, of which the
// server says nothing.
func (s *session) settle(count, bytes int) {
	s.count, s.bytes = max(0, s.count-count), max(0, s.bytes-bytes)
	if s.count == 0 || s.bytes == 0 {
		s.count, s.bytes = 0, 0
	}
}

// control handles what the server says about a pull request.
func (s *session) control(m *nats.Msg) {
	status, desc := m.Header.Get("Status"), m.Header.Get("Description")
	switch status {
	case "100": // heartbeat
		return
	case "404", "408", "409":
	default:
		s.broken = true // 503: the consumer is gone
		return
	}
	n, err1 := strconv.Atoi(m.Header.Get("Nats-Pending-Messages"))
	b, err2 := strconv.Atoi(m.Header.Get("Nats-Pending-Bytes"))
	if err1 != nil || err2 != nil {
		// Consumer Deleted, Leadership Change, Server Shutdown
		s.q.log.Debug("consumer ended", "status", status, "description", desc)
		s.broken = true
		return
	}
	s.settle(n, b)
	s.large = b >= s.q.window()/2 // not a single message fitted
}

// pull sends a request for half of what may be prefetched, when no more than
// that is still to come.
func (s *session) pull() error {
	window := s.q.window()
	b, n := window/2, prefetchMsgs/2
	if s.bytes > b && s.count > n {
		return nil
	}
	if s.large {
		b = max(b, int(s.q.nc.MaxPayload())+headerRoom)
	}
	s.requests++
	req := fmt.Appendf(nil, `{"batch":%d,"max_bytes":%d,"expires":%d,"idle_heartbeat":%d}`,
		n, b, int64(4*heartbeat), int64(heartbeat))
	subject := s.q.prefix + "CONSUMER.MSG.NEXT." + s.q.stream + "." + s.consumer
	if err := s.q.nc.PublishRequest(subject, s.inbox+"."+strconv.FormatUint(s.requests, 10), req); err != nil {
		return err
	}
	s.bytes = min(s.bytes+b, max(b, window))
	s.count += n
	return nil
}

// close stops listening; the server removes the consumer by itself.
func (s *session) close() { _ = s.sub.Unsubscribe() }

// remove also deletes the consumer, if that is quickly done.
func (s *session) remove() {
	s.close()
	if !s.q.nc.IsConnected() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = s.q.js.DeleteConsumer(ctx, s.q.stream, s.consumer)
}
