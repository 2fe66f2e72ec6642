package monitor

import (
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// States of readers and subscriptions.
const (
	Unknown    = "unknown" // nothing was reported yet
	Connecting = "connecting"
	Standby    = "standby"    // another reader uses the slot
	Streaming  = "streaming"  // work as it should be
	QueueFull  = "queue_full" // the reader waits for room
	Waiting    = "waiting"    // for the next attempt
	Failed     = "error"      // a person is needed
	Initial    = "initial"    // a subscription before its copy
	Copying    = "copying"
	Paused     = "paused"
	Stopped    = "stopped"
)

// State is what the agents of this process have reported.
type State struct {
	version string
	started time.Time
	pid     int
	now     func() time.Time

	mu            sync.Mutex // guards everything below, publishers and subscriptions included
	publishers    map[string]*Publisher
	subscriptions map[string]*Subscription
}

// NewState makes an empty state.
func NewState(version string) *State {
	return newState(version, time.Now)
}

func newState(version string, now func() time.Time) *State {
	return &State{
		version: version, started: now(), pid: os.Getpid(), now: now,
		publishers: map[string]*Publisher{}, subscriptions: map[string]*Subscription{},
	}
}

// Publisher returns the publisher of that name; it is made at the first call.
func (s *State) Publisher(name string) *Publisher {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.publishers[name]
	if p == nil {
		now := s.now()
		p = &Publisher{s: s, name: name, state: Unknown, since: now, heard: now, moved: now}
		s.publishers[name] = p
	}
	return p
}

// Subscription returns the subscription of that name; it is made at the first call.
func (s *State) Subscription(name, publisher string) *Subscription {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.subscriptions[name]
	if b == nil {
		now := s.now()
		b = &Subscription{
			s: s, name: name, publisher: publisher, state: Initial, since: now, moved: now,
			errors: map[string]int64{},
		}
		s.subscriptions[name] = b
	}
	return b
}

// Document is the status as of now, sorted by name.
func (s *State) Document() *Document {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := &Document{
		Version: s.version, PID: s.pid, Started: s.started,
		Publishers: []PublisherStatus{}, Subscriptions: []SubscriptionStatus{},
	}
	for _, p := range s.sortedPublishers() {
		d.Publishers = append(d.Publishers, p.status())
	}
	for _, b := range s.sortedSubscriptions() {
		d.Subscriptions = append(d.Subscriptions, b.status())
	}
	return d
}

func (s *State) sortedPublishers() []*Publisher {
	out := make([]*Publisher, 0, len(s.publishers))
	for _, p := range s.publishers {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *Publisher) int { return strings.Compare(a.name, b.name) })
	return out
}

func (s *State) sortedSubscriptions() []*Subscription {
	out := make([]*Subscription, 0, len(s.subscriptions))
	for _, b := range s.subscriptions {
		out = append(out, b)
	}
	slices.SortFunc(out, func(a, b *Subscription) int { return strings.Compare(a.name, b.name) })
	return out
}
