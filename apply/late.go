package apply

import (
	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/change"
)

// Bounds of the values that lateChecks keeps. Beyond them the rows are checked
// at once, which is stricter than the constraint: a transaction that large that
// holds duplicates for a while is refused.
const (
	lateRows  = 20000
	lateBytes = 4 << 20
)

// lateChecks are new rows of tables with deferrable unique constraints. Under
// session_replication_role = replica nobody checks those but us, and they hold
// only at the end of a transaction.
type lateChecks struct {
	rows  []lateRow
	vals  []change.Value // of all rows, whole rows
	arena []byte
}

type lateRow struct {
	target *sqlw.Target
	step   sqlw.Step
	first  int // in vals
}

func (l *lateChecks) reset() {
	l.rows, l.vals, l.arena = l.rows[:0], l.vals[:0], l.arena[:0]
}

func (l *lateChecks) full() bool { return len(l.rows) >= lateRows || len(l.arena) >= lateBytes }

// add remembers the values of a row that its checks need.
func (l *lateChecks) add(t *sqlw.Target, row []change.Value, step sqlw.Step) {
	need := false
	for i := range t.Deferred() {
		_, _, ok := t.DeferredCheck(i, row)
		need = need || ok
	}
	if !need {
		return
	}
	step.Kind = sqlw.KindCheck
	l.rows = append(l.rows, lateRow{target: t, step: step, first: len(l.vals)})
	first := len(l.vals)
	for range row {
		l.vals = append(l.vals, change.Value{Kind: change.Null})
	}
	for i := range t.Deferred() {
		_, cols, ok := t.DeferredCheck(i, row)
		if !ok {
			continue
		}
		for _, c := range cols {
			at := len(l.arena)
			l.arena = append(l.arena, row[c].Data...)
			l.vals[first+c] = change.Value{Kind: row[c].Kind, Data: l.arena[at:len(l.arena):len(l.arena)]}
		}
	}
}

// checkDeferred queues the checks of all rows since the last commit. The
// answers must be read before the commit.
func (e *engine) checkDeferred() error {
	for i := range e.late.rows {
		r := &e.late.rows[i]
		row := e.late.vals[r.first : r.first+len(r.target.Rel.Columns)]
		for k := range r.target.Deferred() {
			st, _, ok := r.target.DeferredCheck(k, row)
			if !ok {
				continue
			}
			e.grp.counted = true
			if err := e.sess.Row(st, nil, row, r.step); err != nil {
				return err
			}
		}
	}
	e.late.reset()
	return nil
}

// remember keeps a row whose table has deferrable constraints.
func (e *engine) remember(t *sqlw.Target, row []change.Value, step sqlw.Step) error {
	if t.Deferred() == 0 {
		return nil
	}
	e.late.add(t, row, step)
	if e.late.full() {
		return e.checkDeferred()
	}
	return nil
}
