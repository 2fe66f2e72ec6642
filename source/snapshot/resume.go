package snapshot

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/internal/pgquery"
)

// What an interrupted run has copied of a large table is of its snapshot, the rest
// will be of another one. So the parts that are there are brought to the new snapshot
// before the others are copied, and the table is handed over at one position, as if it
// had been copied at once.
//
// Both sides tell rows by the transaction that wrote them (PostgreSQL documentation,
// "System Columns"). On the publisher a version of a row keeps its place and its xmin
// as long as the table is not rewritten. A part was read when all transactions before
// its bound had ended. Of the versions that are in its blocks now, those from before
// the bound were there at that time too, and are among the rows that were copied:
//
//   - as many of them as rows were copied: they are the same, and nothing of them has
//     been changed or deleted;
//   - fewer: the subscriber has rows that are stale. On the subscriber the rows of a part
//     are those of the transactions that copied it. Those whose key is not among the old
//     versions are deleted, or all of them in a table without a key.
//
// Versions from the bound on are what is copied then.

// horizon bounds what a snapshot shows: transactions before xmin have ended, and those
// from xmax on had not begun (PostgreSQL: pg_current_snapshot).
type horizon struct{ xmin, xmax uint64 }

const xidMask = 1<<32 - 1 // a row's xmin has no epoch

// old selects the versions that are from before bound. What is so old that its xmin has
// come round is taken for new, which costs copying it again.
func (h horizon) old(bound uint64) string {
	return fmt.Sprintf("(%d - xmin::pg_catalog.text::pg_catalog.int8 & %d) > %d", h.xmax, uint64(xidMask), h.xmax-bound)
}

// young selects the others.
func (h horizon) young(bound uint64) string { return "NOT (" + h.old(bound) + ")" }

// comparable reports whether old can tell the age of rows.
func (h horizon) comparable(bound uint64) bool { return bound <= h.xmin && h.xmax-bound < xidMask/2 }

// there reports whether the subscriber has the part as of some snapshot.
func (h *held) there() bool { return h.bound > 0 }

// adopt takes over the parts of an earlier run, if they are of use.
func (t *task) adopt(h horizon) bool {
	if len(t.earlier) == 0 || !slices.ContainsFunc(t.earlier, func(p recordedPart) bool { return p.there() }) {
		return false
	}
	for i := range t.earlier {
		p := &t.earlier[i]
		if p.shape != t.shape || p.there() && !h.comparable(p.bound) {
			return false
		}
	}
	for i := range t.earlier {
		p := t.earlier[i].part
		var there int64
		for _, x := range p.xids {
			there += t.present[uint32(x)]
		}
		if there != p.stored { // somebody has deleted rows, or all of them
			p.stale, p.held = true, held{xids: p.xids}
		}
		t.parts = append(t.parts, &p)
	}
	t.resumed = true
	return true
}

// presentRows counts the rows of a target by the low half of the transaction that stored
// them.
func (w *writer) presentRows(ctx context.Context, p *plan) (map[uint32]int64, error) {
	rows, err := pgquery.Rows(ctx, w.conn, "SELECT xmin, pg_catalog.count(*) FROM "+p.only()+" GROUP BY xmin")
	if err != nil {
		return nil, err
	}
	present := make(map[uint32]int64, len(rows))
	for _, r := range rows {
		x, err := strconv.ParseUint(r[0], 10, 32)
		if err != nil {
			return nil, err
		}
		if present[uint32(x)], err = strconv.ParseInt(r[1], 10, 64); err != nil {
			return nil, err
		}
	}
	return present, nil
}

// strangers counts the rows that no part has brought.
func (p *plan) strangers() int64 {
	ours := map[uint32]bool{}
	for _, e := range p.earlier {
		for _, x := range e.xids {
			ours[uint32(x)] = true
		}
	}
	var n int64
	for x, rows := range p.present {
		if !ours[x] {
			n += rows
		}
	}
	return n
}

// verifyPart compares what the subscriber has of a part with the snapshot.
func (w *worker) verifyPart(ctx context.Context, t *task, p *part) error {
	if t.error() != nil {
		return nil
	}
	w.r.stall.move()
	var row pgquery.Row
	err := w.unlocked(ctx, func() (err error) {
		old := w.in.old(p.bound)
		row, err = pgquery.One(ctx, w.in.conn, "SELECT pg_catalog.count(*) FILTER (WHERE "+old+"), pg_catalog.count(*) FILTER (WHERE NOT ("+old+
			")) FROM ONLY "+p.table+" WHERE "+t.filtered(p.where("")))
		if err != nil {
			return fmt.Errorf("read from publisher: %w", err)
		}
		return w.sameFiles(ctx, t.plan)
	})
	if err == nil {
		var young int64
		if p.keep, err = strconv.ParseInt(row[0], 10, 64); err == nil {
			young, err = strconv.ParseInt(row[1], 10, 64)
		}
		p.stale, p.changes = p.keep != p.rows, young > 0
	}
	if err != nil {
		t.fail(err)
	}
	return err
}

