package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/internal/pgserver"
	"github.com/walferry/walferry/monitor"
)

// A cost is what one drain took.
type cost struct {
	Wall time.Duration
	// CPU time by who used it. The walsender's part of walferry's queue mode is
	// spent before the drain and not in it.
	Sender, Apply, Ferry time.Duration
	Memory               int64 // peak resident bytes of walferry
}

// CPU is the sum of all processes.
func (c cost) CPU() time.Duration { return c.Sender + c.Apply + c.Ferry }

// pair is the two servers and the workload that lies on the publisher.
type pair struct {
	pub, sub *server
	binary   string
	dir      string
	limit    time.Duration
	log      func(format string, args ...any)

	db   string     // of the publisher
	base change.LSN // where the workload begins
}

const (
	baseSlot    = "bench_base"
	drainSlot   = "bench_drain"
	publication = "p"
)

// native drains by PostgreSQL's own subscription.
func (p *pair) native(ctx context.Context, options string) (c cost, err error) {
	if err := p.copySlot(ctx); err != nil {
		return c, err
	}
	err = p.sub.exec(ctx, "run", fmt.Sprintf(`CREATE SUBSCRIPTION s CONNECTION 'host=127.0.0.1 port=%d user=postgres dbname=%s' PUBLICATION %s
		WITH (create_slot = false, slot_name = '%s', copy_data = false, enabled = false, %s)`, p.pub.Port(), p.db, publication, drainSlot, options))
	if err != nil {
		return c, err
	}
	defer func() {
		err = errors.Join(err, p.sub.exec(ctx, "run", "ALTER SUBSCRIPTION s DISABLE", "ALTER SUBSCRIPTION s SET (slot_name = NONE)", "DROP SUBSCRIPTION s"), p.dropSlot(ctx))
	}()
	began := time.Now()
	if err := p.sub.exec(ctx, "run", "ALTER SUBSCRIPTION s ENABLE"); err != nil {
		return c, err
	}
	if err := p.sub.marked(ctx, "run", p.limit); err != nil {
		return c, err
	}
	c.Wall = time.Since(began)
	return c, p.backends(ctx, &c)
}

func (p *pair) backends(ctx context.Context, c *cost) (err error) {
	if c.Sender, err = p.pub.backendTime(ctx, senders); err != nil {
		return err
	}
	c.Apply, err = p.sub.backendTime(ctx, appliers)
	return err
}

// ferry drains by walferry from the slot.
func (p *pair) ferry(ctx context.Context, streaming string) (c cost, err error) {
	if err := p.copySlot(ctx); err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, p.dropSlot(ctx)) }()
	file, dir, err := p.config("", p.publisher(streaming)+p.subscription("bench"))
	if err != nil {
		return c, err
	}
	defer os.RemoveAll(dir)
	err = p.timed(ctx, "run", file, &c, func() error { return p.backends(ctx, &c) })
	return c, err
}

// timed runs walferry in a role until the subscriber shows the end of the
// workload; then more measures what only runs with it.
func (p *pair) timed(ctx context.Context, role, file string, c *cost, more func() error) (err error) {
	began := time.Now()
	f, err := p.start(role, file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.stop()) }()
	if err := f.during(func() error { return p.sub.marked(ctx, "run", p.limit) }); err != nil {
		return err
	}
	c.Wall = time.Since(began)
	c.Ferry, c.Memory = cpuTime(f.pid()), peakRSS(f.pid())
	return more()
}

// backlog is a log reader that has brought the workload into its queue.
type backlog struct {
	p      *pair
	reader *process
	url    string
	dir    string
	n      int

	Bytes int64 // of the queue
}

// fill reads the workload into a queue.
func (p *pair) fill(ctx context.Context) (b *backlog, err error) {
	if err := p.copySlot(ctx); err != nil {
		return nil, err
	}
	port, err := pgserver.FreePort()
	if err != nil {
		return nil, err
	}
	b = &backlog{p: p, url: fmt.Sprintf("nats://127.0.0.1:%d", port)}
	file, dir, err := p.config(fmt.Sprintf("queue: {listen: '127.0.0.1:%d', max_bytes: 20GiB}\n", port), p.publisher("off"))
	if err != nil {
		return nil, err
	}
	b.dir = dir
	if b.reader, err = p.start("reader", file); err != nil {
		return nil, errors.Join(err, b.close(ctx))
	}
	end, err := p.pub.get(ctx, p.db, "SELECT pg_current_wal_lsn()::text")
	if err != nil {
		return nil, errors.Join(err, b.close(ctx))
	}
	want, err := change.ParseLSN(end)
	if err != nil {
		return nil, errors.Join(err, b.close(ctx))
	}
	for limit := time.Now().Add(p.limit); ; time.Sleep(100 * time.Millisecond) { // polls the status
		docs, err := monitor.Query(ctx, dir)
		if err == nil && len(docs) == 1 && len(docs[0].Publishers) == 1 {
			s := docs[0].Publishers[0]
			if s.QueuedLSN >= want {
				if s.Queue != nil {
					b.Bytes = s.Queue.Bytes
				}
				return b, nil
			}
		}
		if time.Now().After(limit) || ctx.Err() != nil {
			return nil, errors.Join(fmt.Errorf("the queue was not filled up to %s in %v: %w", end, p.limit, err), b.close(ctx))
		}
	}
}

