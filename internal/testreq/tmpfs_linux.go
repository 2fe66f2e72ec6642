package testreq

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
)

// Tmpfs mounts an empty file system of so many bytes for a user until the test
// ends, and returns its folder. It skips where mounting is not permitted: that
// takes root, which a valid machine need not give to tests.
func Tmpfs(t testing.TB, size int64, uid, gid int) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "walferry-tmpfs-") // not below t.TempDir: others must be able to enter it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(dir) })
	err = syscall.Mount("walferry-test", dir, "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV, fmt.Sprintf("size=%d,mode=0700,uid=%d,gid=%d", size, uid, gid))
	switch {
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES), errors.Is(err, syscall.ENOSYS):
		t.Skipf("a file system cannot be mounted here: %v: run the test as root", err)
	case err != nil:
		t.Fatalf("mount tmpfs: %v", err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}
