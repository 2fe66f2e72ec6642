package sqlw

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/walferry/walferry/internal/pgconnect"
)

// Bounds of the pipeline. Two windows of answers, some 25 bytes each, must fit
// the socket buffers of any system.
const (
	windowSteps = 256
	windowBytes = 64 << 10
	// directBytes is the size from which a value is written to the socket
	// without a copy in between.
	directBytes = 32 << 10
	// slowWrite is how long a write may block before answers are read in the
	// background.
	slowWrite = 15 * time.Millisecond
	// goodbye bounds the polite end of a connection.
	goodbye = 2 * time.Second
	// maxStatements and maxStatementBytes (of SQL text) bound the prepared
	// statements of a session; the server's plans are some ten times as large.
	maxStatements     = 1000
	maxStatementBytes = 4 << 20
)

// A Session is a connection to a subscriber. Its methods are for one goroutine.
type Session struct {
	pc   *pgconn.PgConn
	conn net.Conn
	fe   *pgproto3.Frontend
	pump *pump
	slow *time.Timer

	out    []byte
	ring   ring
	window int   // steps behind the last Flush or Sync message
	failed error // SQL or count error; the server skips until Sync
	broken error
	status byte // of the transaction: 'I', 'T' or 'E'

	copying  bool
	copyLen  int // offset in out of the length word of the open CopyData; -1: none
	copyRows int64

	gen   int // statements of older generations are gone
	stmts []*Stmt
	clock int

	stmtBytes int
	catalog   *Stmt
	names     int

	onRow func(values [][]byte) // of KindControl steps

	batching bool
	batches  []*batch // open, in the order in which they began
	seed     maphash.Seed

	stopCtx func() bool
}

// Connect opens a session. It lives as long as ctx: when that ends, whatever
// the session is doing fails and the session is broken. settings are made
// with SET before the session is used.
func Connect(ctx context.Context, connString, role string, settings ...string) (*Session, error) {
	cfg, err := pgconnect.Parse(connString, role)
	if err != nil {
		return nil, err
	}
	return connectConfig(ctx, cfg, settings...)
}

func connectConfig(ctx context.Context, cfg *pgconn.Config, settings ...string) (*Session, error) {
	cfg.RuntimeParams["client_min_messages"] = "error"
	// pgconn reads in the background when a write takes long, and such a read ends
	// only with the next bytes: what comes must be taken from pgconn's reader, that of
	// the connection that is opened last.
	var in io.Reader
	build := cfg.BuildFrontend
	cfg.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		in = r
		return build(r, w)
	}
	pc, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	s := &Session{pc: pc, conn: pc.Conn(), status: 'I', copyLen: -1, seed: maphash.MakeSeed()}
	// Nothing is unread here: the server has said that it is ready, and speaks
	// only when asked.
	s.pump = newPump(in)
	s.fe = pgproto3.NewFrontend(s.pump, s.conn)
	s.slow = time.AfterFunc(time.Hour, s.pump.start)
	s.slow.Stop()
	s.stopCtx = context.AfterFunc(ctx, func() { _ = s.conn.SetDeadline(time.Unix(1, 0)) })
	for _, set := range settings {
		if err := s.Exec("SET " + set); err != nil {
			s.Close()
			return nil, fmt.Errorf("set %s: %w", set, err)
		}
	}
	return s, nil
}

// Parameter returns a parameter that the server reported at the start, such as
// server_encoding.
func (s *Session) Parameter(name string) string { return s.pc.ParameterStatus(name) }

// PID is the process ID of the server process.
func (s *Session) PID() uint32 { return s.pc.PID() }

// Broken returns why the session can no longer be used, or nil.
func (s *Session) Broken() error { return s.broken }

// TxStatus is the state of the transaction as of the last Sync: 'I' idle, 'T'
// in a transaction, 'E' in a failed one.
func (s *Session) TxStatus() byte { return s.status }

// Close ends the session. What the server is still executing is cancelled.
func (s *Session) Close() {
	s.stopCtx()
	s.slow.Stop()
	ctx, cancel := context.WithTimeout(context.Background(), goodbye)
	defer cancel()
	if s.ring.size > 0 || s.broken != nil {
		_ = s.pc.CancelRequest(ctx) // the server may be gone
		_ = s.conn.Close()
	} else {
		_ = s.conn.SetDeadline(time.Now().Add(goodbye))
		_, _ = s.conn.Write([]byte{'X', 0, 0, 0, 4})
		_ = s.conn.Close()
	}
	s.pump.wait()
	s.broke(errors.New("closed"))
}

func (s *Session) broke(err error) error {
	if s.broken == nil {
		s.broken = &BrokenError{Err: err}
	}
	return s.broken
}

