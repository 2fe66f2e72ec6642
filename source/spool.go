package source

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/walferry/walferry/change"
)

// spool keeps transactions that are streamed before they commit, one file
// each. A file is a sequence of records: length and (sub)transaction ID, four
// bytes each, and the message without its transaction ID. Nothing in it
// outlives the session, so nothing is synced.
//
// In memory are a write buffer for each open transaction, and the IDs of its
// subtransactions, and of those that were aborted after changes of theirs had
// been streamed.
type spool struct {
	dir  string
	txns map[change.XID]*spooled
	cur  *spooled // the open stream block
	buf  []byte
}

type spooled struct {
	f       *os.File
	w       *bufio.Writer
	size    int64
	last    change.XID // that has written
	subs    xidSet     // that have written
	aborted xidSet
	lastCut int64 // size at the last abort of a subtransaction
}

const (
	spoolPattern = "walferry-spool-*.tmp"
	spoolBuffer  = 64 << 10
	// spoolMemory bounds the write buffers: beyond, buffers are small.
	spoolMemory = 32 << 20
	// hugeRow in bytes is one for which no memory is kept.
	hugeRow = 1 << 20
)

// openSpool makes the folder and removes what an earlier session left.
func openSpool(dir string) (*spool, error) {
	fail := func(err error) (*spool, error) {
		return nil, &Error{Kind: ErrSpool, Err: err, Hint: "give walferry a data folder that it may write, or switch streaming off"}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fail(err)
	}
	old, err := filepath.Glob(filepath.Join(dir, spoolPattern))
	if err != nil {
		return fail(err)
	}
	for _, f := range old {
		if err := os.Remove(f); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fail(err)
		}
	}
	return &spool{dir: dir, txns: map[change.XID]*spooled{}}, nil
}

// start opens a stream block.
func (s *spool) start(xid change.XID, first bool) error {
	t := s.txns[xid]
	if (t == nil) != first {
		return protocolError("stream block of transaction %d: first is %v, known is %v", xid, first, t != nil)
	}
	if t == nil {
		f, err := os.CreateTemp(s.dir, spoolPattern)
		if err != nil {
			return fmt.Errorf("spool transaction %d: %w", xid, err)
		}
		size := spoolBuffer
		if len(s.txns)*spoolBuffer > spoolMemory {
			size = 4 << 10
		}
		t = &spooled{f: f, w: bufio.NewWriterSize(f, size), last: xid, subs: xidSet{}, aborted: xidSet{}}
		s.txns[xid] = t
	}
	s.cur = t
	return nil
}

// write adds a message of the open block. sub is the transaction that made it.
func (s *spool) write(sub change.XID, msg []byte) error {
	t := s.cur
	if t == nil {
		return protocolError("streamed message outside of a block")
	}
	var h [8]byte
	binary.BigEndian.PutUint32(h[:], uint32(len(msg)))
	binary.BigEndian.PutUint32(h[4:], uint32(sub))
	_, err := t.w.Write(h[:])
	if err == nil {
		_, err = t.w.Write(msg)
	}
	if err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	t.size += int64(len(h) + len(msg))
	if sub != t.last && sub != 0 {
		t.last = sub
		t.subs.add(sub)
	}
	return nil
}

// abort drops the changes of a transaction or of one subtransaction. One that
// is not spooled is no error.
func (s *spool) abort(xid, sub change.XID) error {
	t := s.txns[xid]
	if t == nil {
		return nil
	}
	if xid == sub {
		return s.drop(xid)
	}
	t.abort(sub)
	return nil
}

func (t *spooled) abort(sub change.XID) {
	t.aborted.add(sub)
	t.lastCut = t.size
}

func (s *spool) drop(xid change.XID) error {
	t := s.txns[xid]
	delete(s.txns, xid)
	err := t.f.Close()
	if rerr := os.Remove(t.f.Name()); err == nil {
		err = rerr
	}
	if err != nil {
		return fmt.Errorf("remove spooled transaction %d: %w", xid, err)
	}
	return nil
}

// replay calls f for each message of a transaction in order, and removes the
// transaction. aborted says that the message is of an aborted subtransaction,
// current that no subtransaction was aborted after it. The message is valid
// during the call.
func (s *spool) replay(xid change.XID, f func(msg []byte, aborted, current bool) error) error {
	t := s.txns[xid]
	if t == nil {
		return protocolError("commit of transaction %d, which was not streamed", xid)
	}
	if err := t.w.Flush(); err != nil {
		return fmt.Errorf("spool transaction %d: %w", xid, err)
	}
	if _, err := t.f.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("read spooled transaction %d: %w", xid, err)
	}
	r := bufio.NewReaderSize(t.f, readBuffer)
	for pos := int64(0); pos < t.size; {
		var h [8]byte
		if _, err := io.ReadFull(r, h[:]); err != nil {
			return fmt.Errorf("read spooled transaction %d: %w", xid, err)
		}
		n := int(binary.BigEndian.Uint32(h[:]))
		sub := change.XID(binary.BigEndian.Uint32(h[4:]))
		if cap(s.buf) < n {
			spare := n / 2
			if n > hugeRow {
				s.buf, spare = nil, 0 // never two of them
			}
			s.buf = make([]byte, n, n+spare)
		}
		if _, err := io.ReadFull(r, s.buf[:n]); err != nil {
			return fmt.Errorf("read spooled transaction %d: %w", xid, err)
		}
		if err := f(s.buf[:n], t.aborted.has(sub), pos >= t.lastCut); err != nil {
			return err
		}
		pos += int64(len(h) + n)
	}
	if cap(s.buf) > 2*hugeRow {
		s.buf = nil
	}
	return s.drop(xid)
}

// close removes all that is spooled.
func (s *spool) close() {
	for xid := range s.txns {
		_ = s.drop(xid) // the next session removes what is left
	}
}
