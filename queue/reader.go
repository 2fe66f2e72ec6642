package queue

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/walferry/walferry/change"
)

// Bounds of a reader.
const (
	// prefetchBytes and prefetchMsgs bound what a reader holds that Next has
	// not returned yet. Readers of one queue share prefetchTotal, but none has
	// less than prefetchLeast.
	prefetchBytes = 8 << 20
	prefetchTotal = 48 << 20
	prefetchLeast = 1 << 20
	prefetchMsgs  = 1024
	// heartbeat is how often the server says that it has nothing to send.
	heartbeat = 5 * time.Second
	// checkIdle is how long a reader waits for batches before it asks the
	// server whether there are any.
	checkIdle = 30 * time.Second
	// checkRecent is how long a reader waits for its own process to store a
	// batch before it asks the server whether the stream is still there.
	checkRecent = 10 * time.Second
	// readyWait is how long Ready waits for a batch that is known to be
	// stored.
	readyWait = 20 * time.Millisecond
)

// A Delivery is one batch, or whole transactions of one.
type Delivery struct {
	Seq    uint64
	Header change.BatchHeader
	// Body is valid until the next call of Next and must not be changed: other
	// readers may have the same one.
	Body []byte
	// Part says that the next Delivery goes on with the same batch. Header and Body
	// tell of this Delivery's transactions, but First is that of the batch.
	Part bool
	// Stored is when the queue stored the batch, by the server's clock, or when
	// this process knew of it, or of a part of it.
	Stored time.Time
	// Restart says that the chunked transaction of the batches before was
	// not finished and is begun again, or given up, by this batch: what was
	// received of it must be discarded.
	Restart bool
	// Pending is how many batches were stored, or shown, after this one when the
	// server sent it.
	Pending uint64
}

// ReaderOptions say how a reader reads.
type ReaderOptions struct {
	// Ahead lets the reader have batches of an appender of the same Queue before
	// they are stored, and in parts. If some of it is not stored in the end, as
	// the appender has failed, Next returns an error of kind ErrWithdrawn, and
	// reading has to begin again with a new reader at the position reached: the log still has
	// what the queue does not have, and another appender will bring it.
	Ahead bool
}

// A Reader returns the batches of a queue in order, each exactly once. It
// reconnects for ever; its errors other than those of the context are final.
// Its methods are for one goroutine at a time.
type Reader struct {
	q    *Queue
	o    ReaderOptions
	from change.LSN

	chain   chain
	next    uint64 // sequence number of the next batch
	part    part   // what was returned of it
	proven  uint64 // all up to here are known to be stored, or no longer needed
	epoch   uint64 // of the appender of those after it
	created time.Time
	err     error

	sess    *session
	opening *opening
	recent  bool // the batches come from q.recent, and there is no session
	peeked  *nats.Msg
	pending uint64 // as of the last message received
	status  chan nats.Status
	timer   *time.Timer
	d       Delivery

	life   context.Context
	cancel context.CancelFunc
	once   sync.Once
	wg     sync.WaitGroup
}

// part is the beginning of a batch.
type part struct {
	bytes      int
	crc        uint32
	txns, rows int
	end        change.LSN
}

// NewReader returns a reader that begins with the first batch that holds a
// transaction which a subscriber at position from has not applied, or with the
// next batch to be stored. The error is of kind ErrHole when such
// transactions are no longer in the queue.
func (q *Queue) NewReader(ctx context.Context, from change.LSN, o ReaderOptions) (*Reader, error) {
	s, err := q.locate(ctx, from)
	if err != nil {
		return nil, fmt.Errorf("find position %v: %w", from, err)
	}
	info, err := q.streamInfo(ctx)
	if err != nil {
		return nil, err
	}
	r := &Reader{q: q, o: o, from: from, chain: s.chain, next: s.seq, proven: s.seq - 1, created: info.Created}
	r.life, r.cancel = context.WithCancel(context.Background())
	r.status = q.nc.StatusChanged(nats.RECONNECTING, nats.CONNECTED, nats.CLOSED)
	r.timer = time.NewTimer(time.Hour)
	q.readers.Add(1)
	if o.Ahead {
		q.ahead.Add(1)
	}
	return r, nil
}

// window is how many bytes a reader may have asked for.
func (q *Queue) window() int {
	n := int(max(1, q.readers.Load()))
	return min(prefetchBytes, max(prefetchLeast, prefetchTotal/n))
}

// Seq is the sequence number of the batch that Next returns next.
func (r *Reader) Seq() uint64 { return r.next }

