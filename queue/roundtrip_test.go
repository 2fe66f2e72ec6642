package queue_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/queue"
)

func TestQueue_BatchesComeBackInOrderAndUnchanged(t *testing.T) {
	q, _ := start(t)
	bs := newGen().random(rand.New(rand.NewPCG(1, 2)), 200)
	store(t, q, bs...)
	r := reader(t, q, bs[0].h.Prev)
	for i, b := range bs {
		d := next(t, r)
		if diff := cmp.Diff(b.h, d.Header); diff != "" {
			t.Fatalf("batch %d (-stored +read):\n%s", i, diff)
		}
		if string(b.body) != string(d.Body) {
			t.Fatalf("batch %d: body differs", i)
		}
		if d.Seq != uint64(i+1) {
			t.Fatalf("batch %d has sequence %d", i, d.Seq)
		}
	}
	if r.Ready() {
		t.Error("Ready at the end of the queue")
	}
}

func TestQueue_TailIsTheLastBatch(t *testing.T) {
	q, _ := start(t)
	if tl := tail(t, q); !tl.Empty || tl.Seq != 0 || tl.StreamCreated.IsZero() {
		t.Fatalf("tail of an empty queue: %+v", tl)
	}
	g := newGen()
	bs := []batch{g.packed(3), g.mark()}
	store(t, q, bs...)
	tl := tail(t, q)
	if tl.Empty || tl.Seq != 2 {
		t.Fatalf("tail: %+v", tl)
	}
	if diff := cmp.Diff(bs[1].h, tl.Header); diff != "" {
		t.Errorf("header (-stored +read):\n%s", diff)
	}
}

func TestReader_WaitsForTheNextBatchAndWakesOnContext(t *testing.T) {
	q, _ := start(t)
	g := newGen()
	r := reader(t, q, g.pos)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := r.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Next on an empty queue: %v", err)
	}
	b := g.packed(1)
	store(t, q, b)
	if d := next(t, r); d.Header.End != b.h.End {
		t.Errorf("read %v, want %v", d.Header.End, b.h.End)
	}
}

func TestReader_ReadyWhileBatchesAreStored(t *testing.T) {
	q, _ := start(t)
	g := newGen()
	from := g.pos
	const n = 1500
	var bs []batch
	for range n {
		bs = append(bs, g.packed(1))
	}
	store(t, q, bs...)
	r := reader(t, q, from)
	next(t, r)
	missed := 0 // Ready waits only a moment, which a busy machine may miss
	for i := 1; i < n; i++ {
		if !r.Ready() {
			missed++
		}
		next(t, r)
	}
	if missed > n/10 {
		t.Errorf("not ready before %d of %d stored batches", missed, n)
	}
	if r.Ready() {
		t.Error("ready at the end")
	}
}

func TestAppender_DurableFollowsAcknowledgements(t *testing.T) {
	q, _ := start(t)
	g := newGen()
	a := appender(t, q, queue.AppenderOptions{MaxMsgs: 4})
	if end, seq := a.Durable(); end != 0 || seq != 0 {
		t.Fatalf("durable %v %d before the first batch", end, seq)
	}
	ctx := ctxFor(t, 10*time.Second)
	var last change.LSN
	for range 50 {
		b := g.packed(2)
		if err := a.Append(ctx, &b.h, b.body); err != nil {
			t.Fatal(err)
		}
		clear(b.body) // the appender must have copied it
		if n := a.InFlight(); n > 4 {
			t.Fatalf("%d batches in flight, the window is 4", n)
		}
		if end, _ := a.Durable(); end < last {
			t.Fatalf("durable went back from %v to %v", last, end)
		} else {
			last = end
		}
	}
	if err := a.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if end, seq := a.Durable(); end != g.pos || seq != 50 {
		t.Errorf("durable %v %d, want %v 50", end, seq, g.pos)
	}
	select {
	case <-a.Progress():
	default:
		t.Error("no progress was signalled")
	}
	r := reader(t, q, 0x1000)
	for range 50 {
		next(t, r) // the checksum covers the body
	}
}

func TestAppender_RefusesABatchThatBreaksTheChain(t *testing.T) {
	q, _ := start(t)
	g := newGen()
	store(t, q, g.packed(1))
	a := appender(t, q, queue.AppenderOptions{})
	g.packed(1)
	b := g.packed(1)
	err := a.Append(t.Context(), &b.h, b.body)
	wantKind(t, err, queue.ErrChain)
	if tl := tail(t, q); tl.Seq != 1 {
		t.Errorf("queue ends at %d, want 1", tl.Seq)
	}
}

// The commit record of a transaction may begin where the mark before it ends.
func TestAppender_StoresATransactionThatBeginsAtTheEndOfAMark(t *testing.T) {
	q, _ := start(t)
	g := newGen()
	from := g.pos
	m := g.mark()
	b := g.packed(1)
	b.h.First, b.h.Last = m.h.End, m.h.End
	store(t, q, m, b)
	r := reader(t, q, from)
	for _, want := range []batch{m, b} {
		if d := next(t, r); d.Header.First != want.h.First || d.Header.End != want.h.End {
			t.Errorf("batch from %v to %v, want %v to %v", d.Header.First, d.Header.End, want.h.First, want.h.End)
		}
	}
}

func TestAppender_HeadersAreReadableAndNameTheBatch(t *testing.T) {
	q, nc := start(t)
	g := newGen()
	store(t, q, g.packed(1), g.mark())
	store(t, q, g.chunks(2, 2)...)
	sub, err := nc.SubscribeSync(nc.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	var ids, expected []string
	for seq := 1; seq <= 4; seq++ {
		err := nc.PublishRequest("$JS.API.DIRECT.GET."+q.Stream(), sub.Subject, fmt.Appendf(nil, `{"seq":%d}`, seq))
		if err != nil {
			t.Fatal(err)
		}
		m, err := sub.NextMsg(5 * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, m.Header.Get(nats.MsgIdHdr))
		expected = append(expected, m.Header.Get(nats.ExpectedLastSeqHdr))
	}
	if diff := cmp.Diff([]string{"1-0/1020-0-0", "1-0/1068-mark-0", "1-0/1088-0-2", "1-0/1088-1-2"}, ids); diff != "" {
		t.Errorf("message ids (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"0", "1", "2", "3"}, expected); diff != "" {
		t.Errorf("expected sequences (-want +got):\n%s", diff)
	}
}
