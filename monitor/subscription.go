package monitor

import (
	"time"

	"github.com/walferry/walferry/change"
)

// Subscription collects what a distribution agent reports. Counters begin at
// the start of the process.
type Subscription struct {
	s         *State
	name      string
	publisher string

	// Guarded by s.mu.
	state    string
	since    time.Time
	position change.LSN
	seq      uint64
	fetched  history
	fetchEnd change.LSN
	moved    time.Time // last progress, or the last moment with nothing to do
	card     *ErrorCard
	failed   time.Time // when the card came
	failing  time.Time // when the first of a row of attempts failed
	txns     int64
	ops      Operations
	batches  int64
	groups   int64
	errors   map[string]int64 // by class
	copy     *copyState
	waiting  string // what it waits for; empty: it moves, or nobody knows
}

// Operations counts rows.
type Operations struct{ Inserts, Updates, Deletes, Truncates, Skipped int64 }

// Rows is the number of rows that were changed on the subscriber.
func (o Operations) Rows() int64 { return o.Inserts + o.Updates + o.Deletes }

// Applied is one commit on the subscriber; without a position it only counts.
type Applied struct {
	Position     change.LSN // reached
	Sequence     uint64     // of the last batch that is applied as a whole; 0: not known
	Transactions int        // of the publisher
	Batches      int
	Operations   Operations
}

// errorGrace is how long an error is still shown after a new attempt has
// begun, when nothing has moved since: attempts come every few seconds, and an
// error that blinks is hard to see.
const errorGrace = 15 * time.Second

// SetState says what the subscription does. Any state but error ends an error;
// see errorGrace.
func (b *Subscription) SetState(state string) {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	b.setState(state)
	if state != Copying {
		b.copy = nil
	}
}

func (b *Subscription) setState(state string) {
	if b.state != state {
		now := b.s.now()
		b.state, b.since, b.moved = state, now, now
		b.waiting = ""
	}
}

// SetError says that the subscription stands, why, and when it tries again
// (zero: not known). The card is kept and must not be changed. Attempts are
// counted here unless the card has a number.
func (b *Subscription) SetError(card *ErrorCard, nextRetry time.Time) {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	c := *card
	if c.Attempts == 0 {
		c.Attempts = 1
		if b.card != nil && b.card.CommitLSN == c.CommitLSN && b.card.Message == c.Message {
			c.Attempts = b.card.Attempts + 1
		}
	}
	if !nextRetry.IsZero() {
		c.NextRetry = &nextRetry
	}
	if c.Subscription == "" {
		c.Subscription = b.name
	}
	b.setState(Failed)
	if b.card == nil || b.s.now().Sub(b.failed) >= errorGrace {
		b.failing = b.s.now()
	}
	b.card, b.failed = &c, b.s.now()
	b.errors[c.Class]++
}

// progress ends an error. It needs s.mu.
func (b *Subscription) progress() {
	b.moved = b.s.now()
	b.card, b.waiting = nil, ""
}

// Still reports whether a subscription that applies has stood still for d,
// although there is something to apply, and since when.
func (b *Subscription) Still(d time.Duration) (since time.Time, still bool) {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	now := b.s.now()
	return b.moved, b.shown(now) == Streaming && now.Sub(b.moved) >= d && b.pending()
}

// SetWaiting says what a subscription that stands still waits for. It holds until
// something moves.
func (b *Subscription) SetWaiting(reason string) {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	b.waiting = reason
}

// Fetched notes a batch that was read from the queue.
func (b *Subscription) Fetched(end change.LSN, txns int, commit time.Time) {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	if !b.pending() {
		b.moved, b.waiting = b.s.now(), ""
	}
	b.fetchEnd = max(b.fetchEnd, end)
	b.fetched.add(end, commit, txns)
}

// SetPosition notes where the subscription starts from.
func (b *Subscription) SetPosition(position change.LSN) {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	b.position = position
}

// Applied counts a commit on the subscriber.
func (b *Subscription) Applied(a Applied) {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	b.progress()
	b.position = max(b.position, a.Position)
	b.seq = max(b.seq, a.Sequence)
	b.txns += int64(a.Transactions)
	b.batches += int64(a.Batches)
	if a.Position != 0 {
		b.groups++
	}
	o := &b.ops
	o.Inserts += a.Operations.Inserts
	o.Updates += a.Operations.Updates
	o.Deletes += a.Operations.Deletes
	o.Truncates += a.Operations.Truncates
	o.Skipped += a.Operations.Skipped
}

// Working says that a large transaction moves on, though nothing has committed.
func (b *Subscription) Working() {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	b.moved, b.waiting = b.s.now(), ""
}

// status needs s.mu.
func (b *Subscription) status() SubscriptionStatus {
	now := b.s.now()
	st := SubscriptionStatus{
		Name: b.name, Publisher: b.publisher, State: b.shown(now), Position: b.position, QueuePosition: b.seq,
		Transactions: b.txns, Rows: b.ops.Rows(), Copy: b.copy.status(), Since: b.since,
	}
	if st.State == Failed && b.card != nil {
		st.Error, st.Since = b.card, b.failing
	}
	if b.waiting != "" && st.State != Failed {
		st.Waiting = &WaitStatus{For: b.waiting, Since: b.moved}
	}
	if b.position == 0 {
		return st
	}
	st.LagBytes = behind(b.queueEnd(), b.reached())
	st.LagSeconds, st.LagTransactions = b.lag(now)
	return st
}

// shown is the state to show.
func (b *Subscription) shown(now time.Time) string {
	if b.card != nil && now.Sub(b.failed) < errorGrace && b.state != Paused && b.state != Stopped {
		return Failed
	}
	return b.state
}

// queueEnd is the end of the queue as far as this process knows.
func (b *Subscription) queueEnd() change.LSN {
	end := b.fetchEnd
	if p := b.s.publishers[b.publisher]; p != nil {
		end = max(end, p.queued)
	}
	return end
}

// reached is the position, or past it when what was read since then holds no
// transaction to apply.
func (b *Subscription) reached() change.LSN {
	if _, waits := b.fetched.oldest(b.position); waits {
		return b.position
	}
	return max(b.position, b.fetchEnd)
}

// pending says that there is something to apply, as far as is known.
func (b *Subscription) pending() bool {
	if b.position == 0 || b.queueEnd() <= b.reached() {
		return false
	}
	if p := b.s.publishers[b.publisher]; p != nil {
		if n, known := p.history.transactions(b.position); known && n == 0 && b.fetchEnd <= p.queued {
			return false // marks only
		}
	}
	return true
}

// lag is the age of the oldest transaction that waits and the number of those
// that wait, each nil when this process cannot know.
func (b *Subscription) lag(now time.Time) (seconds *float64, txns *int64) {
	var zero float64
	var none int64
	if !b.pending() {
		return &zero, &none
	}
	p := b.s.publishers[b.publisher]
	if p != nil {
		if n, ok := p.history.transactions(b.position); ok {
			txns = &n
		}
	}
	oldest, ok := b.fetched.oldest(b.position)
	if p != nil {
		if t, found := p.history.oldest(b.position); found && (!ok || t.Before(oldest)) {
			oldest, ok = t, true
		}
	}
	if ok {
		age := max(0, now.Sub(oldest).Seconds())
		seconds = &age
	}
	return seconds, txns
}
