package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/walferry/walferry/change"
)

// Method is a way to drain a workload.
type Method string

// The methods. Queue is compared with the native ones, which have none.
const (
	Native    Method = "native"
	NativeBin Method = "native-bin"
	Slot      Method = "walferry-slot"
	Queue     Method = "walferry-queue"
)

// Methods are all, in the order of the tables.
var Methods = []Method{Native, NativeBin, Slot, Queue}

// A Result is a workload drained by all methods.
type Result struct {
	Workload   string
	Changes    int
	Txns       int
	Load       time.Duration // how long the workload took on the publisher
	WAL        int64         // bytes
	QueueBytes int64
	Costs      map[Method][]cost
}

// drain runs a workload once and drains it runs times with each method.
func (p *pair) drain(ctx context.Context, w *Workload, methods []Method, runs int) (r *Result, err error) {
	r = &Result{Workload: w.Name, Changes: w.Changes, Txns: w.Txns, Costs: map[Method][]cost{}}
	template := "t_" + w.Name
	p.db = w.Name
	defer func() {
		err = errors.Join(err, p.dropSlot(ctx), p.pub.exec(ctx, "postgres", "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"),
			p.sub.dropDatabase(ctx, "run"), p.sub.dropDatabase(ctx, template), p.pub.dropDatabase(ctx, p.db))
	}()
	if err := p.prepare(ctx, w, template); err != nil {
		return nil, fmt.Errorf("prepare: %w", err)
	}
	began := time.Now()
	if err := p.pub.script(ctx, p.db, w.load, "SET synchronous_commit = off"); err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	r.Load = time.Since(began)
	if err := p.pub.exec(ctx, p.db, "INSERT INTO marker VALUES (1)", "CHECKPOINT"); err != nil {
		return nil, err
	}
	wal, err := p.pub.get(ctx, p.db, "SELECT (pg_current_wal_lsn() - $1::pg_lsn)::bigint::text", p.base.String())
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Sscan(wal, &r.WAL); err != nil {
		return nil, err
	}
	p.log("%s: %d changes in %d transactions, written in %.1f s, %d MB of WAL", w.Name, w.Changes, w.Txns, r.Load.Seconds(), r.WAL>>20)
	want := ""
	if w.verify {
		if want, err = p.pub.digest(ctx, p.db); err != nil {
			return nil, err
		}
	}
	one := func(m Method, b *backlog, run int) error {
		if err := p.sub.fromTemplate(ctx, "run", template); err != nil {
			return err
		}
		if err := p.pub.exec(ctx, "postgres", "CHECKPOINT"); err != nil {
			return err
		}
		c, err := p.by(ctx, m, b)
		if err != nil {
			return fmt.Errorf("%s: %w", m, err)
		}
		p.log("%s %-15s %7.2f s   CPU: sender %5.1f, subscriber %5.1f, walferry %5.1f; %d MB", w.Name, m, c.Wall.Seconds(), c.Sender.Seconds(), c.Apply.Seconds(), c.Ferry.Seconds(), c.Memory>>20)
		r.Costs[m] = append(r.Costs[m], c)
		if want != "" && run == 0 {
			got, err := p.sub.digest(ctx, "run")
			if err != nil {
				return err
			}
			if got != want {
				return fmt.Errorf("%s: the subscriber has %s, the publisher %s", m, got, want)
			}
		}
		return nil
	}
	queued := slices.Contains(methods, Queue)
	methods = slices.DeleteFunc(slices.Clone(methods), func(m Method) bool { return m == Queue })
	for run := range runs {
		rand.Shuffle(len(methods), func(i, j int) { methods[i], methods[j] = methods[j], methods[i] })
		for _, m := range methods {
			if err := one(m, nil, run); err != nil {
				return nil, err
			}
		}
	}
	if !queued {
		return r, nil
	}
	b, err := p.fill(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.close(ctx)) }()
	r.QueueBytes = b.Bytes
	for run := range runs {
		if err := one(Queue, b, run); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// by drains once by a method.
func (p *pair) by(ctx context.Context, m Method, b *backlog) (cost, error) {
	switch m {
	case Native:
		return p.native(ctx, "binary = off, streaming = off")
	case NativeBin:
		return p.native(ctx, "binary = on, streaming = off")
	case Slot:
		return p.ferry(ctx, "off")
	case Queue:
		return b.drain(ctx)
	}
	return cost{}, fmt.Errorf("no method %s", m)
}

// prepare makes both databases and the slot in front of the load.
func (p *pair) prepare(ctx context.Context, w *Workload, template string) error {
	if err := p.pub.exec(ctx, "postgres", "CREATE DATABASE "+p.db); err != nil {
		return err
	}
	if err := p.pub.script(ctx, p.db, w.schema); err != nil {
		return err
	}
	if err := p.pub.exec(ctx, p.db, "CREATE TABLE marker (id int PRIMARY KEY, at timestamptz DEFAULT clock_timestamp())",
		"CREATE PUBLICATION "+publication+" FOR TABLES IN SCHEMA public"); err != nil {
		return err
	}
	if err := p.pub.cloneDatabase(ctx, p.db, p.sub, template); err != nil {
		return err
	}
	if err := p.sub.exec(ctx, template, "VACUUM ANALYZE"); err != nil {
		return err
	}
	if err := p.pub.exec(ctx, p.db, "VACUUM ANALYZE"); err != nil {
		return err
	}
	at, err := p.pub.get(ctx, p.db, fmt.Sprintf("SELECT lsn::text FROM pg_create_logical_replication_slot('%s', 'pgoutput')", baseSlot))
	if err != nil {
		return err
	}
	p.base, err = change.ParseLSN(at)
	return err
}
