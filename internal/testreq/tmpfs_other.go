//go:build !linux

package testreq

import "testing"

// Tmpfs skips: mounting a file system needs Linux.
func Tmpfs(t testing.TB, _ int64, _, _ int) string {
	t.Helper()
	t.Skip("mounting a small file system needs Linux")
	return ""
}
