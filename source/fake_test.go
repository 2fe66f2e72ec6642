package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/queue"
	"github.com/walferry/walferry/source/pgoutput"
)

// memQueue is a queue in memory whose storing can be held back. It verifies
// the chain as the real one does.
type memQueue struct {
	mu       sync.Mutex
	batches  []memBatch
	absent   bool
	limit    int
	hold     bool // nothing becomes durable
	crashed  bool // what is in flight is gone, and nothing more is taken
	delay    time.Duration
	refuse   error
	created  time.Time
	current  *memAppender
	shows    int   // calls of Show
	badShow  error // the first that was wrong
	inFlight []memBatch
}

type memBatch struct {
	h    change.BatchHeader
	body []byte
}

func newMemQueue() *memQueue { return &memQueue{absent: true, limit: 1 << 20} }

func (q *memQueue) Exists(context.Context) (bool, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return !q.absent, nil
}

func (q *memQueue) Create(context.Context) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.absent, q.created = false, time.Now()
	return nil
}

func (q *memQueue) MaxBatch() int { return q.limit }

func (q *memQueue) Tail(context.Context) (queue.Tail, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	t := queue.Tail{Seq: uint64(len(q.batches)), Empty: len(q.batches) == 0, StreamCreated: q.created}
	if !t.Empty {
		t.Header = q.batches[len(q.batches)-1].h
	}
	return t, nil
}

func (q *memQueue) LastTransaction(context.Context, queue.Tail) (change.BatchHeader, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	h := q.batches[len(q.batches)-1].h
	for i := len(q.batches) - 1; i >= 0 && h.Txns == 0; i-- {
		h = q.batches[i].h
	}
	return h, nil
}

func (q *memQueue) Info(context.Context) (queue.Info, error) { return queue.Info{}, nil }

func (q *memQueue) Claim(context.Context, string) error { return nil }

func (q *memQueue) Renew(context.Context, uint64) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.batches, q.created = nil, time.Now()
	return nil
}

func (q *memQueue) NewAppender(_ context.Context, tail queue.Tail) (Appender, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if tail.Seq != uint64(len(q.batches)) {
		return nil, &queue.Error{Kind: queue.ErrFenced}
	}
	q.inFlight, q.crashed = nil, false
	q.current = &memAppender{q: q, progress: make(chan struct{}, 1), end: tail.Header.End}
	return q.current, nil
}

func (q *memQueue) setHold(h bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.hold = h
}

// crash makes the running reader stop as if it were killed.
func (q *memQueue) crash() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.inFlight, q.crashed = nil, true
	q.current.err = &queue.Error{Kind: queue.ErrUnavailable, Detail: "crashed"}
}

func (q *memQueue) all() []memBatch {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.batches)
}

func (q *memQueue) waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.inFlight)
}

func (q *memQueue) end() change.LSN {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.batches) == 0 {
		return 0
	}
	return q.batches[len(q.batches)-1].h.End
}

type memAppender struct {
	q        *memQueue
	progress chan struct{}
	end      change.LSN // durable
	err      error
	closed   bool
	shown    memBatch // of the next batch
}

// Show keeps what the next batch must begin with.
func (a *memAppender) Show(h *change.BatchHeader, body []byte) {
	a.q.mu.Lock()
	defer a.q.mu.Unlock()
	a.q.shows++
	if s := a.shown; !a.begins(h, body) || h.Txns <= s.h.Txns {
		a.q.badShow = fmt.Errorf("shown: %+v after %+v", *h, s.h)
	}
	a.shown = memBatch{*h, slices.Clone(body)}
}

// begins reports whether a batch begins with what was shown of it.
func (a *memAppender) begins(h *change.BatchHeader, body []byte) bool {
	s := a.shown
	return s.h.Txns == 0 || s.h.Prev == h.Prev && s.h.First == h.First && s.h.Txns <= h.Txns && s.h.End <= h.End && !h.Chunked && bytes.HasPrefix(body, s.body)
}

func (a *memAppender) Append(ctx context.Context, h *change.BatchHeader, body []byte) error {
	if a.q.delay > 0 {
		time.Sleep(a.q.delay)
	}
	a.q.mu.Lock()
	defer a.q.mu.Unlock()
	if a.q.refuse != nil {
		a.err = a.q.refuse
	}
	if a.err != nil {
		return a.err
	}
	prev := a.end
	if n := len(a.q.inFlight); n > 0 {
		prev = a.q.inFlight[n-1].h.End
	}
	if prev != 0 && h.Prev != prev {
		return fmt.Errorf("append: Prev %v does not follow %v", h.Prev, prev)
	}
	if len(body) > a.q.limit {
		return fmt.Errorf("append: body of %d bytes", len(body))
	}
	if a.q.badShow != nil {
		return a.q.badShow
	}
	if !a.begins(h, body) {
		return fmt.Errorf("append: %+v does not begin with what was shown, %+v", *h, a.shown.h)
	}
	a.shown = memBatch{}
	a.q.inFlight = append(a.q.inFlight, memBatch{*h, slices.Clone(body)})
	if !a.q.hold {
		a.settle()
	}
	return nil
}

