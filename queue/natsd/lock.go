package natsd

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// lockName is the file in the store directory that its owner holds locked.
const lockName = "walferry.lock"

// A LockedError says that another process has the store directory open.
type LockedError struct {
	Dir string
	PID string // as the owner wrote it; empty when unknown
}

func (e *LockedError) Error() string {
	who := "another process"
	if e.PID != "" {
		who = "process " + e.PID
	}
	return fmt.Sprintf("queue directory %s is in use by %s: stop it, or give this walferry its own data_dir", e.Dir, who)
}

// lockDir takes the lock of dir, which ends with the process at the latest.
func lockDir(dir string) (*os.File, error) {
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock file: %w", err)
	}
	busy, err := tryLock(f)
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	if busy {
		_ = f.Close()
		pid, _ := os.ReadFile(path)
		return nil, &LockedError{Dir: dir, PID: strings.TrimSpace(string(pid))}
	}
	if err := f.Truncate(0); err == nil {
		_, err = f.WriteAt([]byte(fmt.Sprintln(os.Getpid())), 0)
		if err != nil {
			_ = f.Close()
			return nil, fmt.Errorf("write lock file: %w", err)
		}
	}
	return f, nil
}
