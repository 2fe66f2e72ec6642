//go:build unix

package source

import "golang.org/x/sys/unix"

// socketHasData reports whether a read would not block.
func socketHasData(fd uintptr) bool {
	var b [1]byte
	n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	return err == nil && n > 0
}
