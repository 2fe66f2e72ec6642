package demo

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestDisplay_RewritesOneLineOnATerminal(t *testing.T) {
	var out bytes.Buffer
	d := &display{out: &out, terminal: true}
	d.say("a")
	d.progress("one")
	d.progress("two")
	d.say("b")
	d.done()
	const wipe = "\r\x1b[K"
	if got, want := out.String(), "a\none"+wipe+"two"+wipe+"b\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestDisplay_PrintsPlainLinesNowAndThenElsewhere(t *testing.T) {
	var out bytes.Buffer
	d := &display{out: &out}
	d.progress("one")
	d.progress("too soon")
	d.next = time.Time{}
	d.progress("two")
	d.done()
	if got, want := out.String(), "one\ntwo\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestNumber_SeparatesThousands(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1234: "-1,234"} {
		if got := number(n); got != want {
			t.Errorf("number(%d) = %s, want %s", n, got, want)
		}
	}
}

func TestProgressLine_SaysHowFarBehind(t *testing.T) {
	if got := progressLine(time.Second, 1200, 1100, 200, 1500*time.Millisecond); !strings.HasSuffix(got, "behind 1,000 rows, 1.5 s") {
		t.Error(got)
	}
	if got := progressLine(time.Second, 1200, 1200, 1200, time.Hour); !strings.HasSuffix(got, "in step") {
		t.Error(got)
	}
}

func TestNewFolder_RemovesWhatAKilledDemoLeft(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	left := filepath.Join(os.TempDir(), folderPrefix+"999999999") // above the largest process id
	alive := filepath.Join(os.TempDir(), folderPrefix+strconv.Itoa(os.Getppid()))
	for _, dir := range []string{left, alive} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := newFolder(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", left, err)
	}
	if _, err := os.Stat(alive); err != nil {
		t.Error(err)
	}
}
