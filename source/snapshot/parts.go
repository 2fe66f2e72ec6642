package snapshot

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/walferry/walferry/internal/pgquery"
)

// held is what the subscriber has of a part: nothing, if there are no xids.
type held struct {
	rows   int64 // that the publisher sent
	stored int64 // fewer, if a trigger of the subscriber dropped some
	// bound: the publisher's transactions before it had ended when the rows were read
	bound uint64
	xids  []uint64 // the subscriber's transactions that stored the rows
}

// recordedPart is a row of walferry.subscription_part.
type recordedPart struct {
	part
	shape, attempt string
}

func newAttempt() string {
	b := make([]byte, 8)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return hex.EncodeToString(b)
}

// readParts are the parts of an earlier run, in order.
func (w *writer) readParts(ctx context.Context, subscription string, t TableMap) ([]recordedPart, error) {
	rows, err := pgquery.Rows(ctx, w.conn, `SELECT part, source, first_block, last_block, rows, stored, bound, array_to_string(xids, ' '), shape, attempt
		FROM walferry.subscription_part WHERE subscription = $1 AND schema_name = $2 AND table_name = $3 ORDER BY part`, subscription, t.SourceSchema, t.SourceName)
	if err != nil {
		return nil, fmt.Errorf("read walferry.subscription_part: %w", err)
	}
	all := make([]recordedPart, len(rows))
	for i, r := range rows {
		p := &all[i]
		p.table, p.shape, p.attempt = r[1], r[8], r[9]
		var errs [7]error
		p.n, errs[0] = strconv.Atoi(r[0])
		for j, v := range []*int64{&p.first, &p.last, &p.rows, &p.stored} {
			*v, errs[j+1] = strconv.ParseInt(r[j+2], 10, 64)
		}
		p.bound, errs[5] = strconv.ParseUint(r[6], 10, 64)
		for s := range strings.FieldsSeq(r[7]) {
			x, err := strconv.ParseUint(s, 10, 64)
			p.xids, errs[6] = append(p.xids, x), errors.Join(errs[6], err)
		}
		if err := errors.Join(errs[:]...); err != nil {
			return nil, fmt.Errorf("read walferry.subscription_part: %w", err)
		}
	}
	return all, nil
}

// planParts records parts that are to be copied.
func (w *writer) planParts(ctx context.Context, subscription string, t *task) error {
	columns := make([][]string, 4)
	for _, p := range t.parts {
		for i, v := range []string{strconv.Itoa(p.n), p.table, strconv.FormatInt(p.first, 10), strconv.FormatInt(p.last, 10)} {
			columns[i] = append(columns[i], v)
		}
	}
	args := []string{subscription, t.SourceSchema, t.SourceName, t.shape, t.attempt}
	for _, c := range columns {
		args = append(args, pgquery.TextArray(c))
	}
	_, err := pgquery.Rows(ctx, w.conn, `INSERT INTO walferry.subscription_part (subscription, schema_name, table_name, shape, attempt, part, source, first_block, last_block)
		SELECT $1, $2, $3, $4, $5, p.part::int, p.source, p.first_block::int8, p.last_block::int8
		FROM unnest($6::text[], $7::text[], $8::text[], $9::text[]) AS p(part, source, first_block, last_block)`, args...)
	if err != nil {
		return fmt.Errorf("record in walferry.subscription_part: %w", err)
	}
	return nil
}

// errOtherRun says that two runs copy the same table.
var errOtherRun = errors.New("another run copies this table too")

// takeParts makes the parts of an earlier run those of this one.
func (w *writer) takeParts(ctx context.Context, subscription string, t *task) error {
	n, err := w.update(ctx, `UPDATE walferry.subscription_part SET attempt = $4
		WHERE subscription = $1 AND schema_name = $2 AND table_name = $3 AND attempt = $5 AND shape = $6`,
		subscription, t.SourceSchema, t.SourceName, t.attempt, t.earlier[0].attempt, t.shape)
	if err != nil {
		return fmt.Errorf("record in walferry.subscription_part: %w", err)
	}
	if n != int64(len(t.parts)) {
		return errOtherRun
	}
	return nil
}

// recordPart writes that rows of a part are there, in the transaction that holds
// them. It fails when somebody else copies the table too or has ended it.
func (w *writer) recordPart(ctx context.Context, r *run, t *task, p *part, h horizon, rows, stored int64) error {
	n, err := w.update(ctx, `UPDATE walferry.subscription_part SET rows = rows + $6::int8, stored = stored + $7::int8, bound = $8::int8,
		xids = xids || pg_current_xact_id()::text::int8, copy_lsn = $9::pg_lsn
		WHERE subscription = $1 AND schema_name = $2 AND table_name = $3 AND part = $4::int AND attempt = $5`,
		r.o.Subscription, t.SourceSchema, t.SourceName, strconv.Itoa(p.n), t.attempt, strconv.FormatInt(rows, 10), strconv.FormatInt(stored, 10),
		strconv.FormatUint(h.xmin, 10), r.point.lsn.String())
	if err != nil {
		return fmt.Errorf("record in walferry.subscription_part: %w", err)
	}
	if n != 1 {
		return errOtherRun
	}
	return nil
}

// keepRows records that of the rows of a part only some are left.
func (w *writer) keepRows(ctx context.Context, subscription string, t *task, p *part) error {
	n, err := w.update(ctx, `UPDATE walferry.subscription_part SET rows = $6::int8, stored = $7::int8,
		xids = CASE WHEN $7::int8 > 0 THEN xids ELSE '{}' END, bound = CASE WHEN $7::int8 > 0 THEN bound ELSE 0 END
		WHERE subscription = $1 AND schema_name = $2 AND table_name = $3 AND part = $4::int AND attempt = $5`,
		subscription, t.SourceSchema, t.SourceName, strconv.Itoa(p.n), t.attempt, strconv.FormatInt(p.rows, 10), strconv.FormatInt(p.stored, 10))
	if err != nil {
		return fmt.Errorf("record in walferry.subscription_part: %w", err)
	}
	if n != 1 {
		return errOtherRun
	}
	return nil
}

// countParts are the parts that are there, and their rows.
func (w *writer) countParts(ctx context.Context, subscription string, t *task) (parts, rows int64, err error) {
	r, err := pgquery.One(ctx, w.conn, `SELECT count(*), COALESCE(sum(rows), 0) FROM walferry.subscription_part
		WHERE subscription = $1 AND schema_name = $2 AND table_name = $3 AND attempt = $4 AND bound > 0`, subscription, t.SourceSchema, t.SourceName, t.attempt)
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
	_, err := w.update(ctx, "DELETE FROM walferry.subscription_part WHERE subscription = $1 AND schema_name = $2 AND table_name = $3",
		subscription, t.SourceSchema, t.SourceName)
	if err != nil {
		return fmt.Errorf("delete from walferry.subscription_part: %w", err)
	}
	return nil
}

// update runs a statement and returns how many rows it concerned.
func (w *writer) update(ctx context.Context, sql string, args ...string) (int64, error) {
	params := make([][]byte, len(args))
	for i, a := range args {
		params[i] = []byte(a)
	}
	res := w.conn.ExecParams(ctx, sql, params, nil, nil, nil).Read()
	return res.CommandTag.RowsAffected(), res.Err
}
