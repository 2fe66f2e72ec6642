package pgquery

import (
	"context"

	"github.com/jackc/pgx/v5/pgconn"
)

// blockersSQL lists who keeps backend $1 waiting; pid 0 stands for a prepared
// transaction.
const blockersSQL = `SELECT COALESCE(
	'transaction of pid ' || a.pid || ' (user ' || COALESCE(a.usename, '?') || ', application ' || COALESCE(NULLIF(a.application_name, ''), '?')
	  || ', ' || COALESCE(a.state, '?') || ', xact_start ' || COALESCE(pg_catalog.date_trunc('second', a.xact_start)::pg_catalog.text, '?') || ')',
	(SELECT 'prepared transaction ' || pg_catalog.quote_literal(p.gid) || ' (prepared ' || pg_catalog.date_trunc('second', p.prepared)::pg_catalog.text || ')'
	   FROM pg_catalog.pg_prepared_xacts p ORDER BY p.prepared LIMIT 1),
	'pid ' || b.pid)
  FROM (SELECT DISTINCT pg_catalog.unnest(pg_catalog.pg_blocking_pids($1::pg_catalog.int4)) AS pid) b
  LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = b.pid AND b.pid <> 0
 ORDER BY a.xact_start LIMIT 5`

// Blockers says who holds a lock that a backend waits for, one text each: pid,
// user, application and age of the transaction. It is empty when the backend
// waits for no lock.
func Blockers(ctx context.Context, c *pgconn.PgConn, pid string) ([]string, error) {
	rows, err := Rows(ctx, c, blockersSQL, pid)
	if err != nil {
		return nil, err
	}
	by := make([]string, len(rows))
	for i, r := range rows {
		by[i] = r[0]
	}
	return by, nil
}
