package faultnet

import (
	"net"
	"sync"
	"time"
)

// link is one connection through the proxy: client and target.
type link struct {
	proxy  *Proxy
	client net.Conn

	stranded bool // carries nothing any more; guarded by proxy.mu

	mu      sync.Mutex
	target  net.Conn
	ended   bool
	severed bool          // the target is gone, the client was told by an end of file
	done    chan struct{} // closed when the link ended
}

func (l *link) run() {
	// A stalled proxy accepts and then says nothing, as a dead host behind a
	// live firewall does.
	if !l.pass(0) {
		return
	}
	target, err := l.proxy.dial()
	if err != nil {
		l.reset()
		return
	}
	l.mu.Lock()
	l.target = target
	ended := l.ended
	l.mu.Unlock()
	if ended {
		abort(target)
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() { l.carry(target, l.client, false) })
	wg.Go(func() { l.carry(l.client, target, true) })
	wg.Wait()
	l.end(func(c net.Conn) { _ = c.Close() })
}

// carry copies from src to dst until an end or a fault. The end of src is passed
// on as a half-close, so that the other direction can finish.
func (l *link) carry(dst, src net.Conn, fromTarget bool) {
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		if n > 0 {
			if !l.pass(n) {
				return
			}
			allowed, last := n, false
			if fromTarget {
				allowed, last = l.proxy.take(n)
			}
			if _, werr := dst.Write(buf[:allowed]); werr != nil && !l.isSevered() {
				l.reset()
				return
			}
			if last {
				l.sever()
				return
			}
		}
		if err != nil {
			if !l.pass(0) {
				return
			}
			if tcp, ok := dst.(*net.TCPConn); ok {
				_ = tcp.CloseWrite()
			}
			return
		}
	}
}

// sever ends the link so that the client still receives what was written to it: a
// reset would let the kernel throw unread bytes away, so the client gets an end of
// file in the middle of the message, and what it still sends is read and dropped.
func (l *link) sever() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.severed = true
	if tcp, ok := l.client.(*net.TCPConn); ok {
		_ = tcp.CloseWrite()
	}
	abort(l.target)
}

func (l *link) isSevered() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.severed
}

// take counts n bytes from the target against the limit: how many may pass, and
// whether the connection must end after them.
func (p *Proxy) take(n int) (allowed int, last bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.limit < 0 || int64(n) < p.limit {
		if p.limit >= 0 {
			p.limit -= int64(n)
		}
		return n, false
	}
	allowed = int(p.limit)
	p.limit = -1
	return allowed, true
}

// pass waits while the link may carry nothing and, for data, as long as the delay
// and the rate say. It returns false when the link was reset meanwhile.
func (l *link) pass(n int) bool {
	for {
		l.proxy.mu.Lock()
		stalled, delay, changed := l.proxy.stalled || l.stranded, l.proxy.delay, l.proxy.changed
		if l.proxy.rate > 0 {
			delay += time.Duration(n) * time.Second / time.Duration(l.proxy.rate)
		}
		l.proxy.mu.Unlock()
		if stalled {
			select {
			case <-changed:
				continue
			case <-l.done:
				return false
			}
		}
		if n == 0 || delay == 0 {
			return !l.isDone()
		}
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
			n = 0 // waited; a stall that came meanwhile still holds
		case <-l.done:
			return false
		}
	}
}

func (l *link) isDone() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// reset ends both sides at once, by RST. It may be called more than once.
func (l *link) reset() { l.end(abort) }

func (l *link) end(closeConn func(net.Conn)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	l.ended = true
	close(l.done)
	closeConn(l.client)
	if l.target != nil {
		closeConn(l.target)
	}
}
