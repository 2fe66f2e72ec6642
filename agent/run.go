package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/walferry/walferry/config"
	"github.com/walferry/walferry/monitor"
	"github.com/walferry/walferry/queue"
	"github.com/walferry/walferry/source/snapshot"
)

// Roles are what a process runs.
type Roles uint8

// The roles; RoleAll is everything of the configuration.
const (
	RoleReader Roles = 1 << iota
	RoleApplier
	RoleAll = RoleReader | RoleApplier
)

// Options say how Run works.
type Options struct {
	Roles  Roles
	Logger *slog.Logger
	State  *monitor.State
	// Progress gets a live line, or a plain one every few seconds when it is
	// no terminal; nil: none.
	Progress   io.Writer
	IsTerminal bool
	// CopyView, if set, shows an initial copy of so many tables; done is called
	// at its end.
	CopyView func(tables int) (events snapshot.Events, done func())
}

// Run runs the agents of the configuration until ctx ends. It returns an error
// only when it could not start.
func Run(ctx context.Context, cfg *config.Config, o Options) error {
	if o.Roles&RoleReader == 0 && cfg.Queue.Embedded() {
		return errEmbeddedElsewhere
	}
	if err := os.MkdirAll(cfg.DataDir, 0o700); err != nil {
		return fmt.Errorf("make data_dir: %w", err)
	}
	// The appliers stop first and the monitor last, each when the one before
	// has ended.
	base := context.WithoutCancel(ctx)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	monitorCtx, stopMonitor := context.WithCancel(base)
	defer stopMonitor()
	readCtx, stopReaders := context.WithCancel(base)
	defer stopReaders()

	var monitors errgroup.Group
	socket := monitor.SocketPath(cfg.DataDir, os.Getpid())
	failed := make(chan error, 1)
	monitors.Go(func() error {
		err := monitor.Serve(monitorCtx, cfg.Monitor.Listen, socket, monitor.ServeOptions{
			State:  o.State,
			Limits: monitor.Limits{Silence: time.Duration(cfg.Monitor.Silence), Stuck: time.Duration(cfg.Monitor.Stuck)},
			Logger: o.Logger,
		})
		if err != nil && monitorCtx.Err() == nil {
			failed <- fmt.Errorf("serve status: %w", err)
			cancel()
		}
		return err
	})
	if o.Progress != nil {
		monitors.Go(func() error {
			monitor.Progress(monitorCtx, o.Progress, o.State, o.IsTerminal)
			return nil
		})
	}
	if o.Roles&RoleApplier != 0 {
		for _, s := range cfg.Subscriptions { // shown before the queue is there
			o.State.Subscription(s.Name, s.Publisher)
		}
	}
	// stop ends what runs longest and returns why the process had to end.
	stop := func() error {
		stopMonitor()
		if err := monitors.Wait(); err != nil && !errors.Is(err, context.Canceled) {
			o.Logger.Debug("monitor", "error", err)
		}
		select {
		case err := <-failed:
			return err
		default:
			return nil
		}
	}
	b, err := openBroker(ctx, cfg, o.Logger)
	if err != nil {
		interrupted := ctx.Err() != nil
		if cause := stop(); interrupted {
			return cause
		}
		return err
	}
	defer b.close()

	queues := openers(cfg, b)
	readers := startReaders(readCtx, cfg, queues, o)
	applyCtx, stopAppliers := context.WithCancel(ctx)
	defer stopAppliers()
	appliers := startAppliers(applyCtx, cfg, queues, o)

	<-ctx.Done()
	o.Logger.Info("stopping")
	stopAppliers()
	appliers.Wait()
	stopReaders()
	readers.Wait()
	cause := stop()
	o.Logger.Info("stopped")
	return cause
}

func startReaders(ctx context.Context, cfg *config.Config, queues map[string]queueOpener, o Options) *sync.WaitGroup {
	var wg sync.WaitGroup
	if o.Roles&RoleReader == 0 {
		return &wg
	}
	for i := range cfg.Publishers {
		p := &cfg.Publishers[i]
		logger := o.Logger.With("publisher", p.Name)
		open := queues[p.Name]
		w := &publisherWorker{pub: p, dataDir: cfg.DataDir, open: open, watch: readerWatch{state: o.State, pub: p}, logger: logger}
		wg.Go(func() { _ = w.run(ctx) })
		wg.Go(func() { trim(ctx, open, time.Duration(cfg.Queue.Retention), logger) })
		wg.Go(func() { watchQueue(ctx, open, p, o.State, logger) })
	}
	return &wg
}

func startAppliers(ctx context.Context, cfg *config.Config, queues map[string]queueOpener, o Options) *sync.WaitGroup {
	var wg sync.WaitGroup
	if o.Roles&RoleApplier == 0 {
		return &wg
	}
	watches := map[string]*tableWatch{}
	for i := range cfg.Publishers {
		p := &cfg.Publishers[i]
		watches[p.Name] = &tableWatch{pub: p}
	}
	if o.Roles&RoleReader == 0 { // nobody else in this process looks at the queues
		for i := range cfg.Publishers {
			p := &cfg.Publishers[i]
			wg.Go(func() { watchQueue(ctx, queues[p.Name], p, o.State, o.Logger.With("publisher", p.Name)) })
		}
	}
	var workers sync.WaitGroup
	for i := range cfg.Subscriptions {
		s := &cfg.Subscriptions[i]
		w := &subscriptionWorker{
			pub: cfg.PublisherByName(s.Publisher), sub: s, open: queues[s.Publisher], tables: watches[s.Publisher],
			watch:  applierWatch{state: o.State, sub: s},
			logger: o.Logger.With("subscription", s.Name), plain: o.Logger, copyView: o.CopyView,
		}
		workers.Go(func() { _ = w.run(ctx) })
	}
	wg.Go(func() {
		workers.Wait()
		for _, t := range watches {
			t.close()
		}
	})
	return &wg
}

// A queueOpener opens a publisher's queue at the first call that succeeds and
// hands the same one out again.
type queueOpener func(context.Context) (*queue.Queue, error)

// openers has an opener for each publisher. Its log reader and the appliers share
// the queue: what was just appended need not be read back.
func openers(cfg *config.Config, b *broker) map[string]queueOpener {
	all := make(map[string]queueOpener, len(cfg.Publishers))
	for i := range cfg.Publishers {
		name := cfg.Publishers[i].Name
		all[name] = opener(b, name)
	}
	return all
}

func opener(b *broker, publisher string) queueOpener {
	var mu sync.Mutex
	var q *queue.Queue
	return func(ctx context.Context) (*queue.Queue, error) {
		mu.Lock()
		defer mu.Unlock()
		if q != nil {
			return q, nil
		}
		opened, err := b.queue(ctx, publisher)
		if err != nil {
			return nil, err
		}
		q = opened
		return q, nil
	}
}
