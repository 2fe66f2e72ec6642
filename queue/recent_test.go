package queue_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/walferry/walferry/queue"
)

// consumers counts those that the stream has.
func consumers(t testing.TB, js jetstream.JetStream, q *queue.Queue) int {
	t.Helper()
	s, err := js.Stream(t.Context(), q.Stream())
	if err != nil {
		t.Fatal(err)
	}
	return s.CachedInfo().State.Consumers
}

// wantConsumers waits until the stream has n consumers.
func wantConsumers(t testing.TB, js jetstream.JetStream, q *queue.Queue, n int) {
	t.Helper()
	eventually(t, 10*time.Second, func() error {
		if have := consumers(t, js, q); have != n {
			return fmt.Errorf("%d consumers, want %d", have, n)
		}
		return nil
	})
}

func wantBatch(t testing.TB, d *queue.Delivery, b batch) {
	t.Helper()
	if d.Header.End != b.h.End || !bytes.Equal(d.Body, b.body) {
		t.Fatalf("sequence %d ends at %v with %d bytes, want %v with %d", d.Seq, d.Header.End, len(d.Body), b.h.End, len(b.body))
	}
}

func TestReader_RecentBatchesNeedNoConsumer(t *testing.T) {
	q, nc := start(t)
	js, _ := jetstream.New(nc)
	g := newGen()
	from := g.pos
	old := []batch{g.packed(1), g.packed(1)}
	store(t, q, old...)
	a := appender(t, q, queue.AppenderOptions{})
	r := reader(t, q, from)
	for _, b := range old {
		wantBatch(t, next(t, r), b)
	}
	for range 5 {
		b := g.packed(1)
		storeWith(t, a, b)
		d := next(t, r)
		wantBatch(t, d, b)
		if time.Since(d.Stored) > time.Minute || d.Pending != 0 {
			t.Errorf("stored at %v with %d pending, want now and none", d.Stored, d.Pending)
		}
	}
	wantConsumers(t, js, q, 0)
	if r.Ready() {
		t.Error("ready at the end of the queue")
	}

	_ = a.Close() // the reader goes on with what others append
	other := openQueue(t, nc, queue.Options{})
	b := g.packed(1)
	store(t, other, b)
	wantBatch(t, next(t, r), b)
	if n := consumers(t, js, q); n != 1 {
		t.Errorf("%d consumers, want one", n)
	}
	a = appender(t, q, queue.AppenderOptions{}) // and comes back
	b = g.packed(1)
	storeWith(t, a, b)
	wantBatch(t, next(t, r), b)
	b = g.packed(1)
	storeWith(t, a, b)
	wantBatch(t, next(t, r), b)
	wantConsumers(t, js, q, 0)
}

func TestReader_SeesNothingBeforeItIsStored(t *testing.T) {
	srv, q := startProcess(t)
	g := newGen()
	r := reader(t, q, g.pos)
	a := appender(t, q, queue.AppenderOptions{})
	b := g.packed(1)
	storeWith(t, a, b)
	wantBatch(t, next(t, r), b)
	srv.Pause()
	b = g.packed(1)
	if err := a.Append(t.Context(), &b.h, b.body); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if d, err := r.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("batch %v and error %v while the server is frozen, want none", d, err)
	}
	srv.Resume()
	wantBatch(t, next(t, r), b)
}

// A reader that falls behind more than is kept reads from the stream until it has
// caught up.
func TestReader_BehindTheRecentBatchesReadsTheStream(t *testing.T) {
	q, nc := start(t)
	js, _ := jetstream.New(nc)
	g := newGen()
	g.size = 1 << 19
	r := reader(t, q, g.pos)
	a := appender(t, q, queue.AppenderOptions{})
	first := g.packed(1)
	storeWith(t, a, first)
	wantBatch(t, next(t, r), first)
	wantConsumers(t, js, q, 0)
	var bs []batch
	for range 80 { // 40 MiB
		bs = append(bs, g.packed(1))
	}
	storeWith(t, a, bs...)
	wantBatch(t, next(t, r), bs[0])
	if n := consumers(t, js, q); n != 1 {
		t.Errorf("%d consumers for a reader that is behind, want one", n)
	}
	for _, b := range bs[1:] {
		wantBatch(t, next(t, r), b)
	}
	noBatch(t, r)
	wantConsumers(t, js, q, 0)
	for range 10 {
		b := g.packed(1)
		storeWith(t, a, b)
		wantBatch(t, next(t, r), b)
	}
	wantConsumers(t, js, q, 0)
}

// Readers of different speed see each batch once and in order, wherever it comes
// from, while appenders come and go.
func TestReader_RecentAndStoredBatchesMakeOneSequence(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	q, nc := start(t)
	other := openQueue(t, nc, queue.Options{})
	g := newGen()
	g.size = 100_000
	from := g.pos
	bs := g.random(rnd, 1500)
	var group errgroup.Group
	for i := range 4 {
		r := reader(t, q, from)
		pace := rand.New(rand.NewPCG(seed, uint64(i)))
		group.Go(func() error {
			for n, b := range bs {
				if pace.IntN(400) == 0 {
					time.Sleep(time.Duration(pace.IntN(i*200+1)) * time.Millisecond) // falls behind
				}
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				d, err := r.Next(ctx)
				cancel()
				if err != nil {
					return fmt.Errorf("reader %d, batch %d: %w", i, n, err)
				}
				have, want := d.Header, b.h
				if have.CommitTime.Equal(want.CommitTime) {
					want.CommitTime = have.CommitTime
				}
				if have != want || !bytes.Equal(d.Body, b.body) {
					return fmt.Errorf("reader %d, batch %d: %+v, want %+v", i, n, have, want)
				}
			}
			return nil
		})
	}
	for rest := bs; len(rest) > 0; {
		n := min(len(rest), 1+rnd.IntN(200))
		by := q
		if rnd.IntN(4) == 0 {
			by = other // another process
		}
		store(t, by, rest[:n]...)
		rest = rest[n:]
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}
