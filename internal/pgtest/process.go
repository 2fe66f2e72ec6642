package pgtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/walferry/walferry/internal/freeze"
)

// process is a running postmaster.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the postmaster was reaped
}

// startProcess starts a postmaster that dies with this test process. The kernel
// ties the death signal to the thread that forked, so one locked thread forks and
// waits.
func startProcess(postgres, dataDir, logFile string) (*process, error) {
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open server log: %w", err)
	}
	cmd := asServerUser(exec.Command(postgres, "-D", dataDir))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr.Pdeathsig = syscall.SIGQUIT
	cmd.SysProcAttr.Setpgid = true // a terminal's ^C goes to the test, not to the server
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer log.Close()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // the exit status of a stopped or killed server says nothing
		}
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start postmaster: %w", err)
	}
	return p, nil
}

// killTree ends the postmaster and its children by SIGKILL and returns when all
// are gone. The postmaster is frozen first, so that it starts nothing meanwhile.
func (p *process) killTree() error {
	pid := p.cmd.Process.Pid
	_ = freeze.Process(pid) // it may have ended
	kids := children(pid)
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill postmaster: %w", err)
	}
	for _, kid := range kids {
		_ = syscall.Kill(kid, syscall.SIGKILL)
	}
	<-p.done
	deadline := time.Now().Add(10 * time.Second)
	for _, kid := range kids {
		for alive(kid) {
			if time.Now().After(deadline) {
				return fmt.Errorf("kill server process %d: still there", kid)
			}
			time.Sleep(2 * time.Millisecond)
		}
	}
	return nil
}

// children lists the child processes of pid from /proc.
func children(pid int) []int {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	var out []int
	for _, task := range tasks {
		b, err := os.ReadFile(task)
		if err != nil {
			continue
		}
		for _, f := range strings.Fields(string(b)) {
			if n, err := strconv.Atoi(f); err == nil {
				out = append(out, n)
			}
		}
	}
	return out
}

// alive says whether a process still runs; a zombie that waits for its reaper does not.
func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(rest, "Z")
}

// serverUser is who runs the servers: PostgreSQL refuses root. Nil means the
// user of this process.
var serverUser = sync.OnceValue(func() *syscall.Credential {
	if os.Getuid() != 0 {
		return nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 == nil && err2 == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		}
	}
	return &syscall.Credential{Uid: 65534, Gid: 65534}
})

// asServerUser prepares a command to run as the server user, with an environment
// in which no PG* or locale variable of the developer has a say.
func asServerUser(cmd *exec.Cmd) *exec.Cmd {
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C.UTF-8", "TZ=UTC"}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: serverUser()}
	return cmd
}

func giveToServerUser(path string) error {
	u := serverUser()
	if u == nil {
		return nil
	}
	if err := os.Chown(path, int(u.Uid), int(u.Gid)); err != nil {
		return fmt.Errorf("give folder to server user: %w", err)
	}
	return nil
}
