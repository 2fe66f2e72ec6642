package apply

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/queue"
	"github.com/walferry/walferry/source/pgoutput"
)

const (
	minPause = 250 * time.Millisecond
	maxPause = 5 * time.Second
	lockPoll = time.Second
	// quietTries is how often a transient failure is tried again before it is
	// reported as one that stops the subscription.
	quietTries = 5
)

// Run applies the queue to one subscriber until ctx ends. Failures of a row, a
// transaction or a connection are reported and tried again; it returns only for
// *NeedCopy, ErrNoPosition, ErrFenced, ErrHistory, errors of the queue, and configuration
// that cannot work.
func Run(ctx context.Context, o Options) error {
	if err := o.complete(); err != nil {
		return err
	}
	r := &runner{o: &o, plan: &plan{}}
	r.notes = newNotes(ctx, &o)
	defer r.notes.close()
	for {
		err := r.session(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if final(err) {
			return err
		}
		r.waiting(err)
		if err := r.pause(ctx); err != nil {
			return err
		}
	}
}

// runner is what outlives a session.
type runner struct {
	o     *Options
	plan  *plan
	notes *notes
	next  time.Duration // pause before the next attempt
	quiet int           // transient failures in a row
}

// final reports whether trying again is of no use.
func final(err error) bool {
	var need *NeedCopy
	var broken *sqlw.BrokenError
	var conn *pgconn.ConnectError
	switch {
	case errors.As(err, &need), errors.Is(err, ErrNoPosition), errors.Is(err, ErrFenced), errors.Is(err, ErrHistory), errors.Is(err, errRole):
		return true
	case errors.As(err, &broken), errors.As(err, &conn):
		return false
	}
	var qe *queue.Error
	if errors.As(err, &qe) {
		return !queue.Retryable(err)
	}
	var ce *change.CorruptError
	return errors.As(err, &ce)
}

func (r *runner) waiting(err error) {
	r.o.Logger.Warn("cannot apply, trying again", "error", err)
	if f := r.o.Events.OnWaiting; f != nil {
		f(err.Error())
	}
}

// pause waits longer each time; progress resets it.
func (r *runner) pause(ctx context.Context) error {
	t := time.NewTimer(r.step())
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// step is the length of the next pause.
func (r *runner) step() time.Duration {
	d := max(r.next, minPause)
	r.next = min(2*d, maxPause)
	return d
}

// session connects, takes the lock and applies until the session is of no more
// use.
func (r *runner) session(ctx context.Context) error {
	s, err := sqlw.Connect(ctx, r.o.Conn, "applier "+r.o.Subscription, "synchronous_commit = off", "enable_seqscan = off", "enable_hashjoin = off", "enable_mergejoin = off", "jit = off")
	if err != nil {
		return err
	}
	defer s.Close()
	if err := r.lock(ctx, s); err != nil {
		return err
	}
	replica, err := r.role(s)
	if err != nil {
		return err
	}
	marks, err := r.origin(s)
	if err != nil {
		return err
	}
	for {
		e := &engine{ctx: ctx, o: r.o, plan: r.plan, sess: s, note: r.notes, replica: replica, marks: marks, ctl: newControls(r.o.Subscription), idle: true}
		s.OnRow(e.flush.rows)
		err := e.attempt()
		if ctx.Err() != nil || s.Broken() != nil {
			return err
		}
		if e.moved {
			r.next, r.quiet = 0, 0
		}
		if err := r.afterFailure(ctx, e, err); err != nil {
			return err
		}
	}
}

// lock waits until no other applier works for the subscription.
func (r *runner) lock(ctx context.Context, s *sqlw.Session) error {
	told := false
	for {
		rows, err := s.Query("SELECT pg_try_advisory_lock(hashtextextended($1, 7))", "walferry subscription "+r.o.Subscription)
		if err != nil {
			return fmt.Errorf("lock subscription: %w", err)
		}
		if string(rows[0][0]) == "t" {
			return nil
		}
		if !told {
			told = true
			r.o.Logger.Info("another applier works for this subscription: standing by")
			r.notes.standby("another applier works for this subscription")
		}
		t := time.NewTimer(lockPoll)
		select {
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		case <-t.C:
		}
	}
}

var errRole = errors.New("session_replication_role cannot be set")

// role makes the session one of the wanted role.
func (r *runner) role(s *sqlw.Session) (replica bool, err error) {
	if r.o.ReplicationRole == "origin" {
		return false, nil
	}
	err = s.Exec("SET session_replication_role = replica")
	var pe *pgconn.PgError
	switch {
	case err == nil:
		return true, nil
	case !errors.As(err, &pe) || pe.Code != "42501":
		return false, err
	case r.o.ReplicationRole == "replica":
		return false, fmt.Errorf("%w: %w: GRANT SET ON PARAMETER session_replication_role TO the role of the subscription (PostgreSQL 15 and later)", errRole, err)
	}
	r.o.Logger.Warn("the role may not set session_replication_role: ordinary triggers and foreign keys of the subscriber act on replicated rows",
		"remedy", "GRANT SET ON PARAMETER session_replication_role TO the role (PostgreSQL 15 and later)")
	return false, nil
}

// origin makes the session mark its commits, if it may.
func (r *runner) origin(s *sqlw.Session) (bool, error) {
	name := OriginName(r.o.Subscription)
	_, err := s.Query(`SELECT CASE WHEN pg_replication_origin_oid($1) IS NULL THEN pg_replication_origin_create($1) END`, name)
	if err == nil {
		_, err = s.Query(`SELECT pg_replication_origin_session_setup($1)`, name)
	}
	var pe *pgconn.PgError
	switch {
	case err == nil:
		return true, nil
	case errors.As(err, &pe) && pe.Code == "42501":
		r.o.Logger.Info("the role may not use replication origins: commits on the subscriber are not marked as replicated")
		return false, nil
	case errors.As(err, &pe) && pe.Code == "53400", errors.As(err, &pe) && pe.Code == "55000":
		r.o.Logger.Warn("no replication origin is free: commits on the subscriber are not marked as replicated", "error", err)
		return false, nil
	}
	return false, fmt.Errorf("set up replication origin %s: %w", name, err)
}

// attempt reads from the position and applies until an error.
func (e *engine) attempt() error {
	var err error
	if e.pos, e.foot, err = readPosition(e.sess, e.o.Subscription); err != nil {
		return err
	}
	if e.skip, err = e.readSkip(); err != nil {
		return err
	}
	if err := e.loadTables(); err != nil {
		return err
	}
	e.rels = map[change.OID]*relation{}
	e.msgs.Measure = new(pgoutput.Extent)
	e.grp = group{end: e.pos, foot: e.foot, number: 1}
	e.saved = time.Now()
	if err := e.openReader(); err != nil {
		return err
	}
	defer func() { _ = e.reader.Close() }() // nothing is written through it
	e.note.streaming(e.pos)
	return e.loop()
}

func (e *engine) readSkip() (change.LSN, error) {
	rows, err := e.sess.Query(`SELECT skip_lsn::text FROM walferry.subscription_state WHERE name = $1 AND skip_lsn IS NOT NULL`, e.o.Subscription)
	if err != nil {
		return 0, fmt.Errorf("read walferry.subscription_state: %w", err)
	}
	if len(rows) == 0 {
		return 0, nil
	}
	return change.ParseLSN(string(rows[0][0]))
}

// afterFailure decides what happens after a failed attempt: it returns nil to
// try again in the same session, at once or after a pause.
func (r *runner) afterFailure(ctx context.Context, e *engine, err error) error {
	if st := failedStep(err); st != nil && st.Kind == sqlw.KindControl && st.Op == opPlace {
		err = fmt.Errorf("%w: it is no longer %v", ErrFenced, e.pos)
	}
	card := e.explain(err)
	earlier := e.grp.txns > 0 && !r.plan.careful
	commit := e.tx.commit
	if rerr := e.rollback(); rerr != nil {
		return rerr
	}
	switch {
	case errors.Is(err, ErrFenced):
		return err
	case errors.Is(err, queue.ErrWithdrawn):
		r.o.Logger.Info("reading begins again at the position", "position", e.pos, "reason", err)
		return nil
	}
	var need *NeedCopy
	if errors.As(err, &need) {
		if earlier && r.plan.narrow(commit) {
			return nil
		}
		return err
	}
	if final(err) || !ofTransaction(err) {
		return err
	}
	switch {
	case card.Class == ClassTransient:
		if r.quiet++; r.quiet <= quietTries {
			r.waiting(err)
			return r.pause(ctx)
		}
	case commit >= e.pos && r.plan.narrow(commit):
		return nil
	}
	r.plan.blame(commit)
	if r.escalate(e, err, card) {
		return nil
	}
	if first := r.plan.card; first != nil && card.Key == "" {
		card = first // the row by row attempt knows the row
	}
	r.plan.tries++
	r.plan.again()
	card.Attempts = r.plan.tries
	d := r.step()
	card.NextRetry = time.Now().Add(d).UTC()
	r.notes.failed(card, commit)
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// ofTransaction reports whether an error came from applying, not from the
// queue.
func ofTransaction(err error) bool {
	var qe *queue.Error
	return !errors.As(err, &qe)
}

// escalate asks for more care with the culprit. It reports whether there is any
// that has not been tried.
func (r *runner) escalate(e *engine, err error, card *ErrorCard) bool {
	p := r.plan
	st := failedStep(err)
	if st == nil || st.Kind != sqlw.KindRow || st.Target == nil {
		return false
	}
	if card.Class == ClassInsertConflict && !p.rows && st.Op != 'T' && st.Target.CanSwap() {
		name := targetName(st.Target)
		if !p.swap[name] {
			if p.card == nil {
				p.card = card
			}
			if p.swap == nil {
				p.swap = map[tableName]bool{}
			}
			p.swap[name] = true
			return true
		}
	}
	if !p.rows && (e.policy(card.Class) != Stop || len(p.swap) > 0 && e.anyPolicy()) {
		p.rows, p.swap = true, nil
		return true
	}
	return false
}

// anyPolicy reports whether any class may go on.
func (e *engine) anyPolicy() bool {
	for _, c := range []string{ClassInsertConflict, ClassUpdateMissing, ClassDeleteMissing, ClassRow} {
		if e.policy(c) != Stop {
			return true
		}
	}
	return false
}
