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

// recent keeps the batches that this process has appended last, so that readers
// in the same process that are nearly at the end of the queue get them from
// here, and the server does not send back what it was sent a moment ago. It
// holds nothing that the queue does not hold: a batch is shown when it is
// acknowledged, and all of them are forgotten when their appender ends.
type recent struct {
	mu      sync.Mutex
	owner   *Appender
	created time.Time // of the stream
	batches []kept    // with consecutive sequence numbers
	bytes   int64     // of their bodies
	stored  uint64    // last sequence number that is acknowledged
	changed chan struct{}
	expiry  *time.Timer
}

// kept is a batch. The body is not changed any more.
type kept struct {
	seq     uint64
	header  change.BatchHeader
	body    []byte
	time    time.Time // when it was acknowledged
	pending uint64    // batches stored after it
}

// whereabouts is where a batch is, for a reader that wants it next.
type whereabouts int

const (
	elsewhere whereabouts = iota // in the stream, or nowhere
	coming                       // the next to be stored
	here
)

// begin makes a the one that appends.
func (r *recent) begin(a *Appender, created time.Time, seq uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop()
	r.owner, r.created, r.stored = a, created, seq
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

// add keeps a copy of a batch that is about to be sent.
func (r *recent) add(a *Appender, seq uint64, h *change.BatchHeader, body []byte) {
	k := kept{seq: seq, header: *h, body: append([]byte(nil), body...)}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.owner != a {
		return
	}
	if n := len(r.batches); n > 0 && r.batches[n-1].seq+1 != seq {
		r.drop() // some were not kept, as nobody was reading
	}
	r.batches = append(r.batches, k)
	r.bytes += int64(len(k.body))
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
	r.stored = seq
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

// find looks for a batch of the stream that was created then. near says that the
// batch must not be one of those that are forgotten soon.
func (r *recent) find(seq uint64, created time.Time, near bool) (kept, whereabouts) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.owner == nil || !r.created.Equal(created):
		return kept{}, elsewhere
	case seq == r.stored+1:
		return kept{}, coming
	case seq > r.stored:
		return kept{}, elsewhere
	}
	i := r.index(seq)
	if i < 0 || i >= len(r.batches) || near && r.bytes > recentBytes/2 && i < len(r.batches)/2 {
		return kept{}, elsewhere
	}
	k := r.batches[i]
	k.pending = r.stored - seq
	return k, here
}

// news returns a channel that is closed at the next change, or nil when the
// batch is no longer the next to be stored.
func (r *recent) news(seq uint64, created time.Time) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.owner == nil || !r.created.Equal(created) || seq != r.stored+1 {
		return nil
	}
	if r.changed == nil {
		r.changed = make(chan struct{})
	}
	return r.changed
}
