package snapshot

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/change"
)

// Options describe one run of the initial copy.
type Options struct {
	Publisher    string // connection string
	Subscriber   string // connection string
	Subscription string // key of the ledger rows in walferry.subscription_table
	Tables       []TableMap
	// CreateSchema makes absent target tables, and what they need, with
	// pg_dump. A table that is renamed cannot be made this way.
	CreateSchema bool
	// ReplicationRole is "auto" (or empty: replica where permitted), "replica"
	// or "origin": the session_replication_role of the copying session.
	ReplicationRole string
	// Origin names the replication origin that marks the copied rows in the
	// subscriber's WAL, so that a subscriber that publishes too does not send
	// them back. It is made if it is missing. Empty: rows are not marked.
	Origin string
	Events Events
	Logger *slog.Logger // nil: no log
}

// TableMap says which table is copied, what of it, and where to.
type TableMap struct {
	SourceSchema, SourceName string
	TargetSchema, TargetName string
	// Columns are the published columns (pg_publication_tables.attnames). Nil:
	// all columns that are not generated. Generated columns are left out on
	// servers that cannot publish them (before 18).
	Columns []string
	// RowFilter is the WHERE expression of the publication as
	// pg_publication_tables.rowfilter shows it with an empty search_path;
	// empty: all rows. Filters of several publications are joined by the
	// caller with OR.
	RowFilter string
	// Kind is the relkind of the source: 'r', or 'p' for a partitioned table
	// that is published through its root. Zero: as the catalog says.
	Kind byte
}

// Source is the quoted name of the table on the publisher.
func (t TableMap) Source() string { return sqlw.QuoteName(t.SourceSchema, t.SourceName) }

// Target is the quoted name of the table on the subscriber.
func (t TableMap) Target() string { return sqlw.QuoteName(t.TargetSchema, t.TargetName) }

// Result is what a run has done. After an error it holds the tables that were
// finished; they stay.
type Result struct {
	ConsistentPoint change.LSN // the S of this run; the first, if tables needed another
	SystemID        uint64
	Timeline        uint32
	Tables          []TableResult
}

// TableResult is one finished table.
type TableResult struct {
	TableMap
	CopyLSN  change.LSN // S of the table, or that of the earlier run if Skipped
	Rows     int64
	Bytes    int64 // of COPY data
	Duration time.Duration
	Skipped  bool // the ledger said that it was ready already
}

// Run copies the tables and returns when all are ready. A table that fails
// does not keep the others from being copied; the error then joins one
// [*TableError] for each, and the caller runs again with what is missing.
// Errors of the set-up, of a connection, and the end of ctx stop the run.
func Run(ctx context.Context, o Options) (Result, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	r := &run{o: o, log: o.Logger.With("subscription", o.Subscription)}
	ctx, cancel := context.WithCancel(ctx)
	r.stall = newStall(o.Publisher, o.Subscriber, o.Events.Waiting, r.log)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		r.stall.watch(ctx)
	}()
	err := r.runAll(ctx)
	cancel()
	<-watched
	r.close()
	return r.res, err
}

// run is the state of one Run; one goroutine owns it.
type run struct {
	o     Options
	log   *slog.Logger
	res   Result
	stall *stall
	point *point
	in    *reader
	out   *writer
	lock  bool // before the tables are read
}

func (r *run) run(ctx context.Context) error {
	var err error
	if r.point, err = openPoint(ctx, r.o.Publisher, r.stall); err != nil {
		return err
	}
	r.res.SystemID, r.res.Timeline = r.point.server.systemID, r.point.server.timeline
	if r.res.ConsistentPoint == 0 {
		r.res.ConsistentPoint = r.point.lsn
	}
	r.log.Info("consistent point reached", "lsn", r.point.lsn.String())
	r.o.Events.consistentPoint(r.point.lsn)
	if r.in, err = openReader(ctx, r.o.Publisher, r.point, r.stall); err != nil {
		return err
	}
	if r.lock {
		if err := r.lockTables(ctx); err != nil {
			return err
		}
	}
	if r.out, err = openWriter(ctx, &r.o, r.stall); err != nil {
		return err
	}
	if err := checkEncodings(r.in.conn, r.out.conn); err != nil {
		return err
	}
	plans, err := r.plan(ctx)
	if err != nil {
		return err
	}
	return r.copyAll(ctx, plans)
}

// plan compares both sides and makes the schema of what is absent.
func (r *run) plan(ctx context.Context) ([]*plan, error) {
	var sources []*sourceTable
	err := r.unlocked(ctx, func() (err error) {
		sources, err = readSources(ctx, r.in, r.o.Tables)
		return err
	})
	if err != nil {
		return nil, err
	}
	if r.o.CreateSchema {
		absent, err := absentTargets(ctx, r.out.conn, r.o.Tables)
		if err != nil {
			return nil, err
		}
		if len(absent) > 0 {
			if err := createSchema(ctx, r, absent); err != nil {
				return nil, err
			}
		}
	}
	return makePlans(ctx, r.out, sources)
}

// copyAll copies what the plans say, parents of foreign keys first where those
// are checked.
func (r *run) copyAll(ctx context.Context, plans []*plan) error {
	if !r.out.replica {
		var err error
		if plans, err = parentsFirst(ctx, r.out.conn, plans); err != nil {
			return err
		}
	}
	var failed []error
	for _, p := range plans {
		res, err := r.copyTable(ctx, p)
		r.o.Events.tableDone(res, err)
		if err == nil {
			r.res.Tables = append(r.res.Tables, res)
			continue
		}
		err = &TableError{Table: p.TableMap, Err: err}
		failed = append(failed, err)
		if ctx.Err() != nil || !tableOnly(err) {
			break
		}
		if _, ok := errors.AsType[*RewrittenError](err); ok {
			continue // by runAll
		}
		r.log.Warn("table was not copied", "table", p.Source(), "error", err)
		if err := r.reopen(ctx); err != nil {
			failed = append(failed, err)
			break
		}
	}
	return errors.Join(failed...)
}

// reopen replaces the connections that a failed table has left unusable.
func (r *run) reopen(ctx context.Context) error {
	var err error
	if r.in.conn.IsClosed() || r.in.conn.TxStatus() != 'T' {
		closeConn(r.in.conn)
		if r.in, err = openReader(ctx, r.o.Publisher, r.point, r.stall); err != nil {
			return err
		}
	}
	if r.out.conn.IsClosed() || r.out.conn.TxStatus() != 'I' {
		closeConn(r.out.conn)
		if r.out, err = openWriter(ctx, &r.o, r.stall); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) close() {
	if r.out != nil {
		closeConn(r.out.conn)
	}
	if r.in != nil {
		closeConn(r.in.conn)
	}
	if r.point != nil {
		closeConn(r.point.conn)
	}
}

// A TableError says why a table was not copied.
type TableError struct {
	Table TableMap
	Err   error
}

func (e *TableError) Error() string {
	to := ""
	if e.Table.Source() != e.Table.Target() {
		to = " to " + e.Table.Target()
	}
	return fmt.Sprintf("copy table %s%s: %s", e.Table.Source(), to, describe(e.Err))
}

func (e *TableError) Unwrap() error { return e.Err }
