package apply

import (
	"fmt"

	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/source/pgoutput"
)

// row applies an insert, update or delete.
func (e *engine) row(m *pgoutput.Message, msg []byte) error {
	if e.tx.skipped {
		return e.leaveOut(m)
	}
	t, err := e.target(m.RelationOID)
	if t == nil || err != nil {
		return err
	}
	if err := e.open(); err != nil {
		return err
	}
	e.grp.rows++
	e.sess.SetBatching(!e.plan.careful)
	step := sqlw.Step{Kind: sqlw.KindRow, Op: byte(m.Kind), Ordinal: e.tx.ordinal, Target: t}
	if e.plan.careful {
		return e.carefulRow(t, m, msg, step)
	}
	switch m.Kind {
	case pgoutput.Insert:
		e.grp.ops[0]++
		if err := e.remember(t, m.New, step); err != nil {
			return err
		}
		return e.insert(t, m, step)
	case pgoutput.Update:
		e.grp.ops[1]++
		if err := e.remember(t, m.New, step); err != nil {
			return err
		}
	default:
		e.grp.ops[2]++
	}
	st, err := e.statement(t, m)
	if err != nil {
		return err
	}
	e.grp.counted = true
	return e.sess.Row(st, m.Old, m.New, step)
}

// statement returns what applies a change to a target.
func (e *engine) statement(t *sqlw.Target, m *pgoutput.Message) (*sqlw.Stmt, error) {
	if m.Kind == pgoutput.Insert {
		return t.Insert(), nil
	}
	if t.NeedsEquality() {
		if err := t.Table.LoadEquality(e.sess); err != nil {
			return nil, err
		}
	}
	if m.Kind == pgoutput.Update {
		return t.Update(byte(m.OldKind), m.Old, m.New)
	}
	return t.Delete(byte(m.OldKind), m.Old)
}

// insert applies an insert; a run of them goes as COPY.
func (e *engine) insert(t *sqlw.Target, m *pgoutput.Message, step sqlw.Step) error {
	text := true
	for i := range m.New {
		switch m.New[i].Kind {
		case change.Binary:
			text = false
		case change.Unchanged:
			return fmt.Errorf("table %s: insert without the value of column %q", t.Table, t.Rel.Columns[i].Name)
		}
	}
	if text {
		if ok, err := e.copies(t, step); err != nil {
			return err
		} else if ok {
			_, cols := t.Copy()
			return e.sess.CopyRow(m.New, cols)
		}
	}
	if !t.CanCopy() {
		e.grp.counted = true
	}
	return e.sess.Row(t.Insert(), nil, m.New, step)
}

// copies reports whether the insert goes into a COPY, and starts one where a
// run of inserts begins.
func (e *engine) copies(t *sqlw.Target, step sqlw.Step) (bool, error) {
	if e.sess.Copying() && e.copyTo == t {
		return true, nil
	}
	if !t.CanCopy() {
		return false, nil
	}
	if e.noCopy > 0 {
		e.noCopy--
		return false, nil
	}
	n := scanRun(e.body[e.off:], t.Rel.OID, minCopy)
	if n < minCopy-1 {
		e.noCopy = n
		return false, nil
	}
	st, _ := t.Copy()
	e.copyTo = t
	return true, e.sess.StartCopy(st, step)
}
