package source

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/walferry/walferry/change"
)

func TestOverlap_StartsWhereServerAndQueueBothKnow(t *testing.T) {
	tx := change.BatchHeader{Txns: 2, First: 400, Last: 450, End: 500, XID: 7}
	mark := change.BatchHeader{Prev: 300, End: 500}
	for _, c := range []struct {
		name      string
		confirmed change.LSN
		h         change.BatchHeader
		from      change.LSN
		must      bool
	}{
		{"slot before the transaction", 100, tx, 450, true},
		{"slot at it", 450, tx, 450, true},
		{"slot behind it", 451, tx, 451, false},
		{"only marks, slot before them", 100, mark, 300, false},
		{"only marks, slot among them", 400, mark, 400, false},
	} {
		from, s := overlap(c.confirmed, 500, &c.h)
		if from != c.from || (s.commit != 0) != c.must {
			t.Errorf("%s: from %v with %+v, want from %v, transaction %v", c.name, from, s, c.from, c.must)
		}
	}
}

func TestSeam_OneHistoryPassesAndAnotherDoesNot(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	h := change.BatchHeader{Txns: 1, First: 450, Last: 450, End: 500, XID: 7, CommitTime: at}
	open := func() *seam { _, s := overlap(100, 500, &h); return s }

	s := open()
	if strange, err := s.duplicate(450, 7, at); strange || err != nil {
		t.Errorf("the same transaction: %v, %v", strange, err)
	}
	if err := s.closed(600); err != nil {
		t.Errorf("the next one: %v", err)
	}
	if strange, err := s.duplicate(470, 8, at); !strange || err != nil {
		t.Errorf("one that the queue lacks: %v, %v", strange, err)
	}
	if err := open().closed(600); !errors.Is(err, ErrPublisherBehind) {
		t.Errorf("the transaction does not come: %v", err)
	}
	if _, err := open().duplicate(450, 8, at); !errors.Is(err, ErrPublisherBehind) {
		t.Errorf("another xid: %v", err)
	}
	if _, err := open().duplicate(450, 7, at.Add(time.Microsecond)); !errors.Is(err, ErrPublisherBehind) {
		t.Errorf("another time: %v", err)
	}
	b := &batcher{seam: open()}
	if err := b.mark(context.Background(), 600); !errors.Is(err, ErrPublisherBehind) {
		t.Errorf("a mark before the transaction has come: %v", err)
	}
}
