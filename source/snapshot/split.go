package snapshot

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/walferry/walferry/internal/pgquery"
)

// A large table is copied in parts, ranges of blocks, by all workers at the same
// time. Each part is a transaction of the subscriber, which also writes a row of
// walferry.subscription_part. Until the last one the ledger says that the table is
// being copied; a run that finds parts of an earlier one, which belong to another
// snapshot, empties the table and begins it anew. So only tables are split that
// are empty before.

// partBytes is about how much of a table one part is, on disk.
var partBytes int64 = 128 << 20

// task is the copy of one table.
type task struct {
	*plan
	parts []part // none: the table in one transaction

	mu     sync.Mutex
	start  time.Time
	left   int // parts that are not done
	failed error
	shown  Progress // of all parts
	stored int64
}

// part is a range of blocks of a table or of one of its partitions.
type part struct {
	table       string // quoted
	first, last int64  // blocks; last is 0 for the rest of the table
}

func (p *part) where() string {
	s := fmt.Sprintf("ctid >= '(%d,0)'::pg_catalog.tid", p.first)
	if p.last != 0 {
		s += fmt.Sprintf(" AND ctid < '(%d,0)'::pg_catalog.tid", p.last)
	}
	return s
}

// split cuts a table into parts, if it is worth it and may be done: nil, if not.
func (w *worker) split(ctx context.Context, p *plan) ([]part, error) {
	if !p.empty || p.rowsOnly() || p.estimatedBytes < 2*partBytes {
		return nil, nil
	}
	// In the tree of a partitioned table the rows are in the leaves.
	rows, err := pgquery.Rows(ctx, w.in.conn, `SELECT format('%I.%I', n.nspname, c.relname), pg_relation_size(c.oid) / current_setting('block_size')::int
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relkind = 'r' AND c.oid IN (SELECT $1::oid UNION SELECT relid FROM pg_partition_tree($1::oid) WHERE $2::bool) ORDER BY c.oid`, p.oid, fmt.Sprint(p.partitioned))
	if err != nil {
		return nil, fmt.Errorf("read the size of publisher's table %s: %w", p.Source(), err)
	}
	var blocks int64
	sizes := make([]int64, len(rows))
	for i, r := range rows {
		if sizes[i], err = strconv.ParseInt(r[1], 10, 64); err != nil {
			return nil, fmt.Errorf("read the size of publisher's table %s: %w", p.Source(), err)
		}
		blocks += sizes[i]
	}
	if blocks == 0 {
		return nil, nil
	}
	// Blocks hold what is out of line too, by the size of the whole table.
	each := max(1, blocks*partBytes/p.estimatedBytes)
	var parts []part
	for i, r := range rows {
		for at := int64(0); ; at += each {
			if at+each >= sizes[i] {
				parts = append(parts, part{table: r[0], first: at})
				break
			}
			parts = append(parts, part{table: r[0], first: at, last: at + each})
		}
	}
	if len(parts) < 2 {
		return nil, nil
	}
	return parts, nil
}

// beginParts empties the table and makes it known that parts follow. It reports
// whether the rows are there already.
func (w *worker) beginParts(ctx context.Context, t *task) (there bool, res TableResult, err error) {
	r := w.r
	t.start, t.left = time.Now(), len(t.parts)
	t.shown = Progress{Table: t.TableMap, Started: t.start, EstimatedRows: t.estimatedRows, EstimatedBytes: t.estimatedBytes}
	res = TableResult{TableMap: t.TableMap, CopyLSN: r.point.lsn}
	there, lsn, err := w.out.begin(ctx, r.o.Subscription, t.TableMap)
	if err != nil || there {
		res.Skipped, res.CopyLSN = there, lsn
		return there, res, err
	}
	err = w.out.forgetParts(ctx, r.o.Subscription, t.TableMap)
	if err == nil {
		if err = execSQL(ctx, w.out.conn, "TRUNCATE "+t.Target()); err != nil {
			err = fmt.Errorf("empty the subscriber's table: %w", err)
		}
	}
	if err == nil {
		err = execSQL(ctx, w.out.conn, "COMMIT")
	}
	if err != nil {
		w.out.rollback(ctx)
		return false, res, err
	}
	r.tell(func(e *Events) { e.tableStarted(t.shown) })
	return false, res, nil
}

// copyPart copies one part; whoever copies the last one ends the table.
func (w *worker) copyPart(ctx context.Context, t *task, n int) (done bool, res TableResult, err error) {
	if err = t.error(); err == nil {
		err = w.transferPart(ctx, t, n)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failed == nil {
		t.failed = err
	}
	if t.left--; t.left > 0 {
		return false, res, err
	}
	res = TableResult{TableMap: t.TableMap, CopyLSN: w.r.point.lsn}
	if t.failed != nil {
		return true, res, t.failed
	}
	if t.failed = w.endParts(ctx, t); t.failed != nil {
		return true, res, t.failed
	}
	res.Rows, res.Bytes, res.Duration = t.shown.Rows, t.shown.Bytes, time.Since(t.start)
	w.r.copied(t.plan, res, t.stored)
	return true, res, nil
}

func (t *task) error() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failed
}

func (w *worker) transferPart(ctx context.Context, t *task, n int) error {
	r := w.r
	part := &t.parts[n]
	p := *t.plan
	p.setPartSQL(part)
	m := &meter{r: r, task: t}
	r.stall.move()
	if err := execSQL(ctx, w.out.conn, "BEGIN"); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	err := w.unlocked(ctx, func() error {
		stored, err := w.transfer(ctx, &p, m)
		if err != nil {
			return err
		}
		m.show()
		t.add(stored)
		return w.sameFiles(ctx, &p)
	})
	if err == nil {
		err = w.out.recordPart(ctx, r.o.Subscription, t.TableMap, n, r.point.lsn, m.p.Rows)
	}
	if err == nil {
		if err = execSQL(ctx, w.out.conn, "COMMIT"); err != nil {
			err = fmt.Errorf("commit: %w", err)
		}
	}
	if err != nil {
		w.out.rollback(ctx)
	}
	return err
}

func (t *task) add(stored int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stored += stored
}

// endParts verifies that all parts are there and records the table. t.mu is held.
func (w *worker) endParts(ctx context.Context, t *task) error {
	r := w.r
	there, _, err := w.out.begin(ctx, r.o.Subscription, t.TableMap)
	if err == nil && there {
		return fmt.Errorf("table %s was recorded by somebody else", t.Source())
	}
	var parts, rows int64
	if err == nil {
		parts, rows, err = w.out.countParts(ctx, r.o.Subscription, t.TableMap, r.point.lsn)
	}
	if err == nil && (parts != int64(len(t.parts)) || rows != t.shown.Rows) {
		err = &CountError{Sent: t.shown.Rows, Forwarded: t.shown.Rows, Stored: rows}
	}
	if err == nil {
		err = w.recheck(ctx, t.plan)
	}
	if err == nil {
		err = w.out.forgetParts(ctx, r.o.Subscription, t.TableMap)
	}
	if err == nil {
		err = w.out.commit(ctx, r.o.Subscription, t.TableMap, r.point.lsn, rows)
	}
	if err != nil {
		w.out.rollback(ctx)
	}
	return err
}
