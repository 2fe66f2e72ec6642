package natstest

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/walferry/walferry/internal/freeze"
	"github.com/walferry/walferry/queue/natsd"
)

// Environment of a test binary that acts as a server.
const (
	envDir     = "WALFERRY_NATSTEST_DIR"
	envListen  = "WALFERRY_NATSTEST_LISTEN"
	envPayload = "WALFERRY_NATSTEST_MAX_PAYLOAD"
)

// Serve turns the test binary into a server when [StartProcess] has started
// it, and does nothing otherwise. TestMain calls it first.
func Serve() {
	dir := os.Getenv(envDir)
	if dir == "" {
		return
	}
	payload, _ := strconv.Atoi(os.Getenv(envPayload))
	s, err := natsd.Start(natsd.Options{StoreDir: dir, Listen: os.Getenv(envListen), MaxStore: 4 << 30, MaxPayload: int32(payload)})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(s.URL())
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends
	s.Shutdown()
	os.Exit(0)
}

// A Process is a server in a process of its own.
type Process struct {
	t    testing.TB
	opts natsd.Options
	addr string
	cmd  *exec.Cmd
	in   io.WriteCloser
}

// StartProcess runs a server in its own process until the test ends. The test
// binary must call [Serve] in TestMain.
func StartProcess(t testing.TB, opts ...Option) *Process {
	t.Helper()
	p := &Process{t: t, opts: options(t, opts), addr: freeAddr(t)}
	p.Start()
	t.Cleanup(p.Stop)
	return p
}

// freeAddr is a free port below those that the system gives to outgoing
// connections: one of these could take it while the server is down.
func freeAddr(t testing.TB) string {
	t.Helper()
	for range 200 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 15000+rand.IntN(17000)))
		if err != nil {
			continue
		}
		addr := l.Addr().String()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		return addr
	}
	t.Fatal("no free port in 15000-31999")
	return ""
}

// Start starts the server, again on the same port.
func (p *Process) Start() {
	p.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envDir+"="+p.opts.StoreDir, envListen+"="+p.addr, envPayload+"="+strconv.Itoa(int(p.opts.MaxPayload)))
	cmd.Stderr = p.t.Output()
	in, err := cmd.StdinPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		p.t.Fatalf("start nats-server process: %v", err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		_ = cmd.Wait()
		p.t.Fatalf("start nats-server process: %v", err)
	}
	p.cmd, p.in = cmd, in
	p.addr = strings.TrimPrefix(strings.TrimSpace(line), "nats://")
}

// Addr is where the server listens, host and port.
func (p *Process) Addr() string { return p.addr }

// URL is where the server listens.
func (p *Process) URL() string { return "nats://" + p.addr }

// StoreDir is the directory of the streams.
func (p *Process) StoreDir() string { return p.opts.StoreDir }

// Kill ends the process at once, as a crash would.
func (p *Process) Kill() {
	if p.cmd != nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		p.cmd = nil
	}
}

// Pause freezes the process; its connections stay open. Resume ends that.
func (p *Process) Pause() {
	p.t.Helper()
	if err := freeze.Process(p.cmd.Process.Pid); err != nil {
		p.t.Fatal(err)
	}
}

// Resume lets a paused process go on.
func (p *Process) Resume() { p.signal(syscall.SIGCONT) }

func (p *Process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// Stop shuts the server down in order.
func (p *Process) Stop() {
	if p.cmd != nil {
		_ = p.cmd.Process.Signal(syscall.SIGCONT)
		_ = p.in.Close()
		_ = p.cmd.Wait()
		p.cmd = nil
	}
}
