package snapshot

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/walferry/walferry/internal/pgquery"
)

// A large table is copied in parts, ranges of blocks, by all workers at the same
// time. Each part is a transaction of the subscriber, which also writes its row of
// walferry.subscription_part; until the last one the ledger says that the table is
// being copied. A run that finds parts of an earlier one brings them to its own
// snapshot, see resume. Only tables are split that were empty before.

// partBytes is about how much of a table one part is, on disk.
var partBytes int64 = 128 << 20

// task is the copy of one table in parts.
type task struct {
	*plan
	parts   []*part
	shape   string // what has to be the same for parts of an earlier run to be of use
	resumed bool   // parts of an earlier run are used
	attempt string // tells the parts of this run from those of another at the same time

	mu     sync.Mutex
	start  time.Time
	left   int // parts that are not done
	failed error
	shown  Progress // of all parts
	stored int64
}

// part is a range of blocks of a table or of one of its partitions.
type part struct {
	n           int
	table       string // quoted
	first, last int64  // blocks; last is 0 for the rest of the table

	held // what the subscriber has of it

	stale   bool  // some of what it has is not in this snapshot
	keep    int64 // of rows: they are in this snapshot too
	changes bool  // the snapshot has rows that the subscriber has not
}

// where selects the rows of the part, those that are old or those that are not, if
// asked.
func (p *part) where(age string) string {
	s := fmt.Sprintf("ctid >= '(%d,0)'::pg_catalog.tid", p.first)
	if p.last != 0 {
		s += fmt.Sprintf(" AND ctid < '(%d,0)'::pg_catalog.tid", p.last)
	}
	if age != "" {
		s += " AND " + age
	}
	return s
}

// split cuts a table into parts, if it is worth it and may be done: nil, if not.
func (w *worker) split(ctx context.Context, p *plan) (*task, error) {
	if !p.empty || p.foreign || p.rowsOnly() || p.estimatedBytes < 2*partBytes {
		return nil, nil
	}
	// In the tree of a partitioned table the rows are in the leaves.
	rows, err := pgquery.Rows(ctx, w.in.conn, `SELECT format('%I.%I', n.nspname, c.relname), pg_relation_size(c.oid) / current_setting('block_size')::int, c.oid, c.relfilenode, a.amname = 'heap'
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_am a ON a.oid = c.relam
		WHERE c.relkind = 'r' AND c.oid IN (SELECT $1::oid UNION SELECT relid FROM pg_partition_tree($1::oid) WHERE $2::bool) ORDER BY c.oid`, p.oid, fmt.Sprint(p.partitioned))
	if err != nil {
		return nil, fmt.Errorf("read the size of publisher's table %s: %w", p.Source(), err)
	}
	for _, r := range rows {
		if !r.Bool(4) {
			return nil, nil // another access method may not keep rows in blocks
		}
	}
	t := &task{plan: p, shape: w.shape(p, rows)}
	if t.adopt(w.in.horizon) {
		return t, nil
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
	for i, r := range rows {
		for at := int64(0); ; at += each {
			c := &part{n: len(t.parts), table: r[0], first: at, last: at + each}
			t.parts = append(t.parts, c)
			if at+each >= sizes[i] {
				c.last = 0
				break
			}
		}
	}
	if len(t.parts) < 2 {
		return nil, nil
	}
	return t, nil
}

// shape is the same as long as a row that nobody changes stays where it is, and is
// copied as it was.
func (w *worker) shape(p *plan, leaves []pgquery.Row) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d/%d %q %v\n", w.r.point.server.systemID, w.r.point.server.timeline, p.RowFilter, p.columns)
	for _, c := range p.sourceTable.columns {
		fmt.Fprintf(&b, "%q %q %s %t\n", c.name, c.typ, c.oid, c.generated)
	}
	for _, l := range leaves {
		fmt.Fprintf(&b, "%s %s %s\n", l[0], l[2], l[3])
	}
	sum := sha256.Sum256([]byte(b.String()))
	return hex.EncodeToString(sum[:16])
}

// beginParts empties the table, unless parts of an earlier run are of use, and makes
// it known that parts follow. It reports whether the rows are there already.
func (w *worker) beginParts(ctx context.Context, t *task) (there bool, res TableResult, err error) {
	r := w.r
	t.start, t.attempt = time.Now(), newAttempt()
	res = TableResult{TableMap: t.TableMap, CopyLSN: r.point.lsn}
	there, lsn, err := w.out.begin(ctx, r.o.Subscription, t.TableMap)
	if err != nil || there {
		res.Skipped, res.CopyLSN = there, lsn
		return there, res, err
	}
	if t.resumed {
		err = w.out.takeParts(ctx, r.o.Subscription, t)
	} else if err = w.out.makeEmpty(ctx, r.o.Subscription, t.plan); err == nil {
		err = w.out.planParts(ctx, r.o.Subscription, t)
	}
	if err == nil {
		err = execSQL(ctx, w.out.conn, "COMMIT")
	}
	if err != nil {
		w.out.rollback(ctx)
	}
	return false, res, err
}

// started tells how far the table is at the beginning.
func (r *run) started(t *task) {
	t.shown = Progress{Table: t.TableMap, Started: t.start, EstimatedRows: t.estimatedRows, EstimatedBytes: t.estimatedBytes}
	for _, p := range t.parts {
		t.shown.Rows += p.rows
		t.stored += p.stored
	}
	r.tell(func(e *Events) { e.tableStarted(t.shown) })
}

// copyPart copies one part; whoever copies the last one ends the table.
func (w *worker) copyPart(ctx context.Context, t *task, p *part) (done bool, res TableResult, err error) {
	if err = t.error(); err == nil {
		err = w.transferPart(ctx, t, p)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failed == nil {
		t.failed = err
	}
	if t.left--; t.left > 0 {
		return false, res, err
	}
	res, err = w.endTask(ctx, t)
	return true, res, err
}

// endTask ends the table. t.mu is held, or nobody else uses t.
func (w *worker) endTask(ctx context.Context, t *task) (TableResult, error) {
	res := TableResult{TableMap: t.TableMap, CopyLSN: w.r.point.lsn}
	if t.failed == nil {
		t.failed = w.endParts(ctx, t)
	}
	if t.failed != nil {
		return res, t.failed
	}
	res.Rows, res.Bytes, res.Duration = t.shown.Rows, t.shown.Bytes, time.Since(t.start)
	w.r.copied(t.plan, res, t.stored)
	return res, nil
}

func (t *task) error() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failed
}

func (w *worker) transferPart(ctx context.Context, t *task, part *part) error {
	r := w.r
	p := *t.plan
	p.setPartSQL(part, w.in.horizon)
	m := &meter{r: r, task: t}
	r.stall.move()
	if err := execSQL(ctx, w.out.conn, "BEGIN"); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	var stored int64
	err := w.unlocked(ctx, func() (err error) {
		if stored, err = w.transfer(ctx, &p, m); err != nil {
			return err
		}
		m.show()
		t.add(stored)
		return w.sameFiles(ctx, &p)
	})
	if err == nil {
		err = w.out.recordPart(ctx, r, t, part, w.in.horizon, m.p.Rows, stored)
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
		parts, rows, err = w.out.countParts(ctx, r.o.Subscription, t)
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
