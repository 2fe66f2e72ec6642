package monitor

import (
	"errors"
	"strings"
	"testing"
	"time"
)

var limits = Limits{Silence: time.Minute, Stuck: 30 * time.Second}

// reason is the only reason, or "".
func reason(t *testing.T, s *State) string {
	t.Helper()
	h := s.Health(limits)
	if h.OK() != (h.Status == "ok") {
		t.Fatalf("status %q with %d reasons", h.Status, len(h.Reasons))
	}
	switch len(h.Reasons) {
	case 0:
		return ""
	case 1:
		return h.Reasons[0].Reason
	}
	t.Fatalf("more than one reason: %+v", h.Reasons)
	return ""
}

func want(t *testing.T, s *State, text string) {
	t.Helper()
	got := reason(t, s)
	if text == "" && got != "" || !strings.Contains(got, text) {
		t.Errorf("health says %q, want %q", got, text)
	}
}

func TestHealth_ASilentServerIsUnhealthy(t *testing.T) {
	s, c := testState()
	p := s.Publisher("main")
	p.SetState(Streaming)
	want(t, s, "")
	c.add(59 * time.Second)
	p.Received(0, 10, 0)
	c.add(59 * time.Second)
	want(t, s, "")
	c.add(2 * time.Second)
	want(t, s, "nothing heard from the server for 1m1s")
	p.Received(0, 10, 0)
	want(t, s, "")
}

func TestHealth_ConnectingAgainAndAgainIsUnhealthy(t *testing.T) {
	s, c := testState()
	p := s.Publisher("main")
	for range 10 {
		p.SetState(Connecting)
		c.add(5 * time.Second)
		p.SetState(Waiting)
		c.add(5 * time.Second)
	}
	want(t, s, "nothing heard from the server")
}

func TestHealth_AStandbyReaderIsHealthy(t *testing.T) {
	s, c := testState()
	p := s.Publisher("main")
	p.SetState(Standby)
	c.add(time.Hour)
	want(t, s, "")
	p.SetState(Streaming) // took over: has its full time
	c.add(50 * time.Second)
	want(t, s, "")
}

func TestHealth_ReceivedButNotQueued(t *testing.T) {
	s, c := testState()
	p := s.Publisher("main")
	p.SetState(Streaming)
	p.Queued(100, 1, 1, 1, c.now())
	for range 4 {
		c.add(10 * time.Second)
		p.Received(1, 10, 200)
	}
	want(t, s, "") // pending for 30 s only
	c.add(10 * time.Second)
	p.Received(1, 10, 200)
	want(t, s, "received up to 0/C8, queued up to 0/64")
	p.Queued(100, 0, 5, 1, time.Time{}) // a chunk of an open transaction
	want(t, s, "")
}

func TestHealth_AFullQueueIsUnhealthyAfterAWhile(t *testing.T) {
	s, c := testState()
	p := s.Publisher("main")
	p.SetState(Streaming)
	p.SetState(QueueFull)
	c.add(20 * time.Second)
	want(t, s, "")
	c.add(20 * time.Second)
	want(t, s, "the queue has been full for 40s")
}

func TestHealth_AReaderThatCannotGoOnIsUnhealthyDuringItsAttempts(t *testing.T) {
	s, c := testState()
	p := s.Publisher("main")
	p.SetState(Streaming)
	p.SetError(errors.New("slot is gone"))
	c.add(5 * time.Second)
	p.SetState(Connecting)
	want(t, s, "slot is gone")
	p.SetState(Streaming)
	p.Queued(1, 1, 1, 1, c.now())
	want(t, s, "")
}

func TestHealth_AProcessWithoutAReaderDoesNotJudgeIt(t *testing.T) {
	s, c := testState()
	s.Publisher("main").SetQueued(100)
	c.add(time.Hour)
	want(t, s, "")
}

func TestHealth_SubscriptionInErrorOrPaused(t *testing.T) {
	s, c := testState()
	b := s.Subscription("copy", "main")
	b.SetState(Streaming)
	b.SetError(&ErrorCard{Class: "other", Message: "boom"}, c.now())
	want(t, s, "in error: boom")
	b.SetState(Paused)
	want(t, s, "")
	c.add(time.Hour)
	want(t, s, "")
}

func TestHealth_PendingThatIsNotApplied(t *testing.T) {
	s, c := testState()
	p, b := s.Publisher("main"), s.Subscription("copy", "main")
	p.SetQueued(100)
	b.SetPosition(100)
	b.SetState(Streaming)
	c.add(time.Hour) // idle
	want(t, s, "")
	p.SetQueued(200)
	c.add(20 * time.Second)
	want(t, s, "") // it has only just got work
	b.Working()
	c.add(20 * time.Second)
	want(t, s, "")
	c.add(20 * time.Second)
	want(t, s, "at 0/64, the queue is at 0/C8, and nothing was applied for 40s")
	b.Applied(Applied{Position: 200, Transactions: 1})
	want(t, s, "")
}

func TestHealth_ACopyThatStandsStill(t *testing.T) {
	s, c := testState()
	b := s.Subscription("copy", "main")
	want(t, s, "")
	c.add(time.Minute)
	want(t, s, "has not started")
	b.CopyStarted(1)
	want(t, s, "")
	c.add(20 * time.Second)
	b.CopyProgress("t", 1, 1, 1)
	c.add(20 * time.Second)
	want(t, s, "")
	c.add(20 * time.Second)
	want(t, s, "the copy has not moved for 40s")
}
