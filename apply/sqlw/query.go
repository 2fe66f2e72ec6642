package sqlw

import (
	"encoding/binary"
	"fmt"

	"github.com/jackc/pgx/v5/pgproto3"
)

// Exec runs one or more statements without parameters and drops their rows.
// Everything queued before is finished first.
func (s *Session) Exec(sql string) error {
	if err := s.settle(); err != nil {
		return err
	}
	start := s.begin('Q')
	s.out = append(s.out, sql...)
	s.out = append(s.out, 0)
	s.end(start)
	_, err := s.simple(nil)
	return err
}

// Query runs one statement with text parameters and returns its rows; nil is
// NULL. Everything queued before is finished first; a transaction stays open.
func (s *Session) Query(sql string, args ...string) ([][][]byte, error) {
	if err := s.settle(); err != nil {
		return nil, err
	}
	start := s.begin('P')
	s.out = append(s.out, 0)
	s.out = append(s.out, sql...)
	s.out = append(s.out, 0, 0, 0)
	s.end(start)
	return s.rows("", args)
}

// QueryStmt is Query for a statement that stays prepared.
func (s *Session) QueryStmt(st *Stmt, args ...string) ([][][]byte, error) {
	if err := s.settle(); err != nil {
		return nil, err
	}
	s.prepare(st)
	return s.rows(st.name, args)
}

// rows binds and executes a prepared statement.
func (s *Session) rows(name string, args []string) ([][][]byte, error) {
	start := s.begin('B')
	s.out = append(s.out, 0)
	s.out = append(s.out, name...)
	s.out = append(s.out, 0, 0, 0)
	s.out = binary.BigEndian.AppendUint16(s.out, uint16(len(args)))
	for _, a := range args {
		s.out = binary.BigEndian.AppendUint32(s.out, uint32(len(a)))
		s.out = append(s.out, a...)
	}
	s.out = append(s.out, 0, 0)
	s.end(start)
	s.out = append(s.out, execute...)
	s.out = append(s.out, 'S', 0, 0, 0, 4)
	var rows [][][]byte
	_, err := s.simple(func(v [][]byte) {
		row := make([][]byte, len(v))
		for i := range v {
			if v[i] != nil {
				row[i] = append([]byte{}, v[i]...)
			}
		}
		rows = append(rows, row)
	})
	if err != nil {
		return nil, err
	}
	return rows, nil
}

// settle finishes what is queued.
func (s *Session) settle() error {
	if s.ring.size == 0 && len(s.out) == 0 && len(s.batches) == 0 && s.failed == nil {
		return s.broken
	}
	return s.Sync()
}

// simple sends what is queued and reads until the server is ready. It returns
// the number of rows of the last command.
func (s *Session) simple(row func([][]byte)) (int64, error) {
	if err := s.push(); err != nil {
		return 0, err
	}
	var count int64
	var failed error
	for {
		m, err := s.fe.Receive()
		if err != nil {
			return 0, s.broke(err)
		}
		switch m := m.(type) {
		case *pgproto3.DataRow:
			if row != nil {
				row(m.Values)
			}
		case *pgproto3.CommandComplete:
			count = tagRows(m.CommandTag)
		case *pgproto3.ErrorResponse:
			e := pgError(m)
			if e.Severity == "FATAL" || e.SeverityUnlocalized == "FATAL" {
				return 0, s.broke(e)
			}
			if failed == nil {
				failed = e
			}
		case *pgproto3.CopyInResponse:
			return 0, s.broke(fmt.Errorf("unexpected COPY"))
		case *pgproto3.ReadyForQuery:
			s.status = m.TxStatus
			return count, failed
		}
	}
}

// Rollback gives up the transaction and everything queued. The pipeline works
// again afterwards; statements that were prepared meanwhile are prepared anew.
func (s *Session) Rollback() error {
	if s.broken != nil {
		return s.broken
	}
	if s.copying {
		s.closeCopyData()
		s.copying = false
		fail := s.begin('f')
		s.out = append(s.out, "given up"...)
		s.out = append(s.out, 0)
		s.end(fail)
	}
	_ = s.Sync() // the error was reported where it arose
	if s.broken != nil {
		return s.broken
	}
	if s.status != 'I' {
		if err := s.Exec("ROLLBACK"); err != nil {
			return err
		}
	}
	return s.Forget()
}
