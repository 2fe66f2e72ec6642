package source

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/internal/pgquery"
)

// query runs statements by the simple protocol, which also works on a
// replication connection; what names them in an error.
func query(ctx context.Context, conn *pgconn.PgConn, what, sql string) ([]pgquery.Row, error) {
	rows, err := pgquery.Simple(ctx, conn, sql)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return rows, nil
}

func quoteLiterals(s []string) string {
	q := make([]string, len(s))
	for i, v := range s {
		q[i] = sqlw.QuoteLiteral(v)
	}
	return strings.Join(q, ", ")
}
