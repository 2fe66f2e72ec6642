package monitor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/walferry/walferry/change"
)

// Document is the status of one process, or of several after [Merge].
type Document struct {
	Version       string               `json:"version"`
	PID           int                  `json:"pid"`
	Started       time.Time            `json:"started"`
	Publishers    []PublisherStatus    `json:"publishers"`
	Subscriptions []SubscriptionStatus `json:"subscriptions"`
}

// PublisherStatus is what is known of a publisher's log reader and queue. An
// LSN is 0/0 when it is not known.
type PublisherStatus struct {
	Name         string       `json:"name"`
	State        string       `json:"state"`
	Slot         string       `json:"slot"`
	SystemID     string       `json:"system_id"` // a number too large for JSON readers
	Timeline     uint32       `json:"timeline"`
	ReceivedLSN  change.LSN   `json:"received_lsn"`
	QueuedLSN    change.LSN   `json:"queued_lsn"`
	ConfirmedLSN change.LSN   `json:"confirmed_lsn"`
	ServerLSN    change.LSN   `json:"server_lsn"`
	Queue        *QueueStatus `json:"queue"`
	LagBytes     int64        `json:"lag_bytes"` // of the queue behind the server
	Transactions int64        `json:"transactions"`
	Rows         int64        `json:"rows"`
	LastError    string       `json:"last_error"`
	Since        time.Time    `json:"since"` // of the state
}

// QueueStatus is the stream of a publisher.
type QueueStatus struct {
	Stream     string `json:"stream"`
	Messages   int64  `json:"messages"`
	Bytes      int64  `json:"bytes"`
	MaxBytes   int64  `json:"max_bytes,omitempty"`
	FirstSeq   uint64 `json:"first_seq"`
	LastSeq    uint64 `json:"last_seq"`
	Durability string `json:"durability"` // what an acknowledgement is worth
}

// SubscriptionStatus is what is known of a subscription.
type SubscriptionStatus struct {
	Name            string      `json:"name"`
	Publisher       string      `json:"publisher"`
	State           string      `json:"state"`
	Position        change.LSN  `json:"position"`
	QueuePosition   uint64      `json:"queue_position"` // sequence of the last batch applied
	LagBytes        int64       `json:"lag_bytes"`      // behind the queue
	LagSeconds      *float64    `json:"lag_seconds"`    // age of the oldest transaction that waits; null: not known
	LagTransactions *int64      `json:"lag_transactions"`
	Transactions    int64       `json:"transactions"` // applied by this process
	Rows            int64       `json:"rows"`
	Copy            *CopyStatus `json:"copy"`
	Waiting         *WaitStatus `json:"waiting"` // it stands still for this
	Error           *ErrorCard  `json:"error"`
	Since           time.Time   `json:"since"` // of the state
}

// WaitStatus is what a subscription that does not move waits for.
type WaitStatus struct {
	For   string    `json:"for"`
	Since time.Time `json:"since"`
}

// CopyStatus is how far an initial copy is.
type CopyStatus struct {
	TablesDone  int   `json:"tables_done"`
	TablesTotal int   `json:"tables_total"`
	Rows        int64 `json:"rows"`
	Bytes       int64 `json:"bytes"`
	BytesTotal  int64 `json:"bytes_total"` // estimate; 0: not known
}

// ErrorCard is everything that a person needs to resolve an error.
type ErrorCard struct {
	Subscription string     `json:"subscription,omitempty"`
	Class        string     `json:"class"`
	SQLState     string     `json:"sqlstate"`
	Message      string     `json:"message"`
	Detail       string     `json:"detail"`
	Table        string     `json:"table"`
	Constraint   string     `json:"constraint,omitempty"`
	Key          Text       `json:"key"`
	CommitLSN    Text       `json:"commit_lsn"`
	XID          Text       `json:"xid"`
	CommitTime   *time.Time `json:"commit_time"`
	Attempts     int64      `json:"attempts"`
	NextRetry    *time.Time `json:"next_retry"`
	Remedy       string     `json:"remedy"`
}

// Text is a value that is shown and not computed with. It reads any JSON
// value: a string as it is, everything else in its JSON form.
type Text string

// UnmarshalJSON never fails on valid JSON.
func (t *Text) UnmarshalJSON(b []byte) error {
	b = bytes.TrimSpace(b)
	switch {
	case bytes.Equal(b, []byte("null")):
		*t = ""
	case len(b) > 0 && b[0] == '"':
		var s string
		if err := json.Unmarshal(b, &s); err != nil {
			return err
		}
		*t = Text(s)
	default:
		*t = Text(b)
	}
	return nil
}

// ParseCard reads a card as it is stored in walferry.subscription_state. Keys
// that it does not know are left out.
func ParseCard(b []byte) (*ErrorCard, error) {
	var c ErrorCard
	if err := json.Unmarshal(b, &c); err != nil {
		return nil, fmt.Errorf("read error card: %w", err)
	}
	return &c, nil
}

// Merge joins the documents of several processes. Where two speak of the same
// publisher or subscription, the one that works wins over one that stands by
// or has stopped, then the one that began last.
func Merge(docs []Document) *Document {
	out := &Document{Publishers: []PublisherStatus{}, Subscriptions: []SubscriptionStatus{}}
	for _, d := range docs {
		// A document without a start does not come from a process.
		if !d.Started.IsZero() && (out.Started.IsZero() || d.Started.Before(out.Started)) {
			out.Version, out.PID, out.Started = d.Version, d.PID, d.Started
		}
		for _, p := range d.Publishers {
			at := slices.IndexFunc(out.Publishers, func(q PublisherStatus) bool { return q.Name == p.Name })
			switch {
			case at < 0:
				out.Publishers = append(out.Publishers, p)
			case better(p.State, p.Since, out.Publishers[at].State, out.Publishers[at].Since):
				if p.Queue == nil {
					p.Queue = out.Publishers[at].Queue
				}
				out.Publishers[at] = p
			}
		}
		for _, s := range d.Subscriptions {
			at := slices.IndexFunc(out.Subscriptions, func(q SubscriptionStatus) bool { return q.Name == s.Name })
			switch {
			case at < 0:
				out.Subscriptions = append(out.Subscriptions, s)
			case better(s.State, s.Since, out.Subscriptions[at].State, out.Subscriptions[at].Since):
				out.Subscriptions[at] = s
			}
		}
	}
	for i := range out.Subscriptions {
		s := &out.Subscriptions[i]
		for _, p := range out.Publishers {
			if p.Name == s.Publisher && s.Position != 0 {
				s.LagBytes = max(s.LagBytes, behind(p.QueuedLSN, s.Position))
			}
		}
	}
	return out
}

func better(state string, since time.Time, than string, thanSince time.Time) bool {
	if a, b := rank(state), rank(than); a != b {
		return a > b
	}
	return since.After(thanSince)
}

func rank(state string) int {
	switch state {
	case Unknown, Stopped:
		return 0
	case Standby:
		return 1
	}
	return 2
}

func behind(ahead, position change.LSN) int64 {
	if ahead <= position {
		return 0
	}
	return int64(ahead - position)
}