// settle makes everything in flight durable. q.mu is held.
func (a *memAppender) settle() {
	if a.closed {
		return
	}
	for _, b := range a.q.inFlight {
		a.q.batches = append(a.q.batches, b)
		a.end = b.h.End
	}
	a.q.inFlight = nil
	select {
	case a.progress <- struct{}{}:
	default:
	}
}

func (a *memAppender) Durable() (change.LSN, uint64) {
	a.q.mu.Lock()
	defer a.q.mu.Unlock()
	return a.end, uint64(len(a.q.batches))
}

func (a *memAppender) InFlight() int { return a.q.waiting() }

func (a *memAppender) Progress() <-chan struct{} { return a.progress }

func (a *memAppender) Err() error {
	a.q.mu.Lock()
	defer a.q.mu.Unlock()
	return a.err
}

func (a *memAppender) Flush(ctx context.Context) error {
	for a.InFlight() > 0 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

func (a *memAppender) Close() error {
	a.q.mu.Lock()
	defer a.q.mu.Unlock()
	a.closed = true
	a.err = errors.New("closed")
	return nil
}

// memTx is a transaction as a reader of the queue sees it.
type memTx struct {
	commit, end change.LSN
	xid         change.XID
	msgs        []string // kind and texts of the new, or else old row
	attempts    int      // how often it was begun
}

// transactions reads batches the way an applier does: it verifies the chain
// and that relations are described before use in each batch, puts chunks
// together and discards attempts.
func transactions(batches []memBatch) ([]memTx, error) {
	var out []memTx
	var dec pgoutput.Decoder
	var msgs change.Messages
	var cur *memTx
	attempts := map[change.LSN]int{}
	var prev change.BatchHeader
	for i, b := range batches {
		h := b.h
		if i > 0 && h.Prev != prev.End {
			return out, fmt.Errorf("batch %d: Prev %v after End %v", i, h.Prev, prev.End)
		}
		if h.Chunked && h.Chunk == 0 || !h.Chunked && prev.Open {
			msgs.Discard()
			cur = nil
		}
		if h.Chunked && h.Chunk > 0 && (!prev.Open || prev.Chunk+1 != h.Chunk || prev.First != h.First) {
			return out, fmt.Errorf("batch %d: chunk %d of %v after chunk %d of %v", i, h.Chunk, h.First, prev.Chunk, prev.First)
		}
		prev = h
		known := map[change.OID]bool{}
		begun := msgs.Partial() // described where it began
		msgs.Reset(b.body)
		txns, rows := 0, 0
		for {
			raw, err := msgs.Next()
			if err != nil {
				return out, fmt.Errorf("batch %d: %w", i, err)
			}
			if raw == nil {
				break
			}
			m, err := dec.Decode(raw)
			if err != nil {
				return out, fmt.Errorf("batch %d: %w", i, err)
			}
			switch m.Kind {
			case pgoutput.Begin:
				attempts[m.LSN]++
				cur = &memTx{commit: m.LSN, xid: m.XID, attempts: attempts[m.LSN]}
				continue
			case pgoutput.Relation:
				known[m.RelationOID] = true
				continue
			case pgoutput.Type, pgoutput.Origin:
				continue
			}
			if cur == nil {
				return out, fmt.Errorf("batch %d: %s outside of a transaction", i, m.Kind)
			}
			if m.RelationOID != 0 && !known[m.RelationOID] && !begun {
				return out, fmt.Errorf("batch %d: relation %d is not described", i, m.RelationOID)
			}
			begun = false
			if m.Kind == pgoutput.Commit {
				cur.end = m.EndLSN
				out = append(out, *cur)
				cur = nil
				txns++
				continue
			}
			if m.Kind != pgoutput.Logical {
				rows++
			}
			cur.msgs = append(cur.msgs, show(m))
		}
		if txns != h.Txns || rows != h.Rows {
			return out, fmt.Errorf("batch %d: header counts %d transactions, %d rows; the body has %d, %d", i, h.Txns, h.Rows, txns, rows)
		}
		if !h.Open && !h.IsMark() && out[len(out)-1].end != h.End {
			return out, fmt.Errorf("batch %d: End %v, last transaction ends at %v", i, h.End, out[len(out)-1].end)
		}
	}
	return out, nil
}

func show(m *pgoutput.Message) string {
	s := string(rune(m.Kind))
	row := m.New
	if row == nil {
		row = m.Old
	}
	for _, v := range row {
		if len(v.Data) > 40 {
			s += fmt.Sprintf(" #%d", len(v.Data))
		} else {
			s += " " + string(v.Data)
		}
	}
	if m.Kind == pgoutput.Logical {
		s += " " + string(m.Prefix) + " " + string(m.Content)
	}
	return s
}
