package monitor

import (
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/walferry/walferry/change"
)

// clock is a time that tests move.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func newClock() *clock { return &clock{t: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

func testState() (*State, *clock) {
	c := newClock()
	return newState("v1", c.now), c
}

func TestDocument_HasTheKeysThatAreDocumented(t *testing.T) {
	s, c := testState()
	s.pid = 42
	p := s.Publisher("main")
	p.SetIdentity("walferry_main", 7123456789012345678, 1)
	p.SetState(Streaming)
	p.Received(3, 100, 0x2000)
	p.Queued(0x1000, 2, 5, 80, c.now())
	p.Confirmed(0x800)
	p.SetQueue(QueueStatus{Stream: "WALFERRY_main", Messages: 1, Bytes: 80, FirstSeq: 1, LastSeq: 1, Durability: "synced"})
	b := s.Subscription("copy", "main")
	b.SetPosition(0x900)
	b.CopyStarted(2)
	b.CopyProgress("public.t", 10, 1000, 4000)
	at := c.now()
	b.SetError(&ErrorCard{
		Class: "insert_conflict", SQLState: "23505", Message: "duplicate key", Detail: "Key (id)=(1) already exists.", Table: "public.t",
		Key: `{"id":"1"}`, CommitLSN: "0/900", XID: "77", CommitTime: &at, Remedy: "walferry skip --subscription copy --lsn 0/900",
	}, c.now().Add(time.Second))
	got, err := json.MarshalIndent(s.Document(), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	want := `{
 "version": "v1",
 "pid": 42,
 "started": "2026-01-02T03:04:05Z",
 "publishers": [
  {
   "name": "main",
   "state": "streaming",
   "slot": "walferry_main",
   "system_id": "7123456789012345678",
   "timeline": 1,
   "received_lsn": "0/2000",
   "queued_lsn": "0/1000",
   "confirmed_lsn": "0/800",
   "server_lsn": "0/2000",
   "queue": {
    "stream": "WALFERRY_main",
    "messages": 1,
    "bytes": 80,
    "first_seq": 1,
    "last_seq": 1,
    "durability": "synced"
   },
   "lag_bytes": 4096,
   "transactions": 2,
   "rows": 5,
   "last_error": "",
   "since": "2026-01-02T03:04:05Z"
  }
 ],
 "subscriptions": [
  {
   "name": "copy",
   "publisher": "main",
   "state": "error",
   "position": "0/900",
   "queue_position": 0,
   "lag_bytes": 1792,
   "lag_seconds": 0,
   "lag_transactions": null,
   "transactions": 0,
   "rows": 0,
   "copy": {
    "tables_done": 0,
    "tables_total": 2,
    "rows": 10,
    "bytes": 1000,
    "bytes_total": 4000
   },
   "waiting": null,
   "error": {
    "subscription": "copy",
    "class": "insert_conflict",
    "sqlstate": "23505",
    "message": "duplicate key",
    "detail": "Key (id)=(1) already exists.",
    "table": "public.t",
    "key": "{\"id\":\"1\"}",
    "commit_lsn": "0/900",
    "xid": "77",
    "commit_time": "2026-01-02T03:04:05Z",
    "attempts": 1,
    "next_retry": "2026-01-02T03:04:06Z",
    "remedy": "walferry skip --subscription copy --lsn 0/900"
   },
   "since": "2026-01-02T03:04:05Z"
  }
 ]
}`
	if d := cmp.Diff(want, string(got)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	var again Document
	if err := json.Unmarshal(got, &again); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(*s.Document(), again); d != "" {
		t.Errorf("a document does not survive JSON (-want +got)\n%s", d)
	}
}

func TestSubscription_LagIsThatOfTheOldestTransactionThatWaits(t *testing.T) {
	s, c := testState()
	p, b := s.Publisher("main"), s.Subscription("copy", "main")
	lag := func() (float64, int64) {
		t.Helper()
		st := b.status()
		if st.LagSeconds == nil || st.LagTransactions == nil {
			t.Fatalf("lag is not known: %+v", st)
		}
		return *st.LagSeconds, *st.LagTransactions
	}
	p.Queued(100, 1, 1, 1, c.now())
	b.Applied(Applied{Position: 100, Transactions: 1})
	c.add(time.Hour) // idle
	if sec, n := lag(); sec != 0 || n != 0 {
		t.Errorf("idle: lag %v s, %d transactions", sec, n)
	}
	p.Queued(200, 3, 3, 1, c.now())
	c.add(2 * time.Second)
	p.Queued(300, 4, 4, 1, c.now())
	c.add(3 * time.Second)
	if sec, n := lag(); sec != 5 || n != 7 {
		t.Errorf("two batches wait: lag %v s, %d transactions, want 5 s, 7", sec, n)
	}
	b.Applied(Applied{Position: 200, Transactions: 3})
	if sec, n := lag(); sec != 3 || n != 4 {
		t.Errorf("one batch waits: lag %v s, %d transactions, want 3 s, 4", sec, n)
	}
	b.Applied(Applied{Position: 300, Transactions: 4})
	p.Queued(400, 0, 0, 0, time.Time{}) // a mark
	c.add(time.Minute)
	if sec, n := lag(); sec != 0 || n != 0 {
		t.Errorf("a mark is no lag: %v s, %d transactions", sec, n)
	}
}

func TestSubscription_LagWithoutAReaderInTheProcess(t *testing.T) {
	s, c := testState()
	b := s.Subscription("copy", "main")
	b.SetPosition(100)
	if st := b.status(); st.LagBytes != 0 {
		t.Errorf("lag %d", st.LagBytes)
	}
	s.Publisher("main").SetQueued(500)
	st := b.status()
	if st.LagBytes != 400 || st.LagSeconds != nil || st.LagTransactions != nil {
		t.Errorf("want 400 bytes and the rest not known, got %+v", st)
	}
	b.Fetched(200, 1, c.now().Add(-7*time.Second))
	if st := b.status(); st.LagSeconds == nil || *st.LagSeconds != 7 {
		t.Errorf("lag seconds: %v, want 7", st.LagSeconds)
	}
	b.Applied(Applied{Position: 200, Transactions: 1})
	b.Fetched(500, 0, time.Time{}) // marks up to the end
	if st := b.status(); st.LagBytes != 0 || st.LagSeconds == nil || *st.LagSeconds != 0 {
		t.Errorf("marks wait for nothing: %+v", st)
	}
}

func TestHistory_StaysSmallAndInOrder(t *testing.T) {
	var h history
	base := time.Unix(0, 0)
	for i := 1; i <= 10*maxSamples; i++ {
		h.add(change.LSN(i*10), base.Add(time.Duration(i)*time.Second), 2)
	}
	if len(h.samples) > maxSamples {
		t.Fatalf("%d samples", len(h.samples))
	}
	last := 10 * maxSamples
	if n, ok := h.transactions(change.LSN(last * 10)); !ok || n != 0 {
		t.Errorf("at the end %d wait", n)
	}
	// What was thinned out is known up to its neighbours.
	mid := 5 * maxSamples
	n, ok := h.transactions(change.LSN(mid * 10))
	if want := int64(2 * (last - mid)); !ok || n < want || n > want+2*64 {
		t.Errorf("in the middle %d wait, want about %d", n, want)
	}
	if _, ok := h.transactions(5); ok {
		t.Error("before the first sample the number is not known")
	}
	h.add(5, base, 1)
	if h.total != int64(2*last) {
		t.Error("a batch from before counts again")
	}
}

func TestSubscription_ErrorEndsWithProgress(t *testing.T) {
	s, c := testState()
	b := s.Subscription("copy", "main")
	card := &ErrorCard{Class: "other", Message: "no", CommitLSN: "0/1"}
	b.SetState(Streaming)
	b.SetError(card, time.Time{})
	since := b.status().Since
	c.add(5 * time.Second)
	b.SetState(Streaming) // next attempt
	if st := b.status(); st.State != Failed || st.Error == nil {
		t.Errorf("the error blinks: %+v", st)
	}
	b.SetError(card, time.Time{})
	if st := b.status(); st.Error.Attempts != 2 || card.Attempts != 0 {
		t.Errorf("attempts %d, and the caller's card %d", st.Error.Attempts, card.Attempts)
	}
	if got := b.status().Since; got != since {
		t.Errorf("in error since %v, want the first failure %v", got, since)
	}
	b.SetState(Streaming)
	b.Applied(Applied{Position: 2})
	if st := b.status(); st.State != Streaming || st.Error != nil {
		t.Errorf("after progress: %+v", st)
	}
	b.SetError(card, time.Time{})
	b.SetState(Streaming)
	c.add(errorGrace)
	if st := b.status(); st.State != Streaming || st.Error != nil {
		t.Errorf("after the grace: %+v", st)
	}
}

func TestText_ReadsAnyJSON(t *testing.T) {
	c, err := ParseCard([]byte(`{"class":"x","key":{"id": 1},"xid":77,"commit_lsn":"0/1","table":"t","unknown":[1],"next_retry":null}`))
	if err != nil {
		t.Fatal(err)
	}
	if c.Key != `{"id": 1}` || c.XID != "77" || c.CommitLSN != "0/1" {
		t.Errorf("%+v", c)
	}
	if _, err := ParseCard([]byte(`{`)); err == nil {
		t.Error("broken JSON is accepted")
	}
}

func TestMerge_TheReaderThatWorksWins(t *testing.T) {
	now := time.Unix(1000, 0)
	docs := []Document{
		{PID: 2, Started: now.Add(time.Second), Publishers: []PublisherStatus{{Name: "main", State: Standby, Since: now.Add(time.Hour)}}},
		{
			PID: 1, Started: now, Publishers: []PublisherStatus{{Name: "main", State: Streaming, QueuedLSN: 900, Since: now}},
			Subscriptions: []SubscriptionStatus{},
		},
		{PID: 3, Started: now.Add(2 * time.Second), Subscriptions: []SubscriptionStatus{{Name: "s", Publisher: "main", State: Streaming, Position: 400}}},
	}
	m := Merge(append(docs, Document{Publishers: []PublisherStatus{{Name: "main", State: Stopped}}}))
	if m.PID != 1 || len(m.Publishers) != 1 || m.Publishers[0].State != Streaming {
		t.Errorf("%+v", m)
	}
	if len(m.Subscriptions) != 1 || m.Subscriptions[0].LagBytes != 500 {
		t.Errorf("lag across processes: %+v", m.Subscriptions)
	}
}

func TestState_IsSafeForConcurrentUse(t *testing.T) {
	s := NewState("v")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 200 {
				p, b := s.Publisher("p"), s.Subscription("s", "p")
				p.SetState(Streaming)
				p.Received(1, 1, change.LSN(i))
				p.Queued(change.LSN(i), 1, 1, 1, time.Now())
				p.Reconnected(errors.New("x"))
				b.Fetched(change.LSN(i), 1, time.Now())
				b.Applied(Applied{Position: change.LSN(i), Transactions: 1})
				b.CopyStarted(1)
				b.CopyProgress("t", 1, 1, 1)
				b.CopyTableDone("t", 1, 1)
				b.SetError(&ErrorCard{Class: "c"}, time.Time{})
				s.Document()
				s.Health(Limits{})
			}
		})
	}
	wg.Wait()
	d := s.Document()
	if d.Publishers[0].Transactions != 800 || d.Subscriptions[0].Transactions != 800 {
		t.Errorf("counts are lost: %+v", d)
	}
}

