package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/apply"
	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/config"
	"github.com/walferry/walferry/internal/pgquery"
	"github.com/walferry/walferry/queue"
	"github.com/walferry/walferry/source"
	"github.com/walferry/walferry/source/snapshot"
)

const (
	maxRetry        = 5 * time.Second // longest pause between attempts
	minRetry        = 250 * time.Millisecond
	stateWriteLimit = 5 * time.Second
)

// errTablesChanged ends an apply run because the publication has tables that
// wait for their copy.
var errTablesChanged = errors.New("published tables changed")

// subscriptionWorker moves one subscription through its states.
type subscriptionWorker struct {
	pub    *config.Publisher
	sub    *config.Subscription
	open   func(ctx context.Context) (*queue.Queue, error)
	tables *tableWatch
	watch  applierWatch
	logger *slog.Logger // names the subscription
	plain  *slog.Logger // for packages that name it themselves

	copyView func(tables int) (snapshot.Events, func()) // nil: none
}

// run returns when ctx ends.
func (w *subscriptionWorker) run(ctx context.Context) error {
	retryIn := backoff.NewExponentialBackOff()
	retryIn.InitialInterval, retryIn.MaxInterval = minRetry, maxRetry
	lost := false // the last attempt ended because the queue became another one
	for ctx.Err() == nil {
		began := time.Now()
		err := w.attempt(ctx)
		if ctx.Err() != nil {
			break
		}
		if errors.Is(err, queue.ErrLost) && (!lost || time.Since(began) > time.Minute) {
			// It may hold all that is needed: the position tells.
			lost = true
			w.logger.Warn("the queue is no longer the one that was read: reading begins again at the position", "error", err)
			continue
		}
		lost = false
		if err == nil || errors.Is(err, errTablesChanged) {
			retryIn.Reset()
			continue
		}
		if time.Since(began) > time.Minute {
			retryIn.Reset()
		}
		pause := retryIn.NextBackOff()
		w.report(ctx, err, pause)
		if sleep(ctx, pause) != nil {
			break
		}
	}
	return nil
}

// attempt brings what is not copied yet and then applies the queue. It returns
// nil or errTablesChanged when it has to begin again at once.
func (w *subscriptionWorker) attempt(ctx context.Context) error {
	l := &ledger{name: w.sub.Name, url: w.sub.URL}
	defer func() { closeConn(l.conn) }()
	if err := l.connect(ctx); err != nil {
		return err
	}
	if err := sqlw.EnsureSchema(ctx, l.conn); err != nil {
		return err
	}
	q, err := w.waitQueue(ctx)
	if err != nil {
		return err
	}
	pos, placed, err := l.position(ctx)
	if err != nil {
		return err
	}
	if err := q.Register(ctx, w.sub.Name, pos); err != nil {
		return fmt.Errorf("register in the queue: %w", err)
	}
	if err := w.bringTables(ctx, l, placed); err != nil {
		return err
	}
	if !placed {
		if pos, err = w.place(ctx, l, q); err != nil {
			return err
		}
		w.logger.Info("subscription starts", "position", pos)
	}
	w.watch.target().SetPosition(pos)
	return w.apply(ctx, l, q)
}

// waitQueue waits until the log reader has made the stream.
func (w *subscriptionWorker) waitQueue(ctx context.Context) (*queue.Queue, error) {
	told := false
	for {
		q, err := w.open(ctx)
		if err != nil {
			return nil, err
		}
		ok, err := q.Exists(ctx)
		if err != nil {
			return nil, fmt.Errorf("look for the stream: %w", err)
		}
		if ok {
			return q, nil
		}
		if !told {
			told = true
			w.logger.Info("waiting for the log reader to make the queue")
		}
		if err := sleep(ctx, 2*waitPoll); err != nil {
			return nil, err
		}
	}
}

