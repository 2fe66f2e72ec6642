package pgserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Options say how a server runs.
type Options struct {
	Dir      string            // an existing empty folder that becomes the server's
	Settings map[string]string // server parameters
}

// Server is a running server. The superuser is postgres, without a password.
type Server struct {
	port      int
	dir       string
	bin       Binaries
	done      chan struct{} // closed when the server has ended; nil in a container
	kill      func() error
	container string
}

const (
	startTimeout = 60 * time.Second
	stopTimeout  = 20 * time.Second
)

// Start makes a data directory and starts a server that ends with this process.
// It returns when the server accepts connections.
func Start(ctx context.Context, bin Binaries, o Options) (*Server, error) {
	s := &Server{dir: o.Dir, bin: bin}
	if err := own(o.Dir); err != nil {
		return nil, err
	}
	initdb := exec.CommandContext(ctx, program(bin.Dir, "initdb"), "--pgdata="+s.data(), "--username=postgres",
		"--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync", "--no-instructions")
	if out, err := asServerUser(initdb).CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("run initdb: %w: %s", err, lastLines(string(out), 5))
	}
	var err error
	if s.port, err = FreePort(); err != nil {
		return nil, err
	}
	if err := s.configure(o.Settings); err != nil {
		return nil, err
	}
	if err := s.launch(); err != nil {
		return nil, err
	}
	if err := waitReady(ctx, s.port, s.done); err != nil {
		return nil, errors.Join(fmt.Errorf("start PostgreSQL %s: %w: %s", bin.Version, err, s.logTail()), s.Stop())
	}
	return s, nil
}

func (s *Server) data() string    { return filepath.Join(s.dir, "data") }
func (s *Server) logPath() string { return filepath.Join(s.dir, "log") }

// FreePort is a port of 127.0.0.1 that nobody listened on a moment ago.
func FreePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find free port: %w", err)
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

func (s *Server) configure(settings map[string]string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "\nlisten_addresses = '127.0.0.1'\nport = %d\nunix_socket_directories = ''\n", s.port)
	for _, k := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&b, "%s = '%s'\n", k, strings.ReplaceAll(settings[k], "'", "''"))
	}
	f, err := os.OpenFile(filepath.Join(s.data(), "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("configure server: %w", err)
	}
	_, err = f.WriteString(b.String())
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("configure server: %w", err)
	}
	return nil
}

// launch starts the server. Linux ties the signal at the death of the parent to
// the thread that forked, so one locked thread forks and waits.
func (s *Server) launch() error {
	log, err := os.OpenFile(s.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open server log: %w", err)
	}
	cmd := asServerUser(exec.Command(program(s.bin.Dir, "postgres"), "-D", s.data()))
	cmd.Stdout, cmd.Stderr = log, log
	endWithParent(cmd)
	s.done = make(chan struct{})
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer log.Close()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how a server ended that was stopped says nothing
		}
		close(s.done)
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start server: %w", err)
	}
	s.kill = cmd.Process.Kill
	return nil
}

// URL is the connection string of a database.
func (s *Server) URL(db string) string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", s.port, db)
}

// Port is the TCP port on 127.0.0.1.
func (s *Server) Port() int { return s.port }

// Stop ends the server. What it had not written is lost: its data are thrown
// away. Calling it again does nothing.
func (s *Server) Stop() error {
	if s.container != "" {
		return s.removeContainer()
	}
	if s.kill == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	stop := asServerUser(exec.CommandContext(ctx, program(s.bin.Dir, "pg_ctl"), "stop", "-D", s.data(), "-m", "immediate", "-W"))
	_ = stop.Run() // judged by what happens
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
	}
	if err := s.kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill server: %w", err)
	}
	<-s.done
	return nil
}

func (s *Server) logTail() string {
	b, err := os.ReadFile(s.logPath())
	if err != nil {
		return err.Error()
	}
	return lastLines(string(b), 10)
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
