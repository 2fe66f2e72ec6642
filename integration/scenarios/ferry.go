package scenarios

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Build makes the walferry binary in dir and returns its path.
func Build(ctx context.Context, dir string) (string, error) {
	out := filepath.Join(dir, "walferry")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", out, "github.com/walferry/walferry/cmd/walferry")
	if b, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build walferry: %w\n%s", err, b)
	}
	return out, nil
}

// stopLimit is how long walferry may take to end after SIGTERM.
const stopLimit = 10 * time.Second

// ferry is walferry for one scenario: a configuration file, a process that runs
// it, and the commands an operator would give.
type ferry struct {
	binary string
	dir    string // holds walferry.yaml, the data and the log
	name   string // of the subscription

	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

func (f *ferry) config() string  { return filepath.Join(f.dir, "walferry.yaml") }
func (f *ferry) logPath() string { return filepath.Join(f.dir, "walferry.log") }

// logTail is the end of what walferry logged, without the embedded server's chatter.
func (f *ferry) logTail(lines int) string {
	b, err := os.ReadFile(f.logPath())
	if err != nil {
		return err.Error()
	}
	var own strings.Builder
	for line := range strings.Lines(string(b)) {
		if !strings.Contains(line, "DBG nats-server: ") {
			own.WriteString(line)
		}
	}
	return lastLines(own.String(), lines)
}

// writeConfig writes walferry.yaml (in JSON, which is YAML) for a scenario. The
// schemas of a scenario are made by its files, so a missing table is an error.
// Changes of rows that are missing are left out, as native replication does.
func (f *ferry) writeConfig(s *Scenario, pubURL, subURL, mode string) error {
	pubs := s.Meta.Publications
	if len(pubs) == 0 {
		pubs = []string{"scn_pub"}
	}
	pub := map[string]any{
		"name": f.name, "url": pubURL, "slot": f.name, "publications": pubs,
	}
	if v := s.option("streaming"); v != "" && v != "off" && v != "false" {
		pub["streaming"] = true
	}
	if v := s.option("origin"); v != "" {
		pub["origin"] = v
	}
	sub := map[string]any{
		"name": f.name, "publisher": f.name, "url": subURL, "initial": "copy", "schema": "require",
		"policies": map[string]string{"update_missing": "skip", "delete_missing": "skip"},
	}
	if s.option("copy_data") == "false" {
		sub["initial"] = "none"
	}
	if mode != "" {
		sub["mode"] = mode
	}
	b, err := json.MarshalIndent(map[string]any{
		"data_dir":      filepath.Join(f.dir, "data"),
		"publishers":    []any{pub},
		"subscriptions": []any{sub},
		"log":           map[string]string{"level": "debug", "format": "text"},
	}, "", "  ")
	if err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	// A dollar sign begins a variable in walferry.yaml.
	if err := os.WriteFile(f.config(), []byte(strings.ReplaceAll(string(b), "$", "$$")), 0o600); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	return nil
}

// start runs `walferry run`, which dies with this process. The kernel ties the
// death signal to the thread that forked, so one locked thread forks and waits.
func (f *ferry) start() error {
	log, err := os.OpenFile(f.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open walferry's log: %w", err)
	}
	before, err := log.Stat()
	if err != nil {
		return errors.Join(fmt.Errorf("look at walferry's log: %w", err), log.Close())
	}
	cmd := exec.Command(f.binary, "run", "-c", f.config())
	cmd.Env, cmd.Dir = psqlEnv(), f.dir
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
			_ = cmd.Wait() // see stop
		}
		close(done)
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start walferry: %w", err)
	}
	f.cmd, f.done = cmd, done
	return f.waitLog(before.Size())
}

// startLimit is how long walferry may take to write its first line.
const startLimit = 30 * time.Second

// waitLog waits until the log has grown: before, walferry may not have come to
// where it handles signals.
func (f *ferry) waitLog(size int64) error {
	for deadline := time.Now().Add(startLimit); ; time.Sleep(10 * time.Millisecond) {
		fi, err := os.Stat(f.logPath())
		if err != nil {
			return fmt.Errorf("look at walferry's log: %w", err)
		}
		if fi.Size() > size {
			return nil
		}
		if err := f.alive(); err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("walferry has logged nothing in %s", startLimit)
		}
	}
}

// stop ends walferry by SIGTERM and wants the exit code 0 in time.
func (f *ferry) stop() error {
	if f.cmd == nil {
		return nil
	}
	cmd := f.cmd
	select {
	case <-f.done:
		f.cmd = nil
		return fmt.Errorf("walferry has ended by itself: %s: %s", cmd.ProcessState, f.logTail(1))
	default:
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop walferry: %w", err)
	}
	select {
	case <-f.done:
	case <-time.After(stopLimit):
		stacks := f.dumpStacks()
		f.kill()
		return fmt.Errorf("walferry did not stop in %s%s", stopLimit, stacks)
	}
	f.cmd = nil
	if code := cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("walferry stopped with %s: %s", cmd.ProcessState, f.logTail(1))
	}
	return nil
}

