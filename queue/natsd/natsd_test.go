package natsd_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/walferry/walferry/queue/natsd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func opts(t testing.TB, dir string) natsd.Options {
	return natsd.Options{StoreDir: dir, MaxStore: 1 << 30, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}
}

func run(t testing.TB, o natsd.Options) *natsd.Server {
	t.Helper()
	s, err := natsd.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Shutdown)
	return s
}

func connect(t testing.TB, s *natsd.Server) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	nc, err := s.Connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return nc, js
}

func TestStart_StoredMessagesAreThereAfterRestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "queue")
	s := run(t, opts(t, dir))
	_, js := connect(t, s)
	ctx := t.Context()
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(ctx, "s", []byte("kept")); err != nil {
		t.Fatal(err)
	}
	s.Shutdown()
	s.Shutdown() // twice is fine
	if err := s.Err(); err == nil {
		t.Error("a stopped server reports no error")
	}
	_, js = connect(t, run(t, opts(t, dir)))
	st, err := js.Stream(ctx, "S")
	if err != nil {
		t.Fatal(err)
	}
	m, err := st.GetMsg(ctx, 1)
	if err != nil || string(m.Data) != "kept" {
		t.Errorf("message after restart: %v, %v", m, err)
	}
	fi, err := os.Stat(dir)
	if err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("store directory has mode %v, %v", fi.Mode().Perm(), err)
	}
}

func TestStart_SecondServerOnTheSameStoreNamesTheFirst(t *testing.T) {
	dir := t.TempDir()
	s := run(t, opts(t, dir))
	_, err := natsd.Start(opts(t, dir))
	le, ok := errors.AsType[*natsd.LockedError](err)
	if !ok || le.PID != strconv.Itoa(os.Getpid()) || !strings.Contains(err.Error(), le.PID) {
		t.Fatalf("error %v", err)
	}
	s.Shutdown()
	run(t, opts(t, dir))
}

func TestStart_InProcessOnlyUnlessListenIsSet(t *testing.T) {
	s := run(t, opts(t, t.TempDir()))
	if s.URL() != "" {
		t.Errorf("listens at %s", s.URL())
	}
	o := opts(t, t.TempDir())
	o.Listen = "127.0.0.1:0"
	s = run(t, o)
	nc, err := nats.Connect(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	nc.Close()
}

func TestStart_TokenGuardsThePort(t *testing.T) {
	o := opts(t, t.TempDir())
	o.Listen, o.Token = "127.0.0.1:0", "sesame"
	s := run(t, o)
	if nc, err := nats.Connect(s.URL()); err == nil {
		nc.Close()
		t.Error("connected without the token")
	}
	connect(t, s)
}

func TestStart_RefusesOptionsThatWouldNotBeSafe(t *testing.T) {
	dir := t.TempDir()
	for name, f := range map[string]func(*natsd.Options){
		"store directory": func(o *natsd.Options) { o.StoreDir = "" },
		"max payload":     func(o *natsd.Options) { o.MaxPayload = 100 },
		"max store":       func(o *natsd.Options) { o.MaxStore = -1 },
		"token":           func(o *natsd.Options) { o.Listen = "0.0.0.0:0" },
		"listen address":  func(o *natsd.Options) { o.Listen = "4222" },
	} {
		o := opts(t, dir)
		f(&o)
		s, err := natsd.Start(o)
		if err == nil {
			s.Shutdown()
		}
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	run(t, opts(t, dir)) // the refusals left no lock behind
}

func TestServer_DefaultStoreBoundLeavesRoomOnTheDisk(t *testing.T) {
	o := opts(t, t.TempDir())
	o.MaxStore = 0
	_, js := connect(t, run(t, o))
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}, MaxBytes: 1 << 60})
	if err == nil {
		t.Error("a stream of an exbibyte was granted")
	}
}

func TestServer_JetStreamComesBackAfterItWasSwitchedOff(t *testing.T) {
	s := run(t, opts(t, t.TempDir()))
	_, js := connect(t, s)
	ctx := t.Context()
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}); err != nil {
		t.Fatal(err)
	}
	if err := s.StopJetStream(); err != nil {
		t.Fatal(err)
	}
	if err := s.Err(); err == nil || !strings.Contains(err.Error(), "free space") {
		t.Errorf("error while stopped: %v", err)
	}
	deadline := time.Now().Add(20 * time.Second)
	for {
		_, err := js.Publish(ctx, "s", []byte("again"))
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("JetStream did not come back: %v", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	if err := s.Err(); err != nil {
		t.Errorf("error after recovery: %v", err)
	}
}
