package queue

import (
	"sync"
	"time"

	"github.com/walferry/walferry/change"
)

// recentBytes bounds the bodies that recent keeps. It is more than two blocks of
// JetStream's file store (8 MiB each): a reader that is behind recent reads
// blocks which are complete, and those are not kept in memory because of it.
const recentBytes = 32 << 20

// recentTime is how long batches are kept after the last acknowledgement: a
// publisher that is idle takes no memory.
const recentTime = 10 * time.Second

// recentNear is how many batches a reader may be from the end of the queue to have
// batches kept for it. Readers further behind read from the stream for long yet.
const recentNear = 64

// partNear is recentNear for parts. Who is further behind gets batches as a whole,
// and they need not be copied piece by piece.
const partNear = 8

// recent keeps the batches that this process has appended last, so that readers
// in the same process that are nearly at the end of the queue get them from
// here, and the server does not send back what it was sent a moment ago.
//
// A batch is shown when it is acknowledged. Readers with [ReaderOptions.Ahead] are
// also shown batches that are on their way, and the whole transactions of the
// one that is being packed, as long as no chunk of a transaction is before them. They may
// thus see what is never stored. All batches are forgotten when their appender ends.
type recent struct {
	mu      sync.Mutex
	owner   *Appender
	epoch   uint64    // number of owner, from 1
	proven  bool      // the owner has been acknowledged a batch
	created time.Time // of the stream
	batches []kept    // with consecutive sequence numbers; only the last may be a part
	bytes   int64     // of their bodies
	stored  uint64    // last sequence number that is acknowledged
	ahead   uint64    // last one that is shown as a whole to those who read ahead
	wanted  uint64    // highest that a reader has looked for
	changed chan struct{}
	expiry  *time.Timer
}

// kept is a batch. The body is not changed any more, but it grows while it is a
// part.
type kept struct {
	seq     uint64
	header  change.BatchHeader // of what body holds
	body    []byte
	part    bool      // more may follow in this batch
	time    time.Time // when it was acknowledged, or shown first
	pending uint64    // batches shown after it
}

// place is where a reader is.
type place struct {
	seq     uint64    // of the batch that it wants next
	off     int       // bytes of the body that it has had
	created time.Time // of its stream
	ahead   bool
	epoch   uint64 // of the appender of what it was shown and may not be stored; 0: nothing
}

// whereabouts is where a batch is, for a reader that wants it next.
type whereabouts int

const (
	elsewhere whereabouts = iota // in the stream, or nowhere
	coming                       // the next to be shown
	here
)

// begin makes a the one that appends.
func (r *recent) begin(a *Appender, created time.Time, seq uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop()
	r.owner, r.created, r.stored, r.ahead, r.proven = a, created, seq, seq, false
	r.epoch++
}

// end forgets everything when a was the one that appends.
func (r *recent) end(a *Appender) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.owner == a {
		r.drop()
		r.owner = nil
		if r.expiry != nil {
			r.expiry.Stop()
		}
	}
}

func (r *recent) drop() {
	clear(r.batches)
	r.batches, r.bytes = r.batches[:0], 0
	r.signal()
}

func (r *recent) signal() {
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}

// add keeps a copy of a batch that is about to be sent, or of as much of it as there
// is. body begins with what was kept of the batch before.
func (r *recent) add(a *Appender, seq uint64, h *change.BatchHeader, body []byte, part bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	near := uint64(recentNear)
	if part {
		near = partNear
	}
	if r.owner != a || seq > r.wanted+near {
		return
	}
	k := r.open(seq)
	k.header, k.part = *h, part
	r.bytes += int64(len(body) - len(k.body))
	k.body = append(k.body, body[len(k.body):]...)
	if k.time.IsZero() {
		k.time = time.Now()
	}
	r.shed()
	if r.extend() || part && r.proven && seq == r.ahead+1 {
		r.signal()
	}
}

