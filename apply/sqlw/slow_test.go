package sqlw

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/walferry/walferry/internal/pgconnect"
	"github.com/walferry/walferry/internal/pgtest"
)

// slowWriter returns from a write only when the answer has come.
type slowWriter struct{ net.Conn }

func (c slowWriter) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	time.Sleep(60 * time.Millisecond)
	return n, err
}

// pgconn reads in the background while a write takes long, and goes on with it
// after the write: what it takes then must not be missing here.
func TestConnect_SlowWritesLoseNoAnswer(t *testing.T) {
	cfg, err := pgconnect.Parse(pgtest.Shared(t).DB(t), "test")
	if err != nil {
		t.Fatal(err)
	}
	dial := cfg.DialFunc
	cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		return slowWriter{c}, err
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	s, err := connectConfig(ctx, cfg, "jit = off")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if rows, err := s.Query("SELECT 'x'"); err != nil || string(rows[0][0]) != "x" {
		t.Errorf("got %q, %v", rows, err)
	}
}
