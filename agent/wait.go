package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/config"
	"github.com/walferry/walferry/internal/pgconnect"
	"github.com/walferry/walferry/internal/pgquery"
	"github.com/walferry/walferry/monitor"
)

// ErrWaitTimeout says that a subscription had not caught up in time.
var ErrWaitTimeout = errors.New("timed out")

// ErrSubscriptionStopped says that a subscription has stopped with an error
// that a new attempt met again.
var ErrSubscriptionStopped = errors.New("subscription has stopped with an error")

// WaitOptions says what Wait waits for.
type WaitOptions struct {
	Subscriptions []string // empty: all of the configuration
	LSN           string   // empty: what is committed at the time of the call
	Timeout       time.Duration
	Out           io.Writer // progress, a line when something has changed, every few seconds at most
}

const (
	waitPoll     = 50 * time.Millisecond
	waitProgress = 5 * time.Second
	waitRepeat   = 30 * time.Second // of a line that says nothing new
)

// Wait returns when the subscriptions have applied everything that was
// committed on their publishers when it was called, or up to the LSN, and all
// copies are finished, which includes that the other tables have come to the
// moment of the latest copy: what a subscription shows then is one state of its
// publisher. It asks the databases alone, so it needs no connection
// to a running walferry.
func Wait(ctx context.Context, cfg *config.Config, o WaitOptions) error {
	subs, err := selectSubscriptions(cfg, o.Subscriptions)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.Timeout, ErrWaitTimeout)
	defer cancel()
	goals := map[string]change.LSN{}
	for _, s := range subs {
		pub := cfg.PublisherByName(s.Publisher)
		if _, ok := goals[pub.Name]; ok {
			continue
		}
		goal, err := waitGoal(ctx, pub.URL, o.LSN)
		if err != nil {
			if c := context.Cause(ctx); errors.Is(c, ErrWaitTimeout) {
				return fmt.Errorf("%w after %s: publisher %s: %w", ErrWaitTimeout, o.Timeout, pub.Name, err)
			}
			return fmt.Errorf("publisher %s: %w", pub.Name, err)
		}
		goals[pub.Name] = goal
	}
	for _, s := range subs {
		w := waiter{cfg: cfg, sub: s, goal: goals[s.Publisher], out: o.Out}
		if err := w.run(ctx); err != nil {
			return err
		}
	}
	return nil
}

// waitGoal determines the position that has to be reached and writes a marker
// into the publisher's log, so that a transaction past that position travels
// even when nothing else is committed.
func waitGoal(ctx context.Context, url, lsn string) (change.LSN, error) {
	var want change.LSN
	if lsn != "" {
		var err error
		if want, err = change.ParseLSN(lsn); err != nil {
			return 0, err
		}
	}
	return retry(ctx, func() (change.LSN, error) {
		conn, err := connect(ctx, url, "wait")
		if err != nil {
			return 0, err
		}
		defer closeConn(conn)
		for {
			r, err := pgquery.One(ctx, conn, `select case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_insert_lsn() end::text`)
			if err != nil {
				return 0, err
			}
			now, err := change.ParseLSN(r[0])
			if err != nil {
				return 0, err
			}
			goal := now
			if want != 0 {
				goal = want
			}
			if now >= goal {
				return goal, emitMarker(ctx, conn)
			}
			if err := sleep(ctx, waitPoll); err != nil {
				return 0, err
			}
		}
	})
}

type waiter struct {
	cfg  *config.Config
	sub  *config.Subscription
	goal change.LSN
	out  io.Writer

	conn, pub *pgconn.PgConn
	last      string // what is missing, for people
	told      string // what was written to out
	toldAt    time.Time
	errors    int64 // count at the first look
	looked    bool
}

func (w *waiter) run(ctx context.Context) error {
	defer func() {
		closeConn(w.conn)
		closeConn(w.pub)
	}()
	next := time.Now().Add(waitProgress)
	for {
		done, err := w.look(ctx)
		switch {
		case done:
			return nil
		case errors.Is(err, ErrSubscriptionStopped):
			return err
		case err != nil && ctx.Err() == nil:
			w.last = err.Error()
			closeConn(w.conn)
			closeConn(w.pub)
			w.conn, w.pub = nil, nil
		}
		if ctx.Err() != nil || sleep(ctx, waitPoll) != nil {
			if errors.Is(context.Cause(ctx), ErrWaitTimeout) {
				return fmt.Errorf("%w: subscription %s: %s%s", ErrWaitTimeout, w.sub.Name, w.last, w.obstacle())
			}
			return ctx.Err()
		}
		if w.out != nil && time.Now().After(next) {
			next = time.Now().Add(waitProgress)
			text := w.last + w.obstacle()
			if text != w.told || time.Since(w.toldAt) > waitRepeat {
				fmt.Fprintf(w.out, "waiting for subscription %s: %s\n", w.sub.Name, text)
				w.told, w.toldAt = text, time.Now()
			}
		}
	}
}

// look reports whether the subscription is where it should be.
func (w *waiter) look(ctx context.Context) (bool, error) {
	var err error
	if w.conn == nil {
		if w.conn, err = connect(ctx, w.sub.URL, "wait"); err != nil {
			return false, fmt.Errorf("connect to the subscriber: %w", err)
		}
	}
	l := &ledger{conn: w.conn, name: w.sub.Name}
	if ok, err := l.exists(ctx); err != nil || !ok {
		w.last = "it has not started yet"
		return false, err
	}
	if err := w.stopped(ctx, l); err != nil {
		return false, err
	}
	pos, ok, err := l.position(ctx)
	if err != nil {
		return false, err
	}
	if !ok {
		if w.last = "the initial copy is not finished"; w.sub.Initial == config.InitialNone {
			w.last = "it has no position yet"
		}
		slot, err := w.slotMissing(ctx)
		if slot != "" {
			w.last += ": " + slot
		}
		return false, err
	}
	if pos < w.goal {
		w.last = fmt.Sprintf("applied up to %s, has to reach %s", pos, w.goal)
		return false, nil
	}
	return w.copied(ctx, l)
}