// open returns the batch at seq, which is the last, or a new one.
func (r *recent) open(seq uint64) *kept {
	n := len(r.batches)
	if n > 0 && r.batches[n-1].seq == seq {
		return &r.batches[n-1]
	}
	if n > 0 && (r.batches[n-1].seq+1 != seq || r.batches[n-1].part) {
		r.drop() // some were not kept, as nobody was near
	}
	r.batches = append(r.batches, kept{seq: seq})
	return &r.batches[len(r.batches)-1]
}

// shed forgets the oldest batches if there are too many.
func (r *recent) shed() {
	n := 0
	for r.bytes > recentBytes && n < len(r.batches) {
		r.bytes -= int64(len(r.batches[n].body))
		r.batches[n] = kept{}
		n++
	}
	if n > 0 {
		r.batches = r.batches[n:]
	}
}

// extend moves ahead, and reports whether it has moved. An appender must have
// been acknowledged something first: while the queue is full, one after another
// comes and fails.
func (r *recent) extend() bool {
	before := r.ahead
	r.ahead = max(r.ahead, r.stored)
	if !r.proven {
		return r.ahead != before
	}
	for i := r.index(r.ahead + 1); i >= 0 && i < len(r.batches); i++ {
		if k := &r.batches[i]; k.part || k.header.Chunked {
			break
		}
		r.ahead++
	}
	return r.ahead != before
}

// acknowledge shows the batches up to seq.
func (r *recent) acknowledge(a *Appender, seq uint64, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.owner != a {
		return
	}
	for i := r.index(r.stored + 1); i >= 0 && i < len(r.batches) && r.batches[i].seq <= seq; i++ {
		r.batches[i].time = now
	}
	r.stored, r.proven = seq, true
	r.extend()
	r.signal()
	if r.expiry == nil {
		r.expiry = time.AfterFunc(recentTime, r.expire)
	} else {
		r.expiry.Reset(recentTime)
	}
}

// expire forgets the batches that are acknowledged.
func (r *recent) expire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.batches); n > 0 && r.batches[n-1].seq <= r.stored {
		r.drop()
	}
}

// index of a sequence number that is not before the first; -1 otherwise.
func (r *recent) index(seq uint64) int {
	if len(r.batches) == 0 || seq < r.batches[0].seq {
		return -1
	}
	return int(seq - r.batches[0].seq)
}

// found is a batch for a reader, and what it may know with it.
type found struct {
	kept
	epoch  uint64
	stored uint64
}

// find looks for the batch that a reader wants. near says that it must not be one
// of those that are forgotten soon.
func (r *recent) find(p place, near bool) (found, whereabouts) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.look(p, near)
}

// look is find with r.mu held.
func (r *recent) look(p place, near bool) (found, whereabouts) {
	if r.owner == nil || !r.created.Equal(p.created) || p.epoch != 0 && p.epoch != r.epoch {
		return found{}, elsewhere
	}
	r.wanted = max(r.wanted, p.seq)
	f := found{epoch: r.epoch, stored: r.stored}
	last := r.stored
	if p.ahead {
		last = r.ahead
	}
	i := r.index(p.seq)
	kept := i >= 0 && i < len(r.batches)
	switch {
	case p.seq > last+1:
		return found{}, elsewhere
	case p.seq == last+1 && !(p.ahead && r.proven && kept && r.batches[i].part && len(r.batches[i].body) > p.off):
		return f, coming
	case !kept, near && r.bytes > recentBytes/2 && i < len(r.batches)/2:
		return found{}, elsewhere
	}
	f.kept = r.batches[i]
	f.pending = max(last, p.seq) - p.seq
	return f, here
}

// news returns a channel that is closed at the next change, or nil when the
// batch is no longer the next to be shown.
func (r *recent) news(p place) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, where := r.look(p, false); where != coming {
		return nil
	}
	if r.changed == nil {
		r.changed = make(chan struct{})
	}
	return r.changed
}
