package soak

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/walferry/walferry/internal/freeze"
)

// build makes the program under test.
func build(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "walferry")
	if out, err := exec.Command("go", "build", "-o", binary, "github.com/walferry/walferry/cmd/walferry").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return binary
}

// process is a walferry that may be killed and started again.
type process struct {
	t    *testing.T
	args []string // binary, verb and configuration
	log  string

	cmd  *exec.Cmd     // nil while it does not run
	done chan struct{} // closed when cmd has ended
	err  error         // of cmd, valid after done
}

// newProcess does not start it. At the end of the test it is killed, and the end
// of its log is shown if the test failed.
func newProcess(t *testing.T, log string, args ...string) *process {
	t.Helper()
	p := &process{t: t, args: args, log: log}
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			b, _ := os.ReadFile(p.log)
			t.Logf("%s ends with:\n%s", filepath.Base(p.log), b[max(0, len(b)-12000):])
		}
	})
	return p
}

func (p *process) start() {
	p.t.Helper()
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		p.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(p.args[0], p.args[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a terminal's ^C goes to the test
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.cmd, p.done = cmd, make(chan struct{})
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
}

// check fails when the process has ended by itself.
func (p *process) check() {
	p.t.Helper()
	if p.cmd == nil {
		return
	}
	select {
	case <-p.done:
		p.t.Fatalf("walferry %s ended by itself: %v", p.args[1], p.err)
	default:
	}
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	p.check()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("signal walferry %s: %v", p.args[1], err)
	}
}

// freeze stops it until SIGCONT.
func (p *process) freeze() {
	p.t.Helper()
	p.check()
	if err := freeze.Process(p.cmd.Process.Pid); err != nil {
		p.t.Fatal(err)
	}
}

// kill ends it at once, paused or not.
func (p *process) kill() {
	if p.cmd != nil {
		_ = p.cmd.Process.Kill() // it may have ended
		<-p.done
		p.cmd = nil
	}
}

// stop ends it in order.
func (p *process) stop() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
		if p.err != nil {
			p.t.Fatalf("walferry %s stopped with %v", p.args[1], p.err)
		}
	case <-time.After(30 * time.Second):
		_ = p.cmd.Process.Signal(syscall.SIGQUIT) // its goroutines go to the log
		<-p.done
		p.t.Fatalf("walferry %s did not stop within 30 s", p.args[1])
	}
	p.cmd = nil
}

// errors counts the log's lines that say that a person must act, by message.
func (p *process) errors(count map[string]int) {
	b, err := os.ReadFile(p.log)
	if err != nil {
		p.t.Fatal(err)
	}
	for line := range bytes.Lines(b) {
		_, text, ok := strings.Cut(string(line), " ERR ")
		if panicked := strings.HasPrefix(string(line), "panic: "); ok || panicked {
			if panicked {
				text = string(line)
			}
			count[strings.TrimSpace(text[:min(len(text), 200)])]++
		}
	}
}
