//go:build !unix

package pgserver

import "os/exec"

const exeSuffix = ".exe"

func asServerUser(cmd *exec.Cmd) *exec.Cmd { return cmd }

func own(string) error { return nil }
