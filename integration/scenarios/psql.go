package scenarios

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// psqlEnv is the environment of psql: nothing of the developer has a say.
func psqlEnv(extra ...string) []string {
	return append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "LC_ALL=C.UTF-8",
		"PGCLIENTENCODING=UTF8", "PGCONNECT_TIMEOUT=10",
	}, extra...)
}

// psql prepares a psql that stops at the first error.
func psql(ctx context.Context, srv Server, db string, args ...string) *exec.Cmd {
	bin := "psql"
	if dir := srv.BinDir(); dir != "" {
		if p := filepath.Join(dir, "psql"); isFile(p) {
			bin = p
		}
	}
	cmd := exec.CommandContext(ctx, bin, append([]string{"-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", srv.URL(db)}, args...)...)
	cmd.Env = psqlEnv()
	cmd.WaitDelay = time.Second
	return cmd
}

func isFile(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.Mode().IsRegular()
}

// psqlError is a psql that failed; output is all that it printed.
type psqlError struct {
	output string
	err    error
}

func (e *psqlError) Error() string {
	for line := range strings.Lines(e.output) {
		if strings.Contains(line, "ERROR") || strings.Contains(line, "FATAL") || strings.Contains(line, "error:") {
			return strings.TrimSpace(line)
		}
	}
	if s := strings.TrimSpace(e.output); s != "" {
		return lastLines(s, 1)
	}
	return e.err.Error()
}

func (e *psqlError) Unwrap() error { return e.err }

// runFile runs a file in autocommit.
func runFile(ctx context.Context, srv Server, db, file string) error {
	out, err := psql(ctx, srv, db, "-f", file).CombinedOutput()
	if err != nil {
		return &psqlError{string(out), timedOut(ctx, err)}
	}
	return nil
}

// query returns the output of a file as psql -At prints it.
func queryFile(ctx context.Context, srv Server, db, file string) (string, error) {
	var stderr bytes.Buffer
	cmd := psql(ctx, srv, db, "-At", "-f", file)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", &psqlError{stderr.String(), timedOut(ctx, err)}
	}
	return string(out), nil
}

// admin runs commands whatever the defaults of the database are, each in a transaction of its own.
func admin(ctx context.Context, srv Server, db string, sql ...string) (string, error) {
	args := []string{"-At"}
	for _, s := range sql {
		args = append(args, "-c", s)
	}
	cmd := psql(ctx, srv, db, args...)
	cmd.Env = psqlEnv("PGOPTIONS=-c search_path=pg_catalog -c client_min_messages=warning")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", &psqlError{string(out), timedOut(ctx, err)}
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}

func timedOut(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	return err
}

// session is a psql that stays open between steps.
type session struct {
	side  Side
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *output
	done  chan struct{} // closed when psql has ended
	steps int
}

func openSession(srv Server, side Side, db string) (*session, error) {
	s := &session{side: side, cmd: psql(context.Background(), srv, db), out: &output{}, done: make(chan struct{})}
	in, err := s.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("open session: %w", err)
	}
	s.in, s.cmd.Stdout, s.cmd.Stderr = in, s.out, s.out
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("open session: %w", err)
	}
	go func() {
		_ = s.cmd.Wait() // how it ended shows in its output
		close(s.done)
	}()
	return s, nil
}

// run sends a file and waits until its last command is done.
func (s *session) run(ctx context.Context, file string) error {
	body, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	s.steps++
	mark := fmt.Sprintf("__done_%d__", s.steps)
	if _, err := fmt.Fprintf(s.in, "%s\n\\echo %s\n", body, mark); err != nil {
		return &psqlError{s.out.String(), err}
	}
	for !strings.Contains(s.out.String(), mark) {
		select {
		case <-s.done:
			return &psqlError{s.out.String(), errors.New("the session has ended")}
		case <-ctx.Done():
			return &psqlError{s.out.String(), context.Cause(ctx)}
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

// close ends the session, by force if it does not listen.
func (s *session) close() {
	_ = s.in.Close()
	select {
	case <-s.done:
		return
	case <-time.After(3 * time.Second):
	}
	_ = s.cmd.Process.Kill()
	<-s.done
}

// output collects what a running process prints.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
