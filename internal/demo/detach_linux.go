package demo

import (
	"os/exec"
	"syscall"
)

// detach keeps the terminal's ^C from the process, which this one ends in order,
// and lets the kernel end it when this one dies.
func detach(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
