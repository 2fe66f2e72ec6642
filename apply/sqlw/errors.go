package sqlw

import (
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// A StepError is an SQL error of the server, with the step that it was
// executing. Unwrap gives the *pgconn.PgError.
type StepError struct {
	Step Step
	Err  *pgconn.PgError
}

func (e *StepError) Error() string { return e.Err.Error() }
func (e *StepError) Unwrap() error { return e.Err }

// A CountError says that a statement reported another number of rows than it
// had to.
type CountError struct {
	Step Step
	Rows int64
}

func (e *CountError) Error() string {
	return fmt.Sprintf("%d rows affected, expected %d", e.Rows, e.Step.Want)
}

// A BrokenError says that a session is of no more use: the connection is lost,
// was cancelled, or the server said what it must not say.
type BrokenError struct{ Err error }

func (e *BrokenError) Error() string { return "subscriber connection: " + e.Err.Error() }
func (e *BrokenError) Unwrap() error { return e.Err }

func pgError(m *pgproto3.ErrorResponse) *pgconn.PgError {
	return &pgconn.PgError{
		Severity: m.Severity, SeverityUnlocalized: m.SeverityUnlocalized, Code: m.Code, Message: m.Message,
		Detail: m.Detail, Hint: m.Hint, Position: m.Position, InternalPosition: m.InternalPosition,
		InternalQuery: m.InternalQuery, Where: m.Where, SchemaName: m.SchemaName, TableName: m.TableName,
		ColumnName: m.ColumnName, DataTypeName: m.DataTypeName, ConstraintName: m.ConstraintName,
		File: m.File, Line: m.Line, Routine: m.Routine,
	}
}
