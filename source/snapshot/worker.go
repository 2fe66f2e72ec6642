package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/internal/pgquery"
)

// worker copies tables over connections of its own, in the snapshot of the run.
type worker struct {
	r   *run
	n   int // 0: the first
	in  *reader
	out *writer
}

func (w *worker) open(ctx context.Context) error {
	var err error
	if w.in, err = openReader(ctx, w.r.o.Publisher, w.r.point, w.r.stall); err != nil {
		return err
	}
	if w.r.lock {
		if err := w.lockTables(ctx); err != nil {
			return err
		}
	}
	w.out, err = openWriter(ctx, &w.r.o, workerOrigin(w.r.o.Origin, w.n), w.r.stall)
	return err
}

func (w *worker) close() {
	if w.out != nil {
		w.r.stall.leave(sideSubscriber, w.out.conn.PID())
		closeConn(w.out.conn)
	}
	if w.in != nil {
		w.r.stall.leave(sidePublisher, w.in.conn.PID())
		closeConn(w.in.conn)
	}
	w.in, w.out = nil, nil
}

// usable reports whether a table that failed has left the connections as they were.
func (w *worker) usable() bool {
	return w.in != nil && w.out != nil && !w.in.conn.IsClosed() && w.in.conn.TxStatus() == 'T' && !w.out.conn.IsClosed() && w.out.conn.TxStatus() == 'I'
}

// job is something that one worker does. Its error is one of the run.
type job func(ctx context.Context, w *worker) error

// copyAll copies what the plans say: large tables first, so that none is left for
// the end, or parents of foreign keys first, one after another, where those are
// checked.
func (r *run) copyAll(ctx context.Context, plans []*plan) error {
	workers := 1
	if r.out.replica {
		workers = max(r.o.Workers, 1)
		if workers > 1 {
			slices.SortStableFunc(plans, func(a, b *plan) int { return cmp.Compare(b.estimatedBytes, a.estimatedBytes) })
		}
	} else {
		var err error
		if plans, err = parentsFirst(ctx, r.out.conn, plans); err != nil {
			return err
		}
	}
	tasks, failed := r.begin(ctx, plans)
	if !slices.ContainsFunc(failed, ends) {
		failed = append(failed, r.work(ctx, verifications(tasks), workers)...)
	}
	if !slices.ContainsFunc(failed, ends) {
		failed = append(failed, r.prepare(ctx, tasks)...)
	}
	if !slices.ContainsFunc(failed, ends) {
		failed = append(failed, r.work(ctx, r.jobs(tasks), workers)...)
	}
	return errors.Join(failed...)
}

// begin splits large tables and begins those.
func (r *run) begin(ctx context.Context, plans []*plan) (tasks []*task, failed []error) {
	for _, p := range plans {
		var t *task
		err := r.unlocked(ctx, func() (err error) {
			t, err = r.split(ctx, p)
			return err
		})
		if err != nil {
			return nil, append(failed, err)
		}
		if t == nil {
			tasks = append(tasks, &task{plan: p})
			continue
		}
		there, res, err := r.beginParts(ctx, t)
		switch {
		case err != nil:
			failed = append(failed, r.ended(p, res, err))
			if ends(err) {
				return nil, failed
			}
			if err := r.reopen(ctx); err != nil {
				return nil, append(failed, err)
			}
		case there:
			_ = r.ended(p, res, nil) // no error gives none
		default:
			tasks = append(tasks, t)
		}
	}
	return tasks, failed
}

// verifications look at what earlier runs have brought.
func verifications(tasks []*task) (jobs []job) {
	for _, t := range tasks {
		for _, p := range t.parts {
			if p.there() {
				jobs = append(jobs, func(ctx context.Context, w *worker) error {
					if err := w.verifyPart(ctx, t, p); err != nil && ends(err) {
						return err
					}
					return nil // told by prepare
				})
			}
		}
	}
	return jobs
}

// prepare takes away what is no longer so of what earlier runs have brought.
func (r *run) prepare(ctx context.Context, tasks []*task) (failed []error) {
	for _, t := range tasks {
		if t.parts == nil {
			continue
		}
		if err := r.reopen(ctx); err != nil {
			return append(failed, err)
		}
		if t.failed == nil {
			t.failed = r.removeStale(ctx, t)
		}
		if t.failed == nil {
			r.started(t)
			continue
		}
		failed = append(failed, r.ended(t.plan, TableResult{TableMap: t.TableMap, CopyLSN: r.point.lsn}, t.failed))
		if ends(t.failed) || ctx.Err() != nil {
			return failed
		}
	}
	return failed
}

