package queue_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/internal/natstest"
	"github.com/walferry/walferry/queue"
)

func TestAppender_SecondWriterIsFenced(t *testing.T) {
	q, nc := start(t)
	g := newGen()
	store(t, q, g.packed(1))
	a1 := appender(t, q, queue.AppenderOptions{})
	old := tail(t, q)
	q2 := openQueue(t, nc, queue.Options{})
	a2 := appender(t, q2, queue.AppenderOptions{})

	b := g.packed(1)
	storeWith(t, a2, b)
	ctx := ctxFor(t, 10*time.Second)
	_ = a1.Append(ctx, &b.h, b.body)
	err := a1.Flush(ctx)
	wantKind(t, err, queue.ErrFenced)
	if !queue.Retryable(err) {
		t.Error("being fenced is not retryable")
	}
	if end, seq := a1.Durable(); seq != 1 || end >= b.h.End {
		t.Errorf("the fenced appender claims %v at sequence %d", end, seq)
	}
	if err := a1.Append(ctx, &b.h, b.body); !errors.Is(err, queue.ErrFenced) {
		t.Errorf("append after being fenced: %v", err)
	}
	select {
	case <-a1.Progress():
	default:
		t.Error("failure was not signalled")
	}
	_, err = q.NewAppender(ctx, old, queue.AppenderOptions{})
	wantKind(t, err, queue.ErrFenced)
	if tl := tail(t, q); tl.Seq != 2 {
		t.Errorf("queue ends at %d, want 2", tl.Seq)
	}
}

// Two writers with the same history race; whoever is fenced reads the tail
// and goes on from there.
func TestAppender_RacingWritersStoreEveryBatchOnce(t *testing.T) {
	srv := natstest.Start(t)
	q := newQueue(t, natstest.Connect(t, srv), queue.Options{})
	g := newGen()
	from := g.pos
	var bs []batch
	for range 120 {
		bs = append(bs, g.packed(1))
	}
	var wg sync.WaitGroup
	for range 2 {
		q := openQueue(t, natstest.Connect(t, srv), queue.Options{})
		wg.Go(func() { feed(t, q, bs, queue.AppenderOptions{MaxMsgs: 8}) })
	}
	wg.Wait()
	checkStored(t, q, from, bs)
}

