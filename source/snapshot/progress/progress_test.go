package progress

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/vbauerster/mpb/v8"

	"github.com/walferry/walferry/source/snapshot"
)

var orders = snapshot.TableMap{SourceSchema: "app", SourceName: "orders", TargetSchema: "app", TargetName: "orders"}

// play tells a view of one table that is copied and one that fails.
func play(v *View) {
	e := v.Events()
	e.Waiting(snapshot.Wait{Side: "publisher", Reason: "waiting for transaction of pid 7", Since: time.Now().Add(-9 * time.Second)})
	p := snapshot.Progress{Table: orders, Started: time.Now().Add(-10 * time.Second), EstimatedRows: 1000}
	e.TableStarted(p)
	for p.Rows = 250; p.Rows <= 2000; p.Rows += 250 { // more than estimated
		p.Bytes = p.Rows * 1024
		e.TableProgress(p)
	}
	e.TableDone(snapshot.TableResult{TableMap: orders, Rows: 2000, Bytes: 2000 << 10, Duration: time.Second}, nil)
	bad := snapshot.TableMap{SourceSchema: "app", SourceName: "bad"}
	e.TableStarted(snapshot.Progress{Table: bad, EstimatedRows: -1})
	e.TableDone(snapshot.TableResult{TableMap: bad}, errors.New("duplicate key"))
	v.Close()
}

func TestView_PlainLinesOutsideATerminal(t *testing.T) {
	var b strings.Builder
	v := New(&b, 2)
	v.every = 0
	play(v)
	for _, want := range []string{
		"publisher: waiting for transaction of pid 7 (9s)\n",
		"\"app\".\"orders\": 250 of about 1000 rows, 250.0 KiB, about 30s left\n",
		"\"app\".\"orders\": done, 2000 rows, 2.0 MiB in 1s (1 of 2)\n",
		"\"app\".\"bad\": duplicate key\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no line %q in:\n%s", want, b.String())
		}
	}
}

func TestView_PlainLinesAreFew(t *testing.T) {
	var b strings.Builder
	play(New(&b, 2))
	if n := strings.Count(b.String(), "\n"); n != 3 {
		t.Errorf("%d lines in a second:\n%s", n, b.String())
	}
}

func TestView_BarsEndWithTheRun(t *testing.T) {
	var b strings.Builder
	v := New(&b, 2)
	v.bars = mpb.New(mpb.WithOutput(&b), mpb.WithAutoRefresh())
	play(v) // returns only if every bar has ended
	for _, want := range []string{"app.orders", "duplicate key"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in:\n%s", want, b.String())
		}
	}
}
