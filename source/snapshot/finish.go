package snapshot

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/internal/pgquery"
)

// buildMemory is what an index may be built with, if the server's own setting is
// lower: most of what is built here is as large as a table.
const buildMemory = "256MB"

// finish does what is pending and makes the tables ready whose rows are there.
// Nothing of the publisher is held meanwhile.
func (r *run) finish(ctx context.Context) error {
	c, err := connect(ctx, r.o.Subscriber, "copy finisher")
	if err != nil {
		return fmt.Errorf("connect to subscriber: %w", err)
	}
	defer closeConn(c)
	r.stall.follow(sideSubscriber, c.PID())
	defer r.stall.leave(sideSubscriber, c.PID())
	all, err := readPending(ctx, c, r.o.Subscription)
	if err != nil {
		return err
	}
	if len(all) > 0 {
		if err := r.build(ctx, c, all); err != nil {
			return err
		}
	}
	if err := r.makeReady(ctx, c); err != nil {
		return err
	}
	r.dropOrigins(ctx, c)
	return nil
}

// build runs what is pending.
func (r *run) build(ctx context.Context, c *pgconn.PgConn, all []pending) error {
	if _, err := pgquery.Rows(ctx, c, `SELECT pg_catalog.set_config('maintenance_work_mem', $1, false)
		WHERE pg_catalog.pg_size_bytes(pg_catalog.current_setting('maintenance_work_mem')) < pg_catalog.pg_size_bytes($1)`, buildMemory); err != nil {
		return fmt.Errorf("set maintenance_work_mem on the subscriber: %w", err)
	}
	var values []pending
	for i := range all {
		p := &all[i]
		switch p.stage {
		case settings:
			if err := execSQL(ctx, c, p.sql); err != nil {
				return &SchemaError{Object: p.object, Err: err}
			}
			continue
		case sequences:
			values = append(values, *p)
			continue
		}
		r.stall.move()
		r.tell(func(e *Events) { e.building(Build{Object: p.object, Done: i, Total: len(all)}) })
		err := p.do(ctx, c)
		if p.stage == references && violates(err) {
			// Its other table may be ahead of these rows or behind them.
			if err := execSQL(ctx, c, "ROLLBACK"); err != nil {
				return fmt.Errorf("rollback: %w", err)
			}
			r.log.Warn("foreign key is made without looking at the rows that are there: some have no partner, at least for now", "object", p.object, "error", err)
			err = p.unvalidated().do(ctx, c)
		}
		if err != nil {
			return &SchemaError{Object: p.object, Err: err}
		}
		r.log.Info("made on the subscriber", "object", p.object)
	}
	if len(values) > 0 {
		if err := r.setSequences(ctx, c, values); err != nil {
			return err
		}
	}
	if _, err := pgquery.Rows(ctx, c, "DELETE FROM walferry.subscription_pending WHERE subscription = $1 AND stage = 0", r.o.Subscription); err != nil {
		return fmt.Errorf("delete from walferry.subscription_pending: %w", err)
	}
	return nil
}

// setSequences gives the sequences that were made the values of the publisher.
func (r *run) setSequences(ctx context.Context, c *pgconn.PgConn, all []pending) error {
	pub, err := connect(ctx, r.o.Publisher, "copy reader")
	if err != nil {
		return fmt.Errorf("connect to publisher: %w", err)
	}
	defer closeConn(pub)
	for _, p := range all {
		v, err := pgquery.One(ctx, pub, "SELECT last_value, is_called FROM "+p.object)
		switch pg, _ := errors.AsType[*pgconn.PgError](err); {
		case pg != nil && (pg.Code == "42501" || pg.Code == "42P01"): // insufficient_privilege, undefined_table
			r.log.Warn("the value of a sequence cannot be read on the publisher: it begins anew on the subscriber", "sequence", p.object, "error", err)
			_, err = pgquery.Rows(ctx, c, "DELETE FROM walferry.subscription_pending WHERE id = $1::int8", p.id)
		case err == nil:
			_, err = pgquery.Rows(ctx, c, `WITH done AS (DELETE FROM walferry.subscription_pending WHERE id = $1::int8)
				SELECT pg_catalog.setval($2::pg_catalog.regclass, $3::int8, $4::bool)`, p.id, p.object, v[0], v[1])
		}
		if err != nil {
			return fmt.Errorf("set sequence %s: %w", p.object, err)
		}
	}
	return nil
}

// makeReady gives the planner statistics of the tables whose rows are there and
// tells the applier that they are complete.
func (r *run) makeReady(ctx context.Context, c *pgconn.PgConn) error {
	for _, t := range r.all {
		rows, err := pgquery.Rows(ctx, c, `SELECT FROM walferry.subscription_table
			WHERE subscription = $1 AND schema_name = $2 AND table_name = $3 AND state = 'copied'`, r.o.Subscription, t.SourceSchema, t.SourceName)
		if err != nil {
			return fmt.Errorf("read walferry.subscription_table: %w", err)
		}
		if len(rows) == 0 {
			continue
		}
		r.stall.move()
		if err := execSQL(ctx, c, "ANALYZE "+t.Target()); err != nil {
			return &TableError{Table: t, Err: fmt.Errorf("analyze: %w", err)}
		}
		if _, err := pgquery.Rows(ctx, c, `UPDATE walferry.subscription_table SET state = 'ready'
			WHERE subscription = $1 AND schema_name = $2 AND table_name = $3 AND state = 'copied'`, r.o.Subscription, t.SourceSchema, t.SourceName); err != nil {
			return fmt.Errorf("record in walferry.subscription_table: %w", err)
		}
	}
	return nil
}
