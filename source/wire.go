package source

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/walferry/walferry/change"
)

// readBuffer is how much one read takes from the socket.
const readBuffer = 128 << 10

// writeTimeout bounds a write to the server; a status is some forty bytes.
const writeTimeout = 15 * time.Second

// wire is a connection in copy-both mode. receive belongs to one goroutine,
// the send methods may be called by any.
type wire struct {
	conn net.Conn
	fe   *pgproto3.Frontend
	in   *readAhead
	sock *socket

	mu  sync.Mutex
	out []byte
}

// startReplication turns an SQL connection into a stream; conn must have been
// opened with readAhead. The statement must be START_REPLICATION.
func startReplication(ctx context.Context, conn *pgconn.PgConn, in *readAhead, sql string) (*wire, error) {
	h, err := conn.Hijack()
	if err != nil {
		return nil, fmt.Errorf("take over connection: %w", err)
	}
	w := &wire{conn: h.Conn, fe: h.Frontend, in: in, sock: newSocket(h.Conn)}
	in.before = w.sock.beforeRead
	w.fe.SetMaxBodyLen(1<<30 + 1<<16) // a row as long as PostgreSQL allows, and its frame
	stop := context.AfterFunc(ctx, func() { _ = w.conn.SetDeadline(time.Unix(1, 0)) })
	err = w.start(sql)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = w.conn.Close()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, err
	}
	return w, nil
}

func (w *wire) start(sql string) error {
	w.fe.SendQuery(&pgproto3.Query{String: sql})
	if err := w.fe.Flush(); err != nil {
		return fmt.Errorf("start replication: %w", err)
	}
	for {
		m, err := w.fe.Receive()
		if err != nil {
			return fmt.Errorf("start replication: %w", err)
		}
		switch m := m.(type) {
		case *pgproto3.CopyBothResponse:
			return nil
		case *pgproto3.ErrorResponse:
			return fmt.Errorf("start replication: %w", pgconn.ErrorResponseToPgError(m))
		case *pgproto3.NoticeResponse, *pgproto3.ParameterStatus:
		default:
			return protocolError("%T instead of the beginning of replication", m)
		}
	}
}

// errTimeout is what receive returns when the read deadline has passed. The
// message that was being received is continued by the next call.
var errTimeout = errors.New("read deadline")

// receive returns the payload of the next CopyData, which is valid until the
// next call. It returns errTimeout at the read deadline.
func (w *wire) receive() ([]byte, error) {
	for {
		m, err := w.fe.Receive()
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return nil, errTimeout
			}
			return nil, fmt.Errorf("receive: %w", err)
		}
		switch m := m.(type) {
		case *pgproto3.CopyData:
			return m.Data, nil
		case *pgproto3.ErrorResponse:
			return nil, fmt.Errorf("receive: %w", pgconn.ErrorResponseToPgError(m))
		case *pgproto3.NoticeResponse, *pgproto3.ParameterStatus:
		case *pgproto3.CopyDone, *pgproto3.CommandComplete, *pgproto3.ReadyForQuery:
			return nil, errEnded
		default:
			return nil, protocolError("%T in a replication stream", m)
		}
	}
}

// interrupt makes a receive that blocks return errTimeout, or the next one that
// would.
func (w *wire) interrupt() { _ = w.conn.SetReadDeadline(time.Unix(1, 0)) }

// drained reports whether nothing has arrived that was not received yet. It is
// a hint: see [socket.silent].
func (w *wire) drained() bool { return !w.buffered() && w.sock.silent() }

// buffered reports whether the next receive may do without the socket.
func (w *wire) buffered() bool { return w.fe.ReadBufferLen() > 0 || w.in.buffered() > 0 }

// microsecondsSince2000 is the clock of the replication protocol.
func microsecondsSince2000(t time.Time) uint64 { return uint64(t.UnixMicro() - 946684800*1e6) }

// sendStatus sends a standby status update (PostgreSQL: "Streaming Replication
// Protocol"). All three positions are sent as given.
func (w *wire) sendStatus(write, flush, apply change.LSN, reply bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := append(w.out[:0], 'd', 0, 0, 0, 4+34, 'r')
	for _, l := range [...]change.LSN{write, flush, apply} {
		b = binary.BigEndian.AppendUint64(b, uint64(l))
	}
	b = binary.BigEndian.AppendUint64(b, microsecondsSince2000(time.Now()))
	if reply {
		b = append(b, 1)
	} else {
		b = append(b, 0)
	}
	w.out = b
	return w.send(b)
}

func (w *wire) send(b []byte) error {
	if err := w.conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return fmt.Errorf("send status: %w", err)
	}
	if _, err := w.conn.Write(b); err != nil {
		return fmt.Errorf("send status: %w", err)
	}
	return nil
}

// end says goodbye and waits a moment for the server to release the slot.
func (w *wire) end() {
	w.mu.Lock()
	err := w.send([]byte{'c', 0, 0, 0, 4, 'X', 0, 0, 0, 4})
	w.mu.Unlock()
	if err == nil && w.conn.SetReadDeadline(time.Now().Add(2*time.Second)) == nil {
		_, _ = io.Copy(io.Discard, w.conn)
	}
	_ = w.conn.Close()
}

// readAhead reads from the socket in large pieces: pgproto3 asks for 8 kB.
type readAhead struct {
	r    io.Reader
	buf  []byte
	a, b int // buf[a:b] is not read yet
	last int // what the last read from the socket has brought

	before func() // is called before each read from the socket; may be nil
}

func (r *readAhead) buffered() int { return r.b - r.a }

// Read implements io.Reader.
func (r *readAhead) Read(p []byte) (int, error) {
	if r.a == r.b {
		if r.before != nil {
			r.before()
		}
		if len(p) >= len(r.buf) {
			return r.r.Read(p)
		}
		n, err := r.r.Read(r.buf)
		r.a, r.b, r.last = 0, n, n
		if n == 0 {
			return 0, err
		}
	}
	n := copy(p, r.buf[r.a:r.b])
	r.a += n
	return n, nil
}

// use makes connections of c read ahead; the returned reader is that of the
// connection that is opened last.
func (r *readAhead) use(c *pgconn.Config) {
	c.BuildFrontend = func(src io.Reader, dst io.Writer) *pgproto3.Frontend {
		*r = readAhead{r: src, buf: make([]byte, readBuffer)}
		return pgproto3.NewFrontend(r, dst)
	}
}
