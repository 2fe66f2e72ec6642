package pgserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// ErrCannotInstall says that this process has no means to install packages.
var ErrCannotInstall = errors.New("packages can be installed by root with apt-get only")

// noCluster keeps the packages of Debian from making and starting a cluster of
// their own. createcluster.conf includes the folder (postgresql-common).
const noCluster = "/etc/postgresql-common/createcluster.d/zz-walferry-demo.conf"

// Install installs the distribution's PostgreSQL server with apt-get when this
// process is root, and finds it. progress gets a line for each step.
func Install(ctx context.Context, progress io.Writer) (Binaries, error) {
	apt, err := exec.LookPath("apt-get")
	if err != nil || os.Getuid() != 0 {
		return Binaries{}, ErrCannotInstall
	}
	if err := os.MkdirAll(filepath.Dir(noCluster), 0o755); err != nil {
		return Binaries{}, fmt.Errorf("prepare installation: %w", err)
	}
	if err := os.WriteFile(noCluster, []byte("create_main_cluster = false\n"), 0o644); err != nil {
		return Binaries{}, fmt.Errorf("prepare installation: %w", err)
	}
	defer os.Remove(noCluster)
	for _, args := range [][]string{
		{"update", "-q"},
		{"install", "-q", "-y", "--no-install-recommends", "postgresql"},
	} {
		fmt.Fprintf(progress, "apt-get %s\n", strings.Join(args, " "))
		if err := runShown(ctx, progress, apt, args...); err != nil {
			return Binaries{}, fmt.Errorf("apt-get %s: %w", args[0], err)
		}
	}
	return Find(ctx)
}

// runShown runs a program and shows what it prints, indented. An interrupted
// installation is given time to end in order.
func runShown(ctx context.Context, progress io.Writer, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 20 * time.Second
	r, w := io.Pipe()
	cmd.Stdout, cmd.Stderr = w, w
	var last string
	shown := make(chan struct{})
	go func() {
		defer close(shown)
		lines := bufio.NewScanner(r)
		for lines.Scan() {
			if l := strings.TrimSpace(lines.Text()); l != "" {
				last = l
				fmt.Fprintln(progress, "  "+l)
			}
		}
		_, _ = io.Copy(io.Discard, r) // a line too long for the scanner must not block the program
	}()
	err := cmd.Run()
	_ = w.Close() // never fails (io.PipeWriter)
	<-shown
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("%w: %s", err, last)
	}
	return nil
}
