package sqlw

import (
	"github.com/walferry/walferry/change"
)

// copyChunk is where a CopyData message is cut.
const copyChunk = 32 << 10

// StartCopy queues a COPY; its rows follow with CopyRow, and any other step or
// Drain or Sync ends it.
func (s *Session) StartCopy(st *Stmt, step Step) error {
	if s.failed != nil {
		return s.failed
	}
	if err := s.endCopy(); err != nil {
		return err
	}
	s.prepare(st)
	start := s.begin('B')
	s.out = append(s.out, 0)
	s.out = append(s.out, st.name...)
	s.out = append(s.out, 0, 0, 0, 0, 0, 0, 0)
	s.end(start)
	s.out = append(s.out, execute...)
	step.Kind, step.Stmt = KindCopy, st
	s.ring.push(step)
	s.window++
	s.copying, s.copyRows = true, 0
	return nil
}

// Copying reports whether a COPY is open.
func (s *Session) Copying() bool { return s.copying }

// CopyRow adds a row to the open COPY: the columns cols of row, in that order.
// All values must be text or NULL.
func (s *Session) CopyRow(row []change.Value, cols []int) error {
	if s.copyLen < 0 {
		s.copyLen = s.begin('d')
	}
	for i, c := range cols {
		if i > 0 {
			s.out = append(s.out, '\t')
		}
		v := &row[c]
		if v.Kind == change.Null {
			s.out = append(s.out, '\\', 'N')
			continue
		}
		if err := s.copyValue(v.Data); err != nil {
			return err
		}
	}
	s.out = append(s.out, '\n')
	s.copyRows++
	if len(s.out)-s.copyLen >= copyChunk {
		return s.cutCopy()
	}
	return nil
}

// copyValue escapes a value in pieces, so that the buffer stays small.
func (s *Session) copyValue(b []byte) error {
	for len(b) > directBytes {
		s.out = AppendCopyText(s.out, b[:directBytes])
		b = b[directBytes:]
		if err := s.cutCopy(); err != nil {
			return err
		}
		s.copyLen = s.begin('d')
	}
	s.out = AppendCopyText(s.out, b)
	return nil
}

// cutCopy ends the CopyData message; a full buffer is sent.
func (s *Session) cutCopy() error {
	s.closeCopyData()
	if len(s.out) >= windowBytes {
		return s.push()
	}
	return nil
}

func (s *Session) closeCopyData() {
	if s.copyLen >= 0 {
		s.end(s.copyLen)
		s.copyLen = -1
	}
}

// endCopy ends the open COPY or sends the open batch, if there is one.
func (s *Session) endCopy() error {
	if !s.copying {
		return s.flushBatches()
	}
	s.closeCopyData()
	s.copying = false
	s.out = append(s.out, 'c', 0, 0, 0, 4)
	if st := s.ring.back(); st.Stmt.Want >= 0 {
		st.Want = s.copyRows
	} else {
		st.Want = -1
	}
	if len(s.out) < windowBytes {
		return nil
	}
	return s.turn()
}

// AppendCopyText appends v as the value of a column in COPY's text format
// (PostgreSQL: "COPY", Text Format).
func AppendCopyText(dst, v []byte) []byte {
	from := 0
	for i, c := range v {
		var e byte
		switch c {
		case '\\':
			e = '\\'
		case '\n':
			e = 'n'
		case '\t':
			e = 't'
		case '\r':
			e = 'r'
		default:
			continue
		}
		dst = append(dst, v[from:i]...)
		dst = append(dst, '\\', e)
		from = i + 1
	}
	return append(dst, v[from:]...)
}
