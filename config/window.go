package config

import (
	"fmt"
	"time"
)

// Window is a part of the day, by the clock of the machine that walferry runs on. The
// zero value is the whole day.
type Window struct {
	From, To time.Duration // since midnight; To may be before From
}

// ParseWindow reads 22:00-06:00.
func ParseWindow(s string) (Window, error) {
	var a, b time.Time
	var err error
	if len(s) != len("22:00-06:00") || s[5] != '-' {
		err = fmt.Errorf("want a part of the day such as 22:00-06:00")
	}
	if err == nil {
		a, err = time.Parse("15:04", s[:5])
	}
	if err == nil {
		b, err = time.Parse("15:04", s[6:])
	}
	if err != nil || a.Equal(b) {
		return Window{}, fmt.Errorf("want a part of the day such as 22:00-06:00")
	}
	since := func(t time.Time) time.Duration {
		return time.Duration(t.Hour())*time.Hour + time.Duration(t.Minute())*time.Minute
	}
	return Window{since(a), since(b)}, nil
}

// String is what ParseWindow reads; empty for the whole day.
func (w Window) String() string {
	if w == (Window{}) {
		return ""
	}
	clock := func(d time.Duration) string { return fmt.Sprintf("%02d:%02d", int(d.Hours()), int(d.Minutes())%60) }
	return clock(w.From) + "-" + clock(w.To)
}

// Next returns when the window opens, which is now if it is open, and when it closes
// then. Both are zero for the whole day.
func (w Window) Next(now time.Time) (opens, closes time.Time) {
	if w == (Window{}) {
		return time.Time{}, time.Time{}
	}
	// By the calendar, so that a day of 23 or 25 hours has its window too.
	at := func(day int, d time.Duration) time.Time {
		return time.Date(now.Year(), now.Month(), now.Day()+day, int(d.Hours()), int(d.Minutes())%60, int(d.Seconds())%60, 0, now.Location())
	}
	length := 0
	if w.To < w.From {
		length = 1
	}
	for day := -1; ; day++ {
		opens, closes = at(day, w.From), at(day+length, w.To)
		if closes.After(now) {
			if opens.Before(now) {
				opens = now
			}
			return opens, closes
		}
	}
}

func window(dst *Window) func(value) {
	return func(v value) {
		s, ok := v.text()
		if !ok {
			return
		}
		w, err := ParseWindow(s)
		if err != nil {
			v.wrong(err.Error(), "")
			return
		}
		*dst = w
	}
}
