package queue_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/queue"
)

func TestRegistry_KeepsWhatSubscriptionsReport(t *testing.T) {
	q, _ := start(t)
	ctx := t.Context()
	wantKind(t, q.Report(ctx, "ghost", 1, 1), queue.ErrNotRegistered)
	for name, p := range map[string]change.LSN{"b": 0x20, "a": 0x10, "weird name.*": 0x30} {
		if err := q.Register(ctx, name, p); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.Report(ctx, "a", 0x15, 7); err != nil {
		t.Fatal(err)
	}
	if err := q.Unregister(ctx, "b"); err != nil {
		t.Fatal(err)
	}
	wantKind(t, q.Report(ctx, "b", 1, 1), queue.ErrNotRegistered)
	got, err := q.Subscribers(ctx)
	if err != nil {
		t.Fatal(err)
	}
	want := []queue.Subscriber{{Name: "a", Flushed: 0x15, Seq: 7}, {Name: "weird name.*", Flushed: 0x30}}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(queue.Subscriber{}, "Updated")); diff != "" {
		t.Errorf("subscribers (-want +got):\n%s", diff)
	}
	for _, s := range got {
		if time.Since(s.Updated) > time.Minute {
			t.Errorf("%s was updated at %v", s.Name, s.Updated)
		}
	}
}

func TestTrim_KeepsWhatTheSlowestSubscriptionNeeds(t *testing.T) {
	q, _ := start(t)
	ctx := t.Context()
	g := newGen()
	from := g.pos
	var bs []batch
	for range 10 {
		bs = append(bs, g.packed(1))
	}
	store(t, q, bs...)
	trim := func(wantPurged, wantFirst uint64, heldBy string) {
		t.Helper()
		res, err := q.Trim(ctx, 0)
		if err != nil {
			t.Fatal(err)
		}
		if res.Purged != wantPurged || res.FirstSeq != wantFirst || res.HeldBy != heldBy || res.Left != 10-wantFirst+1 {
			t.Fatalf("trim: %+v, want %d purged, first %d, held by %q", res, wantPurged, wantFirst, heldBy)
		}
	}
	trim(0, 1, "") // nobody is registered
	for _, s := range []string{"fast", "slow"} {
		if err := q.Register(ctx, s, from); err != nil {
			t.Fatal(err)
		}
	}
	report := func(s string, p change.LSN) {
		t.Helper()
		if err := q.Report(ctx, s, p, 0); err != nil {
			t.Fatal(err)
		}
	}
	report("fast", g.pos)
	trim(0, 1, "slow")
	report("slow", bs[3].h.End)
	trim(4, 5, "slow")
	report("slow", bs[6].h.End-1) // inside batch 7
	trim(2, 7, "slow")
	if err := q.Unregister(ctx, "slow"); err != nil {
		t.Fatal(err)
	}
	trim(3, 10, "fast") // the last batch stays
	if tl := tail(t, q); tl.Empty || tl.Header.End != g.pos {
		t.Errorf("tail after trim: %+v", tl)
	}
}

func TestTrim_KeepsTheRetentionPeriod(t *testing.T) {
	q, _ := start(t)
	ctx := t.Context()
	g := newGen()
	store(t, q, g.packed(1), g.packed(1), g.packed(1))
	if err := q.Register(ctx, "sub", g.pos); err != nil {
		t.Fatal(err)
	}
	if res, err := q.Trim(ctx, time.Hour); err != nil || res.Purged != 0 {
		t.Fatalf("trim: %+v, %v", res, err)
	}
	eventually(t, 5*time.Second, func() error {
		res, err := q.Trim(ctx, 50*time.Millisecond)
		if err == nil && res.FirstSeq != 3 {
			err = fmt.Errorf("not trimmed yet: %+v", res)
		}
		return err
	})
}

func TestTrim_NeverCutsATransaction(t *testing.T) {
	q, _ := start(t)
	ctx := t.Context()
	g := newGen()
	a := g.packed(1)
	bs := append([]batch{a}, g.chunks(5, 3)...)
	bs = append(bs, g.chunks(5, 4)...)
	store(t, q, bs...) // 1 + 3 + 4, and the transaction is open
	if err := q.Register(ctx, "sub", a.h.End); err != nil {
		t.Fatal(err)
	}
	res, err := q.Trim(ctx, 0)
	if err != nil {
		t.Fatal(err)
	}
	// The first attempt may go, the second one is needed from its chunk 0.
	if res.FirstSeq != 5 {
		t.Fatalf("queue begins at %d, the open transaction at 5: %+v", res.FirstSeq, res)
	}
	r := reader(t, q, a.h.End)
	for i := range 4 {
		if d := next(t, r); d.Header.Chunk != i {
			t.Fatalf("chunk %d, want %d", d.Header.Chunk, i)
		}
	}
}
