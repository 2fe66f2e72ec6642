package monitor

import (
	"sort"
	"time"

	"github.com/walferry/walferry/change"
)

// maxSamples bounds a history; when it is full every second sample goes.
const maxSamples = 4096

// history remembers when what was committed, so that a position can be turned
// into a lag. Samples are in order of their end.
type history struct {
	samples []sample
	total   int64 // transactions since the start of the process
}

// sample is a batch: the transactions that end at or before end.
type sample struct {
	end    change.LSN
	commit time.Time // of its last transaction
	total  int64     // transactions up to and with this batch
}

// add notes a batch. Batches without a commit and batches that came before are left out.
func (h *history) add(end change.LSN, commit time.Time, txns int) {
	if txns <= 0 || len(h.samples) > 0 && end <= h.samples[len(h.samples)-1].end {
		return
	}
	h.total += int64(txns)
	if len(h.samples) == maxSamples {
		kept := h.samples[:0]
		for i := 1; i < maxSamples; i += 2 { // the last one stays
			kept = append(kept, h.samples[i])
		}
		h.samples = kept
	}
	h.samples = append(h.samples, sample{end, commit, h.total})
}

// waiting is the index of the first batch after the position.
func (h *history) waiting(position change.LSN) int {
	return sort.Search(len(h.samples), func(i int) bool { return h.samples[i].end > position })
}

// oldest is the commit time of the oldest batch after the position; ok is
// false when there is none.
func (h *history) oldest(position change.LSN) (t time.Time, ok bool) {
	i := h.waiting(position)
	if i == len(h.samples) {
		return time.Time{}, false
	}
	return h.samples[i].commit, true
}

// transactions counts those after the position. known is false when the
// position lies before everything that is remembered.
func (h *history) transactions(position change.LSN) (n int64, known bool) {
	i := h.waiting(position)
	if i == 0 {
		return 0, false
	}
	return h.total - h.samples[i-1].total, true
}
