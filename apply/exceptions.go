package apply

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/source/pgoutput"
)

const typeJSONB = 3802

func recordStmt() *sqlw.Stmt {
	return &sqlw.Stmt{
		SQL: `INSERT INTO walferry.exceptions (subscription, commit_lsn, xid, commit_time, ordinal, schema_name, table_name, operation,
		class, sqlstate, message, key, old_row, new_row, policy)
	VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)`,
		Types: []change.OID{25, 3220, 20, 1184, 20, 25, 25, 25, 25, 25, 25, typeJSONB, typeJSONB, typeJSONB, 25},
		Want:  1,
	}
}

// exception is a row that was left out or changed by policy.
type exception struct {
	class, code, message string
	policy               Policy
}

// record writes a row of walferry.exceptions in the apply transaction. t may be
// nil when the table is not known.
func (e *engine) record(t *sqlw.Target, rel *change.Relation, m *pgoutput.Message, x exception) error {
	ascii := e.sess.Parameter("server_encoding") != "UTF8"
	var key []byte
	if t != nil {
		row := m.New
		if len(m.Old) > 0 {
			row = m.Old
		}
		key = keyJSON(t, row, ascii)
	}
	message := x.message
	if ascii {
		message = asciiText(message)
	}
	text := func(s string) []byte {
		if s == "" {
			return nil
		}
		return []byte(s)
	}
	table := sqlw.DisplayName(rel.Schema, rel.Name)
	if f := e.o.Events.OnException; f != nil {
		f(x.class, table, x.policy)
	}
	e.o.Logger.Warn("row left out or changed by policy", "class", x.class, "policy", string(x.policy), "table", table,
		"operation", operations[byte(m.Kind)], "commit_lsn", e.tx.commit, "message", x.message)
	return e.sess.Control(e.ctl.record, sqlw.Step{Kind: sqlw.KindControl},
		[]byte(e.o.Subscription), []byte(e.tx.commit.String()), strconv.AppendUint(nil, uint64(e.tx.xid), 10),
		[]byte(e.tx.time.UTC().Format("2006-01-02 15:04:05.000000+00")), strconv.AppendUint(nil, e.tx.ordinal, 10),
		[]byte(rel.Schema), []byte(rel.Name), text(operations[byte(m.Kind)]), text(x.class), text(x.code), text(message),
		key, rowJSON(rel, m.Old, ascii), rowJSON(rel, m.New, ascii), text(string(x.policy)))
}

// leaveOut records a change of the transaction that the operator skips.
func (e *engine) leaveOut(m *pgoutput.Message) error {
	oids := m.Relations
	if m.Kind != pgoutput.Truncate {
		oids = []change.OID{m.RelationOID}
	}
	for _, oid := range oids {
		r, err := e.selected(oid)
		if err != nil {
			return err
		}
		if r == nil {
			continue
		}
		if err := e.open(); err != nil {
			return err
		}
		if err := e.record(r.target, r.rel, m, exception{class: "transaction", message: "transaction skipped by the operator", policy: Skip}); err != nil {
			return err
		}
	}
	return e.open()
}

// guardedRow applies a row inside a savepoint; a failure that a policy covers
// is recorded and the transaction goes on.
func (e *engine) guardedRow(t *sqlw.Target, m *pgoutput.Message, step sqlw.Step) error {
	s := e.sess
	if err := s.Control(e.ctl.savepoint, sqlw.Step{Kind: sqlw.KindControl}); err != nil {
		return err
	}
	st, err := e.statement(t, m)
	if err != nil {
		return err
	}
	_ = s.Row(st, m.Old, m.New, step) // its error is that of Sync
	err = s.Sync()
	if err == nil {
		return s.Control(e.ctl.release, sqlw.Step{Kind: sqlw.KindControl})
	}
	if s.Broken() != nil {
		return err
	}
	class := ClassOther
	if f := failedStep(err); f != nil {
		class = classOf(f, err)
	}
	policy := e.policy(class)
	if policy == Stop || class == ClassTransient || class == ClassPrivilege {
		return err
	}
	x := exception{class: class, policy: policy, message: err.Error()}
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		x.code, x.message = pe.Code, pe.Message
		if pe.Detail != "" {
			x.message += ": " + pe.Detail
		}
	}
	if err := s.Exec("ROLLBACK TO SAVEPOINT walferry"); err != nil {
		return fmt.Errorf("roll back to savepoint: %w", err)
	}
	if policy == Upsert {
		fixed, ferr := e.upsert(t, m, class)
		if ferr != nil {
			return ferr
		}
		if !fixed {
			return err
		}
	}
	if err := s.Control(e.ctl.release, sqlw.Step{Kind: sqlw.KindControl}); err != nil {
		return err
	}
	return e.record(t, t.Rel, m, x)
}

// upsert makes the row of a failed change what the publisher has. It reports
// false when that cannot be done.
func (e *engine) upsert(t *sqlw.Target, m *pgoutput.Message, class string) (bool, error) {
	var st *sqlw.Stmt
	switch {
	case class == ClassInsertConflict && m.Kind == pgoutput.Insert:
		st = t.UpdateByKey(m.New)
	case class == ClassUpdateMissing:
		st = t.Insert()
		for i := range m.New {
			if m.New[i].Kind == change.Unchanged {
				return false, nil // the row cannot be made whole
			}
		}
	case class == ClassDeleteMissing:
		return true, nil
	}
	if st == nil {
		return false, nil
	}
	if err := e.sess.Row(st, nil, m.New, sqlw.Step{Kind: sqlw.KindRow, Op: 'U', Ordinal: e.tx.ordinal, Target: t}); err != nil {
		return false, err
	}
	err := e.sess.Sync()
	if err == nil {
		return true, nil
	}
	if e.sess.Broken() != nil {
		return false, err
	}
	if f := failedStep(err); f == nil {
		return false, err
	}
	return false, nil
}

// policy is what the user wants for a class.
func (e *engine) policy(class string) Policy {
	p := e.o.Policies
	var v Policy
	switch class {
	case ClassInsertConflict:
		v = p.InsertConflict
	case ClassUpdateMissing:
		v = p.UpdateMissing
	case ClassDeleteMissing:
		v = p.DeleteMissing
	case ClassRow, ClassRowCount:
		v = p.Other
		if v == Upsert {
			v = Stop
		}
	}
	if v == "" {
		v = Stop
	}
	return v
}
