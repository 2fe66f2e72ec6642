package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/walferry/walferry/agent"
	"github.com/walferry/walferry/config"
	"github.com/walferry/walferry/monitor"
)

func TestWriteStatus_ShowsEverythingThatResolvesAnError(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	lag, waiting := 12.5, int64(7)
	commit, retry := now.Add(-time.Minute), now.Add(4*time.Second)
	d := &monitor.Document{
		Version: "v1", PID: 42, Started: now.Add(-time.Hour),
		Publishers: []monitor.PublisherStatus{{
			Name: "main", State: monitor.Streaming, Slot: "walferry_main", ServerLSN: 0x3000, QueuedLSN: 0x2000, ConfirmedLSN: 0x1000,
			LagBytes: 4096, Transactions: 10, Rows: 20, Since: now.Add(-time.Minute),
			Queue: &monitor.QueueStatus{Stream: "WALFERRY_main", Bytes: 2048, MaxBytes: 10 << 30, FirstSeq: 1, LastSeq: 9, Durability: "on disk"},
		}},
		Subscriptions: []monitor.SubscriptionStatus{
			{
				Name: "copy", Publisher: "main", State: monitor.Failed, Position: 0x1800, QueuePosition: 5, LagBytes: 2048,
				LagSeconds: &lag, LagTransactions: &waiting, Transactions: 3, Rows: 4, Since: now.Add(-2 * time.Minute),
				Error: &monitor.ErrorCard{
					Class: "insert_conflict", SQLState: "23505", Message: "duplicate key value\nviolates unique constraint", Detail: "Key (id)=(1) already exists.",
					Table: "public.orders", Key: `{"id":"1"}`, CommitLSN: "0/1850", XID: "777", CommitTime: &commit, Attempts: 3, NextRetry: &retry,
					Remedy: "DELETE FROM public.orders WHERE id = 1",
				},
			},
			{Name: "new", Publisher: "main", State: monitor.Copying, Copy: &monitor.CopyStatus{TablesDone: 1, TablesTotal: 4, Rows: 1000, Bytes: 1 << 20, BytesTotal: 4 << 20}},
			{
				Name: "slow", Publisher: "main", State: monitor.Streaming, Since: now.Add(-time.Hour),
				Waiting: &monitor.WaitStatus{For: "lock RowExclusiveLock on public.orders, held by pid 7", Since: now.Add(-90 * time.Second)},
			},
		},
	}
	var b bytes.Buffer
	if err := writeStatus(&b, d, now, " -c w.yaml"); err != nil {
		t.Fatal(err)
	}
	want := `walferry v1, pid 42, up 1h0m0s

PUBLISHER  STATE      SINCE  SERVER  QUEUED  CONFIRMED  LAG      TX  ROWS  QUEUE
main       streaming  1m0s   0/3000  0/2000  0/1000     4.0 KiB  10  20    2.0 KiB of 10.0 GiB

SUBSCRIPTION  STATE      SINCE   PUBLISHER  POSITION  BATCH  LAG           TX WAITING  TX  ROWS
copy          error      2m0s    main       0/1800    5      12s, 2.0 KiB  7           3   4
new           copying    -       main       -         -      -             -           0   0
slow          streaming  1h0m0s  main       -         -      -             -           0   0

queue of publisher main: stream WALFERRY_main, batches 1-9; an acknowledgement means: on disk

ERROR of subscription copy
  message      duplicate key value
               violates unique constraint
  detail       Key (id)=(1) already exists.
  class        insert_conflict
  sqlstate     23505
  table        public.orders
  key          {"id":"1"}
  transaction  commit LSN 0/1850, xid 777, committed 2026-01-02T03:03:05Z
  attempts     3, the first 2m0s ago, the next in 4s
  remedy       DELETE FROM public.orders WHERE id = 1
  or           walferry skip -c w.yaml --subscription copy --lsn 0/1850   (leaves out the whole transaction and records its rows)

copy of subscription new: 1 of 4 tables, 1000 rows, 1.0 MiB of about 4.0 MiB

WAITING: subscription slow stands still for 1m30s
  for          lock RowExclusiveLock on public.orders, held by pid 7
`
	if d := cmp.Diff(want, b.String()); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

func TestWriteStatus_NothingRuns(t *testing.T) {
	var b bytes.Buffer
	d := &monitor.Document{Publishers: []monitor.PublisherStatus{{Name: "main", State: monitor.Stopped, LastError: "slot does not exist"}}}
	if err := writeStatus(&b, d, time.Now(), ""); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"no walferry process runs", "ERROR of publisher main", "slot does not exist"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
}

func TestErrorCard_CommandsNameTheConfiguration(t *testing.T) {
	var b bytes.Buffer
	errorCard(&b, &monitor.SubscriptionStatus{Name: "s", Error: &monitor.ErrorCard{
		CommitLSN: "0/1", Remedy: "mend it; or: walferry skip --subscription s --lsn 0/1",
	}}, time.Now(), " -c w.yaml")
	if got := strings.Count(b.String(), "walferry skip -c w.yaml --subscription s --lsn 0/1"); got != 1 {
		t.Errorf("want the command once:\n%s", b.String())
	}
}

type hinted struct{ error }

func (hinted) Hint() string { return "do this" }

func TestExitCode(t *testing.T) {
	bg := context.Background()
	stopped, cancel := context.WithCancelCause(bg)
	cancel(errInterrupted)
	for _, c := range []struct {
		name string
		ctx  context.Context
		err  error
		want int
	}{
		{"any", bg, errors.New("x"), exitError},
		{"configuration", bg, fmt.Errorf("load: %w", &config.Error{}), exitUsage},
		{"check", bg, &codeError{code: exitCheck}, exitCheck},
		{"wait timed out", bg, fmt.Errorf("subscription s: %w after 1s", agent.ErrWaitTimeout), exitTimeout},
		{"stopped", bg, fmt.Errorf("s: %w", agent.ErrSubscriptionStopped), exitStopped},
		{"interrupted", stopped, fmt.Errorf("wait: %w", context.Canceled), exitInterrupted},
	} {
		if got := exitCode(c.ctx, c.err); got != c.want {
			t.Errorf("%s: exit code %d, want %d", c.name, got, c.want)
		}
	}
}

func TestReport_HintsAreShownOnce(t *testing.T) {
	var b bytes.Buffer
	h := hinted{errors.New("no slot")}
	report(&b, fmt.Errorf("run: %w", errors.Join(h, h, errors.New("other"))), exitError)
	want := "walferry: run: no slot\nwalferry: no slot\nwalferry: other\nhint: do this\n"
	if b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
	b.Reset()
	report(&b, &codeError{code: exitCheck}, exitCheck)
	if b.Len() != 0 {
		t.Errorf("said again: %q", b.String())
	}
}
