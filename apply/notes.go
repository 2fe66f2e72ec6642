package apply

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/internal/pgconnect"
)

const (
	// reportEvery bounds how often the queue is told what is flushed.
	reportEvery = 250 * time.Millisecond
	// noteLimit bounds the writing of one state.
	noteLimit = 5 * time.Second
)

// notes make known how a subscription is doing: rows of
// walferry.subscription_state, over a connection of their own because they must
// not be part of the apply transaction, reports to the queue, and events.
type notes struct {
	o   *Options
	ctx context.Context

	conn   *pgconn.PgConn
	last   string     // state that was last written
	broken change.LSN // commit LSN of the transaction that is in error; 0: none

	mu    sync.Mutex
	point flushPoint
	wake  chan struct{}
	done  chan struct{}
	stop  context.CancelFunc
}

func newNotes(ctx context.Context, o *Options) *notes {
	n := &notes{o: o, ctx: ctx, wake: make(chan struct{}, 1), done: make(chan struct{})}
	rctx, stop := context.WithCancel(ctx)
	n.stop = stop
	go n.report(rctx)
	return n
}

// close ends the reports and the connection.
func (n *notes) close() {
	n.stop()
	<-n.done
	n.drop()
}

func (n *notes) drop() {
	if n.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = n.conn.Close(ctx) // given up in any case
	n.conn = nil
}

// flushed is told what is on the subscriber's disk.
func (n *notes) flushed(end change.LSN, seq uint64) {
	n.mu.Lock()
	n.point = flushPoint{end: end, seq: seq}
	n.mu.Unlock()
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// report tells the queue.
func (n *notes) report(ctx context.Context) {
	defer close(n.done)
	if n.o.Report == nil {
		return
	}
	var told change.LSN
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.wake:
		}
		n.mu.Lock()
		p := n.point
		n.mu.Unlock()
		if p.end == told {
			continue
		}
		if err := n.o.Report(ctx, p.end, p.seq); err != nil {
			if ctx.Err() == nil {
				n.o.Logger.Warn("report flushed position to the queue", "error", err)
			}
			n.again(ctx)
			continue
		}
		told = p.end
		n.sleep(ctx, reportEvery)
	}
}

// again makes report try once more after a while.
func (n *notes) again(ctx context.Context) {
	n.sleep(ctx, time.Second)
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

func (n *notes) sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// state makes a state known to listeners.
func (n *notes) state(s string) {
	if f := n.o.Events.OnState; f != nil {
		f(s)
	}
}

// standby is called when another applier has the subscription. What this one knew
// of the state is out of date from here on: the other writes it too.
func (n *notes) standby(reason string) {
	n.last, n.broken = "", 0
	n.state("waiting")
	if f := n.o.Events.OnWaiting; f != nil {
		f(reason)
	}
}

// streaming is called when an attempt begins.
func (n *notes) streaming(change.LSN) {
	if n.broken != 0 {
		n.write(`UPDATE walferry.subscription_state SET attempt_started_at = now(), updated_at = now() WHERE name = $1`, n.o.Subscription)
		return
	}
	if n.last == "streaming" {
		return
	}
	n.recovered()
}

func (n *notes) recovered() {
	n.broken = 0
	n.state("streaming")
	if n.write(`INSERT INTO walferry.subscription_state AS s (name, state, attempt_started_at, applied_at) VALUES ($1, 'streaming', now(), now())
		ON CONFLICT (name) DO UPDATE SET state = 'streaming', error = NULL, attempt_started_at = now(), applied_at = now(), updated_at = now()`, n.o.Subscription) {
		n.last = "streaming"
	}
}

// progress is called after each commit.
func (n *notes) progress(pos change.LSN) {
	if n.broken != 0 && pos > n.broken {
		n.o.Logger.Info("subscription goes on", "position", pos)
		n.recovered()
	}
}

// failed makes a failure known.
func (n *notes) failed(c *ErrorCard, commit change.LSN) {
	n.broken = max(commit, 1)
	n.last = "error"
	n.o.Logger.Error("transaction cannot be applied", "table", c.Table, "operation", c.Operation, "key", c.Key, "class", c.Class,
		"sqlstate", c.SQLState, "message", c.Message, "detail", c.Detail, "constraint", c.Constraint, "commit_lsn", c.CommitLSN,
		"xid", c.XID, "attempt", c.Attempts, "next_retry", c.NextRetry, "remedy", c.Remedy)
	n.state("error")
	if f := n.o.Events.OnError; f != nil {
		f(c)
	}
	b, err := json.Marshal(c)
	if err != nil {
		n.o.Logger.Warn("write error card", "error", err)
		return
	}
	text := string(b)
	if n.encoding() != "UTF8" {
		text = string(appendASCIIJSON(nil, text))
	}
	n.write(`INSERT INTO walferry.subscription_state AS s (name, state, error, error_count, attempt_started_at) VALUES ($1, 'error', $2::jsonb, 1, now())
		ON CONFLICT (name) DO UPDATE SET state = 'error', error = excluded.error, error_count = s.error_count + 1, updated_at = now()`,
		n.o.Subscription, text)
}

func (n *notes) encoding() string {
	if n.connect() != nil {
		return ""
	}
	return n.conn.ParameterStatus("server_encoding")
}

func (n *notes) connect() error {
	if n.conn != nil && !n.conn.IsClosed() {
		return nil
	}
	cfg, err := pgconnect.Parse(n.o.Conn, "state "+n.o.Subscription)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(n.ctx, noteLimit)
	defer cancel()
	n.conn, err = pgconn.ConnectConfig(ctx, cfg)
	return err
}

// write runs a statement; a failure is logged, the next state is written again.
func (n *notes) write(sql string, args ...string) bool {
	err := n.connect()
	if err == nil {
		ctx, cancel := context.WithTimeout(n.ctx, noteLimit)
		defer cancel()
		params := make([][]byte, len(args))
		for i := range args {
			params[i] = []byte(args[i])
		}
		err = n.conn.ExecParams(ctx, sql, params, nil, nil, nil).Read().Err
	}
	if err != nil && n.ctx.Err() == nil {
		n.o.Logger.Warn("write state of the subscription", "error", err)
		n.drop()
	}
	return err == nil
}
