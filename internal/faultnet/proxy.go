package faultnet

import (
	"fmt"
	"net"
	"sync"
	"testing"
	"time"
)

// Proxy is a TCP proxy to one target. Its methods may be called at any time, from
// any goroutine.
type Proxy struct {
	target   string
	listener net.Listener
	wg       sync.WaitGroup

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when a fault comes or goes
	links   map[*link]struct{}
	closed  bool
	cut     bool
	stalled bool
	delay   time.Duration
	rate    int   // bytes a second, for each connection and direction; 0 = no limit
	limit   int64 // bytes from the target until the next reset; negative = no limit
}

// Start makes a proxy to target ("host:port"), closed when the test ends.
func Start(t testing.TB, target string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	p := &Proxy{
		target: target, listener: l, limit: -1,
		changed: make(chan struct{}), links: map[*link]struct{}{},
	}
	p.wg.Go(p.accept)
	t.Cleanup(p.Close)
	return p
}

// Addr is the proxy's own address, "127.0.0.1:port".
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Port is the port of Addr.
func (p *Proxy) Port() int { return p.listener.Addr().(*net.TCPAddr).Port }

// Connections is the number of connections that are open now.
func (p *Proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// Cut resets all connections; new ones are reset at once, until Heal.
func (p *Proxy) Cut() { p.change(func() { p.cut = true; p.resetAll() }) }

// Reset resets all connections that are open now; new ones work.
func (p *Proxy) Reset() { p.change(p.resetAll) }

// Stall stops carrying data, in both directions, until Heal. No connection ends:
// not even the end of a peer is passed on.
func (p *Proxy) Stall() { p.change(func() { p.stalled = true }) }

// Delay makes each piece of data wait for d before it is passed on, until Heal.
func (p *Proxy) Delay(d time.Duration) { p.change(func() { p.delay = d }) }

// Throttle lets each connection carry at most so many bytes a second in each
// direction, until Heal.
func (p *Proxy) Throttle(bytesPerSecond int) { p.change(func() { p.rate = bytesPerSecond }) }

// Strand makes the connections that are open now half-open for good: they carry
// nothing, no end of a peer is passed on, and Heal resets them. New connections
// work: a firewall that has forgotten what it knew, or a host that died and came
// back.
func (p *Proxy) Strand() {
	p.change(func() {
		for l := range p.links {
			l.stranded = true
		}
	})
}

// CutAfterBytes lets exactly n more bytes pass from the target, over all
// connections together, then ends the connection that carried the last one: its
// client reads these bytes and an end of file, its target sees a reset. It does so
// once; connections made afterwards work.
func (p *Proxy) CutAfterBytes(n int64) { p.change(func() { p.limit = n }) }

// Heal ends every fault. What was held back by Stall flows on; what Strand left
// half-open is reset.
func (p *Proxy) Heal() {
	p.change(func() {
		p.cut, p.stalled, p.delay, p.rate, p.limit = false, false, 0, 0, -1
		for l := range p.links {
			if l.stranded {
				l.reset()
			}
		}
	})
}

// Close ends the proxy and its connections and waits for its goroutines.
func (p *Proxy) Close() {
	p.change(func() { p.closed = true; p.resetAll() })
	_ = p.listener.Close()
	p.wg.Wait()
}

func (p *Proxy) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Proxy) resetAll() {
	for l := range p.links {
		l.reset()
	}
}

func (p *Proxy) accept() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.serve(conn) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	l := &link{proxy: p, client: client, done: make(chan struct{})}
	p.mu.Lock()
	refuse := p.cut || p.closed
	if !refuse {
		p.links[l] = struct{}{}
	}
	p.mu.Unlock()
	if refuse {
		abort(client)
		return
	}
	defer func() {
		p.mu.Lock()
		delete(p.links, l)
		p.mu.Unlock()
	}()
	l.run()
}

func (p *Proxy) dial() (net.Conn, error) {
	conn, err := net.DialTimeout("tcp", p.target, 10*time.Second)
	if err != nil {
		return nil, fmt.Errorf("dial target: %w", err)
	}
	return conn, nil
}

// abort closes a connection by RST: the peer gets an error, not an end of file.
func abort(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}