func TestRates_DescribeWhatHappened(t *testing.T) {
	s, c := testState()
	r := &rates{doc: s.Document(), at: s.now()}
	if got := r.next(s); got != "starting" {
		t.Errorf("%q", got)
	}
	p, b := s.Publisher("main"), s.Subscription("copy", "main")
	p.SetState(Streaming)
	b.SetState(Streaming)
	p.Queued(100, 20, 100, 1, c.now())
	b.Applied(Applied{Position: 100, Transactions: 20, Operations: Operations{Inserts: 30000}})
	c.add(2 * time.Second)
	got := r.next(s)
	for _, want := range []string{"main> streaming 10 tx/s", ">copy streaming 15k rows/s 10 tx/s lag 0.0s"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in %q", want, got)
		}
	}
	b.CopyStarted(3)
	b.CopyProgress("t", 1000, 1<<20, 4<<20)
	c.add(time.Second)
	if got := r.next(s); !strings.Contains(got, ">copy copying 0/3 tables 1.0 MiB of ~4.0 MiB 1.0k rows/s 1.0 MiB/s") {
		t.Errorf("%q", got)
	}
}

func TestSubscription_SaysWhatItWaitsForUntilItMoves(t *testing.T) {
	s, c := testState()
	p, b := s.Publisher("main"), s.Subscription("copy", "main")
	b.SetState(Streaming)
	b.SetPosition(0x100)
	c.add(time.Minute)
	if _, still := b.Still(3 * time.Second); still {
		t.Error("it has nothing to do and stands still")
	}
	p.Queued(0x200, 1, 1, 10, c.now())
	b.Fetched(0x200, 1, c.now())
	began := c.now()
	c.add(4 * time.Second)
	since, still := b.Still(3 * time.Second)
	if !still || !since.Equal(began) {
		t.Errorf("stands still: %v since %v, want true since %v", still, since, began)
	}
	b.SetWaiting("lock held by pid 7")
	w := s.Document().Subscriptions[0].Waiting
	if w == nil || w.For != "lock held by pid 7" || !w.Since.Equal(began) {
		t.Errorf("waiting: %+v", w)
	}
	c.add(3 * time.Minute)
	if h := s.Health(Limits{}); h.OK() || !strings.Contains(h.Reasons[0].Reason, "waiting for lock held by pid 7") {
		t.Errorf("health: %+v", h)
	}
	b.Applied(Applied{Position: 0x200, Transactions: 1})
	if w := s.Document().Subscriptions[0].Waiting; w != nil {
		t.Errorf("it moves, and waits for %+v", w)
	}
}
