package source

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/source/pgoutput"
	m "github.com/walferry/walferry/source/pgoutput/pgoutputtest"
)

var at = time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)

func table(oid change.OID, schema, name string, cols int) []byte {
	r := &change.Relation{OID: oid, Schema: schema, Name: name, Identity: 'd'}
	for i := range cols {
		r.Columns = append(r.Columns, change.Column{Name: fmt.Sprintf("c%d", i), Type: 23, TypeMod: -1, Key: i == 0})
	}
	return m.Relation(r)
}

// bench drives a batcher with wire messages and keeps what it sends.
type feeder struct {
	b   *batcher
	s   *session
	out []memBatch
}

func newFeeder(limit int) *feeder {
	f := &feeder{}
	f.b = &batcher{limit: limit, cache: newCatalog(), system: 1, timeline: 1, prev: 100}
	f.b.sink = func(_ context.Context, h *change.BatchHeader, body []byte) error {
		if len(body) > limit {
			return fmt.Errorf("body of %d bytes, limit %d", len(body), limit)
		}
		f.out = append(f.out, memBatch{*h, append([]byte(nil), body...)})
		return nil
	}
	f.s = &session{reader: &reader{o: &Options{}}, b: f.b, fb: &feedback{}}
	return f
}

func (f *feeder) feed(msgs ...[]byte) error {
	for _, raw := range msgs {
		if err := f.s.pgoutput(context.Background(), raw); err != nil {
			return err
		}
	}
	return nil
}

func (f *feeder) must(t testing.TB, msgs ...[]byte) {
	t.Helper()
	if err := f.feed(msgs...); err != nil {
		t.Fatal(err)
	}
}

func (f *feeder) flush(t testing.TB) []memTx {
	t.Helper()
	if err := f.b.flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	txs, err := transactions(f.out)
	if err != nil {
		t.Fatal(err)
	}
	return txs
}

func tx(commit change.LSN, changes ...[]byte) [][]byte {
	out := [][]byte{m.Begin(commit, at, change.XID(commit))}
	out = append(out, changes...)
	return append(out, m.Commit(commit, commit+8, at))
}

func TestBatcher_PacksSmallTransactions(t *testing.T) {
	f := newFeeder(4096)
	f.must(t, tx(200, table(1, "a", "t", 1), m.Insert(1, m.Row{"1"}))...)
	f.must(t, tx(300)...) // nothing in it
	f.must(t, tx(400, m.Insert(1, m.Row{"2"}), m.Logical(true, 401, "p", []byte("x")), m.Logical(false, 402, "p", []byte("y")))...)
	txs := f.flush(t)
	want := []memTx{
		{commit: 200, end: 208, xid: 200, msgs: []string{"I 1"}, attempts: 1},
		{commit: 400, end: 408, xid: 400, msgs: []string{"I 2", "M p x"}, attempts: 1},
	}
	if diff := cmp.Diff(want, txs, cmp.AllowUnexported(memTx{})); diff != "" {
		t.Error(diff)
	}
	h := f.out[0].h
	if len(f.out) != 1 || h.Prev != 100 || h.First != 200 || h.Last != 400 || h.End != 408 || h.XID != 400 {
		t.Errorf("%d batches, header %+v", len(f.out), h)
	}
}

func TestBatcher_OwnTablesAreLeftOut(t *testing.T) {
	f := newFeeder(4096)
	f.must(t, tx(200, table(1, "walferry", "t", 1), m.Insert(1, m.Row{"1"}), m.Truncate(false, false, 1))...)
	f.must(t, tx(300, table(2, "a", "t", 1), m.Insert(1, m.Row{"1"}), m.Insert(2, m.Row{"2"}), m.Truncate(false, false, 1, 2))...)
	txs := f.flush(t)
	if len(txs) != 1 || strings.Join(txs[0].msgs, ",") != "I 2,T" {
		t.Errorf("queued %+v", txs)
	}
}

// A relation that changes in the middle of a transaction which then must be
// repacked: the rows before the change keep the old description.
func TestBatcher_RelationChangedInTransactionBehindOthers(t *testing.T) {
	f := newFeeder(400)
	f.must(t, tx(200, table(1, "a", "t", 1), m.Insert(1, m.Row{"1"}))...)
	big := strings.Repeat("x", 120)
	f.must(t, tx(300, m.Insert(1, m.Row{"2"}), table(1, "a", "t", 2), m.Insert(1, m.Row{"3", big}), m.Insert(1, m.Row{"4", big}))...)
	f.flush(t)
	// Every row must be described by a relation with as many columns.
	for i, b := range f.out {
		var ms change.Messages
		ms.Reset(b.body)
		cols := -1
		var d pgoutput.Decoder
		for {
			raw, err := ms.Next()
			if err != nil {
				t.Fatal(err)
			}
			if raw == nil {
				break
			}
			msg, err := d.Decode(raw)
			if err != nil {
				t.Fatal(err)
			}
			switch msg.Kind {
			case pgoutput.Relation:
				cols = len(msg.Relation.Columns)
			case pgoutput.Insert:
				if len(msg.New) != cols {
					t.Errorf("batch %d: row of %d columns under a description of %d", i, len(msg.New), cols)
				}
			}
		}
	}
}

