package source

import (
	"context"
	"encoding/binary"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/source/pgoutput"
)

// streamed takes a message inside of a stream block.
func (s *session) streamed(ctx context.Context, raw []byte) error {
	switch k := pgoutput.Kind(raw[0]); {
	case k.IsChange(), k == pgoutput.Relation, k == pgoutput.Type:
		if len(raw) < 5 {
			return protocolError("streamed message of %d bytes", len(raw))
		}
		return s.spool.write(pgoutput.StripXID(raw))
	case k == pgoutput.Origin:
		return s.spool.write(0, raw)
	}
	m, err := s.dec.Decode(raw)
	if err != nil {
		return &Error{Kind: ErrProtocol, Err: err, Hint: "please report it with the server's version; nothing was stored"}
	}
	if m.Kind != pgoutput.StreamStop {
		return protocolError("message %s inside of a stream block", m.Kind)
	}
	s.spool.cur = nil
	return nil
}

// streamControl takes a message that begins a stream block or ends a streamed
// transaction.
func (s *session) streamControl(ctx context.Context, m *pgoutput.Message) error {
	if s.spool == nil {
		return nil // PostgreSQL 18's stray abort (CB-018); the decoder refuses the others
	}
	switch m.Kind {
	case pgoutput.StreamStart:
		return s.spool.start(m.XID, m.FirstSegment)
	case pgoutput.StreamAbort:
		return s.spool.abort(m.XID, m.SubXID)
	}
	return s.replay(ctx, *m)
}

// replay sends a spooled transaction the way of one that was not streamed.
func (s *session) replay(ctx context.Context, m pgoutput.Message) error {
	if err := s.findRolledBack(ctx, m.XID); err != nil {
		return err
	}
	m.Kind = pgoutput.Begin
	if err := s.b.begin(&m, beginMessage(&m)); err != nil {
		return err
	}
	s.b.cache.beginReplay()
	keep := map[change.OID]bool{}
	dec := pgoutput.Decoder{Protocol: 1}
	err := s.spool.replay(m.XID, func(raw []byte, aborted, current bool) error {
		k := pgoutput.Kind(raw[0])
		if aborted && k.IsChange() {
			return nil
		}
		if oid, ok := pgoutput.RelationOID(raw); ok && k != pgoutput.Relation {
			return s.b.change(ctx, raw, oid)
		}
		c, err := dec.Decode(raw)
		if err != nil {
			return &Error{Kind: ErrProtocol, Err: err, Hint: "please report it with the server's version; nothing was stored"}
		}
		switch c.Kind {
		case pgoutput.Origin:
			s.b.setOrigin(raw)
			return nil
		case pgoutput.Relation:
			keep[c.RelationOID] = current
			return s.b.relation(ctx, c, raw)
		case pgoutput.Type:
			return s.b.typ(ctx, c, raw)
		case pgoutput.Truncate:
			return s.b.truncate(ctx, c, raw)
		case pgoutput.Logical:
			return s.b.logical(ctx, c, raw)
		}
		return protocolError("message %s in a streamed transaction", c.Kind)
	})
	if err != nil {
		return err
	}
	m.Kind = pgoutput.Commit
	err = s.commit(ctx, &m, commitMessage(&m))
	s.b.cache.endReplay(keep)
	return err
}

func beginMessage(m *pgoutput.Message) []byte {
	b := binary.BigEndian.AppendUint64([]byte{'B'}, uint64(m.LSN))
	b = binary.BigEndian.AppendUint64(b, microsecondsSince2000(m.Time))
	return binary.BigEndian.AppendUint32(b, uint32(m.XID))
}

func commitMessage(m *pgoutput.Message) []byte {
	b := binary.BigEndian.AppendUint64([]byte{'C', 0}, uint64(m.LSN))
	b = binary.BigEndian.AppendUint64(b, uint64(m.EndLSN))
	return binary.BigEndian.AppendUint64(b, microsecondsSince2000(m.Time))
}
