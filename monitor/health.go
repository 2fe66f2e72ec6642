package monitor

import (
	"fmt"
	"time"
)

// Limits say when standing still is unhealthy; 0 is the default.
type Limits struct {
	Silence time.Duration // a reader may hear nothing from its server so long; default 90 s
	Stuck   time.Duration // pending work may stand still so long; default 120 s
}

func (l Limits) defaults() Limits {
	if l.Silence <= 0 {
		l.Silence = 90 * time.Second
	}
	if l.Stuck <= 0 {
		l.Stuck = 2 * time.Minute
	}
	return l
}

// Health is the answer of /healthz.
type Health struct {
	Status  string   `json:"status"` // "ok" or "failing"
	Reasons []Reason `json:"reasons"`
}

// Reason is one thing that does not move.
type Reason struct {
	Publisher    string    `json:"publisher,omitempty"`
	Subscription string    `json:"subscription,omitempty"`
	Reason       string    `json:"reason"`
	Since        time.Time `json:"since"`
}

// OK says that everything moves.
func (h *Health) OK() bool { return len(h.Reasons) == 0 }

// Health judges the state as of now.
func (s *State) Health(l Limits) *Health {
	l = l.defaults()
	s.mu.Lock()
	defer s.mu.Unlock()
	h := &Health{Status: "ok", Reasons: []Reason{}}
	now := s.now()
	for _, p := range s.sortedPublishers() {
		if text, since := p.unhealthy(now, l); text != "" {
			h.Reasons = append(h.Reasons, Reason{Publisher: p.name, Reason: text, Since: since})
		}
	}
	for _, b := range s.sortedSubscriptions() {
		if text, since := b.unhealthy(now, l); text != "" {
			h.Reasons = append(h.Reasons, Reason{Subscription: b.name, Publisher: b.publisher, Reason: text, Since: since})
		}
	}
	if !h.OK() {
		h.Status = "failing"
	}
	return h
}

func (p *Publisher) unhealthy(now time.Time, l Limits) (string, time.Time) {
	state := p.shown(now)
	switch {
	case !p.reader || state == Standby || state == Stopped:
		return "", time.Time{}
	case state == Failed:
		return "the reader cannot go on: " + p.lastError, p.failed
	case state == QueueFull && now.Sub(p.since) > l.Stuck:
		return fmt.Sprintf("the queue has been full for %s: a subscription does not keep up, or queue.max_bytes is too small", since(now, p.since)), p.since
	case state == QueueFull:
		return "", time.Time{}
	case now.Sub(p.heard) > l.Silence:
		return fmt.Sprintf("nothing heard from the server for %s (limit %s)", since(now, p.heard), l.Silence), p.heard
	case p.received > p.queued && now.Sub(p.moved) > l.Stuck:
		return fmt.Sprintf("received up to %s, queued up to %s, and nothing was queued for %s (limit %s)", p.received, p.queued, since(now, p.moved), l.Stuck), p.moved
	}
	return "", time.Time{}
}

func (b *Subscription) unhealthy(now time.Time, l Limits) (string, time.Time) {
	state := b.shown(now)
	still := now.Sub(b.moved) > l.Stuck
	switch {
	case state == Failed && b.card != nil:
		return "in error: " + b.card.Message, b.failing
	case state == Failed:
		return "in error", b.since
	case state == Copying && still:
		return fmt.Sprintf("the copy has not moved for %s (limit %s)%s", since(now, b.moved), l.Stuck, b.waitsFor()), b.moved
	case state == Initial && still:
		return fmt.Sprintf("has not started for %s (limit %s)", since(now, b.moved), l.Stuck), b.moved
	case state == Streaming && still && b.pending():
		return fmt.Sprintf("at %s, the queue is at %s, and nothing was applied for %s (limit %s)%s", b.position, b.queueEnd(), since(now, b.moved), l.Stuck, b.waitsFor()), b.moved
	}
	return "", time.Time{}
}

func since(now, t time.Time) time.Duration { return now.Sub(t).Truncate(time.Second) }

func (b *Subscription) waitsFor() string {
	if b.waiting == "" {
		return ""
	}
	return ": waiting for " + b.waiting
}
