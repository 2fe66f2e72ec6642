package sqlw

import (
	"encoding/binary"
	"fmt"

	"github.com/walferry/walferry/change"
)

// execute is the Execute message for the unnamed portal, all rows.
var execute = []byte{'E', 0, 0, 0, 9, 0, 0, 0, 0, 0}

// Row queues a statement with values of a change. The values are copied or
// sent before Row returns. An error is that of an earlier step or of the
// connection.
func (s *Session) Row(st *Stmt, old, row []change.Value, step Step) error {
	if s.failed != nil {
		return s.failed
	}
	if s.copying {
		if err := s.endCopy(); err != nil {
			return err
		}
	}
	if ok, err := s.addRow(st, old, row, step); ok || err != nil {
		return err
	}
	s.prepare(st)
	if err := s.bind(st, old, row); err != nil {
		return err
	}
	s.out = append(s.out, execute...)
	step.Want, step.Stmt = st.Want, st
	return s.queued(step)
}

func value(p *Param, old, row []change.Value) *change.Value {
	if p.Old {
		return &old[p.Col]
	}
	return &row[p.Col]
}

// bind writes a Bind message; its length is known beforehand, so that long
// values go straight to the socket.
func (s *Session) bind(st *Stmt, old, row []change.Value) error {
	n := len(st.Params)
	size, binaries := 4+1+len(st.name)+1+2+2+4*n+2, false
	for i := range st.Params {
		v := value(&st.Params[i], old, row)
		size += len(v.Data)
		binaries = binaries || v.Kind == change.Binary
	}
	if binaries {
		size += 2 * n
	}
	if size > 1<<30-1 {
		return fmt.Errorf("row of %d bytes: longer than a message of the protocol", size)
	}
	s.out = append(s.out, 'B')
	s.out = binary.BigEndian.AppendUint32(s.out, uint32(size))
	s.out = append(s.out, 0)
	s.out = append(s.out, st.name...)
	s.out = append(s.out, 0)
	if binaries {
		s.out = binary.BigEndian.AppendUint16(s.out, uint16(n))
		for i := range st.Params {
			f := byte(0)
			if value(&st.Params[i], old, row).Kind == change.Binary {
				f = 1
			}
			s.out = append(s.out, 0, f)
		}
	} else {
		s.out = append(s.out, 0, 0)
	}
	s.out = binary.BigEndian.AppendUint16(s.out, uint16(n))
	for i := range st.Params {
		v := value(&st.Params[i], old, row)
		if v.Kind == change.Null {
			s.out = append(s.out, 0xff, 0xff, 0xff, 0xff)
			continue
		}
		s.out = binary.BigEndian.AppendUint32(s.out, uint32(len(v.Data)))
		if err := s.bytes(v.Data); err != nil {
			return err
		}
	}
	s.out = append(s.out, 0, 0)
	return nil
}

// bytes queues b, or sends it at once when it is long.
func (s *Session) bytes(b []byte) error {
	if len(b) < directBytes {
		s.out = append(s.out, b...)
		return nil
	}
	if err := s.write(s.out); err != nil {
		return err
	}
	s.out = s.out[:0]
	return s.write(b)
}

// Control queues a statement with text parameters; nil is NULL.
func (s *Session) Control(st *Stmt, step Step, args ...[]byte) error {
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
	s.out = append(s.out, 0, 0, 0)
	s.out = binary.BigEndian.AppendUint16(s.out, uint16(len(args)))
	for _, a := range args {
		if a == nil {
			s.out = append(s.out, 0xff, 0xff, 0xff, 0xff)
			continue
		}
		s.out = binary.BigEndian.AppendUint32(s.out, uint32(len(a)))
		s.out = append(s.out, a...)
	}
	s.out = append(s.out, 0, 0)
	s.end(start)
	s.out = append(s.out, execute...)
	step.Want, step.Stmt = st.Want, st
	return s.queued(step)
}

// OnRow sets who gets the rows of control steps. The values are valid during
// the call.
func (s *Session) OnRow(f func(values [][]byte)) { s.onRow = f }
