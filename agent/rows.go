package agent

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// row is one result row in text form; a NULL is the empty string.
type row []string

// query runs one statement with text parameters and returns all rows. It is
// for the small catalog and ledger queries of this package.
func query(ctx context.Context, c *pgconn.PgConn, sql string, args ...string) ([]row, error) {
	params := make([][]byte, len(args))
	for i, a := range args {
		params[i] = []byte(a)
	}
	res := c.ExecParams(ctx, sql, params, nil, nil, nil).Read()
	if res.Err != nil {
		return nil, res.Err
	}
	rows := make([]row, len(res.Rows))
	for i, r := range res.Rows {
		rows[i] = make(row, len(r))
		for j, v := range r {
			rows[i][j] = string(v)
		}
	}
	return rows, nil
}

// queryRow is query for statements that give exactly one row.
func queryRow(ctx context.Context, c *pgconn.PgConn, sql string, args ...string) (row, error) {
	rows, err := query(ctx, c, sql, args...)
	if err != nil {
		return nil, err
	}
	if len(rows) != 1 {
		return nil, fmt.Errorf("query gave %d rows, want 1", len(rows))
	}
	return rows[0], nil
}
