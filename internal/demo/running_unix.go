//go:build unix

package demo

import (
	"errors"
	"syscall"
)

// running says whether a process exists.
func running(pid int) bool { return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }
