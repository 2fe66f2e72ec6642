package pgtest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

const dirPrefix = "wfpg-"

var procDir struct {
	sync.Mutex
	path string
}

// processDir is the folder of this process for all its clusters. Its path is
// short, because a socket path may have only 107 bytes, and ends in the process
// id, so that what a killed process left behind can be told and removed.
func processDir() (string, error) {
	procDir.Lock()
	defer procDir.Unlock()
	if procDir.path != "" {
		return procDir.path, nil
	}
	removeStale()
	dir := filepath.Join(os.TempDir(), dirPrefix+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", fmt.Errorf("make process folder: %w", err)
	}
	if err := giveToServerUser(dir); err != nil {
		return "", err
	}
	procDir.path = dir
	return dir, nil
}

func removeProcessDir() {
	procDir.Lock()
	defer procDir.Unlock()
	if procDir.path != "" {
		_ = os.RemoveAll(procDir.path)
		procDir.path = ""
	}
}

// removeStale removes the folders of processes that no longer run.
func removeStale() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), dirPrefix+"*"))
	for _, dir := range dirs {
		pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), dirPrefix))
		if err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			_ = os.RemoveAll(dir)
		}
	}
}

// template returns an initialised data directory to copy. It is made once per
// server build and kept in the temporary folder, for all test processes.
func template(bin string) (string, error) {
	root := filepath.Join(os.TempDir(), "walferry-pgtest-"+strconv.Itoa(os.Getuid()))
	if err := os.MkdirAll(root, 0o755); err != nil {
		return "", fmt.Errorf("make template folder: %w", err)
	}
	if err := giveToServerUser(root); err != nil {
		return "", err
	}
	name := fmt.Sprintf("%s-%08x", fullVersion(bin), crc32.ChecksumIEEE([]byte(bin)))
	dir := filepath.Join(root, name)
	lock, err := os.OpenFile(filepath.Join(root, name+".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", fmt.Errorf("open template lock: %w", err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock template: %w", err)
	}
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	work := dir + ".new"
	if err := os.RemoveAll(work); err != nil {
		return "", fmt.Errorf("clear template folder: %w", err)
	}
	cmd := asServerUser(exec.Command(filepath.Join(bin, "initdb"),
		"--pgdata="+work, "--username=postgres", "--auth=trust",
		"--encoding=UTF8", "--locale=C.UTF-8", "--no-sync", "--no-instructions"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("run initdb: %w: %s", err, lastLines(string(out), 20))
	}
	if err := os.Rename(work, dir); err != nil {
		return "", fmt.Errorf("keep template: %w", err)
	}
	return dir, nil
}

// newIdentity gives a copied cluster a system identifier of its own, as initdb
// would: it writes it into pg_control (first field of ControlFileData,
// src/include/catalog/pg_control.h; the CRC-32C closes the struct, whose length
// differs between versions) and lets pg_resetwal start new WAL with it.
func newIdentity(bin, dataDir string) error {
	path := filepath.Join(dataDir, "global", "pg_control")
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read pg_control: %w", err)
	}
	table := crc32.MakeTable(crc32.Castagnoli)
	at := -1
	for i := 200; i+4 <= min(len(b), 512); i += 4 {
		if binary.NativeEndian.Uint32(b[i:]) == crc32.Checksum(b[:i], table) {
			at = i
			break
		}
	}
	if at < 0 {
		return errors.New("change system identifier: no checksum found in pg_control")
	}
	// Keep the high half, which initdb takes from the clock.
	id := binary.NativeEndian.Uint64(b)
	binary.NativeEndian.PutUint64(b, id&^uint64(1<<32-1)|uint64(rand.Uint32()))
	binary.NativeEndian.PutUint32(b[at:], crc32.Checksum(b[:at], table))
	if err := os.WriteFile(path, b, 0o600); err != nil {
		return fmt.Errorf("write pg_control: %w", err)
	}
	cmd := asServerUser(exec.Command(filepath.Join(bin, "pg_resetwal"), "--force", "--pgdata="+dataDir))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("run pg_resetwal: %w: %s", err, out)
	}
	return nil
}
