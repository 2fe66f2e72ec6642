package source

import (
	"crypto/tls"
	"net"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/internal/pgconnect"
)

// A walsender sends each change by itself, and for small changes that costs it
// more than decoding them: the packet, and waking up who waits for it. Two things
// make it cheap (figures in ADR 7). While the stream pauses to let changes collect
// (see coalescer), the socket does not count as readable until lowWater bytes
// have arrived, so that nothing is woken. And on one machine the receive window is
// small: while it is closed, the kernel only adds changes to what waits in the
// server's send buffer, and sends them in large packets once we read.

const (
	// lowWater in bytes is more than arrives in a pause.
	lowWater = 256 << 10
	// segmentSize in bytes keeps a small window useful: on the loopback device a
	// segment has 64 KiB otherwise, and no window may be smaller than that.
	segmentSize = 8 << 10
	// receiveBuffer in bytes is doubled by the system; the window is about half of
	// that.
	receiveBuffer = 16 << 10
)

// socket is what the stream knows of the transport under its connection.
type socket struct {
	raw  syscall.RawConn // nil: the transport cannot be asked
	peek func(fd uintptr) bool
	more bool // answer of peek

	near  bool // the server is on this machine and the window is small
	plain bool // low-water marks work
	low   bool // there is one
}

func newSocket(c net.Conn) *socket {
	s := &socket{}
	t, encrypted := c.(*tls.Conn)
	if encrypted {
		c = t.NetConn()
	}
	sc, ok := c.(syscall.Conn)
	if !ok {
		return s
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return s
	}
	s.raw = raw
	s.peek = func(fd uintptr) bool {
		s.more = socketHasData(fd)
		return true
	}
	_, tcp := c.(*net.TCPConn)
	s.plain = tcp && !encrypted // a record that is half there would not be waited for
	s.near = canNarrow && s.plain && ownAddress(c.RemoteAddr().String())
	return s
}

// silent reports whether a read would block. It is a hint: under TLS a record
// may be half decrypted.
func (s *socket) silent() bool {
	if s.raw == nil {
		return true
	}
	s.more = false
	if err := s.raw.Read(s.peek); err != nil {
		return true
	}
	return !s.more
}

// collect makes arriving bytes wake nobody, until [socket.beforeRead] finds the
// socket empty.
func (s *socket) collect() {
	if s.plain && !s.low {
		s.low = setLowWater(s.raw, lowWater) == nil
		s.plain = s.low
	}
}

// beforeRead is called before each read: one that blocks must be woken by the
// first byte.
func (s *socket) beforeRead() {
	if s.low && s.silent() {
		s.low = false
		_ = setLowWater(s.raw, 1) // it worked with another number
	}
}

// nearby makes connections of c to this machine have a small receive window.
func nearby(c *pgconn.Config) {
	pgconnect.Control(c, func(network, address string, raw syscall.RawConn) error {
		if (network == "tcp4" || network == "tcp6") && ownAddress(address) {
			return narrow(raw)
		}
		return nil
	})
}

// ownAddress reports whether an address with a port is of this machine.
func ownAddress(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	if ip == nil {
		return false
	}
	if ip.IsLoopback() {
		return true
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, a := range own {
		if n, ok := a.(*net.IPNet); ok && n.IP.Equal(ip) {
			return true
		}
	}
	return false
}
