package queue_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/internal/natstest"
	"github.com/walferry/walferry/queue"
)

func rawStream(t testing.TB, nc *nats.Conn) jetstream.Stream {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(ctxFor(t, 5*time.Second), queue.StreamName("main"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestReader_StopsAtADeletedBatch(t *testing.T) {
	q, nc := start(t)
	g := newGen()
	from := g.pos
	store(t, q, g.packed(1), g.packed(1), g.packed(1), g.packed(1), g.packed(1), g.packed(1))
	if err := rawStream(t, nc).DeleteMsg(t.Context(), 5); err != nil {
		t.Fatal(err)
	}
	r := reader(t, q, from)
	for range 4 {
		next(t, r)
	}
	_, err := r.Next(ctxFor(t, 10*time.Second))
	wantKind(t, err, queue.ErrHole)
	if e, _ := errors.AsType[*queue.Error](err); e.Seq != 5 || e.Remedy == "" {
		t.Errorf("error names sequence %d and remedy %q", e.Seq, e.Remedy)
	}
}

func TestReader_FindsADeletedBatchWhileSearching(t *testing.T) {
	q, nc := start(t)
	g := newGen()
	var at change.LSN
	for i := range 9 {
		if i == 4 {
			at = g.pos
		}
		store(t, q, g.packed(1))
	}
	if err := rawStream(t, nc).DeleteMsg(t.Context(), 5); err != nil {
		t.Fatal(err)
	}
	_, err := q.NewReader(t.Context(), at, queue.ReaderOptions{})
	wantKind(t, err, queue.ErrHole)
}

func TestTail_DeletedLastBatchIsAHole(t *testing.T) {
	q, nc := start(t)
	g := newGen()
	store(t, q, g.packed(1), g.packed(1))
	if err := rawStream(t, nc).DeleteMsg(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	_, err := q.Tail(t.Context())
	wantKind(t, err, queue.ErrHole)
}

func TestReader_StopsAtWhatIsNotTheNextBatch(t *testing.T) {
	tests := []struct {
		name string
		kind error
		bad  func(g *gen) (batch, func(*nats.Msg))
	}{
		{"bit flipped in the body", queue.ErrCorrupt, func(g *gen) (batch, func(*nats.Msg)) {
			return g.packed(1), func(m *nats.Msg) { m.Data[9] ^= 1 }
		}},
		{"body cut", queue.ErrCorrupt, func(g *gen) (batch, func(*nats.Msg)) {
			return g.packed(1), func(m *nats.Msg) { m.Data = m.Data[:len(m.Data)-1] }
		}},
		{"header changed", queue.ErrCorrupt, func(g *gen) (batch, func(*nats.Msg)) {
			return g.packed(1), func(m *nats.Msg) { m.Header.Set(change.HeaderXID, "1") }
		}},
		{"header missing", queue.ErrCorrupt, func(g *gen) (batch, func(*nats.Msg)) {
			return g.packed(1), func(m *nats.Msg) { m.Header.Del(change.HeaderEnd) }
		}},
		{"foreign message", queue.ErrCorrupt, func(g *gen) (batch, func(*nats.Msg)) {
			return g.packed(1), func(m *nats.Msg) { m.Header = nats.Header{} }
		}},
		{"newer format", queue.ErrVersion, func(g *gen) (batch, func(*nats.Msg)) {
			b := g.packed(1)
			b.h.Version = 2
			return b, nil
		}},
		{"batch missing before", queue.ErrHole, func(g *gen) (batch, func(*nats.Msg)) {
			g.packed(1)
			return g.packed(1), nil
		}},
		{"batch stored twice", queue.ErrFork, func(g *gen) (batch, func(*nats.Msg)) {
			g2 := newGen()
			g2.timeline = 2
			return g2.packed(1), nil
		}},
		{"other cluster", queue.ErrFork, func(g *gen) (batch, func(*nats.Msg)) {
			b := g.packed(1)
			b.h.System++
			return b, nil
		}},
		{"timeline falls", queue.ErrFork, func(g *gen) (batch, func(*nats.Msg)) {
			g.timeline = 1
			return g.packed(1), nil
		}},
		{"chunk without a beginning", queue.ErrHole, func(g *gen) (batch, func(*nats.Msg)) {
			return g.chunks(3, 3)[1], nil
		}},
		{"transactions miscounted", queue.ErrCorrupt, func(g *gen) (batch, func(*nats.Msg)) {
			b := g.packed(1)
			b.h.Total++
			return b, nil
		}},
		{"end before commit", queue.ErrCorrupt, func(g *gen) (batch, func(*nats.Msg)) {
			b := g.packed(1)
			b.h.End = b.h.Last
			return b, nil
		}},
	}
	for _, tt := range tests {
		t.Run(strings.ReplaceAll(tt.name, " ", "_"), func(t *testing.T) {
			q, nc := start(t)
			g := newGen()
			r := reader(t, q, g.pos)
			g.timeline = 2
			store(t, q, g.packed(1))
			next(t, r)
			b, f := tt.bad(g)
			publish(t, nc, b, f)
			const last = 2
			_, err := r.Next(ctxFor(t, 10*time.Second))
			wantKind(t, err, tt.kind)
			if e, _ := errors.AsType[*queue.Error](err); e.Seq != last || e.Stream != queue.StreamName("main") {
				t.Errorf("error names sequence %d of %s", e.Seq, e.Stream)
			}
		})
	}
}

func TestReader_TimelineMayRiseAndGiveUpAnOpenTransaction(t *testing.T) {
	q, _ := start(t)
	g := newGen()
	from := g.pos
	bs := []batch{g.packed(1)}
	bs = append(bs, g.chunks(4, 2)...) // never finished: lost with the old primary
	g.timeline = 2
	b := g.packed(1)
	b.h.First += 4
	b.h.Last += 4
	bs = append(bs, b)
	store(t, q, bs...)
	r := reader(t, q, from)
	for range 3 {
		next(t, r)
	}
	if d := next(t, r); !d.Restart || d.Header.Timeline != 2 {
		t.Errorf("restart %v on timeline %d, want the open transaction given up", d.Restart, d.Header.Timeline)
	}
}

func TestReader_RunningNoticesARecreatedStream(t *testing.T) {
	q, nc := start(t)
	g := newGen()
	from := g.pos
	store(t, q, g.packed(1), g.packed(1))
	a := appender(t, q, queue.AppenderOptions{})
	r := reader(t, q, from)
	next(t, r)
	next(t, r)
	js, _ := jetstream.New(nc)
	if err := js.DeleteStream(t.Context(), q.Stream()); err != nil {
		t.Fatal(err)
	}
	old := tailOf(g)
	if err := q.Create(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err := r.Next(ctxFor(t, 30*time.Second))
	wantKind(t, err, queue.ErrLost)

	b := g.packed(1)
	_ = a.Append(t.Context(), &b.h, b.body)
	wantKind(t, a.Flush(ctxFor(t, 10*time.Second)), queue.ErrLost)
	_, err = q.NewAppender(t.Context(), old, queue.AppenderOptions{})
	wantKind(t, err, queue.ErrLost)
}

// tailOf is a tail of a stream that no longer exists.
func tailOf(g *gen) queue.Tail {
	return queue.Tail{Seq: 2, Empty: true, StreamCreated: time.Unix(1, 0)}
}

func TestReader_DeletedStreamIsReportedAndNeverCreated(t *testing.T) {
	q, nc := start(t)
	js, _ := jetstream.New(nc)
	if err := js.DeleteStream(t.Context(), q.Stream()); err != nil {
		t.Fatal(err)
	}
	_, err := q.NewReader(t.Context(), 1, queue.ReaderOptions{})
	wantKind(t, err, queue.ErrNoStream)
	_, err = q.Tail(t.Context())
	wantKind(t, err, queue.ErrNoStream)
	_, err = q.NewAppender(t.Context(), queue.Tail{}, queue.AppenderOptions{})
	wantKind(t, err, queue.ErrNoStream)
	if ok, err := q.Exists(t.Context()); ok || err != nil {
		t.Errorf("exists %v, %v", ok, err)
	}
}

func TestReader_PurgedBeyondItsPositionIsAHole(t *testing.T) {
	q, nc := start(t)
	g := newGen()
	from := g.pos
	store(t, q, g.packed(1), g.packed(1), g.packed(1), g.packed(1))
	r := reader(t, q, from) // has found sequence 1, and not begun to read
	if err := rawStream(t, nc).Purge(t.Context(), jetstream.WithPurgeSequence(3)); err != nil {
		t.Fatal(err)
	}
	_, err := r.Next(ctxFor(t, 10*time.Second))
	wantKind(t, err, queue.ErrHole)
	_, err = q.NewReader(t.Context(), from, queue.ReaderOptions{})
	wantKind(t, err, queue.ErrHole)
}

func TestReader_WipedStreamIsAHole(t *testing.T) {
	q, nc := start(t)
	g := newGen()
	from := g.pos
	store(t, q, g.packed(1), g.packed(1))
	if err := rawStream(t, nc).Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	tl := tail(t, q)
	if !tl.Empty || tl.Seq != 2 {
		t.Fatalf("tail of a wiped stream: %+v", tl)
	}
	r := reader(t, q, from)
	store(t, q, g.packed(1))
	_, err := r.Next(ctxFor(t, 10*time.Second))
	wantKind(t, err, queue.ErrHole)
}

func TestReader_GoesOnWhenItsConsumerIsDeleted(t *testing.T) {
	q, nc := start(t)
	g := newGen()
	r := reader(t, q, g.pos)
	s := rawStream(t, nc)
	for range 3 {
		store(t, q, g.packed(1))
		next(t, r)
		for name := range s.ConsumerNames(t.Context()).Name() {
			if err := s.DeleteConsumer(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
	}
	store(t, q, g.packed(1))
	if d := next(t, r); d.Seq != 4 {
		t.Errorf("read sequence %d, want 4", d.Seq)
	}
}

func TestQueue_SurvivesServerRestarts(t *testing.T) {
	srv := natstest.StartRestartable(t)
	nc := srv.Connect()
	q := newQueue(t, nc, queue.Options{})
	g := newGen()
	r := reader(t, q, g.pos)
	for range 3 {
		store(t, q, g.packed(1))
		next(t, r)
		srv.Stop()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		if _, err := r.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Next while the server is away: %v", err)
		}
		cancel()
		srv.Start()
		eventually(t, 20*time.Second, func() error {
			_, err := q.Tail(t.Context())
			return err
		})
		store(t, q, g.packed(2))
		next(t, r)
	}
}

// What nats-server makes of a damaged block depends on where the damage is: it
// may give up the message, or all from there on. Either way no reader skips
// anything, and a reader or the log reader's tail sees that batches are gone.
func TestQueue_RottenBlockIsNoticedByReaderOrTail(t *testing.T) {
	srv := natstest.StartRestartable(t)
	nc := srv.Connect()
	q := newQueue(t, nc, queue.Options{})
	g := newGen()
	g.size = 2000
	from := g.pos
	var bs []batch
	for range 20 {
		bs = append(bs, g.packed(1))
	}
	store(t, q, bs...)
	before := tail(t, q)
	srv.Stop()
	flipBit(t, srv.StoreDir(), q.Stream())
	srv.Start()
	eventually(t, 20*time.Second, func() error { return nc.FlushTimeout(time.Second) })

	s := subscriber{pos: from}
	err := readWhatIsLeft(t, q, from, &s)
	if diff := cmp.Diff(committedFrom(g.txs, from)[:len(s.applied)], s.applied, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("applied (-want +got):\n%s", diff)
	}
	t.Logf("applied %d, then: %v", len(s.applied), err)
	if err != nil {
		wantOneOf(t, err, queue.ErrHole, queue.ErrCorrupt, queue.ErrLost)
		return
	}
	tl := tail(t, q)
	if tl.Header.End >= before.Header.End {
		t.Fatalf("damage went unnoticed: read all of the queue up to %v", tl.Header.End)
	}
	_, err = q.NewAppender(t.Context(), before, queue.AppenderOptions{})
	wantKind(t, err, queue.ErrLost)
	_, err = q.NewAppender(t.Context(), tl, queue.AppenderOptions{})
	wantKind(t, err, queue.ErrLost)
}

func readWhatIsLeft(t testing.TB, q *queue.Queue, from change.LSN, s *subscriber) error {
	t.Helper()
	tl, err := q.Tail(t.Context())
	if err != nil {
		return err
	}
	r, err := q.NewReader(t.Context(), from, queue.ReaderOptions{})
	if err != nil {
		return err
	}
	defer r.Close()
	return readTo(t, r, tl.Seq, s)
}

func wantOneOf(t testing.TB, err error, kinds ...error) {
	t.Helper()
	for _, k := range kinds {
		if errors.Is(err, k) {
			return
		}
	}
	t.Fatalf("error is %v, want one of %v", err, kinds)
}

// The store was put back to an earlier state while a reader and an appender
// were running.
func TestQueue_StorePutBackToAnEarlierStateIsNoticed(t *testing.T) {
	srv := natstest.StartRestartable(t)
	nc := srv.Connect()
	q := newQueue(t, nc, queue.Options{})
	g := newGen()
	r := reader(t, q, g.pos)
	store(t, q, g.packed(1), g.packed(1))
	srv.Stop()
	backup := t.TempDir()
	if err := os.CopyFS(backup, os.DirFS(srv.StoreDir())); err != nil {
		t.Fatal(err)
	}
	srv.Start()
	eventually(t, 20*time.Second, func() error { return nc.FlushTimeout(time.Second) })
	store(t, q, g.packed(1), g.packed(1))
	for range 4 {
		next(t, r)
	}
	before := tail(t, q)
	srv.Stop()
	srv.Reconfigure(natstest.WithStoreDir(backup))
	srv.Start()
	eventually(t, 20*time.Second, func() error { return nc.FlushTimeout(time.Second) })
	_, err := r.Next(ctxFor(t, 30*time.Second))
	wantKind(t, err, queue.ErrLost)
	_, err = q.NewAppender(t.Context(), before, queue.AppenderOptions{})
	wantKind(t, err, queue.ErrLost)
}

func flipBit(t testing.TB, dir, stream string) {
	t.Helper()
	blocks, err := filepath.Glob(filepath.Join(dir, "jetstream", "*", "streams", stream, "msgs", "*.blk"))
	if err != nil || len(blocks) == 0 {
		t.Fatalf("no block files: %v", err)
	}
	b, err := os.ReadFile(blocks[0])
	if err != nil {
		t.Fatal(err)
	}
	// In the body of a message near the middle, which the generator fills up
	// with x.
	i := bytes.Index(b[len(b)/2:], []byte("xxxx"))
	if i < 0 {
		t.Fatal("found no message to damage")
	}
	b[len(b)/2+i+1] ^= 0x10
	if err := os.WriteFile(blocks[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
}