// feed stores bs as a log reader does: after every failure it continues
// behind the tail.
func feed(t testing.TB, q *queue.Queue, bs []batch, o queue.AppenderOptions) {
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	for {
		err := feedOnce(ctx, q, bs, o)
		if err == nil {
			return
		}
		if ctx.Err() != nil || !queue.Retryable(err) {
			t.Errorf("feed: %v", err)
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func feedOnce(ctx context.Context, q *queue.Queue, bs []batch, o queue.AppenderOptions) error {
	tl, err := q.Tail(ctx)
	if err != nil {
		return err
	}
	a, err := q.NewAppender(ctx, tl, o)
	if err != nil {
		return err
	}
	defer a.Close()
	for _, b := range bs[tl.Seq:] {
		if err := a.Append(ctx, &b.h, b.body); err != nil {
			return err
		}
	}
	return a.Flush(ctx)
}

func checkStored(t testing.TB, q *queue.Queue, from change.LSN, bs []batch) {
	t.Helper()
	if tl := tail(t, q); tl.Seq != uint64(len(bs)) {
		t.Fatalf("queue ends at %d, want %d", tl.Seq, len(bs))
	}
	r := reader(t, q, from)
	for i, b := range bs {
		d := next(t, r)
		if diff := cmp.Diff(b.h, d.Header); diff != "" {
			t.Fatalf("batch %d (-want +got):\n%s", i, diff)
		}
	}
}

func TestQueue_NothingIsLostOrDoubledWhenTheServerIsKilled(t *testing.T) {
	t.Run("one process", func(t *testing.T) { killServer(t, true) })
	t.Run("two processes", func(t *testing.T) { killServer(t, false) })
}

func killServer(t *testing.T, oneProcess bool) {
	srv, q := startProcess(t)
	g := newGen()
	g.size = 20000
	from := g.pos
	var bs []batch
	for range 600 {
		bs = append(bs, g.packed(1))
	}
	var wg sync.WaitGroup
	wg.Go(func() { feed(t, q, bs, queue.AppenderOptions{}) })
	read := q
	if !oneProcess {
		read = openQueue(t, connectTo(t, srv), queue.Options{})
	}
	r := reader(t, read, from)
	for i := range bs {
		if i == 100 || i == 300 {
			srv.Kill()
			srv.Start()
		}
		if d := next(t, r); d.Header.End != bs[i].h.End {
			t.Fatalf("batch %d ends at %v, want %v", i, d.Header.End, bs[i].h.End)
		}
	}
	wg.Wait()
	// The connections above may not know yet that the server is back.
	checkStored(t, openQueue(t, connectTo(t, srv), queue.Options{}), from, bs)
}

func TestAppender_FrozenServerIsATransientFailureWithoutReordering(t *testing.T) {
	srv, q := startProcess(t)
	g := newGen()
	from := g.pos
	bs := []batch{g.packed(1), g.packed(1), g.packed(1), g.packed(1)}
	a := appender(t, q, queue.AppenderOptions{AckTimeout: 300 * time.Millisecond})
	ctx := ctxFor(t, 30*time.Second)
	storeWith(t, a, bs[0])
	srv.Pause()
	if err := a.Append(ctx, &bs[1].h, bs[1].body); err != nil {
		t.Fatal(err)
	}
	err := a.Flush(ctx)
	wantKind(t, err, queue.ErrUnavailable)
	if end, _ := a.Durable(); end != bs[0].h.End {
		t.Errorf("durable is %v, want %v", end, bs[0].h.End)
	}
	srv.Resume() // the frozen batch is stored now, or was; the next appender finds it
	feed(t, q, bs, queue.AppenderOptions{})
	checkStored(t, q, from, bs)
}

func TestAppender_FullQueueRefusesAndRecoversAfterTrim(t *testing.T) {
	nc := natstest.Connect(t, natstest.Start(t))
	q := newQueue(t, nc, queue.Options{MaxBytes: 200_000})
	g := newGen()
	g.size = 20000
	from := g.pos
	if err := q.Register(t.Context(), "sub", from); err != nil {
		t.Fatal(err)
	}
	a := appender(t, q, queue.AppenderOptions{})
	ctx := ctxFor(t, 20*time.Second)
	var bs []batch
	for range 30 {
		bs = append(bs, g.packed(1))
	}
	var err error
	for _, b := range bs {
		if err = a.Append(ctx, &b.h, b.body); err != nil {
			break
		}
	}
	if err == nil {
		err = a.Flush(ctx)
	}
	wantKind(t, err, queue.ErrFull)
	if !queue.Retryable(err) {
		t.Error("a full queue is not retryable")
	}
	tl := tail(t, q)
	if end, seq := a.Durable(); seq != tl.Seq || end != tl.Header.End {
		t.Errorf("durable %v %d, the queue ends at %v %d", end, seq, tl.Header.End, tl.Seq)
	}
	if tl.Seq < 5 || rawStream(t, nc).CachedInfo().State.FirstSeq != 1 {
		t.Fatalf("stored %d, first %d: batches were dropped", tl.Seq, rawStream(t, nc).CachedInfo().State.FirstSeq)
	}
	if err := q.Report(ctx, "sub", tl.Header.End, tl.Seq); err != nil {
		t.Fatal(err)
	}
	if res, err := q.Trim(ctx, 0); err != nil || res.Purged != tl.Seq-1 {
		t.Fatalf("trim: %+v, %v", res, err)
	}
	store(t, q, bs[tl.Seq:tl.Seq+3]...)
}

func TestAppender_FullServerIsAFullQueue(t *testing.T) {
	nc := natstest.Connect(t, natstest.Start(t, natstest.WithMaxStore(300_000)))
	q := newQueue(t, nc, queue.Options{})
	g := newGen()
	g.size = 20000
	a := appender(t, q, queue.AppenderOptions{})
	ctx := ctxFor(t, 20*time.Second)
	var err error
	for err == nil {
		b := g.packed(1)
		if err = a.Append(ctx, &b.h, b.body); err == nil {
			err = a.Flush(ctx)
		}
	}
	wantKind(t, err, queue.ErrFull)
}

func TestAppender_BufferedPublishesOfAFailedAppenderDoNotFenceTheNext(t *testing.T) {
	q, _ := start(t)
	g := newGen()
	from := g.pos
	var bs []batch
	for i := range 40 {
		a := appender(t, q, queue.AppenderOptions{})
		b := g.packed(1)
		bs = append(bs, b)
		if err := a.Append(t.Context(), &b.h, b.body); err != nil {
			t.Fatal(err)
		}
		_ = a.Close() // without waiting
		eventually(t, 5*time.Second, func() error {
			tl, err := q.Tail(t.Context())
			if err == nil && tl.Seq != uint64(i+1) {
				err = fmt.Errorf("tail is %d", tl.Seq)
			}
			return err
		})
	}
	checkStored(t, q, from, bs)
}

func TestAppender_NobodyTakesTheSubject(t *testing.T) {
	q, nc := start(t)
	g := newGen()
	a := appender(t, q, queue.AppenderOptions{})
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteStream(t.Context(), q.Stream()); err != nil {
		t.Fatal(err)
	}
	b := g.packed(1)
	_ = a.Append(t.Context(), &b.h, b.body)
	wantKind(t, a.Flush(ctxFor(t, 10*time.Second)), queue.ErrUnavailable)
	_, err = q.Tail(t.Context())
	wantKind(t, err, queue.ErrNoStream)
}

func TestAppender_ContextEndsTheWaitForTheWindow(t *testing.T) {
	srv := natstest.StartProcess(t)
	nc, err := queue.Connect(srv.URL(), "", testLog(t), nats.PingInterval(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	q := newQueue(t, nc, queue.Options{})
	g := newGen()
	a := appender(t, q, queue.AppenderOptions{MaxMsgs: 1})
	srv.Pause()
	defer srv.Resume()
	b1, b2 := g.packed(1), g.packed(1)
	if err := a.Append(t.Context(), &b1.h, b1.body); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := a.Append(ctx, &b2.h, b2.body); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("append into a full window: %v", err)
	}
	if err := a.Err(); err != nil {
		t.Errorf("the context's end failed the appender: %v", err)
	}
}
