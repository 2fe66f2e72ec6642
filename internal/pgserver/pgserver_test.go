package pgserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/walferry/walferry/internal/testreq"
)

// fake makes a folder with scripts that look like the programs of a version.
func fake(t *testing.T, version string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"postgres", "initdb", "pg_ctl"} {
		script := "#!/bin/sh\necho '" + name + " (PostgreSQL) " + version + "'\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestNewest_TakesTheHighestCompleteVersion(t *testing.T) {
	broken := fake(t, "99.1")
	if err := os.Remove(filepath.Join(broken, "initdb")); err != nil {
		t.Fatal(err)
	}
	want := fake(t, "18.2 (Debian 18.2-1)")
	got, err := newest(t.Context(), []string{fake(t, "15.9"), broken, want, fake(t, "9.6.24"), t.TempDir()})
	if err != nil || got != (Binaries{Dir: want, Version: "18.2", Major: 18}) {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestNewest_SaysWhatIsMissing(t *testing.T) {
	if _, err := newest(t.Context(), nil); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v", err)
	}
	_, err := newest(t.Context(), []string{fake(t, "14.3")})
	if !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "14.3") {
		t.Errorf("got %v", err)
	}
}

func TestServer_ListensOnLoopbackUntilStopped(t *testing.T) {
	bin, err := Find(t.Context())
	if err != nil {
		testreq.Missing(t, err.Error())
	}
	// A folder of testing.T is closed to the server's user.
	dir, err := os.MkdirTemp("", "pgserver-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s, err := Start(t.Context(), bin, Options{Dir: dir, Settings: map[string]string{"fsync": "off", "cluster_name": "it's one"}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	if err := login(t.Context(), s.Port()); err != nil {
		t.Errorf("login: %v", err)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := login(t.Context(), s.Port()); err == nil {
		t.Error("the server answers after Stop")
	}
	if err := s.Stop(); err != nil {
		t.Errorf("second Stop: %v", err)
	}
}

func TestStart_ReportsWhyTheServerDidNotStart(t *testing.T) {
	bin, err := Find(t.Context())
	if err != nil {
		testreq.Missing(t, err.Error())
	}
	dir, err := os.MkdirTemp("", "pgserver-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	_, err = Start(t.Context(), bin, Options{Dir: dir, Settings: map[string]string{"wal_level": "nonsense"}})
	if err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("got %v", err)
	}
}

func TestRunShown_ShowsLinesAndEndsWithTheContext(t *testing.T) {
	var out bytes.Buffer
	if err := runShown(t.Context(), &out, "sh", "-c", "echo one; echo two >&2; exit 3"); err == nil || !strings.Contains(err.Error(), "two") {
		t.Errorf("got %v", err)
	}
	if got := out.String(); got != "  one\n  two\n" {
		t.Errorf("shown: %q", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	began := time.Now()
	if err := runShown(ctx, &out, "sleep", "60"); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 10*time.Second {
		t.Errorf("got %v after %s", err, time.Since(began))
	}
}

func TestStartContainer_RunsUntilStopped(t *testing.T) {
	testreq.Image(t, Image)
	name := fmt.Sprintf("pgserver-test-%d", os.Getpid())
	s, err := StartContainer(t.Context(), name, Options{Settings: map[string]string{"wal_level": "logical"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := login(t.Context(), s.Port()); err != nil {
		t.Errorf("login: %v", err)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("docker", "ps", "-aq", "--filter", "name="+name).Output(); err != nil || len(out) > 0 {
		t.Errorf("the container is still there: %s %v", out, err)
	}
	if err := s.Stop(); err != nil {
		t.Errorf("second Stop: %v", err)
	}
}
