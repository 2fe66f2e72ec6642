package sqlw

import (
	"io"
	"net"
	"testing"
	"time"
)

// The timer of a write may fire when the write has ended and its answer is being
// read: the answer must go to who reads, not to the background.
func TestPump_ALateTimerTakesNoAnswerAway(t *testing.T) {
	for range 200 {
		client, server := net.Pipe()
		p := newPump(client)
		p.allow()
		p.stop()
		got := make(chan error, 1)
		go func() {
			var b [1]byte
			_, err := io.ReadFull(p, b[:])
			got <- err
		}()
		time.Sleep(50 * time.Microsecond) // so that Read has usually begun
		p.start()
		if _, err := server.Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-got:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(5 * time.Second):
			t.Fatal("the answer did not reach the reader")
		}
		_ = client.Close()
		_ = server.Close()
		p.wait()
	}
}

// While a write blocks, what the server says meanwhile is read and kept.
func TestPump_ReadsWhileAWriteBlocks(t *testing.T) {
	client, server := net.Pipe()
	p := newPump(client)
	p.allow()
	p.start()
	if _, err := server.Write([]byte("answer")); err != nil { // nobody is in Read
		t.Fatal(err)
	}
	p.stop()
	go func() { _, _ = server.Write([]byte("!")) }() // ends the reading in the background
	b := make([]byte, 7)
	if _, err := io.ReadFull(p, b); err != nil || string(b) != "answer!" {
		t.Fatalf("%q, %v", b, err)
	}
	_ = client.Close()
	_ = server.Close()
	p.wait()
}
