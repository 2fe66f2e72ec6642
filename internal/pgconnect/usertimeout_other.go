//go:build !linux

package pgconnect

import "syscall"

// setUserTimeout does nothing where the system has no such option: keepalive
// and the read deadlines of the agents remain.
func setUserTimeout(_, _ string, _ syscall.RawConn) error { return nil }
