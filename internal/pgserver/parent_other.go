//go:build !linux

package pgserver

import "os/exec"

// endWithParent: only Linux tells a process that its parent has died.
func endWithParent(*exec.Cmd) {}
