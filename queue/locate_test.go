package queue_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/queue"
)

// subscriber applies what a reader returns as an applier does: transactions
// with a commit LSN below its position are duplicates, an unfinished
// transaction is discarded when it begins again.
type subscriber struct {
	pos     change.LSN
	applied []change.LSN
	partial int // chunks of the open transaction
}

func (s *subscriber) take(t testing.TB, d *queue.Delivery) {
	t.Helper()
	if d.Restart {
		s.partial = 0
	}
	if d.Header.Chunked {
		if d.Header.Last < s.pos {
			return
		}
		if d.Header.Chunk != s.partial {
			t.Fatalf("sequence %d: chunk %d where %d should come", d.Seq, d.Header.Chunk, s.partial)
		}
		s.partial++
		if d.Header.Open {
			return
		}
		s.partial = 0
		s.apply(t, d.Header.First)
	} else {
		for _, c := range commitsOf(t, d.Body) {
			if c >= s.pos {
				s.apply(t, c)
			}
		}
	}
	s.pos = max(s.pos, d.Header.End)
}

func (s *subscriber) apply(t testing.TB, c change.LSN) {
	t.Helper()
	if n := len(s.applied); n > 0 && c <= s.applied[n-1] {
		t.Fatalf("transaction %v after %v", c, s.applied[n-1])
	}
	s.applied = append(s.applied, c)
}

// commitsOf reads the commit LSNs out of the generator's messages.
func commitsOf(t testing.TB, body []byte) []change.LSN {
	t.Helper()
	var m change.Messages
	m.Reset(body)
	var out []change.LSN
	for {
		b, err := m.Next()
		if err != nil {
			t.Fatal(err)
		}
		if b == nil {
			return out
		}
		word, _, _ := strings.Cut(string(b[1:]), " ")
		c, err := change.ParseLSN(word)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, c)
	}
}

// readTo reads until the queue's last batch.
func readTo(t testing.TB, r *queue.Reader, last uint64, s *subscriber) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for r.Seq() <= last {
		d, err := r.Next(ctx)
		if err != nil {
			return err
		}
		s.take(t, d)
	}
	return nil
}

func committedFrom(txs []tx, p change.LSN) []change.LSN {
	var out []change.LSN
	for _, x := range txs {
		if x.commit >= p {
			out = append(out, x.commit)
		}
	}
	return out
}

// positions are all that a subscriber may have: the starting point and every
// end of a transaction or mark, and some in between.
func positions(bs []batch, txs []tx) []change.LSN {
	ps := []change.LSN{bs[0].h.Prev}
	for _, b := range bs {
		ps = append(ps, b.h.End)
	}
	for _, x := range txs {
		ps = append(ps, x.commit-1, x.commit, x.commit+1, x.end)
	}
	return ps
}

func TestReader_StartsExactlyAtEveryPosition(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) {
			q, _ := start(t)
			g := newGen()
			bs := g.random(rand.New(rand.NewPCG(seed, 7)), 25)
			store(t, q, bs...)
			for _, p := range positions(bs, g.txs) {
				r := reader(t, q, p)
				s := subscriber{pos: p}
				if err := readTo(t, r, uint64(len(bs)), &s); err != nil {
					t.Fatalf("from %v: %v", p, err)
				}
				if diff := cmp.Diff(committedFrom(g.txs, p), s.applied); diff != "" {
					t.Fatalf("from %v (-committed +applied):\n%s", p, diff)
				}
				_ = r.Close()
			}
		})
	}
}

func TestReader_AfterTrimServesEveryPositionFromTheFloorAndRefusesTheRest(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) {
			q, _ := start(t)
			g := newGen()
			rnd := rand.New(rand.NewPCG(seed, 11))
			bs := g.random(rnd, 30)
			store(t, q, bs...)
			floor := g.txs[rnd.IntN(len(g.txs))].end
			if err := q.Register(t.Context(), "slow", floor); err != nil {
				t.Fatal(err)
			}
			res, err := q.Trim(t.Context(), 0)
			if err != nil {
				t.Fatal(err)
			}
			begin := bs[res.FirstSeq-1].h.Prev
			for _, p := range positions(bs, g.txs) {
				r, err := q.NewReader(t.Context(), p, queue.ReaderOptions{})
				if p < begin {
					wantKind(t, err, queue.ErrHole)
					continue
				}
				if err != nil {
					t.Fatalf("from %v, floor %v: %v", p, floor, err)
				}
				s := subscriber{pos: p}
				if err := readTo(t, r, uint64(len(bs)), &s); err != nil {
					t.Fatalf("from %v: %v", p, err)
				}
				if diff := cmp.Diff(committedFrom(g.txs, p), s.applied); diff != "" {
					t.Fatalf("from %v (-committed +applied):\n%s", p, diff)
				}
				_ = r.Close()
			}
			if begin > floor {
				t.Fatalf("queue begins at %v, the slowest subscription is at %v", begin, floor)
			}
		})
	}
}

func TestReader_BeyondTheTailAcceptsOnlyABatchThatJoins(t *testing.T) {
	q, _ := start(t)
	g := newGen()
	store(t, q, g.packed(1))
	ahead := g.pos + 0x60 // one transaction further on, by a snapshot
	r := reader(t, q, ahead)
	g.packed(1)
	g2 := newGen()
	g2.packed(1)
	store(t, q, g2.packed(1))
	s := subscriber{pos: ahead}
	if err := readTo(t, r, 2, &s); err != nil {
		t.Fatal(err)
	}
	if len(s.applied) != 0 {
		t.Errorf("applied %v, which the snapshot holds", s.applied)
	}
}

func TestReader_OnAnEmptyStreamRefusesABatchThatBeginsTooLate(t *testing.T) {
	q, _ := start(t)
	g := newGen()
	r := reader(t, q, g.pos)
	g.packed(1) // never stored
	store(t, q, g.packed(1))
	_, err := r.Next(ctxFor(t, 10*time.Second))
	wantKind(t, err, queue.ErrHole)
	if _, again := r.Next(t.Context()); again != err {
		t.Errorf("the error is not final: %v", again)
	}
}