// bringTables copies the published tables that are not ready. placed says that
// the subscription has a position already. When the publisher cannot be
// reached and everything known is ready, the queue is applied all the same.
func (w *subscriptionWorker) bringTables(ctx context.Context, l *ledger, placed bool) error {
	pubConn, err := connect(ctx, w.pub.URL, "agent")
	if err != nil {
		if placed {
			w.logger.Warn("publisher not reachable: new tables are not looked for", "error", err)
			return nil
		}
		return fmt.Errorf("connect to the publisher: %w", err)
	}
	defer closeConn(pubConn)
	targets, maps, err := w.published(ctx, pubConn, placed)
	if err != nil {
		if placed {
			w.logger.Warn("published tables cannot be read: new tables are not looked for", "error", err)
			return nil
		}
		return err
	}
	known, err := l.tables(ctx)
	if err != nil {
		return err
	}
	if err := l.follow(ctx, known, targets); err != nil {
		return err
	}
	var copies []snapshot.TableMap
	var copying, ready []target
	for i, t := range targets {
		k, ok := known[t.source]
		switch {
		case ok && k.state == tableReady:
			continue
		case ok && k.state == tableCopied:
			copies = append(copies, maps[i])
			continue
		case ok && k.state == tableRemoved:
			if err := w.mayCopyAgain(ctx, l, t); err != nil {
				return err
			}
		case w.sub.Initial == config.InitialNone && (!ok || k.state != tableCopying):
			ready = append(ready, t)
			continue
		}
		copying, copies = append(copying, t), append(copies, maps[i])
	}
	if err := l.setTables(ctx, tableReady, 0, ready...); err != nil {
		return err
	}
	if err := l.setTables(ctx, tableCopying, 0, copying...); err != nil {
		return err
	}
	if len(copies) == 0 {
		return nil
	}
	return w.copy(ctx, l, copies)
}

// published is what the publication holds for the subscription. A new one waits
// for a publication that the log reader is to make.
func (w *subscriptionWorker) published(ctx context.Context, pubConn *pgconn.PgConn, placed bool) ([]target, []snapshot.TableMap, error) {
	for told := false; ; told = true {
		targets, maps, err := selectTables(ctx, pubConn, w.pub, w.sub)
		if placed || !errors.Is(err, source.ErrNoPublication) || len(w.pub.Publications) > 0 {
			return targets, maps, err
		}
		if !told {
			w.plain.Info("waiting until the log reader has made the publication", "publication", ownPublication(w.pub))
		}
		if err := sleep(ctx, 2*waitPoll); err != nil {
			return nil, nil, err
		}
	}
}

// mayCopyAgain refuses to copy a table that was out of the publication for a
// while and holds rows: nobody knows which changes it missed.
func (w *subscriptionWorker) mayCopyAgain(ctx context.Context, l *ledger, t target) error {
	r, err := pgquery.One(ctx, l.conn, "select exists (select from "+sqlw.QuoteIdent(t.schema)+"."+sqlw.QuoteIdent(t.table)+")")
	if err != nil {
		return fmt.Errorf("look into %s.%s: %w", sqlw.DisplayIdent(t.schema), sqlw.DisplayIdent(t.table), err)
	}
	if r[0] == "t" {
		name := sqlw.DisplayName(t.schema, t.table)
		return &tableError{
			table: name, err: fmt.Errorf("table %s left the publication and came back, and holds rows: what it missed is not known", t.source),
			remedy: fmt.Sprintf("empty it to have it copied again: TRUNCATE %s", name),
		}
	}
	return nil
}

