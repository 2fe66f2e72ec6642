package queue_test

import (
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/walferry/walferry/internal/natstest"
	"github.com/walferry/walferry/queue"
)

func TestLastTransaction_LooksBehindMarksAndOpenChunks(t *testing.T) {
	q, nc := start(t)
	g := newGen()
	first, last := g.packed(2), g.packed(3)
	all := []batch{first, last, g.mark(), g.mark()}
	all = append(all, g.chunks(3, 2)...)
	store(t, q, all...)
	h, err := q.LastTransaction(t.Context(), tail(t, q))
	if err != nil || h.Last != last.h.Last || h.Txns != 3 {
		t.Errorf("got %+v, %v; want the batch that ends with %v", h, err, last.h.Last)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(t.Context(), q.Stream())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Purge(t.Context(), jetstream.WithPurgeSequence(4)); err != nil {
		t.Fatal(err)
	}
	if h, err = q.LastTransaction(t.Context(), tail(t, q)); err != nil || h.Txns != 0 || h.Prev != all[3].h.Prev {
		t.Errorf("after a trim: %+v, %v; want the mark from %v", h, err, all[3].h.Prev)
	}
	if err := s.DeleteMsg(t.Context(), 5); err != nil {
		t.Fatal(err)
	}
	if _, err = q.LastTransaction(t.Context(), tail(t, q)); err != nil {
		t.Errorf("a batch is missing: %v", err)
	}
	if i, err := q.Info(t.Context()); err != nil || i.Deleted != 1 {
		t.Errorf("%d batches are missing (%v), want 1", i.Deleted, err)
	}
}

func TestRenew_KeepsTheRegistryAndRefusesAnotherCluster(t *testing.T) {
	q, _ := start(t)
	g := newGen()
	store(t, q, g.packed(1))
	if err := q.Register(t.Context(), "a", 7); err != nil {
		t.Fatal(err)
	}
	wantKind(t, q.Renew(t.Context(), testSystem+1), queue.ErrFork)
	if tail(t, q).Empty {
		t.Error("the batches of another cluster are gone")
	}
	if err := q.Renew(t.Context(), testSystem); err != nil {
		t.Fatal(err)
	}
	subs, err := q.Subscribers(t.Context())
	if !tail(t, q).Empty || err != nil || len(subs) != 1 {
		t.Errorf("tail %+v, subscribers %v, %v", tail(t, q), subs, err)
	}
}

func TestClaim_OneDatabaseOwnsAStream(t *testing.T) {
	q, _ := start(t)
	for _, owner := range []string{"1/5", "1/5"} {
		if err := q.Claim(t.Context(), owner); err != nil {
			t.Errorf("claim %s: %v", owner, err)
		}
	}
	wantKind(t, q.Claim(t.Context(), "1/6"), queue.ErrFork)
	store(t, q, newGen().packed(1)) // the stream is as it has to be
}

// The store was put back and filled again with another history of the same
// positions.
func TestReader_StoreRefilledWithTheSamePositionsIsNoticed(t *testing.T) {
	srv := natstest.StartRestartable(t)
	nc := srv.Connect()
	q := newQueue(t, nc, queue.Options{})
	g := newGen()
	r := reader(t, q, g.pos)
	store(t, q, g.packed(1))
	srv.Stop()
	backup := t.TempDir()
	if err := os.CopyFS(backup, os.DirFS(srv.StoreDir())); err != nil {
		t.Fatal(err)
	}
	srv.Start()
	eventually(t, 20*time.Second, func() error { return nc.FlushTimeout(time.Second) })
	again := *g
	store(t, q, g.packed(1))
	next(t, r)
	next(t, r)
	// The reader is cut off while the queue becomes another one.
	srv.Stop()
	srv.Reconfigure(natstest.WithStoreDir(backup))
	other := natstest.Start(t, natstest.WithStoreDir(backup))
	otherQ, err := queue.Open(t.Context(), natstest.Connect(t, other), queue.Options{Name: q.Name()})
	if err != nil {
		t.Fatal(err)
	}
	b := again.packed(1)
	b.h.CommitTime = b.h.CommitTime.Add(time.Second)
	store(t, otherQ, b, again.packed(1))
	other.Shutdown()
	srv.Start()
	_, err = r.Next(ctxFor(t, 30*time.Second))
	wantKind(t, err, queue.ErrLost)
}
