package queue

import (
	"fmt"

	"github.com/walferry/walferry/change"
)

// key orders batches for the search of a start position: the first batch
// whose key is at least P is the first that a subscriber at P needs. It is the
// commit LSN of the last transaction, and End for a mark.
func key(h *change.BatchHeader) change.LSN {
	if h.IsMark() {
		return h.End
	}
	return h.Last
}

// chain verifies that batches follow one another.
type chain struct {
	known bool
	prev  change.BatchHeader
}

func chainAfter(h change.BatchHeader) chain { return chain{known: true, prev: h} }

// broken says what is wrong with a batch.
type broken struct {
	kind       error
	want, have change.LSN
	detail     string
}

// check reports whether h may follow, and whether it abandons the open
// transaction of the batches before.
func (c *chain) check(h *change.BatchHeader) (restart bool, b *broken) {
	if b := sane(h); b != nil {
		return false, b
	}
	if !c.known {
		if h.Chunked && h.Chunk > 0 {
			return false, &broken{ErrHole, h.First, h.First, fmt.Sprintf("transaction %v begins with chunk %d", h.First, h.Chunk)}
		}
		return false, nil
	}
	p := &c.prev
	switch {
	case h.System != p.System:
		return false, &broken{ErrFork, p.End, h.Prev, fmt.Sprintf("system identifier changes from %d to %d after %v", p.System, h.System, p.End)}
	case h.Timeline < p.Timeline:
		return false, &broken{ErrFork, p.End, h.Prev, fmt.Sprintf("timeline falls from %d to %d after %v", p.Timeline, h.Timeline, p.End)}
	case h.Prev > p.End:
		return false, &broken{ErrHole, p.End, h.Prev, fmt.Sprintf("transactions between %v and %v are missing", p.End, h.Prev)}
	case h.Prev < p.End:
		return false, &broken{ErrFork, p.End, h.Prev, fmt.Sprintf("batch follows %v, but the queue already ends at %v", h.Prev, p.End)}
	}
	if h.Total != p.Total+uint64(h.Txns) {
		return false, &broken{ErrCorrupt, p.End, h.Prev, fmt.Sprintf("batch counts %d transactions, %d more than %d", h.Total, h.Txns, p.Total)}
	}
	if h.Chunked && h.Chunk > 0 {
		return false, continues(p, h)
	}
	if !p.Open {
		return false, nil
	}
	// An open transaction is begun again, or vanished with the old timeline.
	if h.First != p.First && h.Timeline == p.Timeline {
		return true, &broken{ErrHole, p.First, h.First, fmt.Sprintf("transaction %v is cut off after chunk %d", p.First, p.Chunk)}
	}
	return true, nil
}

func continues(p, h *change.BatchHeader) *broken {
	switch {
	case !p.Open, p.First != h.First, p.XID != h.XID:
		return &broken{ErrHole, h.First, p.First, fmt.Sprintf("chunk %d of transaction %v has no beginning", h.Chunk, h.First)}
	case p.Chunk+1 != h.Chunk:
		return &broken{ErrHole, h.First, h.First, fmt.Sprintf("chunk %d of transaction %v follows chunk %d", h.Chunk, h.First, p.Chunk)}
	case h.TxMsgs < p.TxMsgs:
		return &broken{ErrCorrupt, h.First, h.First, fmt.Sprintf("chunk %d of transaction %v counts %d messages after %d", h.Chunk, h.First, h.TxMsgs, p.TxMsgs)}
	}
	return nil
}

// sane verifies what one header says by itself.
func sane(h *change.BatchHeader) *broken {
	bad := func(f string, v ...any) *broken {
		return &broken{ErrCorrupt, h.Prev, h.End, fmt.Sprintf(f, v...)}
	}
	switch {
	case h.System == 0 || h.Timeline == 0:
		return bad("system identifier %d or timeline %d is zero", h.System, h.Timeline)
	case h.IsMark():
		if h.First != 0 || h.Last != 0 || h.Rows != 0 || h.End < h.Prev {
			return bad("mark from %v to %v names transactions or goes back", h.Prev, h.End)
		}
	case h.Prev > h.First || h.First > h.Last:
		return bad("positions are not in order: previous %v, first %v, last %v", h.Prev, h.First, h.Last)
	case h.Open:
		if h.End != h.Prev || h.Txns != 0 || h.First != h.Last {
			return bad("open chunk %d of %v ends at %v after %v with %d transactions", h.Chunk, h.First, h.End, h.Prev, h.Txns)
		}
	case h.End <= h.Last:
		return bad("end %v is not after the last commit %v", h.End, h.Last)
	case h.Chunked && (h.Txns != 1 || h.First != h.Last):
		return bad("last chunk %d of %v holds %d transactions", h.Chunk, h.First, h.Txns)
	}
	return nil
}

func (b *broken) err(q *Queue, seq uint64) *Error {
	e := &Error{Kind: b.kind, Stream: q.stream, Seq: seq, Want: b.want, Have: b.have, Detail: fmt.Sprintf("sequence %d: %s", seq, b.detail)}
	switch b.kind {
	case ErrFork:
		e.Remedy = remedyFork
	case ErrHole:
		e.Remedy = remedyCopy
	default:
		e.Remedy = remedyCorrupt
	}
	return e
}