// copy runs the snapshot agent for the given tables. The slot has to be there
// before: the log reader may make it much later, when it cannot reach the publisher
// or waits for its transactions, and what is committed between the copy and the
// beginning of the queue would be in neither.
func (w *subscriptionWorker) copy(ctx context.Context, l *ledger, tables []snapshot.TableMap) error {
	if _, err := w.slotPosition(ctx); err != nil {
		return err
	}
	w.watch.copying(len(tables))
	if err := l.setState(ctx, "copying", nil); err != nil {
		return err
	}
	events := w.watch.copyEvents()
	events.Waiting = func(s snapshot.Wait) {
		w.logger.Info("the copy waits", "side", s.Side, "for", s.Reason, "since", s.Since)
		w.watch.target().SetWaiting("the " + s.Side + ": " + s.Reason)
	}
	if w.copyView != nil {
		view, done := w.copyView(len(tables))
		defer done()
		events = both(events, view)
	}
	origin, err := w.copyOrigin(ctx, l)
	if err != nil {
		return err
	}
	return w.inWindow(ctx, func(ctx context.Context) error {
		_, err := snapshot.Run(ctx, snapshot.Options{
			Publisher:       w.pub.URL,
			Subscriber:      w.sub.URL,
			Subscription:    w.sub.Name,
			Tables:          tables,
			CreateSchema:    w.sub.Schema == config.SchemaCreate,
			Workers:         w.sub.Copy.Workers,
			OnExisting:      snapshot.OnExisting(w.sub.Copy.OnExisting),
			Locked:          w.sub.Copy.Mode == config.CopyLocked,
			BytesPerSecond:  int64(w.sub.Copy.MaxMB) * 1e6,
			ReplicationRole: w.sub.ReplicationRole,
			Origin:          origin,
			Events:          events,
			Logger:          w.plain,
		})
		return err
	})
}

// errWindowClosed ends a copy whose part of the day is over.
var errWindowClosed = errors.New("the window of the copy is over")

// inWindow runs the copy in the part of the day that is meant for it. A copy that is not
// done when that is over lets everything of the publisher go, and goes on with what is
// missing the next time.
func (w *subscriptionWorker) inWindow(ctx context.Context, run func(context.Context) error) error {
	for {
		opens, closes := w.sub.Copy.Window.Next(time.Now())
		if closes.IsZero() {
			return run(ctx)
		}
		if wait := time.Until(opens); wait > 0 {
			w.logger.Info("the copy waits for its window", "window", w.sub.Copy.Window.String(), "opens", opens)
			w.watch.target().SetWaiting("the window of the copy, which opens at " + opens.Format(time.DateTime))
			if err := sleep(ctx, wait); err != nil {
				return err
			}
			w.watch.target().SetWaiting("")
		}
		windowed, cancel := context.WithDeadlineCause(ctx, closes, errWindowClosed)
		err := run(windowed)
		over := errors.Is(context.Cause(windowed), errWindowClosed)
		cancel()
		if err == nil || !over || ctx.Err() != nil {
			return err
		}
		w.logger.Info("the window of the copy is over: it goes on with what is missing when it opens again", "window", w.sub.Copy.Window.String())
	}
}

// copyOrigin names the replication origin that marks the copied rows, so that
// the subscriber's own publication can leave them out. It is empty where the
// role may not use origins or none is free; the applier says so then.
func (w *subscriptionWorker) copyOrigin(ctx context.Context, l *ledger) (string, error) {
	r, err := pgquery.One(ctx, l.conn, `select has_function_privilege('pg_replication_origin_create(text)', 'execute')
			and has_function_privilege('pg_replication_origin_session_setup(text)', 'execute')
			and coalesce(current_setting('max_active_replication_origins', true), current_setting('max_replication_slots'))::int
			  > (select count(*) from pg_replication_origin where roname <> $1)`, apply.OriginName(w.sub.Name))
	if err != nil {
		return "", fmt.Errorf("look for replication origins: %w", err)
	}
	if r[0] != "t" {
		return "", nil
	}
	return apply.OriginName(w.sub.Name), nil
}

