package monitor

import (
	"strconv"
	"time"

	"github.com/walferry/walferry/change"
)

// Publisher collects what a log reader and its queue report. Counters begin at
// the start of the process.
type Publisher struct {
	s    *State
	name string

	// Guarded by s.mu.
	reader      bool // a reader runs in this process
	state       string
	since       time.Time
	slot        string
	system      uint64
	timeline    uint32
	server      change.LSN
	received    change.LSN
	queued      change.LSN
	confirmed   change.LSN
	heard       time.Time // last byte of the server
	moved       time.Time // last batch, or the last moment with nothing to queue
	queue       *QueueStatus
	lastError   string
	failed      time.Time // when the reader could not go on
	history     history
	messages    int64
	bytes       int64
	txns        int64
	rows        int64
	batches     int64
	queuedBytes int64
	reconnects  int64
	errors      int64
}

// SetState says what the reader does; the texts of package source are taken as they are.
func (p *Publisher) SetState(state string) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.reader = true
	p.setState(state)
}

func (p *Publisher) setState(state string) {
	if p.state == state {
		return
	}
	now := p.s.now()
	switch p.state {
	case Unknown, Standby, Stopped:
		// What begins now has its full time to show progress; one that only
		// connects again and again has not.
		p.heard, p.moved = now, now
	}
	p.state, p.since = state, now
}

// SetIdentity names the slot and the server behind it.
func (p *Publisher) SetIdentity(slot string, system uint64, timeline uint32) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.slot, p.system, p.timeline = slot, system, timeline
}

// Received counts bytes of the replication stream. walEnd is the position that
// the server named with them.
func (p *Publisher) Received(messages int, bytes int64, walEnd change.LSN) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	now := p.s.now()
	p.reader, p.heard = true, now
	if p.received <= p.queued {
		p.moved = now // until here nothing was pending
	}
	p.messages += int64(messages)
	p.bytes += bytes
	p.received = max(p.received, walEnd)
	p.server = max(p.server, walEnd)
}

// SetServer notes the end of the server's log, from any source.
func (p *Publisher) SetServer(lsn change.LSN) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.server = max(p.server, lsn)
}

// Queued counts a batch that is durable in the queue: a mark has no
// transactions, an open chunk neither.
func (p *Publisher) Queued(end change.LSN, txns, rows, bytes int, commit time.Time) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.moved, p.failed = p.s.now(), time.Time{}
	p.setQueued(end)
	p.history.add(end, commit, txns)
	p.txns += int64(txns)
	p.rows += int64(rows)
	p.queuedBytes += int64(bytes)
	p.batches++
}

// SetQueued notes the end of the queue as found in it: at the start of a
// reader, or by a process that has no reader.
func (p *Publisher) SetQueued(end change.LSN) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.setQueued(end)
}

func (p *Publisher) setQueued(end change.LSN) {
	if end <= p.queued {
		return
	}
	for _, b := range p.s.subscriptions {
		if b.publisher == p.name && !b.pending() {
			b.moved = p.s.now() // it has work from now on
		}
	}
	p.queued = end
}

// Confirmed notes what the publisher may forget.
func (p *Publisher) Confirmed(lsn change.LSN) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.confirmed = max(p.confirmed, lsn)
}

// SetQueue notes the size of the stream.
func (p *Publisher) SetQueue(q QueueStatus) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.queue = &q
}

// Reconnected counts a lost connection; err is why.
func (p *Publisher) Reconnected(err error) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.reconnects++
	if err != nil {
		p.lastError = err.Error()
	}
}

// SetError says that the reader cannot go on.
func (p *Publisher) SetError(err error) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.reader = true
	p.errors++
	p.lastError, p.failed = err.Error(), p.s.now()
	p.setState(Failed)
}

// status needs s.mu.
func (p *Publisher) status() PublisherStatus {
	st := PublisherStatus{
		Name: p.name, State: p.shown(p.s.now()), Slot: p.slot, Timeline: p.timeline,
		ReceivedLSN: p.received, QueuedLSN: p.queued, ConfirmedLSN: p.confirmed, ServerLSN: p.server,
		LagBytes: p.lag(), Transactions: p.txns, Rows: p.rows, LastError: p.lastError, Since: p.since,
	}
	if st.State == Streaming {
		st.LastError = "" // it is over
	}
	if p.system != 0 {
		st.SystemID = strconv.FormatUint(p.system, 10)
	}
	if p.queue != nil {
		q := *p.queue
		st.Queue = &q
	}
	return st
}

// shown is the state to show; see errorGrace.
func (p *Publisher) shown(now time.Time) string {
	if !p.failed.IsZero() && now.Sub(p.failed) < errorGrace && p.state != Standby && p.state != Stopped {
		return Failed
	}
	return p.state
}

func (p *Publisher) lag() int64 {
	if p.queued == 0 {
		return 0
	}
	return behind(p.server, p.queued)
}
