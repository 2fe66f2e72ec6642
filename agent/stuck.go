package agent

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/walferry/walferry/internal/pgquery"
)

const (
	stuckPoll   = time.Second     // how often a subscription is looked at
	stuckAfter  = 3 * time.Second // of no progress, its server is asked
	stuckRepeat = time.Minute     // in the log
	stuckLimit  = 5 * time.Second // for the answer
)

// stuck notices that a subscription does not move although the queue has
// transactions for it, and finds out what it waits for: a lock and who holds
// it, a statement that takes long, a server that does not answer.
type stuck struct {
	w      *subscriptionWorker
	ledger *ledger

	since  time.Time // of what was told; zero: nothing
	told   time.Time
	reason string
}

// look makes known what the subscription waits for, and that it waits no longer.
func (s *stuck) look(ctx context.Context) {
	target := s.w.watch.target()
	since, still := target.Still(stuckAfter)
	if !still {
		if !s.since.IsZero() {
			s.w.logger.Info("subscription moves on", "stood_for", time.Since(s.since).Round(time.Second))
			s.since, s.reason = time.Time{}, ""
		}
		return
	}
	reason := s.ask(ctx)
	if reason == "" || ctx.Err() != nil {
		return
	}
	target.SetWaiting(reason)
	if reason == s.reason && time.Since(s.told) < stuckRepeat {
		return
	}
	s.since, s.told, s.reason = since, time.Now(), reason
	s.w.logger.Warn("subscription stands still", "for", reason, "since", since)
}

// applierSQL describes the applier's backend, with the lock that it waits for.
const applierSQL = `select a.pid, coalesce(a.state, ''), coalesce(a.wait_event_type || '/' || a.wait_event, ''),
	coalesce(left(regexp_replace(a.query, '\s+', ' ', 'g'), 120), ''),
	coalesce((select l.mode || ' on ' || coalesce(l.relation::regclass::text, l.locktype) from pg_locks l where l.pid = a.pid and not l.granted limit 1), '')
	from pg_stat_activity a where a.datname = current_database() and a.application_name = $1
	order by a.backend_start desc limit 1`

// ask returns what the applier waits for on the subscriber.
func (s *stuck) ask(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, stuckLimit)
	defer cancel()
	if err := s.ledger.connect(ctx); err != nil {
		return "the subscriber does not answer: " + err.Error()
	}
	rows, err := pgquery.Rows(ctx, s.ledger.conn, applierSQL, applierName(s.w.sub.Name))
	if err != nil {
		return "the subscriber does not answer: " + err.Error()
	}
	if len(rows) == 0 {
		return "" // it connects, or waits to connect again: that is reported elsewhere
	}
	pid, state, event, query, lock := rows[0][0], rows[0][1], rows[0][2], rows[0][3], rows[0][4]
	if lock != "" {
		by, err := pgquery.Blockers(ctx, s.ledger.conn, pid)
		if err == nil && len(by) > 0 {
			return fmt.Sprintf("lock %s, which backend %s waits for; it is held by %s: let it end, or end it with pg_terminate_backend", lock, pid, strings.Join(by, ", "))
		}
	}
	switch {
	case state == "active" && lock != "":
		return fmt.Sprintf("lock %s, which backend %s waits for", lock, pid)
	case state == "active" && event == "Client/ClientRead", state != "active":
		return fmt.Sprintf("backend %s of the subscriber waits for data: the network is slow, or the rest of a large transaction has not arrived", pid)
	case event != "":
		return fmt.Sprintf("backend %s of the subscriber is busy (%s) with: %s", pid, event, query)
	default:
		return fmt.Sprintf("backend %s of the subscriber is busy with: %s", pid, query)
	}
}
