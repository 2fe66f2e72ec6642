package demo_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/walferry/walferry/internal/pgserver"
	"github.com/walferry/walferry/internal/testreq"
)

var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "walferry-demotest-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "walferry")
	out, err := exec.Command("go", "build", "-o", path, "github.com/walferry/walferry/cmd/walferry").CombinedOutput()
	if err != nil {
		return "", errors.New(string(out))
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := binary(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path)) // the process ends
	}
	os.Exit(code)
}

// result is a demo that has ended.
type result struct {
	out  string
	code int
}

// start runs the real program with its own TMPDIR and returns it with what it
// prints; wait wants that nothing of it is left.
func start(t *testing.T, args ...string) (cmd *exec.Cmd, printed func() string, wait func() result) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts servers: not with -short")
	}
	if _, err := pgserver.Find(t.Context()); err != nil {
		testreq.Missing(t, err.Error())
	}
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	tmp, err := os.MkdirTemp("", "wfdemo-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(tmp) })
	if err := os.Chmod(tmp, 0o755); err != nil { // PostgreSQL runs as another user than root
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	t.Cleanup(cancel)
	cmd = exec.CommandContext(ctx, path, append([]string{"demo"}, args...)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	var out syncBuffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, out.String, func() result {
		_ = cmd.Wait() // see the exit code
		if left, _ := os.ReadDir(tmp); len(left) > 0 {
			t.Errorf("left behind: %s", left[0].Name())
		}
		if left := processes(tmp); left != "" {
			t.Errorf("still running: %s", left)
		}
		return result{out.String(), cmd.ProcessState.ExitCode()}
	}
}

type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// processes are the command lines that name a folder.
func processes(dir string) string {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	var out []string
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), dir) {
			out = append(out, strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return strings.Join(out, "\n")
}

func TestDemo_BothSidesAreEqualAfterACrashAndNothingIsLeft(t *testing.T) {
	_, _, wait := start(t, "--seconds", "4")
	r := wait()
	if r.code != 0 {
		t.Errorf("exit code %d", r.code)
	}
	for _, want := range []string{"killed", "started again", "all 7 tables are equal"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("not said: %s", want)
		}
	}
	if t.Failed() {
		t.Log(r.out)
	}
}

func TestDemo_InterruptedAtAnyTimeCleansUpAndExitsWith6(t *testing.T) {
	for _, after := range []string{"starting two", "publisher ", "writing for", "killed", "started again"} {
		t.Run(after, func(t *testing.T) {
			cmd, printed, wait := start(t, "--seconds", "5")
			deadline := time.Now().Add(2 * time.Minute)
			for !strings.Contains(printed(), after) {
				if time.Now().After(deadline) {
					t.Fatalf("not said: %s\n%s", after, printed())
				}
				time.Sleep(5 * time.Millisecond)
			}
			if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
				t.Fatal(err)
			}
			if r := wait(); r.code != 6 || strings.Contains(r.out, "equal") {
				t.Errorf("exit code %d\n%s", r.code, r.out)
			}
		})
	}
}
