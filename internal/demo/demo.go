package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/walferry/walferry/internal/pgserver"
)

// Options say how the demo runs.
type Options struct {
	Duration   time.Duration // of the workload
	Executable string        // walferry
	Out        io.Writer
	Terminal   bool // Out can rewrite a line
}

// catchUpLimit bounds the initial copy and the catch-up at the end.
const catchUpLimit = 2 * time.Minute

// show is one demo.
type show struct {
	o       Options
	d       *display
	dir     string
	servers *pair
	queue   string // URL
	reader  *child
	applier *child
}

// Run shows walferry at work. The error is ErrDifferent when the two sides are not
// equal at the end, and the cause of ctx when it ended.
func Run(ctx context.Context, o Options) (err error) {
	s := &show{o: o, d: &display{out: o.Out, terminal: o.Terminal}}
	if s.dir, err = newFolder(); err != nil {
		return err
	}
	defer func() {
		if ctx.Err() != nil {
			err = context.Cause(ctx) // whatever failed, failed because of it
		}
		if cerr := s.cleanUp(ctx.Err() != nil); cerr != nil {
			err = errors.Join(err, cerr)
		}
	}()
	for _, stage := range []func(context.Context) error{s.prepare, s.replicate, s.work, s.compare} {
		if err := stage(ctx); err != nil {
			return err
		}
	}
	return nil
}

// cleanUp ends what runs and removes the folder.
func (s *show) cleanUp(interrupted bool) error {
	s.d.done()
	if interrupted {
		s.d.say("interrupted: stopping")
	}
	for _, c := range []*child{s.applier, s.reader} {
		if c != nil {
			c.stop()
		}
	}
	var err error
	if s.servers != nil {
		err = s.servers.stop()
	}
	if rerr := os.RemoveAll(s.dir); rerr != nil {
		return errors.Join(err, fmt.Errorf("remove temporary folder: %w", rerr))
	}
	if err == nil {
		s.d.say("stopped everything and removed %s", s.dir)
	}
	return err
}

// prepare starts the servers and makes the tables.
func (s *show) prepare(ctx context.Context) error {
	s.d.say("starting two PostgreSQL servers in %s", s.dir)
	var err error
	if s.servers, err = startServers(ctx, s.dir, s.d); err != nil {
		return err
	}
	s.d.say("%s\n  publisher   %s\n  subscriber  %s", s.servers.what, s.pubURL(), s.subURL())
	for _, side := range []struct {
		server *pgserver.Server
		sql    string
	}{{s.servers.pub, schemaSQL + rowsSQL}, {s.servers.sub, schemaSQL}} {
		if err := execute(ctx, side.server.URL("postgres"), "CREATE DATABASE demo"); err != nil {
			return fmt.Errorf("create database: %w", err)
		}
		if err := execute(ctx, side.server.URL("demo"), side.sql); err != nil {
			return fmt.Errorf("create tables: %w", err)
		}
	}
	return nil
}

func (s *show) pubURL() string { return s.servers.pub.URL("demo") }
func (s *show) subURL() string { return s.servers.sub.URL("demo") }

func (s *show) readerConfig() string  { return filepath.Join(s.dir, "reader.yaml") }
func (s *show) applierConfig() string { return filepath.Join(s.dir, "applier.yaml") }
func (s *show) dataDir() string       { return filepath.Join(s.dir, "data") }

