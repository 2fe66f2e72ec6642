package agent

import (
	"context"
	"time"

	"github.com/walferry/walferry/source"
)

const (
	// removedAfter is how many looks in a row must miss a table before it counts
	// as removed: a publication that is made anew is gone for a moment.
	removedAfter = 3
	// ledgerPoll is how often the ledger is compared with a publication that has
	// not changed, for somebody else may have written to it.
	ledgerPoll = 30 * time.Second
)

// follower compares, while a subscription applies, what is published with its
// ledger.
type follower struct {
	w      *subscriptionWorker
	ledger *ledger

	seen     look // the last one that was compared
	compared time.Time
	missed   map[tableName]int // looks in a row
}

// run calls changed when a selected table is not ready, and keeps an eye on what
// the subscription waits for. It returns when ctx ends.
func (f *follower) run(ctx context.Context, changed func()) {
	f.missed = map[tableName]int{}
	s := &stuck{w: f.w, ledger: f.ledger}
	next := time.Now().Add(tablePoll)
	for sleep(ctx, stuckPoll) == nil {
		s.look(ctx)
		if time.Now().Before(next) {
			continue
		}
		if err := f.follow(ctx, changed); err != nil && ctx.Err() == nil {
			f.w.logger.Debug("look at published tables", "error", err)
		}
		next = time.Now().Add(tablePoll)
	}
}

func (f *follower) follow(ctx context.Context, changed func()) error {
	now, err := f.w.tables.look(ctx)
	if err != nil {
		return err
	}
	if now.number == f.seen.number ||
		now.version == f.seen.version && len(f.missed) == 0 && time.Since(f.compared) < ledgerPoll {
		return nil
	}
	if err := f.compare(ctx, f.targets(now.tables), changed); err != nil {
		return err
	}
	f.seen, f.compared = now, time.Now()
	return nil
}

// targets are those tables that the subscription takes.
func (f *follower) targets(tables []source.TableID) []target {
	var out []target
	for _, t := range tables {
		if schema, table, ok := mapTable(f.w.sub, t.Schema, t.Name); ok {
			out = append(out, target{source: tableName{t.Schema, t.Name}, oid: t.OID, schema: schema, table: table})
		}
	}
	return out
}

func (f *follower) compare(ctx context.Context, targets []target, changed func()) error {
	l := f.ledger
	if err := l.connect(ctx); err != nil {
		return err
	}
	known, err := l.tables(ctx)
	if err != nil {
		return err
	}
	if err := l.follow(ctx, known, targets); err != nil {
		return err
	}
	published := make(map[tableName]bool, len(targets))
	for _, t := range targets {
		published[t.source] = true
		delete(f.missed, t.source)
		if known[t.source].state != tableReady {
			changed()
		}
	}
	for name, k := range known {
		if published[name] || k.state == tableRemoved {
			continue
		}
		if f.missed[name]++; f.missed[name] < removedAfter {
			continue
		}
		delete(f.missed, name)
		if err := f.remove(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// remove records that a table has left the publication.
func (f *follower) remove(ctx context.Context, name tableName) error {
	pub, err := connect(ctx, f.w.pub.URL, "agent")
	if err != nil {
		return err
	}
	defer closeConn(pub)
	at, err := currentLSN(ctx, pub)
	if err != nil {
		return err
	}
	f.w.logger.Warn("table has left the publication", "table", name.String(), "before", at)
	return f.ledger.remove(ctx, name, at)
}
