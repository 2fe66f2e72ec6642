// Package freeze stops processes for tests.
package freeze

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// limit bounds how long a process may go on after SIGSTOP.
const limit = 5 * time.Second

// Process stops a process with SIGSTOP and returns when none of its threads runs any
// more: the signal is sent before it acts, and a server that is "stopped" can
// still answer a request meanwhile. SIGCONT ends it. Where there is no /proc it
// only sends the signal.
func Process(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return fmt.Errorf("stop process %d: %w", pid, err)
	}
	for end := time.Now().Add(limit); ; time.Sleep(time.Millisecond) {
		stands, err := stopped(pid)
		if err != nil {
			return fmt.Errorf("stop process %d: %w", pid, err)
		}
		if stands {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("stop process %d: it still runs after %v", pid, limit)
		}
	}
}

// stopped reports whether no thread runs (proc(5), /proc/PID/task/TID/stat).
func stopped(pid int) (bool, error) {
	if _, err := os.Stat("/proc/self/task"); err != nil {
		return true, nil
	}
	files, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/stat")
	if err != nil {
		return false, err
	}
	if len(files) == 0 {
		return false, errors.New("it is gone")
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // a thread that has ended
		}
		if err != nil {
			return false, err
		}
		i := bytes.LastIndexByte(b, ')') // the name before it may hold anything
		if i < 0 || i+2 >= len(b) {
			return false, fmt.Errorf("%s reads %q", f, b)
		}
		switch b[i+2] {
		case 'T', 't', 'Z', 'X': // stopped, traced, ended
		default:
			return false, nil
		}
	}
	return true, nil
}
