package source

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/internal/pgconnect"
)

// HeartbeatPrefix is the prefix of the logical messages that the reader writes
// to an idle publisher. The content is the publisher's time.
const HeartbeatPrefix = "walferry.heartbeat"

// heartbeat writes a transactional message to the publisher when no
// transaction has come for an interval although the log moved. The message
// moves the slot of a quiet database in a busy cluster; the transactional
// form is the one that lets the server recompute what it must keep (CB-004).
// It returns through the stream, so no state is kept about it.
type heartbeat struct {
	conn     string
	interval time.Duration
	warn     func(err error)

	last atomic.Int64 // UnixNano of the last transaction
}

// note records that a transaction came. A nil heartbeat is fine.
func (h *heartbeat) note() {
	if h != nil {
		h.last.Store(time.Now().UnixNano())
	}
}

// run writes messages until ctx ends. Errors are reported once until the next
// success.
func (h *heartbeat) run(ctx context.Context) {
	h.note()
	var conn *pgconn.PgConn
	defer func() {
		if conn != nil {
			cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			_ = conn.Close(cctx)
		}
	}()
	t := time.NewTicker(max(h.interval/4, 10*time.Millisecond))
	defer t.Stop()
	wal, warned := "", false
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if time.Since(time.Unix(0, h.last.Load())) < h.interval {
			continue
		}
		h.note() // the next attempt is an interval away, whatever happens
		err := h.emit(ctx, &conn, &wal)
		switch {
		case err == nil:
			warned = false
		case ctx.Err() == nil && !warned:
			warned = true
			h.warn(err)
		}
	}
}

// emit writes one message unless the log stands where the last one left it.
func (h *heartbeat) emit(ctx context.Context, conn **pgconn.PgConn, wal *string) error {
	ctx, cancel := context.WithTimeout(ctx, max(h.interval, 5*time.Second))
	defer cancel()
	if *conn == nil || (*conn).IsClosed() {
		cfg, err := pgconnect.Parse(h.conn, "heartbeat")
		if err != nil {
			return err
		}
		cfg.RuntimeParams["synchronous_commit"] = "local"
		if *conn, err = pgconn.ConnectConfig(ctx, cfg); err != nil {
			*conn = nil
			return fmt.Errorf("connect for heartbeat: %w", err)
		}
	}
	r, err := query(ctx, *conn, "read position", "SELECT pg_catalog.pg_current_wal_insert_lsn()")
	if err != nil {
		return err
	}
	if r[0][0] == *wal {
		return nil
	}
	if _, err := query(ctx, *conn, "write heartbeat", "SELECT pg_catalog.pg_logical_emit_message(true, "+sqlw.QuoteLiteral(HeartbeatPrefix)+", pg_catalog.clock_timestamp()::text)"); err != nil {
		return err
	}
	if r, err = query(ctx, *conn, "read position", "SELECT pg_catalog.pg_current_wal_insert_lsn()"); err != nil {
		return err
	}
	*wal = r[0][0]
	return nil
}
