package faultnet_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/walferry/walferry/internal/faultnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo starts a server that sends back what it receives.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			})
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().String()
}

func dial(t *testing.T, p *faultnet.Proxy) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// roundTrip sends msg and reads it back within d.
func roundTrip(c net.Conn, msg string, d time.Duration) error {
	if err := c.SetDeadline(time.Now().Add(d)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, msg); err != nil {
		return err
	}
	got := make([]byte, len(msg))
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if string(got) != msg {
		return errors.New("other bytes came back")
	}
	return nil
}

func mustRoundTrip(t *testing.T, c net.Conn) {
	t.Helper()
	if err := roundTrip(c, "hello", 5*time.Second); err != nil {
		t.Fatalf("round trip: %v", err)
	}
}

func TestProxy_CarriesBytesAndEndOfFile(t *testing.T) {
	c := dial(t, faultnet.Start(t, echo(t)))
	want := bytes.Repeat([]byte("0123456789"), 100_000)
	go func() {
		_, _ = c.Write(want)
		_ = c.(*net.TCPConn).CloseWrite()
	}()
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("got %d bytes, %v; want %d bytes", len(got), err, len(want))
	}
}

func TestCut_EndsConnectionsAndRefusesNewOnesUntilHeal(t *testing.T) {
	p := faultnet.Start(t, echo(t))
	c := dial(t, p)
	mustRoundTrip(t, c)
	p.Cut()
	if err := roundTrip(c, "x", 5*time.Second); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("old connection: got %v, want a connection error", err)
	}
	// The reset may come before or after the dialer has seen the connection.
	if late, err := net.Dial("tcp", p.Addr()); err == nil {
		defer late.Close()
		if err := roundTrip(late, "x", 5*time.Second); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("new connection: got %v, want a connection error", err)
		}
	}
	p.Heal()
	mustRoundTrip(t, dial(t, p))
}

func TestReset_EndsOnlyTheOpenConnections(t *testing.T) {
	p := faultnet.Start(t, echo(t))
	c := dial(t, p)
	mustRoundTrip(t, c)
	p.Reset()
	if err := roundTrip(c, "x", 5*time.Second); err == nil {
		t.Error("the old connection still works")
	}
	mustRoundTrip(t, dial(t, p))
}

func TestStall_HoldsDataBackAndHealReleasesIt(t *testing.T) {
	p := faultnet.Start(t, echo(t))
	c := dial(t, p)
	mustRoundTrip(t, c)
	p.Stall()
	if err := roundTrip(c, "held", 50*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("stalled connection: got %v, want a timeout", err)
	}
	late := dial(t, p)
	if err := roundTrip(late, "late", 50*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("connection made while stalled: got %v, want a timeout", err)
	}
	p.Heal()
	for _, tc := range []struct {
		c    net.Conn
		want string
	}{{c, "held"}, {late, "late"}} {
		_ = tc.c.SetDeadline(time.Now().Add(5 * time.Second))
		got := make([]byte, len(tc.want))
		if _, err := io.ReadFull(tc.c, got); err != nil || string(got) != tc.want {
			t.Errorf("after heal: got %q, %v; want %q", got, err, tc.want)
		}
	}
}

func TestStall_CanBeClosedAndCut(t *testing.T) {
	p := faultnet.Start(t, echo(t))
	c := dial(t, p)
	mustRoundTrip(t, c)
	p.Stall()
	_, _ = io.WriteString(c, "x")
	p.Cut()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v, want a connection error", err)
	}
}

func TestDelay_SlowsARoundTripByTwiceTheDelay(t *testing.T) {
	p := faultnet.Start(t, echo(t))
	c := dial(t, p)
	mustRoundTrip(t, c)
	p.Delay(40 * time.Millisecond)
	start := time.Now()
	mustRoundTrip(t, c)
	if d := time.Since(start); d < 80*time.Millisecond {
		t.Errorf("took %v, want at least 80ms", d)
	}
}

func TestThrottle_BoundsTheBytesASecond(t *testing.T) {
	p := faultnet.Start(t, echo(t))
	c := dial(t, p)
	mustRoundTrip(t, c)
	p.Throttle(200_000)
	start := time.Now()
	if err := roundTrip(c, string(make([]byte, 20_000)), 5*time.Second); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(start); d < 200*time.Millisecond {
		t.Errorf("20000 bytes there and back took %v, want at least 200ms", d)
	}
	p.Heal()
	mustRoundTrip(t, c)
}

func TestStrand_LeavesOldConnectionsHalfOpenAndNewOnesWork(t *testing.T) {
	p := faultnet.Start(t, echo(t))
	old, gone := dial(t, p), dial(t, p)
	mustRoundTrip(t, old)
	mustRoundTrip(t, gone)
	p.Strand()
	if err := roundTrip(old, "x", 50*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("old connection: got %v, want a timeout", err)
	}
	mustRoundTrip(t, dial(t, p))
	gone.Close() // its target does not learn it
	if got := p.Connections(); got != 3 {
		t.Errorf("%d connections after one was closed, want it to stay: 3", got)
	}
	p.Heal()
	if err := roundTrip(old, "x", 5*time.Second); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("old connection after heal: got %v, want a connection error", err)
	}
	mustRoundTrip(t, dial(t, p))
}

func TestCutAfterBytes_DeliversExactlyThatManyOnce(t *testing.T) {
	for _, n := range []int64{0, 1, 7, 4096, 100_000} {
		p := faultnet.Start(t, echo(t))
		c := dial(t, p)
		mustRoundTrip(t, c)
		p.CutAfterBytes(n)
		go func() { _, _ = c.Write(make([]byte, 200_000)) }()
		_ = c.SetDeadline(time.Now().Add(5 * time.Second))
		got, err := io.Copy(io.Discard, c)
		if got != n || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("limit %d: got %d bytes, %v", n, got, err)
		}
		mustRoundTrip(t, dial(t, p))
	}
}

func TestConnections_CountsTheOpenOnes(t *testing.T) {
	p := faultnet.Start(t, echo(t))
	a := dial(t, p)
	mustRoundTrip(t, a)
	mustRoundTrip(t, dial(t, p))
	if got := p.Connections(); got != 2 {
		t.Errorf("got %d, want 2", got)
	}
	a.Close()
	deadline := time.Now().Add(5 * time.Second)
	for p.Connections() != 1 {
		if time.Now().After(deadline) {
			t.Fatalf("got %d after one was closed, want 1", p.Connections())
		}
		time.Sleep(time.Millisecond)
	}
}
