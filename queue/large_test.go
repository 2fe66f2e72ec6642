package queue_test

import (
	"testing"
	"time"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/internal/natstest"
	"github.com/walferry/walferry/queue"
)

// storeLarge stores one transaction that is a single message of size bytes,
// in chunks as large as the server takes.
func storeLarge(t testing.TB, q *queue.Queue, g *gen, size int) (chunks int) {
	t.Helper()
	a := appender(t, q, queue.AppenderOptions{})
	defer a.Close()
	ctx := t.Context()
	limit := q.MaxBatch() - change.RecordOverhead
	h0 := g.header()
	x := g.commit()
	part := make([]byte, limit)
	var body []byte
	crc := uint32(0)
	for off := 0; off < size; chunks++ {
		n := min(limit, size-off)
		for i := range n {
			part[i] = pattern(off + i)
		}
		crc = change.UpdateCRC(crc, part[:n])
		body = change.AppendPart(body[:0], part[:n], off == 0, off+n == size)
		off += n
		h := h0
		h.First, h.Last, h.End, h.XID = x.commit, x.commit, h0.Prev, g.xid
		h.Chunked, h.Chunk, h.Open, h.TxCRC = true, chunks, off < size, crc
		if !h.Open {
			h.End, h.Txns, h.Rows, h.TxMsgs = x.end, 1, 1, 1
		}
		if err := a.Append(ctx, &h, body); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	return chunks
}

func pattern(i int) byte { return byte(i) ^ byte(i>>8) ^ byte(i>>16) }

func readLarge(t testing.TB, q *queue.Queue, from change.LSN, size int) {
	t.Helper()
	r := reader(t, q, from)
	var m change.Messages
	for {
		d := next(t, r)
		m.Reset(d.Body)
		msg, err := m.Next()
		if err != nil {
			t.Fatal(err)
		}
		if d.Header.Open {
			if msg != nil {
				t.Fatal("message is whole before the last chunk")
			}
			continue
		}
		if len(msg) != size {
			t.Fatalf("message of %d bytes, want %d", len(msg), size)
		}
		for i, b := range msg {
			if b != pattern(i) {
				t.Fatalf("byte %d differs", i)
			}
		}
		return
	}
}

func TestQueue_MessageOf300MBPassesInParts(t *testing.T) {
	if testing.Short() {
		t.Skip("600 MB of memory and disk: not with -short")
	}
	q, _ := start(t)
	g := newGen()
	from := g.pos
	const size = 300_000_000
	if n := storeLarge(t, q, g, size); n < 36 || n > 40 {
		t.Errorf("%d chunks for a payload of 8 MiB", n)
	}
	readLarge(t, q, from, size)
}

func TestQueue_RespectsTheServersPayloadLimit(t *testing.T) {
	q, _ := start(t, natstest.WithMaxPayload(64<<10))
	if got, want := q.MaxBatch(), 56<<10; got != want {
		t.Fatalf("MaxBatch is %d, want %d", got, want)
	}
	g := newGen()
	from := g.pos
	storeLarge(t, q, g, 1_000_000)
	readLarge(t, q, from, 1_000_000)

	a := appender(t, q, queue.AppenderOptions{})
	b := g.packed(1)
	wantKind(t, a.Append(t.Context(), &b.h, make([]byte, q.MaxBatch()+1)), queue.ErrChain)
}

func TestQueue_MaxBatchFollowsTheServerAfterReconnect(t *testing.T) {
	srv := natstest.StartRestartable(t, natstest.WithMaxPayload(1<<20))
	nc := srv.Connect()
	q := newQueue(t, nc, queue.Options{})
	before := q.MaxBatch()
	srv.Reconfigure(natstest.WithMaxPayload(64 << 10))
	srv.Restart()
	eventually(t, 10*time.Second, func() error { _, err := q.Tail(t.Context()); return err })
	if got := q.MaxBatch(); got >= before || got != 56<<10 {
		t.Errorf("MaxBatch is %d after the server shrank its limit, %d before", got, before)
	}
}
