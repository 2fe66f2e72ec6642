package containers_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// buildWalferry builds the program under test.
func buildWalferry(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "walferry")
	cmd := exec.Command("go", "build", "-o", bin, "github.com/walferry/walferry/cmd/walferry")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build walferry: %v\n%s", err, out)
	}
	return bin
}

// program is a running walferry.
type program struct {
	cmd  *exec.Cmd
	log  *buffer
	done chan struct{}
	err  error // valid after done is closed
}

// startWalferry runs `walferry run` with a configuration. It is interrupted at the
// end of the test; its output is shown if the test failed.
func startWalferry(t *testing.T, bin, config string) *program {
	t.Helper()
	file := filepath.Join(t.TempDir(), "walferry.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	p := &program{cmd: exec.Command(bin, "run", "-c", file), log: &buffer{}, done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start walferry: %v", err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // no-op after interrupt
		<-p.done
		if t.Failed() {
			t.Logf("output of walferry:\n%s", p.log)
		}
	})
	return p
}

// interrupt ends the program as ^C does and returns its error.
func (p *program) interrupt(t *testing.T) error {
	t.Helper()
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatalf("interrupt walferry: %v", err)
	}
	select {
	case <-p.done:
		return p.err
	case <-time.After(30 * time.Second):
		t.Fatal("walferry did not end within 30 s of an interrupt")
		return nil
	}
}

// alive returns an error once the program has ended.
func (p *program) alive() error {
	select {
	case <-p.done:
		return errors.Join(errors.New("walferry ended"), p.err)
	default:
		return nil
	}
}

// buffer is a bytes.Buffer for two goroutines.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
