package snapshot

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
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
	// OnExisting says what to do with a target table that holds rows; empty is
	// Stop.
	OnExisting OnExisting
	// Workers is how many tables are copied at a time; zero is 1.
	Workers int
	// Locked keeps the tables from being written while they are read, instead of reading
	// them beside their writers at the consistent point of a replication slot.
	Locked bool
	// BytesPerSecond bounds what all workers together read; zero: no bound.
	BytesPerSecond int64
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

// OnExisting is an answer to a target table that holds rows.
type OnExisting string

const (
	Stop     OnExisting = "stop"     // fail, before a row has been copied
	Truncate OnExisting = "truncate" // empty it in the transaction that copies
	Append   OnExisting = "append"   // keep them: a row with the same key fails then
)

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
	r := &run{o: o, all: o.Tables, log: o.Logger.With("subscription", o.Subscription), throttle: newThrottle(o.BytesPerSecond)}
	ctx, cancel := context.WithCancel(ctx)
	r.stall = newStall(o.Publisher, o.Subscriber, o.Events.Waiting, r.log)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		r.stall.watch(ctx)
	}()
	err := r.runAll(ctx)
	r.close()
	if err == nil || ctx.Err() == nil && tableErrors(err) {
		err = errors.Join(err, r.finish(ctx))
	}
	cancel()
	<-watched
	return r.res, err
}

// run is the state of one Run. One goroutine owns it, and shares it with the
// workers while they copy.
type run struct {
	o     Options
	all   []TableMap // of the run; o.Tables are those of one attempt
	log   *slog.Logger
	res   Result
	stall *stall
	throttle
	point   *point
	*worker            // plans, and is the first that copies
	lock    bool       // before the tables are read
	mu      sync.Mutex // for res and events, while workers copy
}

func (r *run) run(ctx context.Context) error {
	var err error
	if r.point, err = r.openPoint(ctx); err != nil {
		return err
	}
	r.res.SystemID, r.res.Timeline = r.point.server.systemID, r.point.server.timeline
	if r.res.ConsistentPoint == 0 {
		r.res.ConsistentPoint = r.point.lsn
	}
	r.log.Info("consistent point reached", "lsn", r.point.lsn.String())
	r.tell(func(e *Events) { e.consistentPoint(r.point.lsn) })
	r.worker = &worker{r: r}
	if err := r.worker.open(ctx); err != nil {
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
	var absent []TableMap
	if r.o.CreateSchema {
		absent, err = absentTargets(ctx, r.out.conn, r.o.Tables)
		if err != nil {
			return nil, err
		}
		if len(absent) > 0 {
			if err := createSchema(ctx, r, absent); err != nil {
				return nil, err
			}
		}
	}
	return makePlans(ctx, r, sources, absent)
}

func (r *run) close() {
	if r.worker != nil {
		r.worker.close()
	}
	if r.point != nil {
		closeConn(r.point.conn)
	}
	r.point, r.worker = nil, nil
}

// tell calls back, one at a time.
func (r *run) tell(f func(*Events)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.o.Events)
}

// tableErrors reports whether an error only says that some tables were not copied.
func tableErrors(err error) bool {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return false
	}
	for _, e := range joined.Unwrap() {
		if _, ok := errors.AsType[*TableError](e); !ok || !tableOnly(e) {
			return false
		}
	}
	return true
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
