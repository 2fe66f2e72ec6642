package monitor

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

const (
	lineInterval  = 500 * time.Millisecond
	plainInterval = 10 * time.Second
)

// IsTerminal says whether w shows text to a person at once.
func IsTerminal(w io.Writer) bool {
	if l, ok := w.(*Line); ok {
		w = l.w
	}
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Line is a terminal whose last line is written again and again. Whatever else
// goes to the terminal must go through Write, so that it stands above.
type Line struct {
	mu   sync.Mutex
	w    io.Writer
	text string
	held int // the line stays away
}

// NewLine uses the terminal w.
func NewLine(w io.Writer) *Line { return &Line{w: w} }

const clearLine = "\r\x1b[K"

// Write puts whole lines above the last one.
func (l *Line) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.text == "" {
		return l.w.Write(p)
	}
	if _, err := l.w.Write([]byte(clearLine + string(p) + l.text)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Set replaces the last line; "" removes it.
func (l *Line) Set(text string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held > 0 {
		return nil
	}
	if text == l.text {
		return nil
	}
	text = clip(text, l.width())
	l.text = text
	_, err := io.WriteString(l.w, clearLine+text)
	return err
}

// Hold takes the line away until release is called, for what needs the terminal
// for itself.
func (l *Line) Hold() (release func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.text != "" {
		_, _ = io.WriteString(l.w, clearLine) // the next write reports what is wrong
		l.text = ""
	}
	l.held++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.held--
	}
}

func (l *Line) width() int {
	if f, ok := l.w.(*os.File); ok {
		if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 0 {
			return w
		}
	}
	return 120
}

func clip(s string, width int) string {
	r := []rune(s)
	if len(r) < width {
		return s
	}
	return string(r[:max(0, width-2)]) + "…"
}

// Progress shows how replication goes until ctx ends: on a terminal in one line
// that is written again, elsewhere in a line every ten seconds. w may be a
// [*Line]. It returns early when w fails.
func Progress(ctx context.Context, w io.Writer, s *State, isTerminal bool) {
	every, line := plainInterval, (*Line)(nil)
	if isTerminal {
		every = lineInterval
		var ok bool
		if line, ok = w.(*Line); !ok {
			line = NewLine(w)
		}
		defer func() { _ = line.Set("") }() // the terminal may be gone
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	r := &rates{doc: s.Document(), at: s.now()}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		text := r.next(s)
		var err error
		if line != nil {
			err = line.Set(text)
		} else {
			_, err = fmt.Fprintln(w, text)
		}
		if err != nil {
			return
		}
	}
}

// rates turns two documents into speeds.
type rates struct {
	doc *Document
	at  time.Time
}

// next describes what happened since the call before.
func (r *rates) next(s *State) string {
	doc, now := s.Document(), s.now()
	seconds := max(now.Sub(r.at).Seconds(), 0.001)
	var parts []string
	for i := range doc.Publishers {
		p := &doc.Publishers[i]
		if p.State == Unknown {
			continue
		}
		var old PublisherStatus
		for _, o := range r.doc.Publishers {
			if o.Name == p.Name {
				old = o
			}
		}
		parts = append(parts, publisherLine(p, &old, seconds))
	}
	for i := range doc.Subscriptions {
		b := &doc.Subscriptions[i]
		var old SubscriptionStatus
		for _, o := range r.doc.Subscriptions {
			if o.Name == b.Name {
				old = o
			}
		}
		parts = append(parts, subscriptionLine(b, &old, seconds))
	}
	r.doc, r.at = doc, now
	if len(parts) == 0 {
		return "starting"
	}
	return strings.Join(parts, " | ")
}

func publisherLine(p, old *PublisherStatus, seconds float64) string {
	text := fmt.Sprintf("%s> %s %s tx/s", p.Name, p.State, rate(p.Transactions-old.Transactions, seconds))
	if p.Queue != nil {
		text += " queue " + Bytes(p.Queue.Bytes)
	}
	if p.LagBytes > 0 {
		text += " lag " + Bytes(p.LagBytes)
	}
	return text
}

func subscriptionLine(b, old *SubscriptionStatus, seconds float64) string {
	switch {
	case b.State == Copying && b.Copy != nil:
		c := b.Copy
		var oc CopyStatus
		if old.Copy != nil {
			oc = *old.Copy
		}
		text := fmt.Sprintf(">%s copying %d/%d tables %s", b.Name, c.TablesDone, c.TablesTotal, Bytes(c.Bytes))
		if c.BytesTotal > c.Bytes {
			text += " of ~" + Bytes(c.BytesTotal)
		}
		return text + fmt.Sprintf(" %s rows/s %s/s", rate(c.Rows-oc.Rows, seconds), Bytes(int64(float64(c.Bytes-oc.Bytes)/seconds)))
	case b.State == Failed && b.Error != nil:
		return fmt.Sprintf(">%s error: %s", b.Name, strings.Join(strings.Fields(b.Error.Message), " "))
	}
	text := fmt.Sprintf(">%s %s %s rows/s %s tx/s", b.Name, b.State, rate(b.Rows-old.Rows, seconds), rate(b.Transactions-old.Transactions, seconds))
	if b.LagSeconds != nil {
		text += " lag " + Seconds(*b.LagSeconds)
	}
	if b.LagBytes > 0 {
		text += " " + Bytes(b.LagBytes)
	}
	return text
}

func rate(n int64, seconds float64) string { return Count(float64(max(n, 0)) / seconds) }

// Count writes a number with at most four characters before its unit.
func Count(n float64) string {
	switch {
	case n >= 1e6:
		return fmt.Sprintf("%.1fM", n/1e6)
	case n >= 1e4:
		return fmt.Sprintf("%.0fk", n/1e3)
	case n >= 1e3:
		return fmt.Sprintf("%.1fk", n/1e3)
	}
	return fmt.Sprintf("%.0f", math.Round(n))
}

// Bytes writes a number of bytes for people.
func Bytes(n int64) string {
	f, units := float64(n), []string{"B", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for f >= 1024 && i < len(units)-1 {
		f /= 1024
		i++
	}
	if i == 0 || f >= 100 {
		return fmt.Sprintf("%.0f %s", f, units[i])
	}
	return fmt.Sprintf("%.1f %s", f, units[i])
}

// Seconds writes a time span for people.
func Seconds(s float64) string {
	switch d := time.Duration(s * float64(time.Second)); {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", s)
	default:
		return d.Truncate(time.Second).String()
	}
}