// write sends b. Answers are read in the background when it takes long.
func (s *Session) write(b []byte) error {
	if s.broken != nil {
		return s.broken
	}
	s.pump.allow()
	s.slow.Reset(slowWrite)
	_, err := s.conn.Write(b)
	s.slow.Stop()
	s.pump.stop()
	if err != nil {
		return s.broke(err)
	}
	return nil
}

// push sends what is queued.
func (s *Session) push() error {
	if len(s.out) == 0 {
		return s.broken
	}
	s.closeCopyData()
	err := s.write(s.out)
	s.out = s.out[:0]
	return err
}

// queued is called behind every step. It keeps the window.
func (s *Session) queued(st Step) error {
	s.ring.push(st)
	s.window++
	if s.window < windowSteps && len(s.out) < windowBytes {
		return nil
	}
	return s.turn()
}

// turn sends the window and reads the answers to the one before.
func (s *Session) turn() error {
	s.out = append(s.out, 'H', 0, 0, 0, 4)
	window := s.window
	s.window = 0
	if err := s.push(); err != nil {
		return err
	}
	return s.read(window)
}

// Drain sends everything queued and reads all answers. It returns the first
// error of the steps since the last Sync.
func (s *Session) Drain() error {
	if s.failed != nil {
		return s.failed
	}
	if err := s.endCopy(); err != nil {
		return err
	}
	s.out = append(s.out, 'H', 0, 0, 0, 4)
	s.window = 0
	if err := s.push(); err != nil {
		return err
	}
	return s.read(0)
}

// Sync sends everything queued and a Sync, and reads until the server is ready.
// It returns the first error since the last Sync; after that the pipeline
// works again, the transaction may be a failed one.
func (s *Session) Sync() error {
	if s.failed != nil {
		s.dropBatches() // they come behind what failed
	}
	if err := s.endCopy(); s.broken != nil {
		return err
	}
	s.out = append(s.out, 'S', 0, 0, 0, 4)
	s.ring.push(Step{Kind: kindSync})
	s.window = 0
	if err := s.push(); err != nil {
		return err
	}
	err := s.read(0)
	if s.broken != nil {
		return s.broken
	}
	s.failed = nil
	return err
}

// read receives answers until at most left steps are unanswered. After an error
// everything up to a Sync counts as answered.
func (s *Session) read(left int) error {
	for s.ring.size > left {
		if s.failed != nil && s.ring.back().Kind != kindSync {
			return s.failed
		}
		if err := s.receive(); err != nil {
			return err
		}
	}
	return s.failed
}

// receive handles one message of the server.
func (s *Session) receive() error {
	if s.broken != nil {
		return s.broken
	}
	m, err := s.fe.Receive()
	if err != nil {
		return s.broke(err)
	}
	switch m := m.(type) {
	case *pgproto3.CommandComplete:
		return s.complete(m.CommandTag)
	case *pgproto3.EmptyQueryResponse:
		return s.complete(nil)
	case *pgproto3.DataRow:
		if st := s.ring.front(); st != nil && st.Kind == KindControl && s.onRow != nil {
			s.onRow(m.Values)
		}
	case *pgproto3.ErrorResponse:
		return s.failure(pgError(m))
	case *pgproto3.ReadyForQuery:
		return s.ready(m.TxStatus)
	}
	return nil
}

func (s *Session) failure(e *pgconn.PgError) error {
	if e.Severity == "FATAL" || e.Severity == "PANIC" || e.SeverityUnlocalized == "FATAL" || e.SeverityUnlocalized == "PANIC" {
		return s.broke(e)
	}
	if s.failed == nil {
		st := s.ring.front()
		if st == nil {
			return s.broke(e)
		}
		s.failed = &StepError{Step: *st, Err: e}
	}
	return nil
}

func (s *Session) complete(tag []byte) error {
	st := s.ring.front()
	if st == nil || st.Kind == kindSync {
		return s.broke(fmt.Errorf("unexpected answer %q", tag))
	}
	if st.Want >= 0 {
		if n := tagRows(tag); n != st.Want && s.failed == nil {
			s.failed = &CountError{Step: *st, Rows: n}
		}
	} else if st.Kind == KindCommit && string(tag) != "COMMIT" && s.failed == nil {
		s.failed = &CountError{Step: *st}
	}
	s.ring.pop()
	return nil
}

func (s *Session) ready(status byte) error {
	s.status = status
	for s.ring.size > 0 {
		k := s.ring.front().Kind
		if k != kindSync && s.failed == nil {
			return s.broke(errors.New("the server is ready before it has answered"))
		}
		s.ring.pop()
		if k == kindSync {
			break
		}
	}
	return nil
}

// tagRows reads the number of rows that ends a command tag.
func tagRows(tag []byte) int64 {
	n, unit := int64(0), int64(1)
	for i := len(tag) - 1; i >= 0 && tag[i] >= '0' && tag[i] <= '9'; i-- {
		n += int64(tag[i]-'0') * unit
		unit *= 10
	}
	return n
}
