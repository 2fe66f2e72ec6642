//go:build !linux

package source

import (
	"errors"
	"syscall"
)

const canNarrow = false

func narrow(syscall.RawConn) error { return nil }

func setLowWater(syscall.RawConn, int) error { return errors.ErrUnsupported }
