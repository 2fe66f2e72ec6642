package source

import "time"

// A walsender sends each change by itself. A reader that takes each at once is
// woken once per change, and the wake-up costs both sides more than the change. So
// when reads are frequent and small, the stream pauses before the next one and
// lets the socket collect. At moderate rates nothing waits.
const (
	frequentReads = 64                   // so many reads ...
	frequentTime  = 5 * time.Millisecond // ... in so short a time are frequent
	fewBytes      = 256                  // what a pause brings when reads are not frequent any more,
	fewTimes      = 8                    // if so many in a row bring no more
	manyBytes     = 32 << 10             // a read that brings so much needs no pause,
	manyNear      = receiveBuffer / 4    // nor one that brings so much through a small window

	shortPause = time.Millisecond
	// longPause is for a server on this machine that is behind: the longer the
	// pause, the more goes through while the window is closed. It becomes shorter
	// when a pause brings more than enoughBytes: the server's send buffer must not
	// become full.
	longPause   = 20 * time.Millisecond
	enoughBytes = 256 << 10
	// behind is how old changes must be to be part of a backlog.
	behind = 100 * time.Millisecond
)

// coalescer decides when a read waits. It is used by one goroutine.
type coalescer struct {
	near bool // see socket

	collecting bool
	reads      int
	few        int // pauses in a row that brought little
	since      time.Time
	brought    int           // bytes since the last pause
	long       time.Duration // the next long pause
}

// pause is how long to wait before a read. last is what the read before brought
// in bytes, age how old the changes were that it brought, and now is about now.
func (c *coalescer) pause(last int, age time.Duration, now time.Time) time.Duration {
	if !c.collecting {
		if c.reads++; c.reads == frequentReads {
			c.collecting = now.Sub(c.since) < frequentTime
			c.reads, c.since = 0, now
		}
		return 0
	}
	if last >= fewBytes {
		c.few = 0
	} else if c.few++; c.few == fewTimes {
		*c = coalescer{near: c.near, since: now}
		return 0
	}
	c.brought += last
	if last >= manyBytes || c.near && last >= manyNear {
		return 0
	}
	brought := c.brought
	c.brought = 0
	if !c.near || age < behind {
		return shortPause
	}
	switch {
	case brought > enoughBytes:
		c.long /= 2
	case brought < enoughBytes/2:
		c.long = min(2*c.long, longPause)
	}
	c.long = max(c.long, shortPause)
	return c.long
}