func TestBatcher_TypesGoBeforeTheirRelation(t *testing.T) {
	f := newFeeder(4096)
	rel := m.Relation(&change.Relation{OID: 1, Schema: "a", Name: "t", Identity: 'd', Columns: []change.Column{{Name: "c", Type: 20001}}})
	f.must(t, tx(200, m.Type(20001, "a", "mood"), rel, m.Insert(1, m.Row{"ok"}))...)
	f.flush(t)
	f.must(t, tx(300, m.Insert(1, m.Row{"sad"}))...)
	f.flush(t)
	for i, b := range f.out {
		kinds := ""
		var ms change.Messages
		ms.Reset(b.body)
		for {
			raw, err := ms.Next()
			if err != nil || raw == nil {
				break
			}
			kinds += string(raw[:1])
		}
		if kinds != "BYRIC" {
			t.Errorf("batch %d holds %s", i, kinds)
		}
	}
}

// Whatever the sizes, a reader of the queue sees the same transactions, no body
// exceeds the limit, and after every batch a restart continues exactly.
func TestBatcher_AnySizesAndAnyRestart(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		limit := 150 + r.IntN(600)
		var stream [][]byte
		var want []memTx
		lsn := change.LSN(200)
		for range 12 {
			var changes [][]byte
			w := memTx{commit: lsn, end: lsn + 8, xid: change.XID(lsn), attempts: 1}
			for range r.IntN(6) {
				v := strings.Repeat("v", r.IntN(30))
				switch r.IntN(12) {
				case 0:
					v = strings.Repeat("v", r.IntN(4*limit))
				case 1:
					changes = append(changes, m.Logical(true, lsn, "p", []byte(v)))
					w.msgs = append(w.msgs, "M p "+v)
					continue
				}
				oid := change.OID(1 + r.IntN(3))
				changes = append(changes, table(oid, "a", "t", 1+r.IntN(2)), m.Insert(oid, m.Row{v}))
				if len(v) > 40 {
					v = fmt.Sprintf("#%d", len(v))
				}
				w.msgs = append(w.msgs, "I "+v)
			}
			stream = append(stream, tx(lsn, changes...)...)
			if len(w.msgs) > 0 {
				want = append(want, w)
			}
			lsn += 100
		}
		full := newFeeder(limit)
		full.must(t, stream...)
		if diff := cmp.Diff(want, full.flush(t), cmp.AllowUnexported(memTx{})); diff != "" {
			t.Fatalf("seed %d, limit %d:\n%s", seed, limit, diff)
		}
		// Restart behind each of the batches, with a batch size of its own.
		for n := 1; n <= len(full.out); n++ {
			stored := full.out[:n:n]
			tail := stored[n-1].h
			again := newFeeder(150 + r.IntN(600))
			again.out = stored
			again.b.prev = tail.End
			p, exact := resumeAfter(&tail)
			if !exact {
				p.msgs = 0
			}
			again.b.resume = p
			again.must(t, stream...)
			got := again.flush(t)
			for i := range got {
				got[i].attempts = 1
			}
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(memTx{})); diff != "" {
				t.Fatalf("seed %d, restart after batch %d of %d:\n%s", seed, n, len(full.out), diff)
			}
			if p != nil && exact {
				for _, b := range again.out[n:] {
					if b.h.First == tail.First && b.h.Chunk == 0 {
						t.Fatalf("seed %d: transaction %v was begun anew after batch %d", seed, tail.First, n)
					}
				}
			}
		}
	}
}

func TestBatcher_DifferentContentOnResumeBeginsAnew(t *testing.T) {
	big := strings.Repeat("x", 100)
	first := newFeeder(200)
	if err := first.feed(tx(200, table(1, "a", "t", 1), m.Insert(1, m.Row{big}), m.Insert(1, m.Row{big}))[:4]...); err != nil {
		t.Fatal(err)
	}
	if len(first.out) == 0 {
		t.Fatal("no chunk was cut")
	}
	p, exact := resumeAfter(&first.out[0].h)
	if !exact {
		t.Fatal("a chunk with a whole row must be exact")
	}
	again := newFeeder(200)
	again.b.resume = p
	err := again.feed(tx(200, table(1, "a", "t", 1), m.Insert(1, m.Row{"other"}))...)
	if !errors.Is(err, errRestart) {
		t.Fatalf("feed = %v, want errRestart", err)
	}
	// The session after that knows.
	p.msgs = 0
	again = newFeeder(200)
	again.out = first.out[:1:1]
	again.b.resume = p
	again.must(t, tx(200, table(1, "a", "t", 1), m.Insert(1, m.Row{"other"}))...)
	txs := again.flush(t)
	if len(txs) != 1 || txs[0].attempts != 2 || strings.Join(txs[0].msgs, ",") != "I other" {
		t.Errorf("queued %+v", txs)
	}
}

