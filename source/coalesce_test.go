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
			if d := c.pause(bytes, 0, now); d > 0 {
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

func TestCoalescer_WaitsLongerNearAServerThatIsBehind(t *testing.T) {
	now := time.Unix(0, 0)
	var c coalescer
	pause := func(bytes int, age time.Duration) time.Duration { // a gulp, and the end of it
		for ; bytes >= manyBytes; bytes -= manyBytes {
			if d := c.pause(manyBytes, age, now); d != 0 {
				t.Fatalf("a pause of %v in the middle of a gulp", d)
			}
		}
		d := c.pause(fewBytes, age, now)
		now = now.Add(d)
		return d
	}
	for _, near := range []bool{true, false} {
		c = coalescer{near: near}
		for range 2 * frequentReads { // becomes frequent
			c.pause(100, 0, now)
		}
		if d := pause(1000, 10*time.Millisecond); d != shortPause {
			t.Errorf("near=%v: a pause of %v although nothing is behind", near, d)
		}
		if d := pause(enoughBytes*3/4, time.Hour); d < shortPause {
			t.Errorf("near=%v: a first pause of %v in a backlog", near, d)
		}
		for range 10 {
			pause(1000, time.Hour)
		}
		want := shortPause
		if near {
			want = longPause
		}
		if d := pause(1000, time.Hour); d != want {
			t.Errorf("near=%v: a pause of %v in a backlog, want %v", near, d, want)
		}
		for range 10 {
			pause(1<<20, time.Hour)
		}
		if d := pause(1<<20, time.Hour); d != shortPause {
			t.Errorf("near=%v: a pause of %v although a pause brings 1 MiB", near, d)
		}
	}
}
