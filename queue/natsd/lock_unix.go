//go:build unix

package natsd

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
)

// tryLock reports whether somebody else holds the lock of f.
func tryLock(f *os.File) (busy bool, err error) {
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}

// diskBudget is four fifths of the bytes that dir uses or could use.
func diskBudget(dir string) int64 {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0
	}
	free := int64(st.Bavail) * int64(st.Bsize)
	var used int64
	_ = filepath.Walk(dir, func(_ string, fi os.FileInfo, err error) error {
		if err == nil && fi.Mode().IsRegular() {
			used += fi.Size()
		}
		return nil
	})
	return (free + used) / 5 * 4
}
