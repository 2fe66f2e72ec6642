package snapshot

import (
	"context"
	"errors"
	"fmt"

	"github.com/walferry/walferry/internal/pgquery"
)

// A RewrittenError says that a table has got other files since the snapshot was
// taken. The statements that do so, TRUNCATE and the forms of ALTER TABLE that
// rewrite, take rows away from older snapshots too (PostgreSQL: "Caveats" of
// chapter Concurrency Control): what was read is not the state at the consistent
// point, but an empty table or a later state.
type RewrittenError struct{ Table string }

func (e *RewrittenError) Error() string {
	return fmt.Sprintf("%s was truncated or rewritten while it waited for its copy: nothing was kept", e.Table)
}

// rewritten compares the catalog of the snapshot, which a query reads, with the
// present one, which functions read. It runs behind the copy, whose lock keeps the
// files as they are until the end of the transaction. CLUSTER and VACUUM FULL keep
// rows for older snapshots and are not told from the others.
const rewritten = `WITH RECURSIVE tree(oid) AS (SELECT $1::oid UNION ALL SELECT inhrelid FROM pg_inherits JOIN tree ON inhparent = tree.oid AND $2::bool)
	SELECT EXISTS (SELECT FROM pg_class c JOIN tree USING (oid) WHERE c.relkind = 'r' AND (c.relfilenode IS DISTINCT FROM pg_relation_filenode(c.oid)
		OR c.oid <> $1::oid AND c.oid NOT IN (SELECT relid FROM pg_partition_tree($1::oid))))`

// sameFiles fails with a [*RewrittenError] when the copy of a table may not be what
// the snapshot held.
func (w *worker) sameFiles(ctx context.Context, p *plan) error {
	row, err := pgquery.One(ctx, w.in.conn, rewritten, p.oid, fmt.Sprint(p.partitioned))
	if err != nil {
		return fmt.Errorf("look whether %s was rewritten: %w", p.Source(), err)
	}
	if row.Bool(0) {
		return &RewrittenError{Table: p.Source()}
	}
	return nil
}

// onlyRewritten returns the tables that failed if all of them were rewritten.
func onlyRewritten(err error) []TableMap {
	var failed []error
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		failed = joined.Unwrap()
	}
	var tables []TableMap
	for _, e := range failed {
		table, ok := errors.AsType[*TableError](e)
		if !ok {
			return nil
		}
		if _, ok := errors.AsType[*RewrittenError](e); !ok {
			return nil
		}
		tables = append(tables, table.Table)
	}
	return tables
}

// runAll runs until no table was rewritten between snapshot and copy. Those that
// were come one by one, each locked as soon as there is a snapshot, so that it comes
// to an end: two locks at a time could be in the way of a transaction that takes
// them in another order.
func (r *run) runAll(ctx context.Context) error {
	var left []TableMap
	for {
		err := r.run(ctx)
		again := onlyRewritten(err)
		if err != nil && len(again) == 0 || ctx.Err() != nil {
			return err
		}
		if left = append(left, again...); len(left) == 0 {
			return nil
		}
		r.log.Info("a table was truncated or rewritten before it could be copied: it is copied at a new consistent point", "table", left[0].Source())
		r.close()
		r.o.Tables, r.lock = left[:1:1], true
		left = left[1:]
	}
}

// lockTables keeps the tables from being rewritten until the end of the copy. Rows
// can be written.
func (w *worker) lockTables(ctx context.Context) error {
	for _, t := range w.r.o.Tables {
		only := "ONLY "
		if t.Kind == 'p' {
			only = ""
		}
		if err := execSQL(ctx, w.in.conn, "LOCK TABLE "+only+t.Source()+" IN ACCESS SHARE MODE"); err != nil {
			return fmt.Errorf("lock publisher's table %s: %w", t.Source(), err)
		}
	}
	return nil
}

// unlocked runs f and lets go of the locks that it has taken on the publisher:
// those of a copied table would otherwise last until the end of the
// last one, be in the way of TRUNCATE and ALTER TABLE for as long, and fill the
// server's lock table when there are thousands.
func (w *worker) unlocked(ctx context.Context, f func() error) error {
	if err := execSQL(ctx, w.in.conn, "SAVEPOINT walferry_copy"); err != nil {
		return fmt.Errorf("read from publisher: %w", err)
	}
	err := f()
	if w.in.conn.IsClosed() {
		return err
	}
	if rerr := execSQL(ctx, w.in.conn, "ROLLBACK TO SAVEPOINT walferry_copy; RELEASE SAVEPOINT walferry_copy"); err == nil && rerr != nil {
		err = fmt.Errorf("read from publisher: %w", rerr)
	}
	return err
}
