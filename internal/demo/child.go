package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// stopLimit is how long walferry gets to end in order.
const stopLimit = 10 * time.Second

// child is a walferry process.
type child struct {
	verb string
	dir  string // data_dir
	log  string // path
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

// startChild runs `walferry <verb> -c <config>`, which ends with this process where
// the system allows it. The kernel ties the signal to the thread that forked, so
// one locked thread forks and waits.
func startChild(exe, verb, config, dir string) (*child, error) {
	c := &child{verb: verb, dir: dir, log: filepath.Join(filepath.Dir(config), verb+".log"), done: make(chan struct{})}
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	c.cmd = exec.Command(exe, verb, "-c", config)
	c.cmd.Stdout, c.cmd.Stderr = log, log
	detach(c.cmd)
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer log.Close()
		err := c.cmd.Start()
		started <- err
		if err == nil {
			_ = c.cmd.Wait() // see died
		}
		close(c.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start walferry %s: %w", verb, err)
	}
	return c, nil
}

// died is an error when the process has ended by itself.
func (c *child) died() error {
	select {
	case <-c.done:
		return fmt.Errorf("walferry %s has ended: %s: %s", c.verb, c.cmd.ProcessState, c.tail())
	default:
		return nil
	}
}

// tail is the end of the log.
func (c *child) tail() string {
	b, err := os.ReadFile(c.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], "\n")
}

// kill ends the process without a chance to say goodbye.
func (c *child) kill() {
	_ = c.cmd.Process.Kill() // it may have ended already
	<-c.done
}

// stop ends the process in order, or by force when it takes too long.
func (c *child) stop() {
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err == nil {
		select {
		case <-c.done:
			return
		case <-time.After(stopLimit):
		}
	}
	c.kill()
}

// run gives one command and returns its last words as the error.
func run(ctx context.Context, exe, verb, config string, args ...string) error {
	cmd := exec.CommandContext(ctx, exe, append([]string{verb, "-c", config}, args...)...)
	cmd.WaitDelay = time.Second
	detach(cmd)
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return fmt.Errorf("walferry %s: %w: %s", verb, err, lines[len(lines)-1])
	}
	return nil
}

// startLimit is how long a process may take to answer.
const startLimit = 30 * time.Second

// waitStatus waits until the process answers.
func (c *child) waitStatus(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		_, err := c.queuedRows(ctx)
		if err == nil {
			return nil
		}
		if died := c.died(); died != nil {
			return died
		}
		if !pause(ctx, 50*time.Millisecond) {
			return fmt.Errorf("walferry %s does not answer: %w", c.verb, err)
		}
	}
}

// errNoStatus says that the process does not answer (yet).
var errNoStatus = errors.New("no status")

// queuedRows asks the reader how many rows it has put into the queue. The control
// socket of a process is named by its id.
func (c *child) queuedRows(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	socket := filepath.Join(c.dir, fmt.Sprintf("control-%d.sock", c.cmd.Process.Pid))
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://walferry/status", nil)
	if err != nil {
		return 0, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errNoStatus, err)
	}
	defer resp.Body.Close()
	var doc struct {
		Publishers []struct {
			Rows int64 `json:"rows"`
		} `json:"publishers"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&doc); err != nil {
		return 0, fmt.Errorf("%w: %w", errNoStatus, err)
	}
	if len(doc.Publishers) == 0 {
		return 0, errNoStatus
	}
	return doc.Publishers[0].Rows, nil
}
