package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/apply"
	"github.com/walferry/walferry/config"
	"github.com/walferry/walferry/internal/pgquery"
	"github.com/walferry/walferry/source"
)

// DropOptions says what Drop removes; without Subscriptions and Queue it is
// everything.
type DropOptions struct {
	Subscriptions []string  // only these
	Queue         bool      // only the streams of the queue, so that they are filled anew
	Empty         bool      // the replicated rows too
	Out           io.Writer // a line for each thing that is removed
	Logger        *slog.Logger
}

// Drop removes everything that walferry keeps outside the user's tables: the
// slots and publications it made, the streams and registries in the queue, and
// the rows and origins of its subscriptions; schema walferry goes from a
// subscriber when no other subscription uses it. Replicated rows stay, unless
// they are to go too: a new initial copy needs empty tables. What
// is gone already is no error; what cannot be reached is reported at the end, and
// the call can be repeated.
func Drop(ctx context.Context, cfg *config.Config, o DropOptions) error {
	var errs []error
	fail := func(what string, err error) {
		errs = append(errs, fmt.Errorf("%s: %w", what, err))
	}
	if o.Queue {
		return dropQueues(ctx, cfg, o)
	}
	subs, err := selectSubscriptions(cfg, o.Subscriptions)
	if err != nil {
		return err
	}
	for _, s := range subs {
		if err := dropSubscription(ctx, s, o); err != nil {
			fail("subscription "+s.Name, err)
		}
	}
	if len(o.Subscriptions) > 0 {
		if err := unregister(ctx, cfg, subs, o); err != nil {
			fail("queue", err)
		}
		return errors.Join(errs...)
	}
	for i := range cfg.Publishers {
		p := &cfg.Publishers[i]
		if err := dropPublisher(ctx, p, o.Out); err != nil {
			fail("publisher "+p.Name, err)
		}
	}
	if err := dropQueues(ctx, cfg, o); err != nil {
		fail("queue", err)
	}
	return errors.Join(errs...)
}

func dropSubscription(ctx context.Context, s *config.Subscription, o DropOptions) error {
	out := o.Out
	conn, err := connect(ctx, s.URL, "drop")
	if err != nil {
		return fmt.Errorf("connect to the subscriber: %w", err)
	}
	defer closeConn(conn)
	l := &ledger{conn: conn, name: s.Name}
	if ok, err := l.exists(ctx); err != nil {
		return err
	} else if !ok {
		return nil
	}
	err = whenFree(ctx, func() error {
		active, err := applierConnected(ctx, conn, s.Name)
		if err == nil && active {
			err = errApplierConnected
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := forget(ctx, l, o); err != nil {
		return err
	}
	err = whenFree(ctx, func() error {
		_, err := pgquery.Rows(ctx, conn, `select pg_replication_origin_drop(roname) from pg_replication_origin where roname = $1 or starts_with(roname, $1 || ':copy')`, apply.OriginName(s.Name))
		return err
	})
	if err != nil {
		return fmt.Errorf("drop replication origin %s: %w", apply.OriginName(s.Name), err)
	}
	fmt.Fprintf(out, "subscription %s: rows in schema walferry and replication origin removed\n", s.Name)
	left, err := pgquery.One(ctx, conn, `select exists (select from walferry.subscription) or exists (select from walferry.subscription_state)`)
	if err != nil {
		return err
	}
	if left[0] == "f" {
		if _, err := pgquery.Rows(ctx, conn, `drop schema walferry cascade`); err != nil {
			return fmt.Errorf("drop schema walferry: %w", err)
		}
		fmt.Fprintf(out, "subscription %s: schema walferry removed\n", s.Name)
	}
	return nil
}

// freeTimeout is how long drop waits for what a session of a walferry that has
// just stopped still holds.
const freeTimeout = 5 * time.Second

var errApplierConnected = errors.New("an applier is connected: stop walferry first")

// whenFree calls f again while what it drops is in use: the server may not have
// noticed yet that a walferry has ended.
func whenFree(ctx context.Context, f func() error) error {
	for end := time.Now().Add(freeTimeout); ; {
		err := f()
		pe, ok := errors.AsType[*pgconn.PgError](err)
		inUse := ok && pe.Code == "55006" || errors.Is(err, errApplierConnected) // object_in_use
		if !inUse || time.Now().After(end) {
			return err
		}
		if err := sleep(ctx, 2*waitPoll); err != nil {
			return err
		}
	}
}

// unregister makes the queue forget subscriptions, so that it keeps nothing for
// them.
func unregister(ctx context.Context, cfg *config.Config, subs []*config.Subscription, o DropOptions) error {
	return withBroker(ctx, cfg, o, func(b *broker) error {
		for _, s := range subs {
			q, err := b.queue(ctx, s.Publisher)
			if err != nil {
				return err
			}
			if err := q.Unregister(ctx, s.Name); err != nil {
				return err
			}
			fmt.Fprintf(o.Out, "subscription %s: removed from the registry of the queue\n", s.Name)
		}
		return nil
	})
}

func dropPublisher(ctx context.Context, p *config.Publisher, out io.Writer) error {
	conn, err := connect(ctx, p.URL, "drop")
	if err != nil {
		return fmt.Errorf("connect to the publisher: %w", err)
	}
	defer closeConn(conn)
	var dropped bool
	err = whenFree(ctx, func() (err error) {
		dropped, err = source.DropSlot(ctx, conn, p.Slot)
		return err
	})
	if err != nil {
		return err
	}
	if dropped {
		fmt.Fprintf(out, "publisher %s: slot %s removed\n", p.Name, p.Slot)
	}
	if len(p.Publications) > 0 {
		return nil
	}
	dropped, err = source.DropPublication(ctx, conn, ownPublication(p))
	if err != nil {
		return err
	}
	if dropped {
		fmt.Fprintf(out, "publisher %s: publication %s removed\n", p.Name, ownPublication(p))
	}
	return nil
}

// dropDialTimeout is how long drop tries to reach the queue's server.
const dropDialTimeout = 10 * time.Second

func withBroker(ctx context.Context, cfg *config.Config, o DropOptions, f func(*broker) error) error {
	dialCtx, cancel := context.WithTimeout(ctx, dropDialTimeout)
	defer cancel()
	b, err := openBroker(dialCtx, cfg, o.Logger)
	if err != nil {
		return err
	}
	defer b.close()
	return f(b)
}

func dropQueues(ctx context.Context, cfg *config.Config, o DropOptions) error {
	return withBroker(ctx, cfg, o, func(b *broker) error {
		for i := range cfg.Publishers {
			q, err := b.queue(ctx, cfg.Publishers[i].Name)
			if err != nil {
				return err
			}
			if err := q.Drop(ctx); err != nil {
				return err
			}
			fmt.Fprintf(o.Out, "publisher %s: stream and registry removed from the queue\n", cfg.Publishers[i].Name)
		}
		return nil
	})
}
