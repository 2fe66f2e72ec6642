package apply

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/change"
)

// Classes of failures.
const (
	ClassInsertConflict = "insert_conflict"
	ClassUpdateMissing  = "update_missing"
	ClassDeleteMissing  = "delete_missing"
	ClassRowCount       = "row_count" // several rows were hit
	ClassMissingTable   = "missing_table"
	ClassMissingColumn  = "missing_column"
	ClassIdentity       = "identity" // rows cannot be found
	ClassTruncate       = "truncate"
	ClassRow            = "row" // the server refused one row
	ClassCommit         = "commit"
	ClassPrivilege      = "privilege"
	ClassTransient      = "transient"
	ClassOther          = "other"
)

// An ErrorCard is what a person needs to know of a failure that stops a
// subscription. It is stored in walferry.subscription_state.error.
type ErrorCard struct {
	Subscription string     `json:"subscription"`
	CommitLSN    string     `json:"commit_lsn,omitempty"`
	EndLSN       string     `json:"end_lsn,omitempty"`
	XID          uint32     `json:"xid,omitempty"`
	CommitTime   *time.Time `json:"commit_time,omitempty"`
	Table        string     `json:"table,omitempty"` // on the subscriber
	Operation    string     `json:"operation,omitempty"`
	Key          string     `json:"key,omitempty"` // as (columns)=(values)
	Column       string     `json:"column,omitempty"`
	Class        string     `json:"class"`
	SQLState     string     `json:"sqlstate,omitempty"`
	Message      string     `json:"message"`
	Detail       string     `json:"detail,omitempty"`
	Context      string     `json:"context,omitempty"`
	Constraint   string     `json:"constraint,omitempty"`
	Attempts     int        `json:"attempts"`
	NextRetry    time.Time  `json:"next_retry"`
	Remedy       string     `json:"remedy,omitempty"`
}

// String is the card in one line.
func (c *ErrorCard) String() string {
	var b strings.Builder
	if c.Operation != "" {
		fmt.Fprintf(&b, "%s of ", c.Operation)
	}
	if c.Table != "" {
		fmt.Fprintf(&b, "%s", c.Table)
		if c.Key != "" {
			fmt.Fprintf(&b, " %s", c.Key)
		}
		b.WriteString(": ")
	}
	b.WriteString(c.Message)
	if c.SQLState != "" {
		fmt.Fprintf(&b, " (SQLSTATE %s)", c.SQLState)
	}
	if c.CommitLSN != "" {
		fmt.Fprintf(&b, "; transaction %s", c.CommitLSN)
	}
	return b.String()
}

// MissingTable says that the subscriber lacks a table.
type MissingTable struct{ Schema, Name string }

func (e *MissingTable) Error() string {
	return fmt.Sprintf("relation %q does not exist on the subscriber", sqlw.DisplayName(e.Schema, e.Name))
}

// Hint is what mends it.
func (e *MissingTable) Hint() string {
	return fmt.Sprintf("create table %s on the subscriber, or exclude it from the subscription", sqlw.DisplayName(e.Schema, e.Name))
}

// tableError is a failure that concerns one table.
type tableError struct {
	Schema, Name string
	Err          error
}

func (e *tableError) Error() string { return e.Err.Error() }
func (e *tableError) Unwrap() error { return e.Err }

var operations = map[byte]string{'I': "insert", 'U': "update", 'D': "delete", 'T': "truncate"}

// portalParameter is the context of errors in the input of a parameter.
var portalParameter = regexp.MustCompile(`portal parameter \$(\d+)`)

// explain makes the card of a failure of the current transaction.
func (e *engine) explain(err error) *ErrorCard {
	c := &ErrorCard{Subscription: e.o.Subscription, Class: ClassOther, Message: err.Error()}
	if tx := &e.tx; tx.commit != 0 && !tx.old {
		c.CommitLSN, c.XID = tx.commit.String(), uint32(tx.xid)
		if tx.end != 0 {
			c.EndLSN = tx.end.String()
		}
		if !tx.time.IsZero() {
			t := tx.time
			c.CommitTime = &t
		}
	}
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		c.SQLState, c.Message, c.Detail, c.Constraint, c.Context, c.Column = pe.Code, pe.Message, pe.Detail, pe.ConstraintName, pe.Where, pe.ColumnName
		if pe.TableName != "" {
			c.Table = sqlw.DisplayName(pe.SchemaName, pe.TableName)
		}
	}
	if st := failedStep(err); st != nil {
		e.explainStep(c, st, err)
	}
	var (
		missing *MissingTable
		table   *tableError
		columns *sqlw.ColumnError
		ident   *sqlw.IdentityError
		trunc   *TruncateError
	)
	switch {
	case errors.As(err, &missing):
		c.Class, c.Table, c.Remedy = ClassMissingTable, sqlw.DisplayName(missing.Schema, missing.Name), missing.Hint()
	case errors.As(err, &columns):
		c.Class, c.Table, c.Remedy = ClassMissingColumn, columns.Table.String(), columns.Hint()
	case errors.As(err, &ident):
		c.Class, c.Table, c.Remedy = ClassIdentity, ident.Table.String(), ident.Hint()
	case errors.As(err, &trunc):
		c.Class, c.Table, c.Operation, c.Remedy = ClassTruncate, trunc.Target.Table.String(), "truncate", trunc.Hint()
	case errors.As(err, &table):
		c.Table = sqlw.DisplayName(table.Schema, table.Name)
	}
	e.remedy(c)
	return c
}

