package apply

import (
	"bytes"

	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/source/pgoutput"
)

// journal keeps the messages of rows whose answers have not been read, so that
// the row of an error can be shown.
type journal struct {
	entries []journalEntry
	bytes   int
}

type journalEntry struct {
	ordinal uint64
	msg     []byte
}

func (j *journal) add(ordinal uint64, msg []byte) {
	j.entries = append(j.entries, journalEntry{ordinal, bytes.Clone(msg)})
	j.bytes += len(msg)
}

func (j *journal) full() bool { return len(j.entries) >= carefulRows || j.bytes >= carefulBytes }

func (j *journal) reset() { *j = journal{entries: j.entries[:0]} }

// find decodes the message of a row; nil if it is not there.
func (j *journal) find(ordinal uint64) *pgoutput.Message {
	for _, e := range j.entries {
		if e.ordinal != ordinal {
			continue
		}
		var d pgoutput.Decoder
		if m, err := d.Decode(e.msg); err == nil {
			return m
		}
	}
	return nil
}

// carefulRow applies a row of a transaction that is alone in its group.
func (e *engine) carefulRow(t *sqlw.Target, m *pgoutput.Message, msg []byte, step sqlw.Step) error {
	e.grp.counted = true
	switch m.Kind {
	case pgoutput.Insert:
		e.grp.ops[0]++
	case pgoutput.Update:
		e.grp.ops[1]++
	default:
		e.grp.ops[2]++
	}
	if e.journal.full() {
		if err := e.sess.Drain(); err != nil {
			return err
		}
		e.journal.reset()
	}
	e.journal.add(step.Ordinal, msg)
	if m.Kind != pgoutput.Delete {
		if err := e.remember(t, m.New, step); err != nil {
			return err
		}
	}
	if e.plan.culprit == e.tx.commit && e.plan.rows {
		return e.guardedRow(t, m, step)
	}
	if e.plan.swapping(e.tx.commit, targetName(t)) {
		return e.swapRow(t, m, step)
	}
	st, err := e.statement(t, m)
	if err != nil {
		return err
	}
	return e.sess.Row(st, m.Old, m.New, step)
}

func targetName(t *sqlw.Target) tableName { return tableName{t.Table.Schema, t.Table.Name} }

// swapRow applies a row to a table whose unique indexes are in the way.
func (e *engine) swapRow(t *sqlw.Target, m *pgoutput.Message, step sqlw.Step) error {
	w := e.swaps[t]
	if w == nil {
		if t.NeedsEquality() {
			if err := t.Table.LoadEquality(e.sess); err != nil {
				return err
			}
		}
		w = sqlw.NewSwap(t)
		if e.swaps == nil {
			e.swaps = map[*sqlw.Target]*sqlw.Swap{}
		}
		e.swaps[t] = w
		if err := w.Begin(e.sess, sqlw.Step{Kind: sqlw.KindControl}); err != nil {
			return err
		}
	}
	var st *sqlw.Stmt
	var err error
	switch m.Kind {
	case pgoutput.Insert:
		st = w.Insert()
	case pgoutput.Update:
		st, err = w.Update(byte(m.OldKind), m.Old, m.New)
	default:
		st, err = w.Delete(byte(m.OldKind), m.Old)
	}
	if err != nil {
		return err
	}
	return e.sess.Row(st, m.Old, m.New, step)
}

// finishSwaps puts the rows back that swaps hold.
func (e *engine) finishSwaps() error {
	for t, w := range e.swaps {
		if err := w.Finish(e.sess, sqlw.Step{Kind: sqlw.KindRow, Op: 'U', Target: t}); err != nil {
			return err
		}
	}
	return nil
}