// Next returns the next batch and waits for it. The Delivery and its Body are
// valid until the next call of Next. An error of ctx leaves the reader as it
// was; any other is an [*Error] and final.
func (r *Reader) Next(ctx context.Context) (*Delivery, error) {
	for {
		if r.err != nil {
			return nil, r.err
		}
		if k, ok := r.newest(); ok {
			return r.deliver(k)
		}
		m, err := r.receive(ctx)
		if err != nil {
			if ctx.Err() == nil {
				r.err = err
			}
			return nil, err
		}
		if m == nil {
			continue
		}
		k, err := r.parse(m)
		if err != nil {
			r.err = err
			return nil, err
		}
		if k.seq != 0 {
			return r.deliver(k)
		}
	}
}

// newest returns the next batch if it is one of the queue's recent ones. A reader
// gives up its session for them when it has caught up well with the end.
func (r *Reader) newest() (k kept, ok bool) {
	if r.peeked != nil || r.opening != nil {
		return k, false
	}
	f, where := r.look(!r.recent)
	if r.recent = where != elsewhere; r.recent && r.sess != nil {
		r.wg.Go(r.sess.remove)
		r.sess = nil
	}
	return f.kept, where == here
}

// look looks for the next batch among the recent ones.
func (r *Reader) look(near bool) (found, whereabouts) {
	for {
		f, where := r.q.recent.find(r.place(), near)
		if where == elsewhere {
			return f, where
		}
		r.proven, r.epoch = max(r.proven, min(f.stored, r.next-1)), f.epoch
		if where != here || f.part || r.part.bytes == 0 || len(f.body) > r.part.bytes {
			return f, where
		}
		r.pass(f.header) // nothing came after the part that was shown
	}
}

// place is where the reader is, for recent.
func (r *Reader) place() place {
	p := place{seq: r.next, off: r.part.bytes, created: r.created, ahead: r.o.Ahead}
	if !r.sure() {
		p.epoch = r.epoch
	}
	return p
}

// sure reports whether all that was returned is known to be stored.
func (r *Reader) sure() bool { return r.next-1 <= r.proven && r.part.bytes == 0 }

// pass notes that all of the next batch has been returned.
func (r *Reader) pass(h change.BatchHeader) {
	r.chain = chainAfter(h)
	r.part = part{}
	r.next++
}

// Ready reports whether Next would return at once. When the batch before had
// successors in the queue, Ready waits a moment for them to arrive. False
// means that the reader has reached the end of the queue, or that the queue is
// slow or out of reach: whatever the caller holds back should go out now.
func (r *Reader) Ready() bool {
	switch {
	case r.err != nil:
		return false
	case r.peeked != nil:
		return true
	case r.recent:
		_, where := r.look(false)
		return where == here
	case r.poll():
		return true
	case r.pending == 0 || r.sess == nil:
		return false
	}
	r.timer.Reset(readyWait)
	for {
		select {
		case m := <-r.sess.msgs:
			if r.sess.take(m) {
				r.peeked = m
				return true
			}
			if r.sess.broken || r.replenish() != nil {
				return false
			}
		case <-r.timer.C:
			return false
		}
	}
}

// poll takes what has arrived until a batch is among it.
func (r *Reader) poll() bool {
	for r.sess != nil {
		select {
		case m := <-r.sess.msgs:
			if r.sess.take(m) {
				r.peeked = m
				return true
			}
		default:
			return false
		}
	}
	return false
}

// parse verifies a message by itself. It returns nothing when the message is not
// the next one and reading must resume from there.
func (r *Reader) parse(m *nats.Msg) (kept, error) {
	meta, err := m.Metadata()
	if err != nil || meta.Sequence.Stream != r.next {
		// Something between the stream and here is missing. Opening a new
		// session finds out whether the stream has it.
		r.q.log.Warn("reading resumes: unexpected message", "want", r.next, "reply", m.Reply)
		r.reset()
		return kept{}, nil
	}
	h, err := change.ParseHeader(m.Header.Get, m.Data)
	if err != nil {
		return kept{}, r.q.corrupt(r.next, err)
	}
	if p := &r.part; p.bytes > 0 && (h.Chunked || h.Txns < p.txns || len(m.Data) < p.bytes || change.UpdateCRC(0, m.Data[:p.bytes]) != p.crc) {
		return kept{}, r.q.withdrawn(r.next, "is another one than was begun")
	}
	r.proven = r.next
	return kept{seq: r.next, header: h, body: m.Data, time: meta.Timestamp, pending: meta.NumPending}, nil
}

// deliver verifies that a batch follows the one before and hands it out, or what
// was not returned of it.
func (r *Reader) deliver(k kept) (*Delivery, error) {
	r.pending = k.pending
	restart, b := r.chain.check(&k.header)
	if b != nil {
		r.err = b.err(r.q, k.seq)
		return nil, r.err
	}
	if !r.chain.known {
		if err := r.q.reaches(&stored{seq: k.seq, header: k.header}, r.from); err != nil {
			r.err = err
			return nil, err
		}
	}
	r.d = Delivery{Seq: k.seq, Header: k.header, Body: k.body, Part: k.part, Stored: k.time, Restart: restart, Pending: k.pending}
	if p := &r.part; p.bytes > 0 {
		r.d.Header.Prev, r.d.Restart = p.end, false
		r.d.Header.Txns -= p.txns
		r.d.Header.Rows -= p.rows
		r.d.Body = k.body[p.bytes:]
	}
	if k.part {
		h := &k.header
		r.part = part{bytes: len(k.body), crc: change.UpdateCRC(r.part.crc, r.d.Body), txns: h.Txns, rows: h.Rows, end: h.End}
	} else {
		r.pass(k.header)
	}
	return &r.d, nil
}