// replicate starts walferry and waits for the initial copy.
func (s *show) replicate(ctx context.Context) error {
	port, err := pgserver.FreePort()
	if err != nil {
		return err
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	s.queue = "nats://" + address
	if err := s.writeConfig(s.readerConfig(), map[string]any{"listen": address}); err != nil {
		return err
	}
	if err := s.writeConfig(s.applierConfig(), map[string]any{"url": s.queue}); err != nil {
		return err
	}
	s.d.say("  queue       %s", s.queue)
	if s.reader, err = startChild(s.o.Executable, "reader", s.readerConfig(), s.dataDir()); err != nil {
		return err
	}
	// The queue is in the reader.
	if err := s.reader.waitStatus(ctx); err != nil {
		return err
	}
	if s.applier, err = startChild(s.o.Executable, "applier", s.applierConfig(), s.dataDir()); err != nil {
		return err
	}
	began := time.Now()
	if err := s.wait(ctx); err != nil {
		return fmt.Errorf("initial copy: %w", err)
	}
	s.d.say("copied the rows that existed in %.1f s", time.Since(began).Seconds())
	return nil
}

// writeConfig writes a walferry.yaml (in JSON, which is YAML).
func (s *show) writeConfig(path string, queue map[string]any) error {
	b, err := json.MarshalIndent(map[string]any{
		"data_dir": s.dataDir(),
		"queue":    queue,
		"publishers": []any{map[string]any{
			"name": "demo", "url": s.pubURL(), "tables": map[string]any{"include": []string{"demo.*"}},
		}},
		"subscriptions": []any{map[string]any{
			"name": "demo", "publisher": "demo", "url": s.subURL(), "schema": "require",
		}},
	}, "", "  ")
	if err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	return nil
}

// wait returns when the subscriber has what is committed now, or a process ends.
func (s *show) wait(ctx context.Context) error {
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	died := make(chan error, 1)
	go func() {
		select {
		case <-waiting.Done():
		case <-s.reader.done:
		case <-s.applier.done:
		}
		died <- errors.Join(s.reader.died(), s.applier.died())
		stop()
	}()
	err := run(waiting, s.o.Executable, "wait", s.applierConfig(), "--timeout", catchUpLimit.String())
	stop()
	if cause := <-died; cause != nil && err != nil {
		return cause
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// work runs the workload and lets the subscriber catch up, before the eyes of
// the user.
func (s *show) work(ctx context.Context) error {
	s.d.say("writing for %s: inserts, updates, deletes, key swaps, TOAST, savepoints, transactions of thousands of rows, TRUNCATE", s.o.Duration)
	watching, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	var watcher errgroup.Group
	watcher.Go(func() error { return s.watch(watching) })
	err := s.write(ctx)
	if err == nil {
		err = s.catchUp(ctx)
	}
	stopWatching()
	if werr := watcher.Wait(); err == nil {
		err = werr
	}
	return err
}

// write runs the workload and kills the applier in the middle.
func (s *show) write(ctx context.Context) error {
	timed, cancel := context.WithTimeout(ctx, s.o.Duration)
	defer cancel()
	g, timed := errgroup.WithContext(timed)
	g.Go(func() error { return write(timed, s.pubURL()) })
	g.Go(func() error { return s.crash(timed) })
	if err := g.Wait(); err != nil {
		return err
	}
	return context.Cause(ctx) // the end of the time is no error, an interruption is
}

// crash kills the applier after two fifths of the time and starts it again after
// one fifth more.
func (s *show) crash(ctx context.Context) error {
	if !pause(ctx, s.o.Duration*2/5) {
		return nil
	}
	if err := s.applier.died(); err != nil {
		return err
	}
	s.applier.kill()
	s.d.say("-- applier killed (kill -9): the queue keeps what is written")
	pause(ctx, s.o.Duration/5)
	applier, err := startChild(s.o.Executable, "applier", s.applierConfig(), s.dataDir())
	if err != nil {
		return err
	}
	s.applier = applier
	s.d.say("-- applier started again: it continues where it was")
	return nil
}

// pause says whether the time passed before ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// catchUp waits until the subscriber has everything.
func (s *show) catchUp(ctx context.Context) error {
	began := time.Now()
	if err := s.wait(ctx); err != nil {
		return fmt.Errorf("catch up: %w", err)
	}
	s.d.say("writing has ended; the subscriber had everything %.1f s later", time.Since(began).Seconds())
	return nil
}

// compare compares both sides table by table.
func (s *show) compare(ctx context.Context) error {
	pub, err := readDigests(ctx, s.pubURL())
	if err != nil {
		return fmt.Errorf("publisher: %w", err)
	}
	sub, err := readDigests(ctx, s.subURL())
	if err != nil {
		return fmt.Errorf("subscriber: %w", err)
	}
	different := 0
	s.d.say("%-16s %12s %12s", "table", "publisher", "subscriber")
	for _, t := range tables {
		verdict := "equal"
		if pub[t] != sub[t] {
			verdict = "DIFFERENT"
			different++
		}
		s.d.say("demo.%-11s %12s %12s  %s", t, number(pub[t].rows), number(sub[t].rows), verdict)
	}
	if different > 0 {
		return fmt.Errorf("%w in %d of %d tables", ErrDifferent, different, len(tables))
	}
	s.d.say("all %d tables are equal: rows counted and hashed by both servers", len(tables))
	return nil
}
