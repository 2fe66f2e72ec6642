package config

import (
	"testing"
	"time"
)

func TestWindow_Next(t *testing.T) {
	at := func(day, hour, minute int) time.Time { return time.Date(2026, 12, day, hour, minute, 0, 0, time.UTC) }
	for _, c := range []struct {
		window             string
		now, opens, closes time.Time
	}{
		{"22:00-06:00", at(3, 12, 0), at(3, 22, 0), at(4, 6, 0)},
		{"22:00-06:00", at(3, 23, 0), at(3, 23, 0), at(4, 6, 0)},
		{"22:00-06:00", at(3, 2, 0), at(3, 2, 0), at(3, 6, 0)},
		{"22:00-06:00", at(3, 6, 0), at(3, 22, 0), at(4, 6, 0)},
		{"22:00-06:00", at(3, 22, 0), at(3, 22, 0), at(4, 6, 0)},
		{"08:30-17:45", at(3, 18, 0), at(4, 8, 30), at(4, 17, 45)},
		{"08:30-17:45", at(3, 9, 0), at(3, 9, 0), at(3, 17, 45)},
		{"08:30-00:00", at(3, 9, 0), at(3, 9, 0), at(4, 0, 0)},
	} {
		w, err := ParseWindow(c.window)
		if err != nil {
			t.Fatal(err)
		}
		if w.String() != c.window {
			t.Errorf("%s prints as %s", c.window, w)
		}
		if opens, closes := w.Next(c.now); !opens.Equal(c.opens) || !closes.Equal(c.closes) {
			t.Errorf("%s at %v: %v to %v, want %v to %v", w, c.now, opens, closes, c.opens, c.closes)
		}
	}
	for _, s := range []string{"", "22:00", "22:00-22:00", "24:00-06:00", "22:00 06:00", "22:0-06:000", "-22:00-06:00"} {
		if w, err := ParseWindow(s); err == nil {
			t.Errorf("%q is read as %v", s, w)
		}
	}
}