func TestCB008_EqualLSNsAreNoDuplicates(t *testing.T) {
	f := newFeeder(4096)
	f.b.prev = 208 // a transaction may begin exactly where the last one ended
	f.must(t, tx(208, table(1, "a", "t", 1), m.Insert(1, m.Row{"1"}))...)
	if txs := f.flush(t); len(txs) != 1 {
		t.Errorf("%d transactions are queued, want 1", len(txs))
	}
	if f.b.duplicates != 0 {
		t.Error("counted as a duplicate")
	}
}

func TestCB009_DuplicatesEndByPositionAlone(t *testing.T) {
	f := newFeeder(4096)
	f.b.prev = 5000
	for lsn := change.LSN(200); lsn < 6000; lsn += 100 {
		f.must(t, tx(lsn, table(1, "a", "t", 1), m.Insert(1, m.Row{"1"}))...)
	}
	txs := f.flush(t)
	if len(txs) != 10 || txs[0].commit != 5000 {
		t.Errorf("%d transactions from %v, want 10 from 0/1388", len(txs), txs[0].commit)
	}
	if f.b.duplicates != 48 {
		t.Errorf("%d duplicates are counted, want 48", f.b.duplicates)
	}
}

func TestCB010_CommitOrderIsAsserted(t *testing.T) {
	f := newFeeder(4096)
	f.must(t, tx(300, table(1, "a", "t", 1), m.Insert(1, m.Row{"1"}))...)
	if err := f.feed(tx(200, m.Insert(1, m.Row{"2"}))...); !errors.Is(err, ErrProtocol) {
		t.Errorf("a transaction before the last one: %v", err)
	}
	for name, msgs := range map[string][][]byte{
		"commit of another transaction": {m.Begin(400, at, 1), m.Commit(401, 410, at)},
		"end before commit":             {m.Begin(400, at, 1), m.Commit(400, 400, at)},
		"begin in a transaction":        {m.Begin(400, at, 1), m.Begin(500, at, 2)},
		"row outside":                   {m.Insert(1, m.Row{"1"})},
		"unknown relation":              {m.Begin(400, at, 1), m.Insert(9, m.Row{"1"})},
	} {
		f := newFeeder(4096)
		if err := f.feed(msgs...); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCB030_LogicalMessagesFollowTheirTransaction(t *testing.T) {
	msgs := tx(200, table(1, "a", "t", 1), m.Insert(1, m.Row{"1"}), m.Logical(true, 201, "app", []byte("m1")), m.Insert(1, m.Row{"2"}))
	f := newFeeder(4096)
	f.must(t, msgs...)
	f.flush(t)
	f.must(t, msgs...) // resent after a restart
	txs := f.flush(t)
	if len(txs) != 1 || strings.Join(txs[0].msgs, ",") != "I 1,M app m1,I 2" {
		t.Errorf("queued %+v", txs)
	}
}

func TestBatcher_RowsAllocateNothing(t *testing.T) {
	f := newFeeder(1 << 20)
	f.b.sink = func(context.Context, *change.BatchHeader, []byte) error { return nil }
	f.b.body = make([]byte, 0, 1<<20)
	f.must(t, m.Begin(200, at, 1), table(1, "a", "t", 3))
	row := m.Insert(1, m.Row{"1", "some text", nil})
	ctx := context.Background()
	n := testing.AllocsPerRun(10000, func() {
		if err := f.s.pgoutput(ctx, row); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations a row", n)
	}
}

func BenchmarkBatcher_Insert(b *testing.B) {
	f := newFeeder(256 << 10)
	f.b.sink = func(context.Context, *change.BatchHeader, []byte) error { return nil }
	f.must(b, m.Begin(200, at, 1), table(1, "a", "t", 3))
	row := m.Insert(1, m.Row{"123456", "some text of a usual length, say fifty bytes......", nil})
	ctx := context.Background()
	b.ReportAllocs()
	b.SetBytes(int64(len(row)))
	for b.Loop() {
		if err := f.s.pgoutput(ctx, row); err != nil {
			b.Fatal(err)
		}
	}
}
