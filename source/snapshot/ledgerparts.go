package snapshot

import (
	"context"
	"fmt"
	"strconv"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/internal/pgquery"
)

// recordPart writes that a part is there, in the transaction that holds its rows. It
// fails when somebody else has copied the part or has ended the table.
func (w *writer) recordPart(ctx context.Context, subscription string, t TableMap, n int, lsn change.LSN, rows int64) error {
	_, err := pgquery.One(ctx, w.conn, `INSERT INTO walferry.subscription_part (subscription, schema_name, table_name, part, copy_lsn, rows)
		SELECT subscription, schema_name, table_name, $4::int, $5::pg_lsn, $6::int8 FROM walferry.subscription_table
		WHERE subscription = $1 AND schema_name = $2 AND table_name = $3 AND state = 'copying' FOR SHARE RETURNING part`,
		subscription, t.SourceSchema, t.SourceName, strconv.Itoa(n), lsn.String(), strconv.FormatInt(rows, 10))
	if err != nil {
		return fmt.Errorf("record in walferry.subscription_part: %w", err)
	}
	return nil
}

// countParts are the parts that were copied at lsn, and their rows.
func (w *writer) countParts(ctx context.Context, subscription string, t TableMap, lsn change.LSN) (parts, rows int64, err error) {
	r, err := pgquery.One(ctx, w.conn, `SELECT count(*), COALESCE(sum(rows), 0) FROM walferry.subscription_part
		WHERE subscription = $1 AND schema_name = $2 AND table_name = $3 AND copy_lsn = $4::pg_lsn`, subscription, t.SourceSchema, t.SourceName, lsn.String())
	if err == nil {
		parts, err = strconv.ParseInt(r[0], 10, 64)
	}
	if err == nil {
		rows, err = strconv.ParseInt(r[1], 10, 64)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("read walferry.subscription_part: %w", err)
	}
	return parts, rows, nil
}

func (w *writer) forgetParts(ctx context.Context, subscription string, t TableMap) error {
	_, err := pgquery.Rows(ctx, w.conn, "DELETE FROM walferry.subscription_part WHERE subscription = $1 AND schema_name = $2 AND table_name = $3",
		subscription, t.SourceSchema, t.SourceName)
	if err != nil {
		return fmt.Errorf("delete from walferry.subscription_part: %w", err)
	}
	return nil
}
