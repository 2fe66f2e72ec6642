package snapshot

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/internal/pgquery"
)

// With Options.Locked the tables are locked in SHARE mode, all before the first row is
// read and until the last one. Everything that was written to them before has been
// committed when the locks are there, in front of the end of the log; everything that is
// written later waits, and is committed behind it. So that end is the consistent point,
// and no slot is needed.

const (
	// lockPatience is how long an attempt waits for one lock. Those who want to write
	// to the table queue behind it meanwhile.
	lockPatience = "2s"
	lockPause    = time.Second // between attempts, on average
)

// lock takes the locks, in the order of the tables' OIDs, so that two copies at a time
// do not wait for each other in a circle.
func (p *point) lock(ctx context.Context, r *run) error {
	var err error
	if p.server, err = identify(ctx, p.conn); err != nil {
		return err
	}
	statement, err := lockStatement(ctx, p.conn, r.o.Tables)
	if err != nil {
		return err
	}
	r.stall.follow(sidePublisher, p.conn.PID())
	for {
		err := execSQL(ctx, p.conn, "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY; SET LOCAL lock_timeout = '"+lockPatience+"'; "+statement)
		if err == nil {
			break
		}
		pg, ok := errors.AsType[*pgconn.PgError](err)
		if !ok || pg.Code != "55P03" && pg.Code != "40P01" { // lock_not_available, deadlock_detected
			return fmt.Errorf("lock the publisher's tables: %w", err)
		}
		if err := execSQL(ctx, p.conn, "ROLLBACK"); err != nil {
			return fmt.Errorf("lock the publisher's tables: %w", err)
		}
		r.log.Info("the tables could not be locked within "+lockPatience+": they are let go, and tried again", "error", err)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(lockPause/2 + rand.N(lockPause)):
		}
	}
	r.stall.leave(sidePublisher, p.conn.PID())
	// The snapshot is taken after the locks (READ COMMITTED), and the position too.
	row, err := pgquery.One(ctx, p.conn, "SELECT pg_current_wal_insert_lsn(), pg_export_snapshot()")
	if err != nil {
		return fmt.Errorf("export a snapshot of the locked tables: %w", err)
	}
	if p.lsn, err = change.ParseLSN(row[0]); err != nil {
		return fmt.Errorf("read the publisher's position: %w", err)
	}
	p.snapshot = row[1]
	return nil
}

// lockStatement locks the tables that are there; what is missing the plan will say.
func lockStatement(ctx context.Context, c *pgconn.PgConn, tables []TableMap) (string, error) {
	var schemas, names []string
	for _, t := range tables {
		schemas, names = append(schemas, t.SourceSchema), append(names, t.SourceName)
	}
	rows, err := pgquery.Rows(ctx, c, `SELECT format('%s%I.%I', CASE WHEN c.relkind = 'p' THEN '' ELSE 'ONLY ' END, n.nspname, c.relname)
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN unnest($1::text[], $2::text[]) w(s, t) ON w.s = n.nspname AND w.t = c.relname
		WHERE c.relkind IN ('r', 'p') ORDER BY c.oid`, pgquery.TextArray(schemas), pgquery.TextArray(names))
	if err != nil {
		return "", fmt.Errorf("read the publisher's tables: %w", err)
	}
	if len(rows) == 0 {
		return "", nil
	}
	list := make([]string, len(rows))
	for i, r := range rows {
		list[i] = r[0]
	}
	return "LOCK TABLE " + strings.Join(list, ", ") + " IN SHARE MODE", nil
}