// dumpStacks makes the Go runtime write all goroutines into the log.
func (f *ferry) dumpStacks() string {
	_ = f.cmd.Process.Signal(syscall.SIGQUIT)
	select {
	case <-f.done:
		return " (its goroutines are in the log)"
	case <-time.After(2 * time.Second):
		return ""
	}
}

// kill ends walferry by SIGKILL.
func (f *ferry) kill() {
	if f.cmd == nil {
		return
	}
	_ = f.cmd.Process.Kill() // it may have ended already
	<-f.done
	f.cmd = nil
}

// alive fails when the process has ended by itself.
func (f *ferry) alive() error {
	select {
	case <-f.done:
		return fmt.Errorf("walferry has ended by itself: %s: %s", f.cmd.ProcessState, f.logTail(1))
	default:
		return nil
	}
}

// run gives one command and returns what it printed and its exit code.
func (f *ferry) run(ctx context.Context, verb string, args ...string) (out string, code int, err error) {
	cmd := exec.CommandContext(ctx, f.binary, append([]string{verb, "-c", f.config()}, args...)...)
	cmd.Env, cmd.Dir = psqlEnv(), f.dir
	cmd.WaitDelay = time.Second
	b, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return string(b), exit.ExitCode(), nil
	}
	if err != nil {
		return string(b), -1, fmt.Errorf("walferry %s: %w: %s", verb, timedOut(ctx, err), lastLines(string(b), 1))
	}
	return string(b), 0, nil
}

// must is run for a command that has to succeed.
func (f *ferry) must(ctx context.Context, verb string, args ...string) error {
	out, code, err := f.run(ctx, verb, args...)
	if err == nil && code != 0 {
		err = fmt.Errorf("walferry %s: exit code %d: %s", verb, code, lastLines(out, 1))
	}
	return err
}

// wait returns when everything that is committed on the publisher is applied.
func (f *ferry) wait(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit+stopLimit)
	defer cancel()
	err := f.must(ctx, "wait", "--timeout", limit.String())
	if err != nil {
		if dead := f.alive(); dead != nil {
			return dead
		}
	}
	return err
}

// card is what `walferry status --json` says of a subscription in trouble.
type card struct {
	Message   string `json:"message"`
	CommitLSN string `json:"commit_lsn"`
}

// trouble returns the error of the subscription, nil when it has none, and what
// `walferry status` prints for people.
func (f *ferry) trouble(ctx context.Context) (*card, string, error) {
	// The exit code says that a subscription has an error; so does the card.
	raw, _, err := f.run(ctx, "status", "--json")
	if err != nil {
		return nil, "", err
	}
	var st struct {
		Subscriptions []struct {
			Name  string `json:"name"`
			State string `json:"state"`
			Error *card  `json:"error"`
		} `json:"subscriptions"`
	}
	if err := json.Unmarshal([]byte(raw), &st); err != nil {
		return nil, "", fmt.Errorf("walferry status --json: %w: %s", err, lastLines(raw, 1))
	}
	text, _, err := f.run(ctx, "status")
	if err != nil {
		return nil, "", err
	}
	for _, s := range st.Subscriptions {
		if s.Name == f.name && s.State == "error" && s.Error != nil {
			return s.Error, text, nil
		}
	}
	return nil, text, nil
}

const pollStatus = 200 * time.Millisecond

// waitError waits until the subscription has an error and status mentions each text.
func (f *ferry) waitError(ctx context.Context, mention []string) error {
	why := errors.New("status was not asked")
	for {
		c, text, err := f.trouble(ctx)
		switch {
		case ctx.Err() != nil: // this look was cut off: the one before says why
		case err != nil:
			why = err
		case c == nil:
			why = errors.New("the subscription reports no error")
		default:
			why = nil
			for _, m := range mention {
				if !strings.Contains(text, m) {
					why = fmt.Errorf("walferry status does not mention %q: %s", m, c.Message)
				}
			}
		}
		if why == nil {
			return nil
		}
		if err := f.pause(ctx, why); err != nil {
			return err
		}
	}
}

// skip leaves out the transaction that the error names.
func (f *ferry) skip(ctx context.Context) error {
	why := errors.New("status was not asked")
	for {
		c, _, err := f.trouble(ctx)
		switch {
		case err == nil && c != nil && c.CommitLSN != "":
			return f.must(ctx, "skip", "--subscription", f.name, "--lsn", c.CommitLSN)
		case ctx.Err() != nil: // this look was cut off: the one before says why
		case err != nil:
			why = err
		default:
			why = errors.New("the error names no transaction")
		}
		if err := f.pause(ctx, why); err != nil {
			return err
		}
	}
}

// pause waits for the next look at the status; why is the error when there is
// no time for one.
func (f *ferry) pause(ctx context.Context, why error) error {
	if err := f.alive(); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return why
	case <-time.After(pollStatus):
		return nil
	}
}
