package freeze_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/walferry/walferry/internal/freeze"
)

const (
	envFile  = "WALFERRY_FREEZE_FILE"
	counters = 4
)

// TestMain runs as the process that is frozen, too: it counts without end, in
// several threads, in memory that it shares with the test.
func TestMain(m *testing.M) {
	file := os.Getenv(envFile)
	if file == "" {
		os.Exit(m.Run())
	}
	c, err := shared(file)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for i := range c {
		go func() {
			for {
				c[i].Add(1)
			}
		}()
	}
	select {}
}

func shared(file string) (*[counters]atomic.Uint64, error) {
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Truncate(4096); err != nil {
		return nil, err
	}
	b, err := syscall.Mmap(int(f.Fd()), 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return (*[counters]atomic.Uint64)(unsafe.Pointer(&b[0])), nil
}

func TestProcess_NothingRunsWhenItReturns(t *testing.T) {
	file := filepath.Join(t.TempDir(), "counters")
	c, err := shared(file)
	if err != nil {
		t.Fatal(err)
	}
	read := func() (v [counters]uint64) {
		for i := range c {
			v[i] = c[i].Load()
		}
		return v
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envFile+"="+file, "GOMAXPROCS=4")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	for range 100 {
		for before, end := read(), time.Now().Add(10*time.Second); read() == before; {
			if time.Now().After(end) {
				t.Fatal("the process does not run")
			}
			time.Sleep(time.Millisecond)
		}
		if err := freeze.Process(cmd.Process.Pid); err != nil {
			t.Fatal(err)
		}
		before := read()
		time.Sleep(5 * time.Millisecond)
		if after := read(); after != before {
			t.Fatalf("the process went on from %v to %v", before, after)
		}
		if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err := freeze.Process(cmd.Process.Pid); err == nil {
		t.Error("no error for a process that is gone")
	}
}
