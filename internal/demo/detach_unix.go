//go:build unix && !linux

package demo

import (
	"os/exec"
	"syscall"
)

// detach keeps the terminal's ^C from the process, which this one ends in order.
func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