// jobs copy the tables and parts that are not there.
func (r *run) jobs(tasks []*task) (jobs []job) {
	for _, t := range tasks {
		switch {
		case t.parts == nil:
			jobs = append(jobs, func(ctx context.Context, w *worker) error {
				res, err := w.copyTable(ctx, t.plan)
				return r.ended(t.plan, res, err)
			})
		case t.failed == nil:
			jobs = append(jobs, r.partJobs(t)...)
		}
	}
	return jobs
}

func (r *run) partJobs(t *task) (jobs []job) {
	for _, p := range t.parts {
		if p.there() && !p.changes {
			continue
		}
		t.left++
		jobs = append(jobs, func(ctx context.Context, w *worker) error {
			done, res, err := w.copyPart(ctx, t, p)
			switch {
			case done:
				return r.ended(t.plan, res, err)
			case err != nil && !ends(err):
				return nil // told when the last part has ended
			}
			return err
		})
	}
	if len(jobs) == 0 { // all of it was there
		jobs = append(jobs, func(ctx context.Context, w *worker) error {
			res, err := w.endTask(ctx, t)
			return r.ended(t.plan, res, err)
		})
	}
	return jobs
}

// work gives the jobs to workers.
func (r *run) work(ctx context.Context, jobs []job, workers int) []error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	queue := make(chan job, len(jobs))
	for _, j := range jobs {
		queue <- j
	}
	close(queue)
	workers = min(workers, len(jobs))
	failed := make([][]error, workers)
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			w := r.worker
			if i > 0 {
				w = &worker{r: r, n: i}
				defer w.close()
				if err := w.open(ctx); noOrigin(err) {
					r.log.Warn("fewer tables are copied at a time: the subscriber has no free replication origin", "error", err)
					return
				}
			}
			if failed[i] = w.do(ctx, queue); slices.ContainsFunc(failed[i], ends) {
				cancel(errOtherFailed)
			}
		})
	}
	wg.Wait()
	return slices.DeleteFunc(slices.Concat(failed...), func(err error) bool { return errors.Is(err, errOtherFailed) })
}

// errOtherFailed ends workers because another has failed.
var errOtherFailed = errors.New("another worker has failed")

// ends reports whether an error concerns more than one table.
func ends(err error) bool { return !tableOnly(err) }

// workerOrigin is the replication origin of a worker: one can be used by one
// session. No subscription has a name with a colon.
func workerOrigin(origin string, n int) string {
	if origin == "" || n == 0 {
		return origin
	}
	return fmt.Sprintf("%s:copy%d", origin, n)
}

// noOrigin reports whether all replication origins are in use.
func noOrigin(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == "53400" // configuration_limit_exceeded
}

// dropOrigins removes the origins of workers. What is left, because the server has
// not noticed yet that a worker has ended, is used by the next run.
func (r *run) dropOrigins(ctx context.Context, c *pgconn.PgConn) {
	if r.o.Origin == "" {
		return
	}
	for n := 1; n < r.o.Workers; n++ {
		name := workerOrigin(r.o.Origin, n)
		_, err := pgquery.Rows(ctx, c, "SELECT pg_replication_origin_drop(roname) FROM pg_replication_origin WHERE roname = $1", name)
		if err != nil {
			r.log.Warn("a replication origin of the copy is left", "origin", name, "error", err)
		}
	}
}

// do does jobs until there are none, or something fails that concerns more than a
// table.
func (w *worker) do(ctx context.Context, jobs <-chan job) (failed []error) {
	for j := range jobs {
		if ctx.Err() != nil {
			return append(failed, context.Cause(ctx))
		}
		if err := w.reopen(ctx); err != nil {
			return append(failed, err)
		}
		if err := j(ctx, w); err != nil {
			if failed = append(failed, err); ends(err) || ctx.Err() != nil {
				return failed
			}
		}
	}
	return failed
}

// reopen replaces connections that a failed table has left unusable.
func (w *worker) reopen(ctx context.Context) error {
	if w.usable() {
		return nil
	}
	w.close()
	return w.open(ctx)
}

// ended tells how the copy of a table has ended.
func (r *run) ended(p *plan, res TableResult, err error) error {
	r.tell(func(e *Events) {
		e.tableDone(res, err)
		if err == nil {
			r.res.Tables = append(r.res.Tables, res)
		}
	})
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*RewrittenError](err); !ok { // that is for runAll
		r.log.Warn("table was not copied", "table", p.Source(), "error", err)
	}
	return &TableError{Table: p.TableMap, Err: err}
}
