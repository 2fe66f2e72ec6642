package compose_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// requireDocker skips when there is no Docker daemon or no Compose. A machine
// without Docker is a valid one for CI: the other suites cover the behaviour.
func requireDocker(t *testing.T) {
	t.Helper()
	if err := exec.Command("docker", "info").Run(); err != nil {
		t.Skipf("Docker is not usable: %v", err)
	}
	if exec.Command("docker", "compose", "version").Run() != nil && exec.Command("docker-compose", "version").Run() != nil {
		t.Skip("neither the Compose plugin nor docker-compose is installed")
	}
	for _, image := range []string{"postgres:17", "nats:2-alpine"} {
		if exec.Command("docker", "image", "inspect", image).Run() != nil && os.Getuid() != 0 {
			t.Skipf("image %s is missing and building it needs root (make images)", image)
		}
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func TestCompose_StackFromACleanCheckoutCarriesRows(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	requireDocker(t)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "./run.sh")
	// An interrupt lets the script take its containers down.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = time.Minute
	cmd.Env = append(os.Environ(),
		fmt.Sprintf("PUBLISHER_PORT=%d", freePort(t)), fmt.Sprintf("SUBSCRIBER_PORT=%d", freePort(t)))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("run.sh: %v\n%s", err, out)
	}
	if !strings.Contains(string(out), "rows arrived, walferry is healthy") {
		t.Fatalf("run.sh ended without its last line:\n%s", out)
	}
}
