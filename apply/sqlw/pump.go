package sqlw

import (
	"io"
	"sync"
)

// pump reads from a connection. While start is in effect it also reads when
// nobody calls Read, so that a server which blocks on its answers goes on
// reading our requests.
type pump struct {
	r io.Reader

	mu      sync.Mutex
	changed *sync.Cond
	running bool // a goroutine is in r.Read
	writing bool // between allow and stop
	wanted  bool
	data    []byte
	err     error
}

func newPump(r io.Reader) *pump {
	p := &pump{r: r}
	p.changed = sync.NewCond(&p.mu)
	return p
}

// Read returns what was read in the background first.
func (p *pump) Read(b []byte) (int, error) {
	p.mu.Lock()
	for len(p.data) == 0 && p.running {
		p.changed.Wait()
	}
	if len(p.data) > 0 {
		n := copy(b, p.data)
		p.data = p.data[n:]
		p.mu.Unlock()
		return n, nil
	}
	if err := p.err; err != nil {
		p.mu.Unlock()
		return 0, err
	}
	p.mu.Unlock()
	return p.r.Read(b)
}

// allow says that a write begins, during which start may have an effect.
func (p *pump) allow() {
	p.mu.Lock()
	p.writing = true
	p.mu.Unlock()
}

// start begins to read in the background. It is called by a timer, perhaps
// long after the write has ended: then it does nothing, because the session may be
// in Read itself by now, which would never see what is read beside it.
func (p *pump) start() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.writing {
		return
	}
	p.wanted = true
	if p.running || p.err != nil {
		return
	}
	p.running = true
	go p.loop()
}

// stop says that the write has ended; reading in the background ends with the
// next bytes that come.
func (p *pump) stop() {
	p.mu.Lock()
	p.writing, p.wanted = false, false
	p.mu.Unlock()
}

// wait blocks until nothing reads in the background. The connection must have
// been closed.
func (p *pump) wait() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writing, p.wanted = false, false
	for p.running {
		p.changed.Wait()
	}
}

func (p *pump) loop() {
	buf := make([]byte, 8192)
	for {
		n, err := p.r.Read(buf)
		p.mu.Lock()
		p.data = append(p.data, buf[:n]...)
		p.err = err
		p.running = p.wanted && err == nil
		more := p.running
		p.changed.Broadcast()
		p.mu.Unlock()
		if !more {
			return
		}
	}
}
