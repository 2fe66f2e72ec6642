package queue_test

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/internal/natstest"
	"github.com/walferry/walferry/queue"
)

// benchBatches is how many batches a read benchmark stores and reads again
// and again.
func benchBatches(g *gen, size, n int) []batch {
	g.size = size - change.RecordOverhead
	bs := make([]batch, n)
	for i := range bs {
		bs[i] = g.packed(1)
	}
	return bs
}

func benchAppend(b *testing.B, nc *nats.Conn, size int) {
	q := newQueue(b, nc, queue.Options{})
	g := newGen()
	g.size = size - change.RecordOverhead
	body := g.packed(1).body
	a := appender(b, q, queue.AppenderOptions{})
	ctx := context.Background()
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		h := g.header()
		t := g.commit()
		h.First, h.Last, h.End, h.Txns, h.Rows, h.XID = t.commit, t.commit, t.end, 1, 1, g.xid
		if err := a.Append(ctx, &h, body); err != nil {
			b.Fatal(err)
		}
	}
	if err := a.Flush(ctx); err != nil {
		b.Fatal(err)
	}
}

func benchRead(b *testing.B, nc *nats.Conn, size, n int) {
	q := newQueue(b, nc, queue.Options{})
	g := newGen()
	from := g.pos
	store(b, q, benchBatches(g, size, n)...)
	b.SetBytes(int64(size))
	b.ReportAllocs()
	ctx := context.Background()
	var r *queue.Reader
	left := 0
	for b.Loop() {
		if left == 0 {
			if r != nil {
				_ = r.Close()
			}
			r, left = reader(b, q, from), n
		}
		if _, err := r.Next(ctx); err != nil {
			b.Fatal(err)
		}
		left--
	}
}

func sizes(b *testing.B, f func(b *testing.B, nc *nats.Conn, size int)) {
	for _, size := range []struct {
		name string
		n    int
	}{{"256KiB", 256 << 10}, {"200B", 200}} {
		b.Run("inprocess/"+size.name, func(b *testing.B) {
			f(b, natstest.Connect(b, natstest.Start(b)), size.n)
		})
		b.Run("loopback/"+size.name, func(b *testing.B) {
			s := natstest.Start(b, natstest.WithListen())
			nc, err := queue.Connect(s.URL(), "", nil)
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(nc.Close)
			f(b, nc, size.n)
		})
	}
}

func BenchmarkAppend(b *testing.B) { sizes(b, benchAppend) }

func BenchmarkRead(b *testing.B) {
	sizes(b, func(b *testing.B, nc *nats.Conn, size int) {
		benchRead(b, nc, size, min(20000, 256<<20/size))
	})
}

// BenchmarkReadOrderedConsumer is the client library's own reader of the same
// stream, without any verification, for comparison.
func BenchmarkReadOrderedConsumer(b *testing.B) {
	sizes(b, func(b *testing.B, nc *nats.Conn, size int) {
		q := newQueue(b, nc, queue.Options{})
		n := min(20000, 256<<20/size)
		store(b, q, benchBatches(newGen(), size, n)...)
		ctx := context.Background()
		s := rawStream(b, nc)
		b.SetBytes(int64(size))
		b.ReportAllocs()
		var it jetstream.MessagesContext
		left := 0
		for b.Loop() {
			if left == 0 {
				if it != nil {
					it.Stop()
				}
				c, err := s.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
				if err != nil {
					b.Fatal(err)
				}
				if it, err = c.Messages(jetstream.PullMaxBytes(8 << 20)); err != nil {
					b.Fatal(err)
				}
				left = n
			}
			if _, err := it.Next(); err != nil {
				b.Fatal(err)
			}
			left--
		}
		it.Stop()
	})
}
