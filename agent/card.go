package agent

import (
	"encoding/json"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/monitor"
)

// tableError is a cause that lies in one table and that the operator mends.
type tableError struct {
	table  string
	err    error
	remedy string
}

func (e *tableError) Error() string { return e.err.Error() }
func (e *tableError) Unwrap() error { return e.err }
func (e *tableError) Hint() string  { return e.remedy }

// hinter is an error that knows what mends it.
type hinter interface{ Hint() string }

// cardOf describes an error outside the apply of a transaction in the form
// that package apply uses for those inside.
func cardOf(subscription string, err error) *monitor.ErrorCard {
	c := &monitor.ErrorCard{Subscription: subscription, Class: "agent", Message: err.Error()}
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		c.SQLState, c.Detail, c.Constraint = pe.Code, pe.Detail, pe.ConstraintName
		if pe.TableName != "" {
			c.Table = sqlw.DisplayName(pe.SchemaName, pe.TableName)
		}
	}
	var te *tableError
	if errors.As(err, &te) {
		c.Table = te.table
	}
	var h hinter
	if errors.As(err, &h) {
		c.Remedy = h.Hint()
	}
	// The queue does not know for whom it is read.
	name := strings.NewReplacer("--subscription NAME", "--subscription "+subscription)
	c.Message, c.Remedy = name.Replace(c.Message), name.Replace(c.Remedy)
	return c
}

// cardText is the one-line form of a stored card.
func cardText(raw json.RawMessage) string {
	c, err := monitor.ParseCard(raw)
	if err != nil || c.Message == "" {
		return string(raw)
	}
	var b strings.Builder
	if c.Table != "" {
		b.WriteString("table " + c.Table + ": ")
	}
	b.WriteString(c.Message)
	if c.SQLState != "" {
		b.WriteString(" (SQLSTATE " + c.SQLState + ")")
	}
	return b.String()
}
