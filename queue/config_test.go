package queue_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/walferry/walferry/internal/natstest"
	"github.com/walferry/walferry/queue"
)

func TestOpen_RefusesAStreamThatCouldLoseBatches(t *testing.T) {
	tests := []struct {
		name, says string
		set        func(*jetstream.StreamConfig)
	}{
		{"work queue", "retention", func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy }},
		{"interest", "retention", func(c *jetstream.StreamConfig) { c.Retention = jetstream.InterestPolicy }},
		{"memory", "storage", func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage }},
		{"discard old", "discard", func(c *jetstream.StreamConfig) { c.Discard, c.MaxBytes = jetstream.DiscardOld, 1<<20 }},
		{"max age", "max age", func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour }},
		{"max messages", "max messages", func(c *jetstream.StreamConfig) { c.MaxMsgs = 10 }},
		{"max per subject", "per subject", func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 10 }},
		{"message size", "message size", func(c *jetstream.StreamConfig) { c.MaxMsgSize = 1000 }},
		{"no ack", "acknowledgements", func(c *jetstream.StreamConfig) { c.NoAck = true }},
		{"foreign subject", "subjects", func(c *jetstream.StreamConfig) { c.Subjects = append(c.Subjects, "orders") }},
		{"deny purge", "purge", func(c *jetstream.StreamConfig) { c.DenyPurge = true }},
	}
	nc := natstest.Connect(t, natstest.Start(t))
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range tests {
		t.Run(strings.ReplaceAll(tt.name, " ", "_"), func(t *testing.T) {
			c := jetstream.StreamConfig{
				Name: queue.StreamName("main"), Subjects: []string{queue.Subject("main")},
				Discard: jetstream.DiscardNew, Storage: jetstream.FileStorage,
			}
			tt.set(&c)
			if _, err := js.CreateStream(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			defer js.DeleteStream(t.Context(), c.Name)
			_, err := queue.Open(t.Context(), nc, queue.Options{Name: "main"})
			wantKind(t, err, queue.ErrConfig)
			if !strings.Contains(err.Error(), tt.says) || !strings.Contains(err.Error(), "nats stream edit") {
				t.Errorf("error does not say what and how to mend it: %v", err)
			}
		})
	}
}

func TestCreate_DriftWhileRunningStopsTheNextAppender(t *testing.T) {
	q, nc := start(t)
	js, _ := jetstream.New(nc)
	c := rawStream(t, nc).CachedInfo().Config
	c.MaxAge = time.Hour
	if _, err := js.UpdateStream(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	_, err := q.NewAppender(t.Context(), tail(t, q), queue.AppenderOptions{})
	wantKind(t, err, queue.ErrConfig)
	_, err = q.NewReader(t.Context(), 0, queue.ReaderOptions{})
	wantKind(t, err, queue.ErrConfig)
	wantKind(t, q.Create(t.Context()), queue.ErrConfig)
}

func TestCreate_IsRepeatableAndRaisesTheBoundButNeverBelowWhatIsStored(t *testing.T) {
	q, nc := start(t)
	g := newGen()
	g.size = 50000
	store(t, q, g.packed(1), g.packed(1))
	if err := q.Create(t.Context()); err != nil {
		t.Fatal(err)
	}
	if tl := tail(t, q); tl.Seq != 2 {
		t.Fatalf("creating again left %d batches", tl.Seq)
	}
	big := openQueue(t, nc, queue.Options{MaxBytes: 1 << 30})
	if err := big.Create(t.Context()); err != nil {
		t.Fatal(err)
	}
	if i, err := q.Info(t.Context()); err != nil || i.MaxBytes != 1<<30 {
		t.Errorf("max bytes %d, %v", i.MaxBytes, err)
	}
	small := openQueue(t, nc, queue.Options{MaxBytes: 60000})
	wantKind(t, small.Create(t.Context()), queue.ErrConfig)
	if i, err := q.Info(t.Context()); err != nil || i.MaxBytes != 1<<30 || i.Messages != 2 {
		t.Errorf("after the refusal: %+v, %v", i, err)
	}
}

func TestCreate_StreamIsSafe(t *testing.T) {
	_, nc := start(t)
	c := rawStream(t, nc).CachedInfo().Config
	if c.Retention != jetstream.LimitsPolicy || c.Storage != jetstream.FileStorage || c.Discard != jetstream.DiscardNew ||
		c.MaxAge != 0 || c.MaxMsgs > 0 || !c.AllowDirect || c.DenyDelete || c.PersistMode != jetstream.DefaultPersistMode {
		t.Errorf("stream is configured as %+v", c)
	}
}

func TestQueue_NamesThatNATSForbidsWorkAndStayApart(t *testing.T) {
	nc := natstest.Connect(t, natstest.Start(t))
	names := []string{"main", "a.b", "a b", "a*>", "ä/\\", "a--b", "a-2db", "a_b", "a--2eb", "A.B"}
	for i, name := range names {
		q := newQueue(t, nc, queue.Options{Name: name})
		g := newGen()
		for range i + 1 {
			store(t, q, g.packed(1))
		}
		if err := q.Register(t.Context(), "sub "+name, 5); err != nil {
			t.Fatalf("%q: %v", name, err)
		}
	}
	for i, name := range names {
		q := openQueue(t, nc, queue.Options{Name: name})
		if tl := tail(t, q); tl.Seq != uint64(i+1) {
			t.Errorf("queue %q has %d batches, want %d", name, tl.Seq, i+1)
		}
		if s, err := q.Subscribers(t.Context()); err != nil || len(s) != 1 || s[0].Name != "sub "+name {
			t.Errorf("queue %q has subscribers %+v, %v", name, s, err)
		}
	}
}

func TestQueue_DropRemovesStreamAndRegistry(t *testing.T) {
	q, nc := start(t)
	if err := q.Register(t.Context(), "sub", 1); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := q.Drop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	js, _ := jetstream.New(nc)
	for name := range js.StreamNames(t.Context()).Name() {
		t.Errorf("stream %s is left", name)
	}
}

func TestForeign_NamesWhatDoesNotBelongToWalferry(t *testing.T) {
	q, nc := start(t)
	if w, err := q.Foreign(t.Context()); err != nil || len(w) != 0 {
		t.Fatalf("warnings %v, %v without foreign streams", w, err)
	}
	js, _ := jetstream.New(nc)
	for name, subject := range map[string]string{"ORDERS": "orders.>", "SPY": "walferry.other.>"} {
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{subject}}); err != nil {
			t.Fatal(err)
		}
	}
	w, err := q.Foreign(t.Context())
	if err != nil || len(w) != 2 || !strings.Contains(w[0], "ORDERS") || !strings.Contains(w[1], "walferry.other.>") {
		t.Errorf("warnings %q, %v", w, err)
	}
}

func TestDurability_SaysWhatAnAcknowledgementIsWorth(t *testing.T) {
	nc := natstest.Connect(t, natstest.Start(t))
	for _, embedded := range []bool{true, false} {
		q := newQueue(t, nc, queue.Options{Embedded: embedded})
		d, err := q.Durability(t.Context())
		if err != nil || d.Synced != embedded || d.ServerVersion == "" || d.APILevel == 0 || d.Replicas != 1 {
			t.Errorf("embedded %v: %+v, %v", embedded, d, err)
		}
		if strings.Contains(d.Text, "sync_interval") == embedded {
			t.Errorf("embedded %v: %s", embedded, d.Text)
		}
	}
}
