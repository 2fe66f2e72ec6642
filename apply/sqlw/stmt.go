package sqlw

import (
	"encoding/binary"
	"strconv"

	"github.com/walferry/walferry/change"
)

// A Param says which value of a change a parameter takes.
type Param struct {
	Old  bool // of the old tuple
	Col  int  // of the relation
	Type change.OID
}

// A Stmt is a statement that a session prepares when it is first used and
// forgets when there are too many.
type Stmt struct {
	SQL    string
	Params []Param
	Types  []change.OID // of the parameters, when there are no Params
	Want   int64        // rows that it must report; negative: any number

	many *many // for several rows at once; nil: one at a time
	keys []int // relation columns by which rows are told apart in a batch; nil: they need not be

	owner *Session
	name  string
	gen   int
	used  bool
}

// prepare makes sure that the server knows st. It queues what is needed.
func (s *Session) prepare(st *Stmt) {
	st.used = true
	if st.owner == s && st.gen == s.gen && st.name != "" {
		return
	}
	for len(s.stmts) > 0 && (len(s.stmts) >= maxStatements || s.stmtBytes+len(st.SQL) > maxStatementBytes) {
		s.evict()
	}
	s.stmtBytes += len(st.SQL)
	s.names++
	st.owner, st.gen, st.name = s, s.gen, "w"+strconv.Itoa(s.names)
	s.stmts = append(s.stmts, st)
	start := s.begin('P')
	s.out = append(s.out, st.name...)
	s.out = append(s.out, 0)
	s.out = append(s.out, st.SQL...)
	s.out = append(s.out, 0)
	if st.Params != nil {
		s.out = binary.BigEndian.AppendUint16(s.out, uint16(len(st.Params)))
		for _, p := range st.Params {
			s.out = binary.BigEndian.AppendUint32(s.out, uint32(p.Type))
		}
	} else {
		s.out = binary.BigEndian.AppendUint16(s.out, uint16(len(st.Types)))
		for _, t := range st.Types {
			s.out = binary.BigEndian.AppendUint32(s.out, uint32(t))
		}
	}
	s.end(start)
}

// evict closes a statement that was not used lately (second chance).
func (s *Session) evict() {
	for {
		s.clock = (s.clock + 1) % len(s.stmts)
		st := s.stmts[s.clock]
		if st.used {
			st.used = false
			continue
		}
		start := s.begin('C')
		s.out = append(s.out, 'S')
		s.out = append(s.out, st.name...)
		s.out = append(s.out, 0)
		s.end(start)
		st.name = ""
		s.stmtBytes -= len(st.SQL)
		last := len(s.stmts) - 1
		s.stmts[s.clock] = s.stmts[last]
		s.stmts[last] = nil
		s.stmts = s.stmts[:last]
		return
	}
}

// Forget drops all prepared statements. The pipeline must be empty.
func (s *Session) Forget() error {
	if err := s.Exec("DEALLOCATE ALL"); err != nil {
		return err
	}
	s.forgetNames()
	return nil
}

func (s *Session) forgetNames() {
	s.gen++
	clear(s.stmts)
	s.stmts = s.stmts[:0]
	s.clock, s.stmtBytes = 0, 0
}

// begin starts a message; end fills in its length.
func (s *Session) begin(kind byte) int {
	s.out = append(s.out, kind, 0, 0, 0, 0)
	return len(s.out) - 4
}

func (s *Session) end(start int) {
	binary.BigEndian.PutUint32(s.out[start:], uint32(len(s.out)-start))
}
