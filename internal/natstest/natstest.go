// Package natstest runs nats-servers with JetStream for tests: embedded ones
// in the test process, and ones in a process of their own that can be killed.
package natstest

import (
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/walferry/walferry/queue/natsd"
)

// An Option changes the options of a server before it starts.
type Option func(*natsd.Options)

// WithMaxPayload sets the largest message in bytes.
func WithMaxPayload(n int32) Option { return func(o *natsd.Options) { o.MaxPayload = n } }

// WithMaxStore bounds the store in bytes.
func WithMaxStore(n int64) Option { return func(o *natsd.Options) { o.MaxStore = n } }

// WithListen opens a loopback port.
func WithListen() Option { return func(o *natsd.Options) { o.Listen = "127.0.0.1:0" } }

// WithStoreDir uses dir instead of a temporary directory.
func WithStoreDir(dir string) Option { return func(o *natsd.Options) { o.StoreDir = dir } }

func options(t testing.TB, opts []Option) natsd.Options {
	o := natsd.Options{
		MaxStore: 4 << 30,
		Logger:   slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	for _, f := range opts {
		f(&o)
	}
	if o.StoreDir == "" {
		o.StoreDir = t.TempDir()
	}
	return o
}

// Start runs an embedded server until the test ends.
func Start(t testing.TB, opts ...Option) *natsd.Server {
	t.Helper()
	s, err := natsd.Start(options(t, opts))
	if err != nil {
		t.Fatalf("start nats-server: %v", err)
	}
	t.Cleanup(s.Shutdown)
	return s
}

// A Restartable is an embedded server that can be stopped and started again
// on the same store while clients keep their connections.
type Restartable struct {
	t    testing.TB
	opts natsd.Options

	mu  sync.Mutex
	cur *natsd.Server // nil while stopped
}

// StartRestartable runs an embedded server until the test ends.
func StartRestartable(t testing.TB, opts ...Option) *Restartable {
	t.Helper()
	r := &Restartable{t: t, opts: options(t, opts)}
	r.Start()
	t.Cleanup(r.Stop)
	return r
}

// Start starts the server again.
func (r *Restartable) Start() {
	r.t.Helper()
	s, err := natsd.Start(r.opts)
	if err != nil {
		r.t.Fatalf("start nats-server: %v", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cur = s
}

// Stop shuts the server down and keeps its store.
func (r *Restartable) Stop() {
	r.mu.Lock()
	s := r.cur
	r.cur = nil
	r.mu.Unlock()
	if s != nil {
		s.Shutdown()
	}
}

// Reconfigure changes the options for the next start.
func (r *Restartable) Reconfigure(opts ...Option) {
	for _, f := range opts {
		f(&r.opts)
	}
}

// Restart is Stop and Start.
func (r *Restartable) Restart() {
	r.t.Helper()
	r.Stop()
	r.Start()
}

// StoreDir is the directory of the streams.
func (r *Restartable) StoreDir() string { return r.opts.StoreDir }

// InProcessConn connects to the server that runs at the moment.
func (r *Restartable) InProcessConn() (net.Conn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cur == nil {
		return nil, net.ErrClosed
	}
	return r.cur.InProcessConn()
}

// Connect opens a connection that survives restarts.
func (r *Restartable) Connect(opts ...nats.Option) *nats.Conn {
	r.t.Helper()
	nc, err := nats.Connect("", append([]nats.Option{
		nats.InProcessServer(r), nats.MaxReconnects(-1), nats.ReconnectWait(20 * time.Millisecond),
		nats.ReconnectJitter(0, 0), nats.ReconnectBufSize(-1),
	}, opts...)...)
	if err != nil {
		r.t.Fatalf("connect to nats-server: %v", err)
	}
	r.t.Cleanup(nc.Close)
	return nc
}

// Connect opens an in-process connection that closes with the test.
func Connect(t testing.TB, s *natsd.Server, opts ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := s.Connect(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}
