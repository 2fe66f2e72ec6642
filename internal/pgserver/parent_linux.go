package pgserver

import (
	"os/exec"
	"syscall"
)

// endWithParent lets the kernel send an immediate shutdown when this process dies.
func endWithParent(cmd *exec.Cmd) { cmd.SysProcAttr.Pdeathsig = syscall.SIGQUIT }
