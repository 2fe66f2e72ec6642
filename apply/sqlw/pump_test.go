package sqlw

import (
	"net"
	"testing"
	"testing/synctest"
)

// The timer of a slow write fires as the write ends, and its goroutine comes
// when the answer is already being waited for.
func TestPump_LateStartDoesNotReadBesideTheReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		p := newPump(client)
		p.allow()
		p.stop()
		got := make(chan string, 1)
		go func() {
			b := make([]byte, 8)
			n, _ := p.Read(b)
			got <- string(b[:n])
		}()
		synctest.Wait() // in Read
		p.start()
		synctest.Wait()
		if p.running {
			t.Error("a second reader has begun")
		}
		if _, err := server.Write([]byte("answer")); err != nil {
			t.Fatal(err)
		}
		if s := <-got; s != "answer" {
			t.Errorf("got %q", s)
		}
		_ = client.Close()
		p.wait()
	})
}

func TestPump_StartDuringAWriteReadsInTheBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		p := newPump(client)
		p.allow()
		p.start()
		if _, err := server.Write([]byte("answer")); err != nil { // nobody is in Read
			t.Fatal(err)
		}
		p.stop()
		b := make([]byte, 8)
		if n, err := p.Read(b); string(b[:n]) != "answer" || err != nil {
			t.Errorf("got %q, %v", b[:n], err)
		}
		_ = client.Close()
		p.wait()
	})
}
