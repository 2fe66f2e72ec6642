package demo

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// plainEvery is how often progress is printed where lines cannot be rewritten.
const plainEvery = 2 * time.Second

// display prints lines and, on a terminal, one below them that is rewritten.
type display struct {
	mu       sync.Mutex
	out      io.Writer
	terminal bool
	live     bool      // a line to rewrite stands there
	next     time.Time // plain output: when progress is due
}

// say prints a line that stays.
func (d *display) say(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wipe()
	fmt.Fprintf(d.out, format+"\n", args...)
}

// progress shows the present state.
func (d *display) progress(line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.terminal:
		d.wipe()
		fmt.Fprint(d.out, line)
		d.live = true
	case !time.Now().Before(d.next):
		fmt.Fprintln(d.out, line)
		d.next = time.Now().Add(plainEvery)
	}
}

// done lets the next line begin on its own.
func (d *display) done() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wipe()
}

func (d *display) wipe() {
	if d.live {
		fmt.Fprint(d.out, "\r\x1b[K")
		d.live = false
	}
}

// Write prints what an installer says; it makes display an io.Writer of whole lines.
func (d *display) Write(p []byte) (int, error) {
	d.say("%s", strings.TrimRight(string(p), "\n"))
	return len(p), nil
}

// number writes thousands apart.
func number(n int64) string {
	s := fmt.Sprint(n)
	if n < 0 {
		return "-" + number(-n)
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// progressLine is one look at the pipeline.
func progressLine(at time.Duration, written, queued, applied int64, behind time.Duration) string {
	lag := "in step"
	if written > applied {
		lag = fmt.Sprintf("behind %s rows, %.1f s", number(written-applied), behind.Seconds())
	}
	return fmt.Sprintf("%5.1f s  rows written %s  queued %s  applied %s  %s", at.Seconds(), number(written), number(queued), number(applied), lag)
}