// place gives a new subscription its position: the oldest moment of its
// copies, the configured one, or where the slot stands.
func (w *subscriptionWorker) place(ctx context.Context, l *ledger, q *queue.Queue) (change.LSN, error) {
	known, err := l.tables(ctx)
	if err != nil {
		return 0, err
	}
	var pos change.LSN
	for _, t := range known {
		if t.copyLSN != 0 && (pos == 0 || t.copyLSN < pos) {
			pos = t.copyLSN
		}
	}
	if w.sub.Initial == config.InitialNone && w.sub.Position != 0 {
		pos = w.sub.Position
	}
	if pos == 0 {
		tail, err := q.Tail(ctx)
		if err != nil {
			return 0, err
		}
		pos = tail.Header.End
		if tail.Empty {
			if pos, err = w.slotPosition(ctx); err != nil {
				return 0, err
			}
		}
	}
	system, err := w.system(ctx)
	if err != nil {
		return 0, err
	}
	if err := apply.SetPosition(ctx, l.conn, w.sub.Name, pos, system); err != nil {
		return 0, err
	}
	return pos, nil
}

// system is the identifier of the publisher's cluster.
func (w *subscriptionWorker) system(ctx context.Context) (uint64, error) {
	conn, err := connect(ctx, w.pub.URL, "agent")
	if err != nil {
		return 0, fmt.Errorf("connect to the publisher: %w", err)
	}
	defer closeConn(conn)
	r, err := pgquery.One(ctx, conn, `select system_identifier from pg_control_system()`)
	if err != nil {
		return 0, fmt.Errorf("read the publisher's system identifier: %w", err)
	}
	id, err := strconv.ParseUint(r[0], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read the publisher's system identifier: %w", err)
	}
	return id, nil
}

// slotPosition is where the slot of the publisher stands: the queue holds
// everything from there on. A slot that is still being made, which takes as long
// as the transactions that run at the time, has no position yet: it is waited
// for. What the log reader meets meanwhile is its own to report.
func (w *subscriptionWorker) slotPosition(ctx context.Context) (change.LSN, error) {
	conn, err := connect(ctx, w.pub.URL, "agent")
	if err != nil {
		return 0, fmt.Errorf("connect to the publisher: %w", err)
	}
	defer closeConn(conn)
	for told := false; ; told = true {
		rows, err := pgquery.Rows(ctx, conn, `select confirmed_flush_lsn from pg_replication_slots where slot_name = $1 and confirmed_flush_lsn is not null`, w.pub.Slot)
		if err != nil {
			return 0, fmt.Errorf("read the position of slot %s: %w", w.pub.Slot, err)
		}
		if len(rows) == 1 {
			return change.ParseLSN(rows[0][0])
		}
		if !told {
			w.plain.Info("waiting until the log reader has made the replication slot", "slot", w.pub.Slot)
		}
		if err := sleep(ctx, waitPoll); err != nil {
			return 0, err
		}
	}
}

// apply runs the distribution agent until it fails or tables wait for a copy.
func (w *subscriptionWorker) apply(ctx context.Context, l *ledger, q *queue.Queue) error {
	applyCtx, cancel := context.WithCancelCause(ctx)
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		f := follower{w: w, ledger: l}
		f.run(applyCtx, func() { cancel(errTablesChanged) })
	}()
	err := w.applyQueue(applyCtx, q)
	changed := errors.Is(context.Cause(applyCtx), errTablesChanged)
	cancel(nil)
	<-followed // the ledger's connection is ours again
	if changed {
		return errTablesChanged
	}
	if need, ok := errors.AsType[*apply.NeedCopy](err); ok {
		w.logger.Info("a table has to be copied first", "table", need.Relation.Schema+"."+need.Relation.Name)
		return w.needCopy(ctx, l, need)
	}
	return err
}

