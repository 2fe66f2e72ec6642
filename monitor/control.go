package monitor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// SocketPath is where the process of that id listens.
func SocketPath(dataDir string, pid int) string {
	return filepath.Join(dataDir, "control-"+strconv.Itoa(pid)+".sock")
}

// maxSocketPath is what fits into sockaddr_un on every system.
const maxSocketPath = 100

// listenControl makes the socket, for the user of the process alone. Where its
// path is too long for a socket, path becomes a link to one in the system's
// folder for temporary files. remove takes away what it made.
func listenControl(ctx context.Context, path string) (l net.Listener, remove func(), err error) {
	// A process of this id that has died may have left one: in containers
	// the id is always the same.
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, nil, err
	}
	real, dir := path, ""
	if len(path) > maxSocketPath {
		if dir, err = os.MkdirTemp("", "walferry-"); err != nil {
			return nil, nil, err
		}
		real = filepath.Join(dir, "s")
	}
	remove = func() {
		os.Remove(path)
		if dir != "" {
			os.RemoveAll(dir)
		}
	}
	l, err = (&net.ListenConfig{}).Listen(ctx, "unix", real)
	if err == nil {
		if err = os.Chmod(real, 0o600); err == nil && dir != "" {
			err = os.Symlink(real, path)
		}
		if err != nil {
			l.Close()
		}
	}
	if err != nil {
		remove()
		return nil, nil, err
	}
	return l, remove, nil
}

const queryTimeout = 3 * time.Second

// Query asks every process that listens in the data folder for its document.
// Sockets of dead processes are removed. A process that does not answer in
// time is an error, beside the documents of the others.
func Query(ctx context.Context, dataDir string) ([]Document, error) {
	paths, err := filepath.Glob(filepath.Join(escapeGlob(dataDir), "control-*.sock"))
	if err != nil {
		return nil, fmt.Errorf("look for control sockets: %w", err)
	}
	var docs []Document
	var errs []error
	for _, path := range paths {
		doc, err := queryOne(ctx, path)
		switch {
		case err == nil:
			docs = append(docs, *doc)
		case refused(err):
			if !alive(path) {
				removeSocket(path)
			}
		default:
			errs = append(errs, fmt.Errorf("ask %s: %w", filepath.Base(path), err))
		}
	}
	return docs, errors.Join(errs...)
}

// escapeGlob keeps the characters of a folder's name from having a meaning.
func escapeGlob(dir string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(dir)
}

func queryOne(ctx context.Context, path string) (*Document, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	real := path
	if target, err := os.Readlink(path); err == nil {
		real = target
	}
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", real)
		},
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://control/status", nil)
	if err != nil {
		return nil, err
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("answer %s", resp.Status)
	}
	var d Document
	if err := json.NewDecoder(resp.Body).Decode(&d); err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	return &d, nil
}

// refused says that nobody listens.
func refused(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrNotExist)
}

// alive says whether the process that the socket is named after exists.
func alive(path string) bool {
	name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), "control-"), ".sock")
	pid, err := strconv.Atoi(name)
	if err != nil || pid <= 0 {
		return false
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		return false
	}
	err = p.Signal(syscall.Signal(0))
	return err == nil || errors.Is(err, os.ErrPermission)
}

func removeSocket(path string) {
	if target, err := os.Readlink(path); err == nil {
		os.Remove(target)
		os.Remove(filepath.Dir(target)) // made by listenControl; only when it is empty
	}
	os.Remove(path)
}
