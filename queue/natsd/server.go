package natsd

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// A Server is an embedded nats-server with JetStream.
type Server struct {
	ns     *server.Server
	opts   Options
	bridge *bridge
	lock   *os.File

	stop   chan struct{}
	once   sync.Once
	wg     sync.WaitGroup
	closed chan struct{}
}

// watchInterval is how often the server looks whether JetStream still runs.
const watchInterval = 2 * time.Second

// Start opens the store and returns when the server takes connections. The
// error is a [*LockedError] when another process has the store open.
func Start(o Options) (*Server, error) {
	o.setDefaults()
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("start embedded queue: %w", err)
	}
	if err := os.MkdirAll(o.StoreDir, 0o700); err != nil {
		return nil, fmt.Errorf("create queue directory: %w", err)
	}
	lock, err := lockDir(o.StoreDir)
	if err != nil {
		return nil, err
	}
	if o.MaxStore == 0 {
		o.MaxStore = diskBudget(o.StoreDir)
	}
	s := &Server{opts: o, bridge: &bridge{log: o.Logger}, lock: lock, stop: make(chan struct{}), closed: make(chan struct{})}
	if err := s.start(); err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("start embedded queue in %s: %w", o.StoreDir, err)
	}
	s.wg.Go(s.watch)
	return s, nil
}

func (s *Server) start() error {
	so, err := s.opts.serverOptions()
	if err != nil {
		return err
	}
	ns, err := server.NewServer(so)
	if err != nil {
		return err
	}
	ns.SetLoggerV2(s.bridge, false, false, false)
	s.ns = ns
	s.wg.Go(ns.Start)
	if err := s.awaitStart(); err != nil {
		ns.Shutdown()
		ns.WaitForShutdown()
		s.wg.Wait()
		return err
	}
	return nil
}

func (s *Server) awaitStart() error {
	deadline := time.Now().Add(s.opts.StartTimeout)
	for {
		ready := s.ns.ReadyForConnections(100 * time.Millisecond)
		if f := s.bridge.lastFatal(); f != "" {
			return errors.New(f)
		}
		if ready {
			if !s.ns.JetStreamEnabled() {
				return errors.New("JetStream did not start")
			}
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not ready after %v", s.opts.StartTimeout)
		}
	}
}

// watch brings JetStream back after the server has switched it off, which it
// does when the file system is full.
func (s *Server) watch() {
	t := time.NewTicker(watchInterval)
	defer t.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-t.C:
		}
		if s.ns.JetStreamEnabled() || !s.ns.Running() {
			continue
		}
		if err := s.ns.EnableJetStream(s.jetStreamConfig()); err != nil {
			s.opts.Logger.Error("queue is stopped: JetStream cannot be started again", "dir", s.opts.StoreDir, "err", err)
			continue
		}
		s.opts.Logger.Info("queue runs again", "dir", s.opts.StoreDir)
	}
}

func (s *Server) jetStreamConfig() *server.JetStreamConfig {
	return &server.JetStreamConfig{
		StoreDir:   s.opts.StoreDir,
		MaxStore:   s.opts.MaxStore,
		MaxMemory:  maxMemory,
		SyncAlways: true,
	}
}

// Err says why the server cannot store messages at the moment, or nil.
func (s *Server) Err() error {
	switch {
	case !s.ns.Running():
		return errors.New("embedded queue is shut down")
	case !s.ns.JetStreamEnabled():
		return fmt.Errorf("embedded queue in %s has stopped: free space on its file system, it starts again by itself", s.opts.StoreDir)
	}
	return nil
}

// SyncedBeforeAck reports that every acknowledged message is on disk.
func (s *Server) SyncedBeforeAck() bool { return true }

// InProcessConn makes the server usable with nats.InProcessServer.
func (s *Server) InProcessConn() (net.Conn, error) { return s.ns.InProcessConn() }

// Connect opens a connection inside the process. It reconnects for ever, and
// publishing while it is cut off fails at once instead of being buffered.
func (s *Server) Connect(opts ...nats.Option) (*nats.Conn, error) {
	base := []nats.Option{
		nats.InProcessServer(s),
		nats.Name("walferry"),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(100 * time.Millisecond),
		nats.ReconnectBufSize(-1),
	}
	if s.opts.Token != "" {
		base = append(base, nats.Token(s.opts.Token))
	}
	nc, err := nats.Connect("", append(base, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to embedded queue: %w", err)
	}
	return nc, nil
}

// URL is where the server listens, or "" when it does not.
func (s *Server) URL() string {
	if s.opts.Listen == "" {
		return ""
	}
	return s.ns.ClientURL()
}

// StoreDir is the directory of the streams.
func (s *Server) StoreDir() string { return s.opts.StoreDir }

// Shutdown stops the server, waits until its files are closed and gives the
// store directory free. It may be called more than once.
func (s *Server) Shutdown() {
	s.once.Do(func() {
		close(s.stop)
		s.ns.Shutdown()
		s.ns.WaitForShutdown()
		s.wg.Wait()
		_ = s.lock.Close()
		close(s.closed)
	})
	<-s.closed
}
