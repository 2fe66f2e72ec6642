package pgtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// startTimeout bounds one server start, crash recovery included.
const startTimeout = 60 * time.Second

// local is a server run from binaries on this machine.
type local struct {
	bin  string
	dir  string // holds data/, the socket and the log
	prt  int
	proc *process // nil while stopped
}

func newLocal(bin string, o options) (*local, error) {
	tmpl, err := template(bin)
	if err != nil {
		return nil, err
	}
	base, err := processDir()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(base, "c")
	if err != nil {
		return nil, fmt.Errorf("make cluster folder: %w", err)
	}
	s := &local{bin: bin, dir: dir}
	if err := s.create(tmpl, o); err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	return s, nil
}

func (s *local) create(tmpl string, o options) error {
	if err := giveToServerUser(s.dir); err != nil {
		return err
	}
	if out, err := asServerUser(exec.Command("cp", "-a", tmpl, s.DataDir())).CombinedOutput(); err != nil {
		return fmt.Errorf("copy template cluster: %w: %s", err, out)
	}
	if err := newIdentity(s.bin, s.DataDir()); err != nil {
		return err
	}
	port, err := FreePort()
	if err != nil {
		return err
	}
	s.prt = port
	var conf strings.Builder
	fmt.Fprintf(&conf, "\nlisten_addresses = '127.0.0.1'\nport = %d\nunix_socket_directories = '%s'\n", port, s.dir)
	for _, k := range slices.Sorted(maps.Keys(o.settings)) {
		fmt.Fprintf(&conf, "%s = '%s'\n", k, strings.ReplaceAll(o.settings[k], "'", "''"))
	}
	f, err := os.OpenFile(filepath.Join(s.DataDir(), "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("open postgresql.conf: %w", err)
	}
	_, err = f.WriteString(conf.String())
	return errors.Join(err, f.Close())
}

// FreePort picks a port below the kernel's ephemeral range, so that no outgoing
// connection takes it while the server is stopped.
func FreePort() (int, error) {
	for range 200 {
		port := 15000 + rand.IntN(17000)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		return port, l.Close()
	}
	return 0, errors.New("find free port: none in 15000-31999")
}

func (s *local) Port() int       { return s.prt }
func (s *local) DataDir() string { return filepath.Join(s.dir, "data") }
func (s *local) BinDir() string  { return s.bin }
func (s *local) logFile() string { return filepath.Join(s.dir, "log") }

func (s *local) Start() error {
	if s.proc != nil {
		return errors.New("the server is running")
	}
	p, err := startProcess(filepath.Join(s.bin, "postgres"), s.DataDir(), s.logFile())
	if err != nil {
		return err
	}
	s.proc = p
	if err := WaitReady(s.prt, p.done); err != nil {
		return errors.Join(err, s.Kill())
	}
	return nil
}

// WaitReady polls until the server on a port of 127.0.0.1 accepts a connection; dead,
// if not nil, ends the wait early.
func WaitReady(port int, dead <-chan struct{}) error {
	url := fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable&connect_timeout=5", port)
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, url)
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-dead:
			return errors.New("the server ended while starting")
		case <-ctx.Done():
			return fmt.Errorf("wait for server: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (s *local) Stop(mode string) error {
	sig, ok := map[string]syscall.Signal{
		"smart": syscall.SIGTERM, "fast": syscall.SIGINT, "immediate": syscall.SIGQUIT,
	}[mode]
	if !ok {
		return fmt.Errorf("unknown stop mode %q", mode)
	}
	if s.proc == nil {
		return nil
	}
	if err := s.proc.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal postmaster: %w", err)
	}
	select {
	case <-s.proc.done:
		s.proc = nil
		return nil
	case <-time.After(startTimeout):
		return fmt.Errorf("the server did not stop in %v", startTimeout)
	}
}

func (s *local) Kill() error {
	if s.proc == nil {
		return nil
	}
	err := s.proc.killTree()
	s.proc = nil
	return err
}

func (s *local) Remove() {
	// Nothing of the data is wanted any more: the fastest end is the best one.
	_ = s.Kill()
	_ = os.RemoveAll(s.dir)
}

func (s *local) LogTail() string {
	b, err := os.ReadFile(s.logFile())
	if err != nil {
		return err.Error()
	}
	return lastLines(string(b), 60)
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