// stopped fails when an attempt that began after the call has failed again: a
// cause that was removed just before the call is no reason to give up. The
// attempt under way at the call may still fail from the old cause, so two
// more failures are needed.
func (w *waiter) stopped(ctx context.Context, l *ledger) error {
	st, err := l.state(ctx)
	if err != nil {
		return err
	}
	if !w.looked {
		w.looked, w.errors = true, st.ErrorCount
	}
	if st.State == "error" && st.ErrorCount >= w.errors+2 {
		return fmt.Errorf("%w: subscription %s: %s%s", ErrSubscriptionStopped, w.sub.Name, cardText(st.Error), w.obstacle())
	}
	return nil
}

// slotMissing says what keeps the publisher's slot from being there; it is empty
// when nothing does.
func (w *waiter) slotMissing(ctx context.Context) (string, error) {
	if err := w.connectPublisher(ctx); err != nil {
		return "", err
	}
	slot := w.cfg.PublisherByName(w.sub.Publisher).Slot
	rows, err := pgquery.Rows(ctx, w.pub, `select confirmed_flush_lsn is not null from pg_replication_slots where slot_name = $1`, slot)
	switch {
	case err != nil:
		return "", fmt.Errorf("look at slot %s: %w", slot, err)
	case len(rows) == 0:
		return fmt.Sprintf("the publisher has no replication slot %s yet", slot), nil
	case !rows[0].Bool(0):
		return fmt.Sprintf("replication slot %s is being made, which waits for the transactions that are open on the publisher", slot), nil
	}
	return "", nil
}

// obstacle is what the log reader of the publisher complains about, and what
// the subscription waits for, when their processes run with the same data_dir;
// otherwise it is empty.
func (w *waiter) obstacle() string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	docs, _ := monitor.Query(ctx, w.cfg.DataDir) // no process to ask: the databases know the rest
	doc := monitor.Merge(docs)
	for _, p := range doc.Publishers {
		if p.Name == w.sub.Publisher && p.LastError != "" && p.State == monitor.Failed {
			return fmt.Sprintf("; the log reader of publisher %s cannot go on: %s", p.Name, p.LastError)
		}
	}
	for _, s := range doc.Subscriptions {
		if s.Name == w.sub.Name && s.Waiting != nil {
			return fmt.Sprintf("; it stands still for %s: %s", time.Since(s.Waiting.Since).Round(time.Second), s.Waiting.For)
		}
	}
	return ""
}

func (w *waiter) connectPublisher(ctx context.Context) error {
	if w.pub != nil {
		return nil
	}
	var err error
	if w.pub, err = connect(ctx, w.cfg.PublisherByName(w.sub.Publisher).URL, "wait"); err != nil {
		return fmt.Errorf("connect to the publisher: %w", err)
	}
	return nil
}

// copied reports whether every table that is published for the subscription
// is ready.
func (w *waiter) copied(ctx context.Context, l *ledger) (bool, error) {
	states, err := l.tables(ctx)
	if err != nil {
		return false, err
	}
	if err := w.connectPublisher(ctx); err != nil {
		return false, err
	}
	targets, _, err := selectTables(ctx, w.pub, w.cfg.PublisherByName(w.sub.Publisher), w.sub)
	if err != nil {
		return false, err
	}
	var missing []string
	var ahead change.LSN
	for _, t := range targets {
		state := states[t.source]
		if state.state != tableReady {
			missing = append(missing, t.source.String())
		}
		ahead = max(ahead, state.copyLSN)
	}
	if n := len(missing); n > 0 {
		const most = 10
		w.last = "not copied yet: " + strings.Join(missing[:min(n, most)], ", ")
		if n > most {
			w.last += fmt.Sprintf(" and %d more", n-most)
		}
		return false, nil
	}
	if ahead <= w.goal {
		return true, nil
	}
	// A table was copied later than the call: until the subscription has come to
	// the moment of the copy, that table is ahead of the others.
	if err := emitMarker(ctx, w.pub); err != nil {
		return false, err
	}
	w.goal = ahead
	return false, nil
}

// emitMarker writes a transaction into the publisher's log that changes nothing,
// unless the server is a standby.
func emitMarker(ctx context.Context, pub *pgconn.PgConn) error {
	_, err := pgquery.Rows(ctx, pub, `select case when not pg_is_in_recovery() then pg_logical_emit_message(true, 'walferry.wait', '') end`)
	if err != nil {
		return fmt.Errorf("write a marker: %w", err)
	}
	return nil
}

// connect opens a connection for the queries of this package.
func connect(ctx context.Context, url, role string) (*pgconn.PgConn, error) {
	c, err := pgconnect.Parse(url, role)
	if err != nil {
		return nil, err
	}
	return pgconn.ConnectConfig(ctx, c)
}

func closeConn(c *pgconn.PgConn) {
	if c == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = c.Close(ctx) // the connection is given up in any case
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// retry calls f until it succeeds or ctx ends; then the last error is
// returned.
func retry[T any](ctx context.Context, f func() (T, error)) (T, error) {
	for {
		v, err := f()
		if err == nil || sleep(ctx, 10*waitPoll) != nil {
			return v, err
		}
	}
}
