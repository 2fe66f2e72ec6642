package source

import "time"

// A walsender writes each change to its socket by itself. A reader that takes
// each at once is woken once per change, and the wake-up costs both sides more
// than the change. So when reads are frequent and small, the stream pauses for a
// moment before the next one and lets the socket collect. At moderate rates
// nothing waits.
const (
	frequentReads = 64                   // so many reads ...
	frequentTime  = 5 * time.Millisecond // ... in so short a time are frequent
	collectTime   = 300 * time.Microsecond
	fewBytes      = 256      // what a pause brings when reads are not frequent any more,
	fewTimes      = 8        // if so many in a row bring no more
	manyBytes     = 32 << 10 // a read that brings so much needs no pause
)

// coalescer decides when a read waits. It is used by one goroutine.
type coalescer struct {
	collecting bool
	reads      int
	few        int // pauses in a row that brought little
	since      time.Time
}

// pause is how long to wait before a read. last is what the read before brought
// in bytes; now is about now.
func (c *coalescer) pause(last int, now time.Time) time.Duration {
	if c.collecting {
		if last >= fewBytes {
			c.few = 0
		} else if c.few++; c.few == fewTimes {
			*c = coalescer{since: now}
			return 0
		}
		if last >= manyBytes {
			return 0
		}
		return collectTime
	}
	if c.reads++; c.reads < frequentReads {
		return 0
	}
	c.collecting = now.Sub(c.since) < frequentTime
	c.reads, c.since = 0, now
	return 0
}
