package agent

import (
	"context"
	"log/slog"
	"time"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/config"
	"github.com/walferry/walferry/monitor"
	"github.com/walferry/walferry/queue"
	"github.com/walferry/walferry/source"
	"github.com/walferry/walferry/source/snapshot"
)

// readerWatch hands what a log reader reports to the monitor.
type readerWatch struct {
	state *monitor.State
	pub   *config.Publisher
}

func (w readerWatch) target() *monitor.Publisher { return w.state.Publisher(w.pub.Name) }

func (w readerWatch) failed(err error) { w.target().SetError(err) }

func (w readerWatch) events() source.Events {
	p := w.target()
	return source.Events{
		OnState:   func(s source.State, _ string) { p.SetState(string(s)) },
		OnReceive: func(messages int, bytes int64, walEnd change.LSN) { p.Received(messages, bytes, walEnd) },
		OnQueued: func(q source.Queued) {
			p.Queued(q.End, q.Txns, q.Rows, q.Bytes, q.CommitTime)
		},
		OnConfirmed: p.Confirmed,
		OnReconnect: func(err error, _ time.Duration) { p.Reconnected(err) },
	}
}

// applierWatch hands what a subscription does to the monitor.
type applierWatch struct {
	state *monitor.State
	sub   *config.Subscription
}

func (w applierWatch) target() *monitor.Subscription {
	return w.state.Subscription(w.sub.Name, w.sub.Publisher)
}

func (w applierWatch) failed(card *monitor.ErrorCard, retry time.Time) {
	w.target().SetError(card, retry)
}

func (w applierWatch) copying(tables int) { w.target().CopyStarted(tables) }

func (w applierWatch) copyEvents() snapshot.Events {
	s := w.target()
	return snapshot.Events{
		TableProgress: func(p snapshot.Progress) {
			s.CopyProgress(p.Table.Source(), p.Rows, p.Bytes, p.EstimatedBytes)
		},
		TableDone: func(r snapshot.TableResult, err error) {
			if err == nil {
				s.CopyTableDone(r.Source(), r.Rows, r.Bytes)
			}
		},
	}
}

// both calls the callbacks of two.
func both(a, b snapshot.Events) snapshot.Events {
	return snapshot.Events{
		ConsistentPoint: tee(a.ConsistentPoint, b.ConsistentPoint),
		Waiting:         tee(a.Waiting, b.Waiting),
		SchemaCreated:   tee(a.SchemaCreated, b.SchemaCreated),
		TableStarted:    tee(a.TableStarted, b.TableStarted),
		TableProgress:   tee(a.TableProgress, b.TableProgress),
		Building:        tee(a.Building, b.Building),
		TableDone: func(r snapshot.TableResult, err error) {
			if a.TableDone != nil {
				a.TableDone(r, err)
			}
			if b.TableDone != nil {
				b.TableDone(r, err)
			}
		},
	}
}

func tee[T any](a, b func(T)) func(T) {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return func(v T) { a(v); b(v) }
}

// queueLook is how often the size of the queue is read.
const queueLook = 2 * time.Second

// watchQueue tells the monitor what the queue of a publisher holds. It returns
// when ctx ends.
func watchQueue(ctx context.Context, open func(context.Context) (*queue.Queue, error), pub *config.Publisher, state *monitor.State, logger *slog.Logger) {
	p := state.Publisher(pub.Name)
	durability := ""
	for {
		if err := lookAtQueue(ctx, open, pub.Slot, p, &durability, logger); err != nil && ctx.Err() == nil {
			logger.Debug("look at the queue", "error", err)
		}
		if sleep(ctx, queueLook) != nil {
			return
		}
	}
}

func lookAtQueue(ctx context.Context, open func(context.Context) (*queue.Queue, error), slot string, p *monitor.Publisher, durability *string, logger *slog.Logger) error {
	q, err := open(ctx)
	if err != nil {
		return err
	}
	if ok, err := q.Exists(ctx); err != nil || !ok {
		return err
	}
	if *durability == "" {
		d, err := q.Durability(ctx)
		if err != nil {
			return err
		}
		*durability = d.Text
		if d.Synced {
			logger.Info("queue is durable", "acknowledgement", d.Text)
		} else {
			logger.Warn("durability of the queue is not known", "acknowledgement", d.Text)
		}
		strangers, err := q.Foreign(ctx)
		if err != nil {
			return err
		}
		for _, s := range strangers {
			logger.Warn("the queue's account holds what walferry did not make: give walferry an account of its own", "found", s)
		}
	}
	info, err := q.Info(ctx)
	if err != nil {
		return err
	}
	p.SetQueue(monitor.QueueStatus{
		Stream: q.Stream(), Messages: int64(info.Messages), Bytes: int64(info.Bytes), MaxBytes: info.MaxBytes,
		FirstSeq: info.FirstSeq, LastSeq: info.LastSeq, Durability: *durability,
	})
	tail, err := q.Tail(ctx)
	if err != nil {
		return err
	}
	if !tail.Empty {
		p.SetQueued(tail.Header.End)
		p.SetIdentity(slot, tail.Header.System, tail.Header.Timeline)
	}
	return nil
}
