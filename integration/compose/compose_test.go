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

	"github.com/walferry/walferry/internal/testreq"
)

// requireStack skips where the stack cannot be tried. The images are built where
// that is possible: run.sh does it.
func requireStack(t *testing.T) {
	t.Helper()
	testreq.Compose(t)
	if os.Getuid() != 0 { // building the servers' images needs root
		testreq.Image(t, "postgres:17")
		testreq.Image(t, "nats:2-alpine")
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
	requireStack(t)
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
