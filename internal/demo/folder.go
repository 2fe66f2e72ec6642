package demo

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const folderPrefix = "walferry-demo-"

// newFolder makes the folder of this process. Its name ends in the process id, so
// that what a killed demo left behind can be told, and is removed here. The path
// is short: it holds sockets.
func newFolder() (string, error) {
	old, err := filepath.Glob(filepath.Join(os.TempDir(), folderPrefix+"*"))
	if err != nil {
		return "", fmt.Errorf("look for folders of earlier demos: %w", err)
	}
	for _, dir := range old {
		pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), folderPrefix))
		if err == nil && !running(pid) {
			_ = os.RemoveAll(dir) // it may be another user's
		}
	}
	dir := filepath.Join(os.TempDir(), folderPrefix+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", fmt.Errorf("make temporary folder: %w", err)
	}
	return dir, nil
}
