package agent

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/config"
	"github.com/walferry/walferry/internal/pgconnect"
	"github.com/walferry/walferry/queue"
	"github.com/walferry/walferry/source"
)

// publisherWorker runs the log reader of one publisher.
type publisherWorker struct {
	pub     *config.Publisher
	dataDir string
	open    func(ctx context.Context) (*queue.Queue, error)
	watch   readerWatch
	logger  *slog.Logger
}

const (
	readerMaxRetry  = 10 * time.Second
	appliedInterval = 200 * time.Millisecond
)

// run returns when ctx ends. An error that needs a person is reported, and
// tried again all the same: when its cause is mended nobody has to restart.
func (w *publisherWorker) run(ctx context.Context) error {
	retryIn := backoff.NewExponentialBackOff()
	retryIn.InitialInterval, retryIn.MaxInterval = time.Second, readerMaxRetry
	for ctx.Err() == nil {
		began := time.Now()
		err := w.attempt(ctx)
		if ctx.Err() != nil {
			break
		}
		if time.Since(began) > time.Minute {
			retryIn.Reset()
		}
		pause := retryIn.NextBackOff()
		if err != nil {
			w.logger.Error("log reader cannot go on", "error", err, "retry_in", pause.Round(time.Millisecond))
			w.watch.failed(err)
		}
		if sleep(ctx, pause) != nil {
			break
		}
	}
	return nil
}

func (w *publisherWorker) attempt(ctx context.Context) error {
	q, err := w.open(ctx)
	if err != nil {
		return err
	}
	if w.pub.Failover == config.FailoverOn {
		if err := w.checkFailover(ctx); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	o := source.Options{
		Name:         w.pub.Name,
		Conn:         w.pub.URL,
		Slot:         w.pub.Slot,
		Publications: w.pub.Publications,
		Queue:        source.UseQueue(q, queue.AppenderOptions{}),
		Streaming:    w.pub.Streaming,
		SpoolDir:     filepath.Join(w.dataDir, "spool", w.pub.Name),
		Failover:     w.pub.Failover != config.FailoverOff,
		Origin:       w.pub.Origin,
		Heartbeat:    time.Duration(w.pub.Heartbeat),
		Events:       w.watch.events(),
		Logger:       w.logger,
	}
	if len(w.pub.Publications) == 0 {
		o.Make = &source.PublicationSpec{Name: ownPublication(w.pub), Match: w.pub.Tables.Match}
	}
	if w.pub.Confirm == config.ConfirmApplied {
		applied := &appliedFloor{open: w.open}
		done := make(chan struct{})
		go func() {
			defer close(done)
			applied.follow(ctx)
		}()
		defer func() { cancel(); <-done }()
		o.ConfirmApplied = applied.floor
		return w.untilHole(ctx, q, func(ctx context.Context) error { return source.Run(ctx, o) })
	}
	return source.Run(ctx, o)
}

// holeLook is how often the queue is asked whether batches are missing.
const holeLook = 2 * time.Second

// untilHole runs the reader and ends it when batches are missing in the middle
// of the queue: a new attempt replaces the queue. Where the slot does not hold
// what was lost there is nothing to replace it from, and the subscription that
// meets the hole says so.
func (w *publisherWorker) untilHole(ctx context.Context, q *queue.Queue, run func(context.Context) error) error {
	runCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for sleep(runCtx, holeLook) == nil {
			if info, err := q.Info(runCtx); err == nil && info.Deleted > 0 {
				w.logger.Warn("batches are missing in the queue: the log reader begins again", "missing", info.Deleted)
				cancel()
				return
			}
		}
	}()
	err := run(runCtx)
	cancel()
	<-done
	return err
}

// checkFailover refuses failover: on where slots cannot be synchronised.
func (w *publisherWorker) checkFailover(ctx context.Context) error {
	conn, err := connect(ctx, w.pub.URL, "agent")
	if err != nil {
		return fmt.Errorf("connect to the publisher: %w", err)
	}
	defer closeConn(conn)
	if v := conn.ParameterStatus("server_version"); pgconnect.ServerVersion(v) < 170000 {
		return fmt.Errorf("failover: on needs PostgreSQL 17 or newer, the publisher is %s: use failover: auto", v)
	}
	return nil
}

// appliedFloor follows what all registered subscriptions have flushed, for
// confirm: applied.
type appliedFloor struct {
	open func(ctx context.Context) (*queue.Queue, error)
	lsn  atomic.Uint64
}

func (f *appliedFloor) floor() change.LSN { return change.LSN(f.lsn.Load()) }

func (f *appliedFloor) follow(ctx context.Context) {
	for sleep(ctx, appliedInterval) == nil {
		q, err := f.open(ctx)
		if err != nil {
			continue
		}
		subs, err := q.Subscribers(ctx)
		if err != nil || len(subs) == 0 {
			continue // the floor stays: nothing more is confirmed
		}
		low := subs[0].Flushed
		for _, s := range subs[1:] {
			low = min(low, s.Flushed)
		}
		f.lsn.Store(uint64(low))
	}
}
