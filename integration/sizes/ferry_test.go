package sizes

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/walferry/walferry/monitor"
)

// ferry is a running `walferry run`.
type ferry struct {
	dir  string // holds walferry.yaml, the data and the log
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

// startFerry runs the program with a configuration, to which data_dir is added,
// until the test ends.
func startFerry(t *testing.T, config string) *ferry {
	t.Helper()
	f := &ferry{dir: t.TempDir()}
	config = fmt.Sprintf("data_dir: %q\nlog: {level: info, format: text}\n", filepath.Join(f.dir, "data")) + config
	if err := os.WriteFile(f.config(), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	f.start(t)
	t.Cleanup(func() {
		f.stop(t)
		if t.Failed() {
			t.Logf("end of walferry's log:\n%s", f.log(60))
		}
	})
	return f
}

func (f *ferry) config() string { return filepath.Join(f.dir, "walferry.yaml") }

// start forks on a locked thread: the kernel ties the death signal to it.
func (f *ferry) start(t *testing.T) {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(f.dir, "walferry.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "run", "-c", f.config())
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	done, started := make(chan struct{}), make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer log.Close()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // stop looks at the state
		}
		close(done)
	}()
	if err := <-started; err != nil {
		t.Fatalf("start walferry: %v", err)
	}
	f.cmd, f.done = cmd, done
}

// stop ends the program in order.
func (f *ferry) stop(t *testing.T) {
	t.Helper()
	if f.cmd == nil {
		return
	}
	_ = f.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-f.done:
	case <-time.After(30 * time.Second):
		t.Error("walferry did not end within 30 s")
		_ = f.cmd.Process.Kill()
		<-f.done
	}
	if code := f.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("walferry ended with %v", f.cmd.ProcessState)
	}
	f.cmd = nil
}

// log is the end of what walferry has written.
func (f *ferry) log(lines int) string {
	b, err := os.ReadFile(filepath.Join(f.dir, "walferry.log"))
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// run gives a command and returns what it prints.
func (f *ferry) run(t *testing.T, verb string, args ...string) string {
	t.Helper()
	cmd := exec.Command(binary, append([]string{verb, "-c", f.config()}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		select {
		case <-f.done:
			err = errors.Join(err, fmt.Errorf("walferry has ended: %v", f.cmd.ProcessState))
		default:
		}
		t.Fatalf("walferry %s: %v\n%s\nVmHWM %d MiB", verb, err, errs.String(), f.peakMiB())
	}
	return out.String()
}

// wait returns when everything that is committed is applied and how long that
// took.
func (f *ferry) wait(t *testing.T, limit time.Duration) time.Duration {
	t.Helper()
	began := time.Now()
	f.run(t, "wait", "--timeout", limit.String())
	return time.Since(began)
}

func (f *ferry) status(t *testing.T) *monitor.Document {
	t.Helper()
	var d monitor.Document
	if err := json.Unmarshal([]byte(f.run(t, "status", "--json")), &d); err != nil {
		t.Fatal(err)
	}
	return &d
}

// peakMiB is the most memory that the process has had resident so far; -1 when it
// has ended.
func (f *ferry) peakMiB() int64 { return f.field("VmHWM:") }

func (f *ferry) field(name string) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", f.cmd.Process.Pid))
	if err != nil {
		return -1
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, name); ok {
			kb, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 10, 64)
			return kb >> 10
		}
	}
	return -1
}

// cpu is the processor time that the process has used.
func (f *ferry) cpu(t *testing.T) time.Duration {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", f.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	v := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	user, _ := strconv.ParseInt(v[11], 10, 64)
	system, _ := strconv.ParseInt(v[12], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond // USER_HZ is 100
}

// queueBytes is what the embedded queue has on disk.
func (f *ferry) queueBytes() (n int64) {
	_ = filepath.WalkDir(filepath.Join(f.dir, "data", "queue"), func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if fi, err := d.Info(); err == nil {
				n += fi.Size()
			}
		}
		return nil // a file that goes meanwhile counts nothing
	})
	return n
}

// within fails when the peak is above the bound for the largest row, in bytes, and
// reports the figures.
func (f *ferry) within(t *testing.T, largestRow int64, what string, took time.Duration) {
	t.Helper()
	peak, most := f.peakMiB(), bound()+3*largestRow>>20
	t.Logf("FIGURES %s: %.1f s, VmHWM %d MiB of %d, VmRSS %d MiB, queue %.1f MiB", what, took.Seconds(), peak, most, f.field("VmRSS:"), float64(f.queueBytes())/(1<<20))
	if peak < 0 || peak > most {
		t.Errorf("%s: peak resident memory %d MiB, bound %d MiB", what, peak, most)
	}
}
