package queue_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/queue"
)

// readerAhead reads ahead of what is stored.
func readerAhead(t testing.TB, q *queue.Queue, from change.LSN) *queue.Reader {
	t.Helper()
	r, err := q.NewReader(ctxFor(t, 10*time.Second), from, queue.ReaderOptions{Ahead: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func appendTo(t testing.TB, a *queue.Appender, b batch) {
	t.Helper()
	if err := a.Append(ctxFor(t, 10*time.Second), &b.h, b.body); err != nil {
		t.Fatal(err)
	}
}

// parts is one batch as it grows, transaction by transaction.
func (g *gen) parts(n int) (all []batch) {
	first := g.header()
	var body []byte
	for i := range n {
		b := g.packed(1)
		body = append(body, b.body...)
		h := b.h
		h.Prev, h.Txns, h.Rows = first.Prev, i+1, i+1
		if h.First = b.h.First; i > 0 {
			h.First = all[0].h.First
		}
		all = append(all, batch{h, slices.Clone(body)})
	}
	return all
}

func show(a *queue.Appender, b batch) { a.Show(&b.h, b.body) }

func noBatch(t testing.TB, r *queue.Reader) {
	t.Helper()
	if r.Ready() {
		t.Fatal("ready")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if d, err := r.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("batch %+v and error %v, want none", d, err)
	}
}

// wantPart wants a delivery with the transactions between two states of a batch.
func wantPart(t testing.TB, d *queue.Delivery, before, b batch, part bool) {
	t.Helper()
	h, prev := d.Header, b.h.Prev
	if before.h.Txns > 0 {
		prev = before.h.End
	}
	if h.Prev != prev || h.End != b.h.End || h.Txns != b.h.Txns-before.h.Txns || h.Rows != b.h.Rows-before.h.Rows || d.Part != part || d.Restart {
		t.Fatalf("%v to %v, %d transactions, %d rows, part %t, restart %t; want %v to %v of %d after %d, part %t",
			h.Prev, h.End, h.Txns, h.Rows, d.Part, d.Restart, prev, b.h.End, b.h.Txns, before.h.Txns, part)
	}
	if want := b.body[len(before.body):]; !bytes.Equal(d.Body, want) {
		t.Fatalf("body %q, want %q", d.Body, want)
	}
}

func wantWithdrawn(t testing.TB, r *queue.Reader) {
	t.Helper()
	d, err := r.Next(ctxFor(t, 30*time.Second))
	if !errors.Is(err, queue.ErrWithdrawn) || !queue.Retryable(err) {
		t.Fatalf("batch %+v and error %v, want %v", d, err, queue.ErrWithdrawn)
	}
}

// proven is an appender that has stored something, and readers ahead and not
// ahead that have read it, on a server process.
func proven(t *testing.T, g *gen, q *queue.Queue) (a *queue.Appender, ahead, other *queue.Reader) {
	t.Helper()
	ahead, other = readerAhead(t, q, g.pos), reader(t, q, g.pos)
	a = appender(t, q, queue.AppenderOptions{})
	b := g.packed(1)
	storeWith(t, a, b)
	wantBatch(t, next(t, ahead), b)
	wantBatch(t, next(t, other), b)
	return a, ahead, other
}

func TestReader_AheadSeesBatchesBeforeTheyAreStored(t *testing.T) {
	srv, q := startProcess(t)
	g := newGen()
	a, ahead, other := proven(t, g, q)
	srv.Pause()
	b, c := g.packed(2), g.packed(1)
	for _, b := range []batch{b, c} {
		appendTo(t, a, b)
		wantBatch(t, next(t, ahead), b)
	}
	noBatch(t, ahead)
	noBatch(t, other)
	srv.Resume()
	wantBatch(t, next(t, other), b)
	wantBatch(t, next(t, other), c)
	d := g.packed(1)
	storeWith(t, a, d)
	wantBatch(t, next(t, ahead), d)
	js, _ := jetstream.New(connectTo(t, srv))
	wantConsumers(t, js, q, 0)
}

func TestReader_AheadSeesTheTransactionsOfABatchAsItGrows(t *testing.T) {
	_, q := startProcess(t)
	g := newGen()
	a, ahead, other := proven(t, g, q)
	for range 3 {
		p := g.parts(4)
		for i, b := range p[:2] {
			show(a, b)
			before := batch{}
			if i > 0 {
				before = p[i-1]
			}
			wantPart(t, next(t, ahead), before, b, true)
		}
		noBatch(t, ahead)
		noBatch(t, other)
		show(a, p[2])
		storeWith(t, a, p[3])
		wantPart(t, next(t, ahead), p[1], p[3], false)
		wantBatch(t, next(t, other), p[3])
	}
	// Nothing comes after the part: the batch ends without a delivery of its own.
	p := g.parts(2)
	show(a, p[1])
	wantPart(t, next(t, ahead), batch{}, p[1], true)
	storeWith(t, a, p[1])
	noBatch(t, ahead)
	b := g.packed(1)
	storeWith(t, a, b)
	wantBatch(t, next(t, ahead), b)
	// All readers are gone when the batch that was shown is sent.
	p = g.parts(2)
	show(a, p[0])
	wantPart(t, next(t, ahead), batch{}, p[0], true)
	_, _ = ahead.Close(), other.Close()
	storeWith(t, a, p[1])
	wantBatch(t, next(t, readerAhead(t, q, p[1].h.Prev)), p[1])
}

func TestReader_AheadSeesNothingOfAnAppenderThatHasStoredNothing(t *testing.T) {
	srv, q := startProcess(t)
	g := newGen()
	r := readerAhead(t, q, g.pos)
	a := appender(t, q, queue.AppenderOptions{})
	noBatch(t, r)
	srv.Pause()
	p := g.parts(2)
	show(a, p[0])
	noBatch(t, r)
	appendTo(t, a, p[1])
	noBatch(t, r)
	srv.Resume()
	wantBatch(t, next(t, r), p[1])
}

func TestReader_AheadSeesNoChunkBeforeItIsStored(t *testing.T) {
	srv, q := startProcess(t)
	g := newGen()
	a, ahead, _ := proven(t, g, q)
	srv.Pause()
	chunks := g.chunks(2, 2)
	all := append(chunks, g.packed(1))
	for _, b := range all {
		appendTo(t, a, b)
	}
	p := g.parts(1)
	show(a, p[0])
	noBatch(t, ahead)
	srv.Resume()
	for _, b := range all {
		wantBatch(t, next(t, ahead), b)
	}
	wantPart(t, next(t, ahead), batch{}, p[0], true)
}

// What a failed appender has shown may be stored or not. A reader finds out.
func TestReader_AheadGoesOnOrIsWithdrawn(t *testing.T) {
	setup := func(t *testing.T) (q, other *queue.Queue, g *gen, a *queue.Appender, r *queue.Reader) {
		srv, q := startProcess(t)
		g = newGen()
		a, r, _ = proven(t, g, q)
		return q, openQueue(t, connectTo(t, srv), queue.Options{}), g, a, r
	}
	// lost is a reader that was shown batches, made by f, which the server took with it
	// when it was killed.
	lost := func(t *testing.T, f func(g *gen) []batch) (g *gen, q, other *queue.Queue, r *queue.Reader) {
		srv, q := startProcess(t)
		g = newGen()
		a, r, _ := proven(t, g, q)
		srv.Pause()
		for _, b := range f(g) {
			appendTo(t, a, b)
			wantBatch(t, next(t, r), b)
		}
		srv.Kill()
		srv.Start()
		return g, q, openQueue(t, connectTo(t, srv), queue.Options{}), r
	}
	t.Run("nothing is stored", func(t *testing.T) {
		var bs []batch
		g, q, _, r := lost(t, func(g *gen) []batch {
			bs = []batch{g.packed(1), g.packed(1)}
			return bs
		})
		wantWithdrawn(t, r)
		if d, err := r.Next(t.Context()); !errors.Is(err, queue.ErrWithdrawn) {
			t.Errorf("batch %+v and error %v after the last error", d, err)
		}
		r = readerAhead(t, q, g.pos)
		noBatch(t, r)
		again := g.packed(1)
		store(t, q, append(bs, again)...)
		wantBatch(t, next(t, r), bs[0]) // the position tells that they are applied
		wantBatch(t, next(t, r), bs[1])
		wantBatch(t, next(t, r), again)
	})
	t.Run("all is stored", func(t *testing.T) {
		q, _, g, a, r := setup(t)
		b := g.packed(1)
		storeWith(t, a, b)
		wantBatch(t, next(t, r), b)
		_ = a.Close()
		b = g.packed(1)
		store(t, q, b)
		wantBatch(t, next(t, r), b)
	})
	t.Run("a part is stored by another appender as it was", func(t *testing.T) {
		_, other, g, a, r := setup(t)
		p := g.parts(3)
		show(a, p[0])
		wantPart(t, next(t, r), batch{}, p[0], true)
		_ = a.Close()
		store(t, other, p[2])
		wantPart(t, next(t, r), p[0], p[2], false)
		b := g.packed(1)
		store(t, other, b)
		wantBatch(t, next(t, r), b)
	})
	t.Run("a part is stored otherwise", func(t *testing.T) {
		_, other, g, a, r := setup(t)
		p := g.parts(2)
		show(a, p[1])
		wantPart(t, next(t, r), batch{}, p[1], true)
		_ = a.Close()
		store(t, other, p[0])
		wantWithdrawn(t, r)
	})
	t.Run("a part has other contents", func(t *testing.T) {
		_, other, g, a, r := setup(t)
		p := g.parts(2)
		show(a, p[0])
		wantPart(t, next(t, r), batch{}, p[0], true)
		_ = a.Close()
		p[1].body[len(p[0].body)-1] ^= 1
		store(t, other, p[1])
		wantWithdrawn(t, r)
	})
	t.Run("another batch is stored in its place", func(t *testing.T) {
		var p []batch
		_, _, other, r := lost(t, func(g *gen) []batch {
			p = g.parts(2)
			return p[1:]
		})
		store(t, other, p[0])
		wantWithdrawn(t, r)
	})
	t.Run("the next appender in the process has other batches", func(t *testing.T) {
		var p []batch
		_, q, _, r := lost(t, func(g *gen) []batch {
			p = g.parts(2)
			return p[1:]
		})
		eventually(t, 10*time.Second, func() error {
			_, err := q.Tail(t.Context())
			return err
		})
		second := appender(t, q, queue.AppenderOptions{})
		storeWith(t, second, p[0]) // is where the reader has been
		wantWithdrawn(t, r)
	})
}

// A subscriber with a position sees each transaction once and in order, whatever
// happens to appenders and to what they have shown.
func TestReader_AheadAndBackMakeOneSequence(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	q, nc := start(t)
	other := openQueue(t, nc, queue.Options{})
	g := newGen()
	from := g.pos
	const total = 2000
	done := make(chan error, 3)
	withdrawn := make(chan int, 3)
	for i := range 3 {
		pace := rand.New(rand.NewPCG(seed, uint64(i+1)))
		go func() {
			pos, n, back := from, 0, 0
			var err error
			ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
			defer cancel()
			var r *queue.Reader
			for n < total && err == nil {
				if r == nil {
					if r, err = q.NewReader(ctx, pos, queue.ReaderOptions{Ahead: i > 0}); err != nil {
						break
					}
				}
				if pace.IntN(300) == 0 {
					time.Sleep(time.Duration(pace.IntN(30)) * time.Millisecond)
				}
				var d *queue.Delivery
				if d, err = r.Next(ctx); errors.Is(err, queue.ErrWithdrawn) {
					back++
					_ = r.Close()
					r, err = nil, nil
					continue
				} else if err != nil {
					break
				}
				var msgs change.Messages
				msgs.Reset(d.Body)
				for m, merr := msgs.Next(); m != nil || merr != nil; m, merr = msgs.Next() {
					if merr != nil {
						err = merr
						break
					}
					at, _, _ := bytes.Cut(m[1:], []byte(" "))
					commit, perr := change.ParseLSN(string(at))
					switch {
					case perr != nil:
						err = perr
					case commit < pos:
					case commit != pos+0x20:
						err = fmt.Errorf("reader %d: transaction %v after %v", i, commit, pos)
					default:
						pos, n = commit+0x30, n+1
					}
				}
			}
			if r != nil {
				_ = r.Close()
			}
			withdrawn <- back
			done <- err
		}()
	}
	// The log: every appender starts at the tail, packs what follows in its own way, and
	// stops somewhere.
	var log []batch // of one transaction each
	for range total {
		log = append(log, g.packed(1))
	}
	pack := func(bs []batch) batch {
		h := bs[0].h
		var body []byte
		for _, b := range bs {
			body = append(body, b.body...)
		}
		l := bs[len(bs)-1].h
		h.Last, h.End, h.Total, h.CommitTime, h.XID = l.Last, l.End, l.Total, l.CommitTime, l.XID
		h.Txns, h.Rows = len(bs), len(bs)
		return batch{h, body}
	}
	for {
		by := q
		if rnd.IntN(4) == 0 {
			by = other
		}
		tl := tail(t, by)
		at := 0
		if !tl.Empty {
			at = int(tl.Header.Total)
		}
		if at == total {
			break
		}
		a, err := by.NewAppender(t.Context(), tl, queue.AppenderOptions{})
		if errors.Is(err, queue.ErrFenced) {
			continue // by what the one before had sent
		}
		if err != nil {
			t.Fatal(err)
		}
		stop := min(at+1+rnd.IntN(80), total)
		for at < stop {
			n := min(1+rnd.IntN(5), stop-at)
			for k := 1; k <= n; k++ {
				if rnd.IntN(2) == 0 {
					show(a, pack(log[at:at+k]))
					if rnd.IntN(4) == 0 {
						time.Sleep(time.Duration(rnd.IntN(800)) * time.Microsecond)
					}
				}
			}
			if rnd.IntN(20) == 0 {
				break // shown and never sent
			}
			b := pack(log[at : at+n])
			if err := a.Append(t.Context(), &b.h, b.body); errors.Is(err, queue.ErrFenced) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			at += n
		}
		if rnd.IntN(2) == 0 {
			_ = a.Flush(t.Context())
		}
		_ = a.Close()
	}
	for range 3 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	sum := 0
	for range 3 {
		sum += <-withdrawn
	}
	if t.Logf("%d times withdrawn", sum); sum == 0 {
		t.Error("nothing was ever withdrawn")
	}
}