// receive returns the next message with a batch, or nil when the next batch has
// become one of the recent ones.
func (r *Reader) receive(ctx context.Context) (*nats.Msg, error) {
	waiting := time.Now()
	for {
		if m := r.peeked; m != nil {
			r.peeked = nil
			return m, r.replenish()
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if r.recent {
			return nil, r.follow(ctx)
		}
		if r.sess == nil || r.opening != nil {
			if err := r.join(ctx); err != nil {
				return nil, err
			}
			waiting = time.Now()
			if _, where := r.look(true); where != elsewhere {
				return nil, nil
			}
			continue
		}
		if r.poll() {
			continue
		}
		if r.sess.broken {
			r.reset()
			continue
		}
		if err := r.replenish(); err != nil {
			return nil, err
		}
		if r.sess == nil {
			continue
		}
		if err := r.wait(ctx, waiting); err != nil {
			return nil, err
		}
	}
}

// wait blocks until a message is in peeked or something else has changed.
// waiting is when the caller began to wait.
func (r *Reader) wait(ctx context.Context, waiting time.Time) error {
	r.timer.Reset(heartbeat)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-r.life.Done():
		return r.closed("read")
	case st, ok := <-r.status:
		if !ok || st == nats.CLOSED {
			return r.closed("connection to NATS is closed")
		}
		r.reset() // the server has forgotten what was asked of it
	case m := <-r.sess.msgs:
		if r.sess.take(m) {
			r.peeked = m
		}
	case <-r.timer.C:
		quiet := time.Since(later(waiting, r.sess.heard))
		idle := time.Since(later(waiting, r.sess.checked))
		switch {
		case quiet > 2*heartbeat+heartbeat/2:
			r.q.log.Warn("reading resumes: the server is silent", "next", r.next, "since", quiet.Round(time.Second))
			r.reset()
		case idle > checkIdle:
			r.open(r.sess, true)
		}
	}
	return nil
}

// follow waits until the next batch is stored by the appender of this process, or
// until that ends. At times it sees whether the stream is still there.
func (r *Reader) follow(ctx context.Context) error {
	news := r.q.recent.news(r.place())
	if news == nil {
		return nil
	}
	r.timer.Reset(checkRecent)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-r.life.Done():
		return r.closed("read")
	case st, ok := <-r.status:
		if !ok || st == nats.CLOSED {
			return r.closed("connection to NATS is closed")
		}
		r.leave()
	case <-news:
	case <-r.timer.C:
		if r.sure() { // otherwise the appender waits for an answer
			r.leave()
		}
	}
	return nil
}

// closed is the error of a reader that has been closed, or lost its connection for
// good.
func (r *Reader) closed(detail string) error {
	return &Error{Kind: ErrClosed, Stream: r.q.stream, Detail: detail}
}

// leave verifies the stream before anything else is read.
func (r *Reader) leave() {
	r.recent = false
	r.open(nil, true)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// replenish asks for more when half of what was asked for has come.
func (r *Reader) replenish() error {
	if r.sess == nil || r.sess.broken {
		return nil
	}
	if err := r.sess.pull(); err != nil {
		if r.q.nc.IsClosed() {
			return &Error{Kind: ErrClosed, Stream: r.q.stream, Detail: "read", Err: err}
		}
		r.reset()
	}
	return nil
}

// reset drops the session; the next receive opens another.
func (r *Reader) reset() {
	r.peeked = nil
	if r.sess != nil {
		r.sess.close()
		r.sess = nil
	}
}

// Close ends the reader.
func (r *Reader) Close() error {
	r.once.Do(func() {
		r.q.readers.Add(-1)
		if r.o.Ahead {
			r.q.ahead.Add(-1)
		}
		r.cancel()
		r.wg.Wait()
		if o := r.opening; o != nil && o.sess != nil && o.sess != r.sess {
			o.sess.close()
		}
		if r.sess != nil {
			r.sess.remove()
			r.sess = nil
		}
		r.q.nc.RemoveStatusListener(r.status)
		r.timer.Stop()
		if r.err == nil {
			r.err = r.closed("read")
		}
	})
	return nil
}

// isStatus reports whether m is a message of the server about a pull.
func isStatus(m *nats.Msg) bool {
	return len(m.Data) == 0 && !strings.HasPrefix(m.Reply, "$JS.ACK.") && m.Header.Get("Status") != ""
}