func (b *backlog) close(ctx context.Context) error {
	var err error
	if b.reader != nil {
		err = b.reader.stop()
	}
	return errors.Join(err, os.RemoveAll(b.dir), b.p.dropSlot(ctx))
}

// drain applies the queue to a fresh subscriber.
func (b *backlog) drain(ctx context.Context) (c cost, err error) {
	b.n++
	p := b.p
	file, dir, err := p.config(fmt.Sprintf("queue: {url: '%s', max_bytes: 20GiB}\n", b.url), p.publisher("off")+p.subscription(fmt.Sprintf("bench_%d", b.n)))
	if err != nil {
		return c, err
	}
	defer os.RemoveAll(dir)
	before := cpuTime(b.reader.pid())
	err = p.timed(ctx, "applier", file, &c, func() (err error) {
		c.Ferry += cpuTime(b.reader.pid()) - before // it carries the queue
		c.Apply, err = p.sub.backendTime(ctx, appliers)
		return err
	})
	return c, err
}

// publisher and subscription are the parts of a configuration.
func (p *pair) publisher(streaming string) string {
	return fmt.Sprintf("publishers: [{name: main, url: '%s', slot: %s, publications: [%s], streaming: '%s'}]\n", p.pub.URL(p.db), drainSlot, publication, streaming)
}

func (p *pair) subscription(name string) string {
	return fmt.Sprintf("subscriptions: [{name: %s, publisher: main, url: '%s', initial: none, position: %s, schema: require}]\n", name, p.sub.URL("run"), p.base)
}

// config writes a configuration with a data folder of its own.
func (p *pair) config(head, text string) (file, dir string, err error) {
	if dir, err = os.MkdirTemp(p.dir, "ferry-"); err != nil {
		return "", "", err
	}
	file = filepath.Join(dir, "walferry.yaml")
	return file, dir, os.WriteFile(file, []byte("data_dir: '"+dir+"'\nlog: {format: text}\n"+head+text), 0o600)
}

func (p *pair) copySlot(ctx context.Context) error {
	return p.pub.exec(ctx, p.db, fmt.Sprintf("SELECT pg_copy_logical_replication_slot('%s', '%s')", baseSlot, drainSlot))
}

// dropSlot drops the copied slot when its sender has gone.
func (p *pair) dropSlot(ctx context.Context) error {
	var err error
	for range 100 {
		if err = p.pub.exec(ctx, p.db, fmt.Sprintf("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '%s'", drainSlot)); err == nil {
			return nil
		}
		time.Sleep(50 * time.Millisecond) // polls
	}
	return err
}

// process is a running walferry.
type process struct {
	cmd  *exec.Cmd
	log  *os.File
	done chan struct{}
	err  error
}

func (p *pair) start(role, file string) (*process, error) {
	log, err := os.Create(file + ".log")
	if err != nil {
		return nil, err
	}
	f := &process{cmd: exec.Command(p.binary, role, "-c", file), log: log, done: make(chan struct{})}
	f.cmd.Stdout, f.cmd.Stderr = log, log
	if err := f.cmd.Start(); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	go func() {
		f.err = f.cmd.Wait()
		close(f.done)
	}()
	return f, nil
}

func (f *process) pid() int { return f.cmd.Process.Pid }

// during calls wait and adds the end of the log to its error.
func (f *process) during(wait func() error) error {
	err := wait()
	if err == nil {
		return nil
	}
	b, _ := os.ReadFile(f.log.Name()) // for the message only
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return fmt.Errorf("%w; walferry's log ends with:\n%s", err, strings.Join(lines[max(0, len(lines)-15):], "\n"))
}

func (f *process) stop() error {
	_ = f.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-f.done:
	case <-time.After(30 * time.Second):
		_ = f.cmd.Process.Kill() // it may have ended
		<-f.done
		return errors.Join(errors.New("walferry did not stop"), f.log.Close())
	}
	return errors.Join(f.err, f.log.Close())
}
