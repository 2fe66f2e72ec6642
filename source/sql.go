package source

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// row is one row of a result in text form; NULL is "".
type row []string

// query runs one statement by the simple protocol, which also works on a
// replication connection.
func query(ctx context.Context, conn *pgconn.PgConn, what, sql string) ([]row, error) {
	res, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	if len(res) == 0 {
		return nil, nil
	}
	rows := make([]row, 0, len(res[0].Rows))
	for _, r := range res[0].Rows {
		out := make(row, len(r))
		for i, v := range r {
			out[i] = string(v)
		}
		rows = append(rows, out)
	}
	return rows, nil
}

// quoteIdent makes an SQL identifier.
func quoteIdent(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

// quoteLiteral makes an SQL string constant; standard_conforming_strings is
// pinned, and the grammar of replication commands knows no backslashes.
func quoteLiteral(s string) string { return `'` + strings.ReplaceAll(s, `'`, `''`) + `'` }

func quoteLiterals(s []string) string {
	q := make([]string, len(s))
	for i, v := range s {
		q[i] = quoteLiteral(v)
	}
	return strings.Join(q, ", ")
}
