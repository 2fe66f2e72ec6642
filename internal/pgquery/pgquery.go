// Package pgquery runs the small catalog and ledger queries of the agents and
// gives their results as text. What moves user rows does not go through it.
package pgquery

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// Row is one result row in text form; a NULL is the empty string. The caller
// owns it.
type Row []string

// Bool reports whether column i is true.
func (r Row) Bool(i int) bool { return r[i] == "t" }

// Rows runs one statement with text parameters by the extended protocol and
// returns all its rows.
func Rows(ctx context.Context, c *pgconn.PgConn, sql string, args ...string) ([]Row, error) {
	params := make([][]byte, len(args))
	for i, a := range args {
		params[i] = []byte(a)
	}
	res := c.ExecParams(ctx, sql, params, nil, nil, nil).Read()
	if res.Err != nil {
		return nil, res.Err
	}
	return text(res.Rows), nil
}

// One is Rows for a statement that gives exactly one row; any other number is
// an error.
func One(ctx context.Context, c *pgconn.PgConn, sql string, args ...string) (Row, error) {
	rows, err := Rows(ctx, c, sql, args...)
	if err != nil {
		return nil, err
	}
	if len(rows) != 1 {
		return nil, fmt.Errorf("query gave %d rows, want 1", len(rows))
	}
	return rows[0], nil
}

// Simple runs statements by the simple protocol, the only one of a replication
// connection, and returns the rows of the first that gives any result.
func Simple(ctx context.Context, c *pgconn.PgConn, sql string) ([]Row, error) {
	res, err := c.Exec(ctx, sql).ReadAll()
	if err != nil || len(res) == 0 {
		return nil, err
	}
	return text(res[0].Rows), nil
}

func text(rows [][][]byte) []Row {
	out := make([]Row, len(rows))
	for i, r := range rows {
		out[i] = make(Row, len(r))
		for j, v := range r {
			out[i][j] = string(v)
		}
	}
	return out
}

var arrayEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// TextArray is the text form of a text[] parameter (PostgreSQL documentation,
// "Array Input and Output Syntax").
func TextArray(items []string) string {
	q := make([]string, len(items))
	for i, s := range items {
		q[i] = `"` + arrayEscapes.Replace(s) + `"`
	}
	return "{" + strings.Join(q, ",") + "}"
}
