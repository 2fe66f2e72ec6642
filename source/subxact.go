package source

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/internal/pgconnect"
	"github.com/walferry/walferry/internal/pgquery"
)

// xidSet is a set of transaction IDs. Those of subtransactions come one after
// another, so that 64 of them share an entry: a transaction may have millions.
type xidSet map[change.XID]uint64

func (s xidSet) add(x change.XID) { s[x>>6] |= 1 << (x & 63) }

func (s xidSet) has(x change.XID) bool { return s[x>>6]>>(x&63)&1 != 0 }

// without gives what is in s and not in t, in pieces of about n.
func (s xidSet) without(t xidSet, n int, f func([]change.XID) error) error {
	var xids []change.XID
	for _, k := range slices.Sorted(maps.Keys(s)) {
		for i := range change.XID(64) {
			if x := k<<6 | i; s.has(x) && !t.has(x) {
				xids = append(xids, x)
			}
		}
		if len(xids) >= n {
			if err := f(xids); err != nil {
				return err
			}
			xids = xids[:0]
		}
	}
	if len(xids) == 0 {
		return nil
	}
	return f(xids)
}

// A server tells that a subtransaction was rolled back after it was streamed, but not of
// each: PostgreSQL 15.18 and 17.12 forget those that they have read back from disk and
// that have more changes than fit into memory at once (ReorderBufferTruncateTXN marks a
// subtransaction as streamed when it has changes in memory). Nothing in the stream tells
// their rows from others. What became of a subtransaction is in the server's commit
// log, though, before its transaction commits.

// statusXIDs is how many subtransactions are asked for at once.
const statusXIDs = 10000

// statusSQL finds those that were rolled back. A row's transaction ID has no epoch: it is
// the last one before the server's next.
const statusSQL = `SELECT x, pg_xact_status((next - (next - x & 4294967295))::text::xid8)
	FROM unnest($1::int8[]) x, (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8 AS next) n`

// findRolledBack completes what the server has told of a streamed transaction.
func (s *session) findRolledBack(ctx context.Context, xid change.XID) error {
	t := s.spool.txns[xid]
	if t == nil || len(t.subs) == 0 {
		return nil
	}
	return t.subs.without(t.aborted, statusXIDs, func(xids []change.XID) error {
		gone, err := s.askRolledBack(ctx, xids)
		if err != nil {
			return fmt.Errorf("ask what became of the subtransactions of %d: %w", xid, err)
		}
		for _, x := range gone {
			t.aborted.add(x) // without lastCut: the server did not forget what it has described
		}
		return nil
	})
}

// askRolledBack returns those that were rolled back.
func (s *session) askRolledBack(ctx context.Context, xids []change.XID) (gone []change.XID, err error) {
	cfg, err := pgconnect.Parse(s.o.Conn, "log reader")
	if err != nil {
		return nil, err
	}
	conn, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer func() {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(cctx)
	}()
	list := make([]string, len(xids))
	for i, x := range xids {
		list[i] = strconv.FormatUint(uint64(x), 10)
	}
	rows, err := pgquery.Rows(ctx, conn, statusSQL, "{"+strings.Join(list, ",")+"}")
	if err != nil {
		return nil, err
	}
	for _, r := range rows {
		switch r[1] {
		case "aborted":
			x, err := strconv.ParseUint(r[0], 10, 32)
			if err != nil {
				return nil, err
			}
			gone = append(gone, change.XID(x))
		case "":
			return nil, &Error{
				Kind: ErrUnsupported, Detail: "the server no longer knows what became of subtransaction " + r[0],
				Hint: "set streaming: off for this publisher; nothing was stored",
			}
		}
	}
	return gone, nil
}
