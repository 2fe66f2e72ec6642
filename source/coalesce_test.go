package source

import (
	"testing"
	"time"
)

func TestCoalescer_WaitsOnlyWhenReadsAreFrequentAndSmall(t *testing.T) {
	var c coalescer
	now := time.Unix(0, 0)
	run := func(reads, bytes int, every time.Duration) (pauses int) {
		for range reads {
			now = now.Add(every)
			if d := c.pause(bytes, now); d > 0 {
				pauses++
				now = now.Add(d)
			}
		}
		return pauses
	}
	if n := run(1000, 80, time.Millisecond); n != 0 {
		t.Errorf("%d pauses at 1000 reads a second, want none", n)
	}
	if n := run(frequentReads, 80, 20*time.Microsecond); n != 0 {
		t.Errorf("%d pauses before reads were frequent for a while", n)
	}
	run(frequentReads, 2000, 20*time.Microsecond)
	if n := run(100, 2000, 20*time.Microsecond); n != 100 {
		t.Errorf("%d pauses in 100 frequent reads", n)
	}
	if n := run(100, 100_000, 20*time.Microsecond); n != 0 {
		t.Errorf("%d pauses although each read is large", n)
	}
	run(fewTimes, 80, 20*time.Microsecond) // the pauses have brought next to nothing: the burst is over
	if n := run(60, 80, 20*time.Microsecond); n != 0 {
		t.Errorf("%d pauses after the burst", n)
	}
}