func (t *task) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failed == nil {
		t.failed = err
	}
}

// removeStale deletes the rows that are not in the snapshot.
func (w *worker) removeStale(ctx context.Context, t *task) error {
	var some, all []*part // of whose rows some are stale, or all may be
	for _, p := range t.parts {
		switch {
		case !p.stale:
		case p.there() && p.keep > 0 && len(t.key) > 0 && !t.mayDrop:
			some = append(some, p)
		default:
			all = append(all, p)
		}
	}
	if len(some)+len(all) == 0 {
		return nil
	}
	if err := execSQL(ctx, w.out.conn, "BEGIN"); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	err := w.removeRows(ctx, t, some, all)
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

func (w *worker) removeRows(ctx context.Context, t *task, some, all []*part) error {
	if len(some) > 0 {
		if err := w.copyKeys(ctx, t, some); err != nil {
			return err
		}
		gone, err := w.deleteRows(ctx, t, some, "NOT EXISTS (SELECT FROM pg_temp.walferry_kept k WHERE k.walferry_part = p.part"+t.sameKey()+")")
		if err != nil {
			return err
		}
		for _, p := range some {
			if left := p.stored - gone[p.n]; left != p.keep {
				w.r.log.Warn("rows of a part are not told by their key: it is copied again", "table", t.Source(), "part", p.n, "left", left, "want", p.keep)
				all = append(all, p)
				continue
			}
			p.rows, p.stored = p.keep, p.keep
			if err := w.out.keepRows(ctx, w.r.o.Subscription, t, p); err != nil {
				return err
			}
		}
	}
	if len(all) == 0 {
		return nil
	}
	if _, err := w.deleteRows(ctx, t, all, "true"); err != nil {
		return err
	}
	for _, p := range all {
		p.held, p.keep = held{}, 0
		if err := w.out.keepRows(ctx, w.r.o.Subscription, t, p); err != nil {
			return err
		}
	}
	return nil
}

// sameKey joins the key columns of the target t with those that are kept.
func (t *task) sameKey() string {
	var b strings.Builder
	for _, c := range t.key {
		q := sqlw.QuoteIdent(c)
		fmt.Fprintf(&b, " AND k.%s = t.%s", q, q)
	}
	return b.String()
}

// copyKeys brings the keys of the rows that are to stay.
func (w *worker) copyKeys(ctx context.Context, t *task, parts []*part) error {
	key := sqlw.QuoteList(t.key)
	if err := execSQL(ctx, w.out.conn, "CREATE TEMPORARY TABLE walferry_kept ON COMMIT DROP AS SELECT 0 AS walferry_part, "+key+" FROM "+t.Target()+" WITH NO DATA"); err != nil {
		return fmt.Errorf("make a temporary table on the subscriber: %w", err)
	}
	for _, p := range parts {
		s := statements{
			reads:  fmt.Sprintf("COPY (SELECT %d, %s FROM ONLY %s WHERE %s) TO STDOUT", p.n, key, p.table, t.filtered(p.where(w.in.old(p.bound)))),
			writes: "COPY pg_temp.walferry_kept FROM STDIN",
		}
		err := w.unlocked(ctx, func() error {
			sent, _, err := w.pipe(ctx, s, &meter{r: w.r, quiet: true})
			if err == nil && sent != p.keep {
				err = &CountError{Sent: sent, Forwarded: p.keep, Stored: sent}
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("copy keys: %w", err)
		}
	}
	if err := execSQL(ctx, w.out.conn, "ANALYZE pg_temp.walferry_kept"); err != nil {
		return fmt.Errorf("analyze keys: %w", err)
	}
	return nil
}

// deleteRows deletes those rows of the parts that condition holds for, and counts them
// by part. In it t is the target and p the part.
func (w *worker) deleteRows(ctx context.Context, t *task, parts []*part, condition string) (map[int]int64, error) {
	var numbers, xids []string
	for _, p := range parts {
		for _, x := range p.xids {
			numbers, xids = append(numbers, strconv.Itoa(p.n)), append(xids, strconv.FormatUint(x&xidMask, 10))
		}
	}
	rows, err := pgquery.Rows(ctx, w.out.conn, `WITH gone AS (DELETE FROM `+t.only()+` t USING unnest($1::int[], $2::xid[]) p(part, xid)
		WHERE t.xmin = p.xid AND `+condition+` RETURNING p.part) SELECT part, count(*) FROM gone GROUP BY part`,
		"{"+strings.Join(numbers, ",")+"}", "{"+strings.Join(xids, ",")+"}")
	if err != nil {
		return nil, fmt.Errorf("delete rows that are no longer there from the subscriber's table: %w", err)
	}
	gone := make(map[int]int64, len(rows))
	for _, r := range rows {
		n, err := strconv.Atoi(r[0])
		if err != nil {
			return nil, err
		}
		if gone[n], err = strconv.ParseInt(r[1], 10, 64); err != nil {
			return nil, err
		}
	}
	return gone, nil
}
