package agent

import (
	"context"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/walferry/walferry/apply"
	"github.com/walferry/walferry/config"
	"github.com/walferry/walferry/monitor"
	"github.com/walferry/walferry/queue"
)

func policies(s *config.Subscription) apply.Policies {
	return apply.Policies{
		InsertConflict: apply.Policy(s.Policies.InsertConflict),
		UpdateMissing:  apply.Policy(s.Policies.UpdateMissing),
		DeleteMissing:  apply.Policy(s.Policies.DeleteMissing),
		Other:          apply.Policy(s.Policies.Other),
	}
}

func group(s *config.Subscription) apply.Group {
	return apply.Group{Rows: s.Group.Rows, Bytes: int(s.Group.Bytes), Time: time.Duration(s.Group.Time)}
}

// applyEvents hands what the distribution agent reports to the monitor.
func (w applierWatch) applyEvents(batches *atomic.Int64) apply.Events {
	s := w.target()
	return apply.Events{
		OnState: func(state string) {
			switch state {
			case "streaming":
				s.SetState(monitor.Streaming)
			case "waiting":
				s.SetState(monitor.Waiting)
			}
		},
		OnCommit: func(c apply.Commit) {
			s.Applied(monitor.Applied{
				Position: c.Position, Sequence: c.Sequence, Transactions: c.Txns, Batches: int(batches.Swap(0)),
				Operations: monitor.Operations{Inserts: c.Inserts, Updates: c.Updates, Deletes: c.Deletes, Truncates: c.Truncates},
			})
		},
		OnWaiting: s.SetWaiting,
		OnError:   func(c *apply.ErrorCard) { s.SetError(applyCard(c), c.NextRetry) },
		OnException: func(string, string, apply.Policy) {
			s.Applied(monitor.Applied{Operations: monitor.Operations{Skipped: 1}})
		},
	}
}

// applyCard gives a card of package apply the form of the monitor.
func applyCard(c *apply.ErrorCard) *monitor.ErrorCard {
	m := &monitor.ErrorCard{
		Subscription: c.Subscription, Class: c.Class, SQLState: c.SQLState, Message: c.Message, Detail: c.Detail,
		Table: c.Table, Constraint: c.Constraint, Key: monitor.Text(c.Key), CommitLSN: monitor.Text(c.CommitLSN),
		CommitTime: c.CommitTime, Attempts: int64(c.Attempts), Remedy: c.Remedy,
	}
	if c.XID != 0 {
		m.XID = monitor.Text(strconv.FormatUint(uint64(c.XID), 10))
	}
	return m
}

// watchedReader tells the monitor what is read from the queue.
type watchedReader struct {
	apply.Reader
	target  *monitor.Subscription
	batches *atomic.Int64 // read since the last commit
}

func (r *watchedReader) Next(ctx context.Context) (*queue.Delivery, error) {
	d, err := r.Reader.Next(ctx)
	if d != nil {
		h := &d.Header
		r.batches.Add(1)
		r.target.Fetched(h.End, h.Txns, h.CommitTime)
		if h.Open {
			r.target.Working()
		}
	}
	return d, err
}
