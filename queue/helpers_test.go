package queue_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/internal/natstest"
	"github.com/walferry/walferry/queue"
)

func TestMain(m *testing.M) {
	natstest.Serve()
	goleak.VerifyTestMain(m)
}

const testSystem = 7301234567890123456

// batch is a header and a body, as the log reader would make them.
type batch struct {
	h    change.BatchHeader
	body []byte
}

// tx is a transaction that the generator has committed.
type tx struct{ commit, end change.LSN }

// gen makes a chain of batches.
type gen struct {
	pos      change.LSN
	timeline uint32
	xid      change.XID
	txs      []tx
	total    uint64
	size     int // bytes of one message
}

func newGen() *gen { return &gen{pos: 0x1000, timeline: 1, xid: 700, size: 40} }

func (g *gen) header() change.BatchHeader {
	return change.BatchHeader{Version: change.FormatVersion, System: testSystem, Timeline: g.timeline, Prev: g.pos, Total: g.total}
}

// commit advances the log over one transaction.
func (g *gen) commit() tx {
	t := tx{commit: g.pos + 0x20, end: g.pos + 0x50}
	g.pos, g.xid = t.end, g.xid+1
	g.txs = append(g.txs, t)
	return t
}

func (g *gen) message(c change.LSN, i int) []byte {
	s := fmt.Appendf(nil, "I%v row %d ", c, i)
	return append(s, bytes.Repeat([]byte{'x'}, max(0, g.size-len(s)))...)
}

// packed is a batch of n whole transactions.
func (g *gen) packed(n int) batch {
	h := g.header()
	var body []byte
	for i := range n {
		t := g.commit()
		if i == 0 {
			h.First = t.commit
		}
		h.Last, h.End = t.commit, t.end
		body = change.AppendRecord(body, g.message(t.commit, 0))
	}
	h.Txns, h.Rows, h.XID = n, n, g.xid
	g.total += uint64(n)
	h.Total = g.total
	h.CommitTime = time.Unix(1700000000, 0).Add(time.Duration(g.pos) * time.Microsecond).UTC()
	return batch{h, body}
}

// mark is a batch that only moves the position.
func (g *gen) mark() batch {
	h := g.header()
	g.pos += 0x18
	h.End = g.pos
	return batch{h, nil}
}

// chunks is one transaction in n chunks; with upto < n only so many of them,
// and the log stays before the transaction.
func (g *gen) chunks(n, upto int) []batch {
	pos, xid := g.pos, g.xid
	h0 := g.header()
	t := g.commit()
	var out []batch
	crc := uint32(0)
	for i := range upto {
		h := h0
		msg := g.message(t.commit, i)
		crc = change.UpdateCRC(crc, msg)
		h.First, h.Last, h.End, h.XID = t.commit, t.commit, h0.Prev, xid
		h.Chunked, h.Chunk, h.Open, h.Rows = true, i, true, 1
		h.TxMsgs, h.TxCRC = uint64(i+1), crc
		h.CommitTime = time.Unix(1700000000, 0).UTC()
		if i == n-1 {
			h.Open, h.End, h.Txns = false, t.end, 1
			g.total++
			h.Total = g.total
		}
		out = append(out, batch{h, change.AppendRecord(nil, msg)})
	}
	if upto < n {
		g.pos, g.xid, g.txs = pos, xid, g.txs[:len(g.txs)-1]
	}
	return out
}

// random appends n batches of all kinds to a list.
func (g *gen) random(r *rand.Rand, n int) []batch {
	var out []batch
	for len(out) < n {
		switch r.IntN(6) {
		case 0:
			out = append(out, g.mark())
		case 1:
			k := 2 + r.IntN(4)
			for r.IntN(2) == 0 {
				out = append(out, g.chunks(k, 1+r.IntN(k-1))...)
			}
			out = append(out, g.chunks(k, k)...)
		default:
			out = append(out, g.packed(1+r.IntN(4)))
		}
	}
	return out
}

func testLog(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func ctxFor(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// newQueue creates a queue on a connection.
func newQueue(t testing.TB, nc *nats.Conn, o queue.Options) *queue.Queue {
	t.Helper()
	q := openQueue(t, nc, o)
	if err := q.Create(ctxFor(t, 10*time.Second)); err != nil {
		t.Fatal(err)
	}
	return q
}

func openQueue(t testing.TB, nc *nats.Conn, o queue.Options) *queue.Queue {
	t.Helper()
	if o.Name == "" {
		o.Name = "main"
	}
	o.Logger = testLog(t)
	q, err := queue.Open(ctxFor(t, 10*time.Second), nc, o)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// start is a queue on an embedded server of its own.
func start(t testing.TB, opts ...natstest.Option) (*queue.Queue, *nats.Conn) {
	t.Helper()
	nc := natstest.Connect(t, natstest.Start(t, opts...))
	return newQueue(t, nc, queue.Options{}), nc
}

// startProcess is a queue on a server process.
func startProcess(t testing.TB) (*natstest.Process, *queue.Queue) {
	t.Helper()
	srv := natstest.StartProcess(t)
	return srv, newQueue(t, connectTo(t, srv), queue.Options{})
}

func connectTo(t testing.TB, srv *natstest.Process) *nats.Conn {
	t.Helper()
	nc, err := queue.Connect(srv.URL(), "", testLog(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func tail(t testing.TB, q *queue.Queue) queue.Tail {
	t.Helper()
	tl, err := q.Tail(ctxFor(t, 10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	return tl
}

func appender(t testing.TB, q *queue.Queue, o queue.AppenderOptions) *queue.Appender {
	t.Helper()
	a, err := q.NewAppender(ctxFor(t, 10*time.Second), tail(t, q), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	return a
}

// store appends batches and waits until they are durable.
func store(t testing.TB, q *queue.Queue, bs ...batch) {
	t.Helper()
	a := appender(t, q, queue.AppenderOptions{})
	defer a.Close()
	storeWith(t, a, bs...)
}

func storeWith(t testing.TB, a *queue.Appender, bs ...batch) {
	t.Helper()
	ctx := ctxFor(t, 60*time.Second)
	for _, b := range bs {
		if err := a.Append(ctx, &b.h, b.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Flush(ctx); err != nil {
		t.Fatal(err)
	}
}

func reader(t testing.TB, q *queue.Queue, from change.LSN) *queue.Reader {
	t.Helper()
	r, err := q.NewReader(ctxFor(t, 10*time.Second), from, queue.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// next reads one batch, and fails the test when none comes.
func next(t testing.TB, r *queue.Reader) *queue.Delivery {
	t.Helper()
	d, err := r.Next(ctxFor(t, 30*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// publish stores a message behind the queue's back.
func publish(t testing.TB, nc *nats.Conn, b batch, change func(*nats.Msg)) {
	t.Helper()
	m := &nats.Msg{Subject: queue.Subject("main"), Header: nats.Header{}, Data: bytes.Clone(b.body)}
	b.h.Fields(b.body, m.Header.Set)
	if change != nil {
		change(m)
	}
	ack, err := nc.RequestMsgWithContext(ctxFor(t, 10*time.Second), m)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(ack.Data, []byte(`"error"`)) {
		t.Fatalf("publish: %s", ack.Data)
	}
}

func wantKind(t testing.TB, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("error is %v, want kind %v", err, kind)
	}
	if _, ok := errors.AsType[*queue.Error](err); !ok {
		t.Fatalf("error %v is no *queue.Error", err)
	}
}

func eventually(t testing.TB, d time.Duration, f func() error) {
	t.Helper()
	deadline := time.Now().Add(d)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %v", d, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