// applyQueue runs the distribution agent.
func (w *subscriptionWorker) applyQueue(ctx context.Context, q *queue.Queue) error {
	batches := new(atomic.Int64)
	onUnknown := apply.Copy
	if w.sub.Initial == config.InitialNone {
		onUnknown = apply.Apply
	}
	return apply.Run(ctx, apply.Options{
		Subscription: w.sub.Name,
		Publisher:    w.pub.Name,
		Conn:         w.sub.URL,
		OpenReader: func(ctx context.Context, from change.LSN) (apply.Reader, error) {
			r, err := q.NewReader(ctx, from, queue.ReaderOptions{Ahead: true})
			if err != nil {
				return nil, err
			}
			return &watchedReader{Reader: r, target: w.watch.target(), batches: batches}, nil
		},
		Map:             func(schema, table string) (string, string, bool) { return mapTable(w.sub, schema, table) },
		OnUnknown:       onUnknown,
		Policies:        policies(w.sub),
		Group:           group(w.sub),
		ReplicationRole: w.sub.ReplicationRole,
		Report: func(ctx context.Context, flushed change.LSN, seq uint64) error {
			err := q.Report(ctx, w.sub.Name, flushed, seq)
			if errors.Is(err, queue.ErrNotRegistered) || errors.Is(err, queue.ErrNoStream) {
				// The registry was deleted, or put back to a time before this
				// subscription. Without an entry nothing would be kept for it.
				w.logger.Warn("the queue has forgotten the subscription: it is registered again", "error", err)
				err = q.Register(ctx, w.sub.Name, flushed)
			}
			return err
		},
		Events: w.watch.applyEvents(batches),
		Logger: w.plain,
	})
}

// needCopy makes sure that the table of a change that arrived is published at
// all before the next attempt copies it: a table that has left the publication
// since has nothing to be copied, and its changes are skipped up to here.
func (w *subscriptionWorker) needCopy(ctx context.Context, l *ledger, need *apply.NeedCopy) error {
	if err := l.connect(ctx); err != nil {
		return err
	}
	pubConn, err := connect(ctx, w.pub.URL, "agent")
	if err != nil {
		return fmt.Errorf("connect to the publisher: %w", err)
	}
	defer closeConn(pubConn)
	targets, _, err := selectTables(ctx, pubConn, w.pub, w.sub)
	if err != nil {
		return err
	}
	name := tableName{need.Relation.Schema, need.Relation.Name}
	for _, t := range targets {
		if t.source == name {
			return errTablesChanged
		}
	}
	now, err := currentLSN(ctx, pubConn)
	if err != nil {
		return err
	}
	schema, table, _ := mapTable(w.sub, name.schema, name.table)
	w.logger.Warn("changes of a table that is no longer published are left out", "table", name.String(), "before", now)
	if err := l.setTables(ctx, tableCopying, now, target{source: name, schema: schema, table: table}); err != nil {
		return err
	}
	if err := l.remove(ctx, name, now); err != nil {
		return err
	}
	return errTablesChanged
}

// currentLSN is where the publisher writes now.
func currentLSN(ctx context.Context, pub *pgconn.PgConn) (change.LSN, error) {
	r, err := pgquery.One(ctx, pub, `select case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_insert_lsn() end`)
	if err != nil {
		return 0, fmt.Errorf("read the publisher's position: %w", err)
	}
	return change.ParseLSN(r[0])
}

// report makes an error known: log, monitor, and the subscriber's database.
func (w *subscriptionWorker) report(ctx context.Context, err error, pause time.Duration) {
	card := cardOf(w.sub.Name, err)
	w.logger.Error("subscription cannot go on", "error", err, "retry_in", pause.Round(time.Millisecond))
	w.watch.failed(card, time.Now().Add(pause))
	ctx, cancel := context.WithTimeout(ctx, stateWriteLimit)
	defer cancel()
	conn, cerr := connect(ctx, w.sub.URL, "agent")
	if cerr != nil {
		return // the subscriber itself is away: the monitor has the error
	}
	defer closeConn(conn)
	l := &ledger{conn: conn, name: w.sub.Name}
	if werr := l.setState(ctx, "error", card); werr != nil {
		w.logger.Debug("record state", "error", werr)
	}
}