// failedStep is the step that an error belongs to.
func failedStep(err error) *sqlw.Step {
	var se *sqlw.StepError
	var ce *sqlw.CountError
	switch {
	case errors.As(err, &se):
		return &se.Step
	case errors.As(err, &ce):
		return &ce.Step
	}
	return nil
}

// explainStep adds what is known of the row.
func (e *engine) explainStep(c *ErrorCard, st *sqlw.Step, err error) {
	c.Class = classOf(st, err)
	if st.Kind == sqlw.KindCommit {
		return
	}
	if st.Target == nil {
		return
	}
	c.Table, c.Operation = st.Target.Table.String(), operations[st.Op]
	switch c.Class {
	case ClassUpdateMissing, ClassDeleteMissing:
		c.Message = fmt.Sprintf("the row to %s is not there", c.Operation)
		if st.Target.Table.RuleFires(st.Op, e.replica) {
			c.Message = fmt.Sprintf("a rule on the table kept the row from being %sd", c.Operation)
		}
	case ClassRowCount:
		var ce *sqlw.CountError
		if errors.As(err, &ce) {
			c.Message = fmt.Sprintf("%d rows instead of one were affected", ce.Rows)
		}
	}
	if st.Kind == sqlw.KindCheck {
		c.SQLState, c.Constraint = "23505", st.Target.DeferredName(st.Stmt)
		c.Message = fmt.Sprintf("rows violate the deferrable constraint %q", c.Constraint)
	}
	if m := portalParameter.FindStringSubmatch(c.Context); m != nil && st.Stmt != nil {
		if n, err := strconv.Atoi(m[1]); err == nil && n >= 1 && n <= len(st.Stmt.Params) {
			c.Column = st.Target.Rel.Columns[st.Stmt.Params[n-1].Col].Name
		}
	}
	if m := e.journal.find(st.Ordinal); m != nil {
		vals := m.New
		if len(m.Old) > 0 {
			vals = m.Old
		}
		c.Key = keyText(st.Target, vals)
	}
}

// keyText shows the key of a row.
func keyText(t *sqlw.Target, row []change.Value) string {
	const longest = 200
	var names, vals []string
	for _, i := range t.KeyColumns() {
		if i >= len(row) {
			return ""
		}
		names = append(names, t.Rel.Columns[i].Name)
		v := "null"
		switch row[i].Kind {
		case change.Text:
			v = strings.ToValidUTF8(string(row[i].Data), "?")
		case change.Binary:
			v = fmt.Sprintf(`\x%x`, row[i].Data)
		case change.Unchanged:
			v = "(unchanged)"
		}
		if len(v) > longest {
			v = strings.ToValidUTF8(v[:longest], "") + "..."
		}
		vals = append(vals, v)
	}
	if names == nil {
		return ""
	}
	return "(" + strings.Join(names, ", ") + ")=(" + strings.Join(vals, ", ") + ")"
}

// classOf names the class of a step's failure.
func classOf(st *sqlw.Step, err error) string {
	var ce *sqlw.CountError
	if errors.As(err, &ce) {
		switch {
		case st.Kind == sqlw.KindCheck:
			return ClassInsertConflict
		case ce.Rows > 1:
			return ClassRowCount
		case st.Op == 'U':
			return ClassUpdateMissing
		case st.Op == 'D':
			return ClassDeleteMissing
		}
		return ClassRowCount
	}
	var pe *pgconn.PgError
	if !errors.As(err, &pe) {
		return ClassOther
	}
	switch {
	case pe.Code == "23505" || pe.Code == "23P01":
		return ClassInsertConflict
	case transientCode(pe.Code):
		return ClassTransient
	case pe.Code == "42501":
		return ClassPrivilege
	case st.Kind == sqlw.KindCommit:
		return ClassCommit
	case st.Kind == sqlw.KindRow && st.Op != 'T' && (strings.HasPrefix(pe.Code, "22") || strings.HasPrefix(pe.Code, "23") || strings.HasPrefix(pe.Code, "P0")):
		return ClassRow
	}
	return ClassOther
}

// transientCode reports whether an SQLSTATE goes away by itself.
func transientCode(code string) bool {
	switch code {
	case "40001", "40P01", "55P03", "57014", "25006":
		return true
	}
	return strings.HasPrefix(code, "08") || strings.HasPrefix(code, "53") || strings.HasPrefix(code, "57P")
}

// remedy says what a person can do.
func (e *engine) remedy(c *ErrorCard) {
	skip := ""
	if c.CommitLSN != "" {
		skip = fmt.Sprintf("; or leave the whole transaction out: walferry skip --subscription %s --lsn %s", c.Subscription, c.CommitLSN)
	}
	switch c.Class {
	case ClassInsertConflict:
		c.Remedy = "remove or change the row on the subscriber that holds the value" + skip
	case ClassUpdateMissing, ClassDeleteMissing:
		c.Remedy = fmt.Sprintf("insert the row on the subscriber, or set policies.%s: skip", c.Class) + skip
	case ClassRowCount:
		c.Remedy = "make the key unique on the subscriber" + skip
	case ClassPrivilege:
		c.Remedy = "GRANT what the message names to the role of the subscription; walferry check lists all privileges"
	case ClassRow, ClassCommit:
		c.Remedy = "make the subscriber accept the row" + skip
	case ClassOther:
		c.Remedy = strings.TrimPrefix(skip, "; or ")
	default:
		if c.Remedy != "" {
			c.Remedy += skip
		}
	}
}
