package source

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

const canNarrow = true

// narrow makes the receive window of a TCP socket small. It must be called before
// the socket is connected.
func narrow(c syscall.RawConn) error {
	return setOptions(c,
		option{unix.IPPROTO_TCP, unix.TCP_MAXSEG, segmentSize},
		option{unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer})
}

// setLowWater makes a TCP socket readable, for those who wait for that, only when
// n bytes have arrived (socket(7), SO_RCVLOWAT).
func setLowWater(c syscall.RawConn, n int) error {
	return setOptions(c, option{unix.SOL_SOCKET, unix.SO_RCVLOWAT, n})
}

type option struct{ level, name, value int }

func setOptions(c syscall.RawConn, options ...option) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		for _, o := range options {
			if failed = unix.SetsockoptInt(int(fd), o.level, o.name, o.value); failed != nil {
				failed = fmt.Errorf("set socket option %d/%d to %d: %w", o.level, o.name, o.value, failed)
				return
			}
		}
	})
	if err != nil {
		return err
	}
	return failed
}
