package progress

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"

	"github.com/walferry/walferry/source/snapshot"
)

// every is the time between two plain lines of one table.
const every = 5 * time.Second

// View shows the progress of one run.
type View struct {
	// mu is never held while mpb is called: the decorators of a bar take it,
	// and mpb waits for them.
	mu     sync.Mutex
	out    io.Writer
	bars   *mpb.Progress // nil: plain lines
	tables map[string]*table
	total  int // tables of the run
	done   int
	every  time.Duration
	built  time.Time // when a line about building was shown last
}

type table struct {
	bar  *mpb.Bar
	last snapshot.Progress
	next time.Time
}

// New makes a view for a run of so many tables. Bars are used if out is a
// terminal.
func New(out io.Writer, tables int) *View {
	v := &View{out: out, tables: map[string]*table{}, total: tables, every: every}
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		v.bars = mpb.New(mpb.WithOutput(out), mpb.WithWidth(32))
	}
	return v
}

// Events are the callbacks for the options of a run.
func (v *View) Events() snapshot.Events {
	return snapshot.Events{
		Waiting:       v.waiting,
		SchemaCreated: func(t []snapshot.TableMap) { v.line("%s created on the subscriber", plural(len(t), "table")) },
		TableStarted:  v.started,
		TableProgress: v.progress,
		TableDone:     v.finished,
		Building:      v.building,
	}
}

// Close ends the display. It must be called after the run.
func (v *View) Close() {
	v.mu.Lock()
	var open []*mpb.Bar
	for _, t := range v.tables {
		if t.bar != nil {
			open = append(open, t.bar)
		}
	}
	v.mu.Unlock()
	for _, b := range open {
		b.Abort(false)
	}
	if v.bars != nil {
		v.bars.Wait()
	}
}

func (v *View) line(format string, args ...any) {
	text := fmt.Sprintf("copy: "+format+"\n", args...)
	if v.bars != nil {
		if _, err := io.WriteString(v.bars, text); err == nil { // above the bars
			return
		}
		// All bars have ended.
	}
	_, _ = io.WriteString(v.out, text) // a lost line of a display is no error
}

func (v *View) waiting(w snapshot.Wait) {
	v.line("%s: %s (%s)", w.Side, w.Reason, time.Since(w.Since).Round(time.Second))
}

func key(m snapshot.TableMap) string { return m.Source() }

func (v *View) started(p snapshot.Progress) {
	t := &table{last: p, next: time.Now().Add(v.every)}
	defer func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.tables[key(p.Table)] = t
	}()
	if v.bars == nil {
		return
	}
	t.bar = v.bars.AddBar(max(p.EstimatedRows, 0),
		mpb.PrependDecorators(decor.Name(p.Table.SourceSchema+"."+p.Table.SourceName, decor.WCSyncSpaceR)),
		mpb.AppendDecorators(decor.Percentage(decor.WCSyncSpace), decor.Any(func(decor.Statistics) string {
			v.mu.Lock()
			defer v.mu.Unlock()
			return " " + describe(t.last, time.Now())
		}, decor.WCSyncSpaceR)))
}

func (v *View) progress(p snapshot.Progress) {
	v.mu.Lock()
	t := v.tables[key(p.Table)]
	if t == nil {
		v.mu.Unlock()
		return
	}
	t.last = p
	bar, show := t.bar, time.Now().After(t.next)
	if show {
		t.next = time.Now().Add(v.every)
	}
	v.mu.Unlock()
	switch {
	case bar != nil:
		bar.SetTotal(max(p.EstimatedRows, p.Rows+1), false) // statistics may be too low
		bar.SetCurrent(p.Rows)
	case show:
		v.line("%s: %s", p.Table.Source(), describe(p, time.Now()))
	}
}

func (v *View) finished(r snapshot.TableResult, err error) {
	v.mu.Lock()
	t := v.tables[key(r.TableMap)]
	delete(v.tables, key(r.TableMap))
	if err == nil {
		v.done++
	}
	done := v.done
	v.mu.Unlock()
	if t != nil && t.bar != nil {
		// After the line, which is shown when a bar is drawn the next time.
		defer func() {
			if err == nil {
				t.bar.SetTotal(max(r.Rows, 1), true)
			} else {
				t.bar.Abort(false)
			}
		}()
	}
	switch {
	case err != nil:
		v.line("%s: %s", r.Source(), err)
	case r.Skipped:
		v.line("%s: was copied before (%d of %d)", r.Source(), done, v.total)
	case v.bars == nil:
		v.line("%s: done, %s, %s in %s (%d of %d)", r.Source(), plural(int(r.Rows), "row"), size(r.Bytes), r.Duration.Round(time.Millisecond), done, v.total)
	}
}

func (v *View) building(b snapshot.Build) {
	v.mu.Lock()
	now := time.Now()
	show := now.Sub(v.built) >= v.every
	if show {
		v.built = now
	}
	v.mu.Unlock()
	if show {
		v.line("making %s (%d of %d)", b.Object, b.Done+1, b.Total)
	}
}

// describe says how far a table is, and how long the rest takes at the speed
// so far, if its size is known.
func describe(p snapshot.Progress, now time.Time) string {
	s := plural(int(p.Rows), "row")
	if p.EstimatedRows > 0 {
		s = fmt.Sprintf("%d of about %s", p.Rows, plural(int(p.EstimatedRows), "row"))
	}
	s += ", " + size(p.Bytes)
	if gone := now.Sub(p.Started); p.Rows > 0 && p.EstimatedRows > p.Rows && gone > time.Second {
		left := time.Duration(float64(gone) * float64(p.EstimatedRows-p.Rows) / float64(p.Rows))
		s += ", about " + left.Round(time.Second).String() + " left"
	}
	return s
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func size(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d B", n)
}
