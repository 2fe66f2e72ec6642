package monitor

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve runs Serve until the test ends and returns the TCP address.
func serve(t *testing.T, s *State, socket string) string {
	t.Helper()
	ready := make(chan net.Addr, 1)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- Serve(ctx, "127.0.0.1:0", socket, ServeOptions{
			State: s, Limits: limits, Logger: slog.New(slog.DiscardHandler),
			Ready: func(a net.Addr) { ready <- a },
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	select {
	case a := <-ready:
		return a.String()
	case err := <-done:
		done <- err
		t.Fatalf("Serve: %v", err)
	}
	return ""
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	tr := &http.Transport{DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: tr, Timeout: 5 * time.Second}).Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestServe_Endpoints(t *testing.T) {
	s, c := testState()
	p, b := s.Publisher("main"), s.Subscription("copy", "main")
	p.SetState(Streaming)
	p.Queued(0x100, 3, 7, 10, c.now())
	b.SetState(Streaming)
	b.Applied(Applied{Position: 0x100, Transactions: 3, Operations: Operations{Inserts: 5, Deletes: 2}})
	addr := "http://" + serve(t, s, "")
	if code, body := get(t, addr+"/healthz"); code != 200 || !strings.Contains(body, `"ok"`) {
		t.Errorf("healthz: %d %s", code, body)
	}
	code, body := get(t, addr+"/metrics")
	for _, want := range []string{
		`walferry_build_info{version="v1"} 1`,
		`walferry_reader_transactions_total{publisher="main"} 3`,
		`walferry_reader_rows_total{publisher="main"} 7`,
		`walferry_reader_state{publisher="main",state="streaming"} 1`,
		`walferry_subscription_rows_total{operation="insert",publisher="main",subscription="copy"} 5`,
		`walferry_subscription_rows_total{operation="delete",publisher="main",subscription="copy"} 2`,
		`walferry_subscription_lag_seconds{publisher="main",subscription="copy"} 0`,
		`walferry_subscription_lag_transactions{publisher="main",subscription="copy"} 0`,
		`walferry_subscription_position_lsn{publisher="main",subscription="copy"} 256`,
		"go_goroutines ",
	} {
		if code != 200 || !strings.Contains(body, want) {
			t.Errorf("metrics: %d, without %s", code, want)
		}
	}
	if code, body := get(t, addr+"/status"); code != 200 || !strings.Contains(body, `"name": "copy"`) {
		t.Errorf("status: %d %s", code, body)
	}
	b.SetError(&ErrorCard{Class: "other", Message: "boom"}, c.now())
	if code, body := get(t, addr+"/healthz"); code != 503 || !strings.Contains(body, "boom") || !strings.Contains(body, `"subscription": "copy"`) {
		t.Errorf("healthz: %d %s", code, body)
	}
	if code, _ := get(t, addr+"/livez"); code != 200 {
		t.Errorf("livez: %d", code)
	}
	if _, body := get(t, addr+"/metrics"); !strings.Contains(body, `walferry_subscription_errors_total{class="other",publisher="main",subscription="copy"} 1`) {
		t.Error("the error is not counted")
	}
}

func TestServe_AnAddressInUseIsAnError(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	err = Serve(t.Context(), l.Addr().String(), "", ServeOptions{State: NewState("v"), Logger: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "listen for monitoring") {
		t.Errorf("got %v", err)
	}
}

func TestQuery_FindsProcessesAndRemovesDeadSockets(t *testing.T) {
	for name, dir := range map[string]string{
		"short": "",
		"long":  strings.Repeat("long-", 30) + "[x]",
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), dir)
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			s := NewState("v1")
			s.Publisher("main")
			live := SocketPath(dir, os.Getpid())
			if err := os.WriteFile(live, nil, 0o600); err != nil { // left by a process that has died
				t.Fatal(err)
			}
			serve(t, s, live)
			if fi, err := os.Stat(live); err != nil || fi.Mode().Perm() != 0o600 {
				t.Errorf("socket %v, %v", fi, err)
			}
			// A socket that nobody listens on, of a process that does not exist.
			dead := SocketPath(dir, 1<<30)
			if name == "short" {
				l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead})
				if err != nil {
					t.Fatal(err)
				}
				l.SetUnlinkOnClose(false)
				l.Close()
			} else if err := os.Symlink("/nonexistent/s", dead); err != nil {
				t.Fatal(err)
			}
			docs, err := Query(t.Context(), dir)
			if err != nil || len(docs) != 1 || docs[0].PID != os.Getpid() || len(docs[0].Publishers) != 1 {
				t.Errorf("%+v, %v", docs, err)
			}
			if _, err := os.Lstat(dead); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the dead socket is still there: %v", err)
			}
		})
	}
}

func TestQuery_NoFolderIsNoProcess(t *testing.T) {
	docs, err := Query(t.Context(), filepath.Join(t.TempDir(), "none"))
	if err != nil || len(docs) != 0 {
		t.Errorf("%v, %v", docs, err)
	}
}

func TestServe_RemovesItsSocket(t *testing.T) {
	dir := t.TempDir()
	path := SocketPath(dir, 1)
	t.Run("run", func(t *testing.T) { serve(t, NewState("v"), path) })
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// buffer is a terminal for a test.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func TestLine_LogLinesStandAbove(t *testing.T) {
	var out buffer
	l := NewLine(&out)
	for _, err := range []error{l.Set("one"), l.Set("one"), l.Set("two")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Write([]byte("log\n")); err != nil {
		t.Fatal(err)
	}
	if err := l.Set(""); err != nil {
		t.Fatal(err)
	}
	want := "\r\x1b[Kone\r\x1b[Ktwo\r\x1b[Klog\ntwo\r\x1b[K"
	if got := out.String(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := clip(strings.Repeat("é", 200), 10); len([]rune(got)) != 9 {
		t.Errorf("clipped to %q", got)
	}
}

func TestProgress_EndsWithItsContextAndClearsTheLine(t *testing.T) {
	s := NewState("v")
	s.Publisher("main").SetState(Streaming)
	var out buffer
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); Progress(ctx, &out, s, true) }()
	deadline := time.Now().Add(5 * time.Second)
	for !strings.Contains(out.String(), "main> streaming") {
		if time.Now().After(deadline) {
			t.Fatalf("no line: %q", out.String())
		}
		select {
		case <-done:
			t.Fatal("Progress has ended")
		case <-time.After(20 * time.Millisecond):
		}
	}
	cancel()
	<-done
	if !strings.HasSuffix(out.String(), clearLine) {
		t.Errorf("the line stays: %q", out.String())
	}
}
