package pgoutput

import (
	"fmt"
	"time"

	"github.com/walferry/walferry/change"
)

// Decoder decodes the messages of one stream in their order. It remembers
// whether a stream block is open, as that changes the layout of messages. The
// zero value decodes protocol version 1.
type Decoder struct {
	// Protocol is the version asked for with proto_version. 0 means 1.
	Protocol int
	// StrayAborts counts Stream Aborts that were received without streaming.
	StrayAborts int

	inStream bool
	msg      Message
	old, new []change.Value
	rels     []change.OID
}

// InStream reports whether a stream block is open.
func (d *Decoder) InStream() bool { return d.inStream }

// Reset forgets an open stream block, for a new connection.
func (d *Decoder) Reset() { d.inStream = false }

// A DecodeError says that bytes are no message of the protocol.
type DecodeError struct {
	Kind   Kind
	Reason string
	Hex    string // the first bytes of the message
	Length int    // of the message, in bytes
}

func (e *DecodeError) Error() string {
	return fmt.Sprintf("decode pgoutput message %s: %s (%d bytes: %s)", e.Kind, e.Reason, e.Length, e.Hex)
}

// Decode decodes one message. The result borrows from b and is valid until b
// is changed or Decode is called again. The error is a [*DecodeError].
func (d *Decoder) Decode(b []byte) (*Message, error) {
	if len(b) == 0 {
		return nil, &DecodeError{Reason: "empty message"}
	}
	m := &d.msg
	*m = Message{Kind: Kind(b[0])}
	r := reader{b: b[1:]}
	if need := minProtocol(m.Kind); need > max(d.Protocol, 1) {
		r.fail("needs protocol version %d, this stream has %d", need, max(d.Protocol, 1))
		return nil, r.error(b)
	}
	if d.inStream && m.Kind.hasXID() {
		m.XID, m.Streamed = change.XID(r.u32()), true
	}
	d.body(m, &r)
	if r.reason == "" && len(r.b) > 0 {
		r.fail("%d bytes left over", len(r.b))
	}
	if r.reason != "" {
		return nil, r.error(b)
	}
	switch m.Kind {
	case StreamStart:
		d.inStream = true
	case StreamStop:
		d.inStream = false
	case StreamAbort:
		if d.Protocol < 2 {
			d.StrayAborts++
		}
	}
	return m, nil
}

func minProtocol(k Kind) int {
	switch k {
	case StreamStart, StreamStop, StreamCommit:
		return 2
	case BeginPrepare, Prepare, CommitPrepared, RollbackPrepared, StreamPrepare:
		return 3
	}
	return 1
}

// body decodes what follows the kind and the transaction ID.
func (d *Decoder) body(m *Message, r *reader) {
	switch m.Kind {
	case Begin:
		m.LSN, m.Time, m.XID = r.lsn(), r.time(), change.XID(r.u32())
	case Commit:
		r.u8() // flags, unused
		m.LSN, m.EndLSN, m.Time = r.lsn(), r.lsn(), r.time()
	case Origin:
		m.LSN, m.OriginName = r.lsn(), r.text()
	case Relation:
		m.Relation = r.relation()
		if m.Relation != nil {
			m.RelationOID = m.Relation.OID
		}
	case Type:
		m.TypeOID, m.TypeSchema, m.TypeName = change.OID(r.u32()), schemaName(r.text()), string(r.text())
	case Insert:
		m.RelationOID = change.OID(r.u32())
		r.expect('N')
		d.new = r.tuple(d.new)
		m.New = d.new
	case Update:
		d.update(m, r)
	case Delete:
		m.RelationOID = change.OID(r.u32())
		d.oldTuple(m, r, r.u8())
	case Truncate:
		d.truncate(m, r)
	case Logical:
		m.Transactional = r.flag()
		m.LSN, m.Prefix = r.lsn(), r.text()
		m.Content = r.bytes(r.length())
	case StreamStart:
		if d.inStream {
			r.fail("inside a stream block")
		}
		m.XID, m.FirstSegment = change.XID(r.u32()), r.flag()
	case StreamStop:
		if !d.inStream {
			r.fail("outside a stream block")
		}
	case StreamCommit:
		m.XID = change.XID(r.u32())
		r.u8()
		m.LSN, m.EndLSN, m.Time = r.lsn(), r.lsn(), r.time()
	case StreamAbort:
		m.XID, m.SubXID = change.XID(r.u32()), change.XID(r.u32())
		if len(r.b) > 0 { // streaming 'parallel'
			m.AbortInfo, m.LSN, m.Time = true, r.lsn(), r.time()
		}
	case BeginPrepare:
		r.prepare(m)
	case Prepare, CommitPrepared, StreamPrepare:
		r.u8()
		r.prepare(m)
	case RollbackPrepared:
		r.u8()
		m.LSN, m.EndLSN = r.lsn(), r.lsn()
		m.Time, m.RollbackTime = r.time(), r.time()
		m.XID, m.GID = change.XID(r.u32()), string(r.text())
	default:
		r.fail("unknown kind")
	}
}

func (d *Decoder) update(m *Message, r *reader) {
	m.RelationOID = change.OID(r.u32())
	k := r.u8()
	if k == byte(OldKey) || k == byte(OldRow) {
		d.oldTuple(m, r, k)
		k = r.u8()
	}
	if k != 'N' {
		r.fail("%s where the new row begins", quoteByte(k))
	}
	d.new = r.tuple(d.new)
	m.New = d.new
}

func (d *Decoder) oldTuple(m *Message, r *reader, k byte) {
	if k != byte(OldKey) && k != byte(OldRow) {
		r.fail("%s where the old row begins", quoteByte(k))
		return
	}
	m.OldKind = OldKind(k)
	d.old = r.tuple(d.old)
	m.Old = d.old
}

func (d *Decoder) truncate(m *Message, r *reader) {
	n := int64(r.u32())
	options := r.u8()
	if options > 3 {
		r.fail("unknown option bits %#x", options)
	}
	m.Cascade, m.RestartIdentity = options&1 != 0, options&2 != 0
	if n*4 > int64(len(r.b)) {
		r.fail("%d relations in %d bytes", n, len(r.b))
		return
	}
	d.rels = d.rels[:0]
	for range n {
		d.rels = append(d.rels, change.OID(r.u32()))
	}
	m.Relations = d.rels
}

// reader takes fields off the front of a message. After the first failure it
// returns zero values.
type reader struct {
	b      []byte
	reason string
}

func (r *reader) fail(format string, args ...any) {
	if r.reason == "" {
		r.reason = fmt.Sprintf(format, args...)
	}
	r.b = nil
}

func (r *reader) error(msg []byte) error {
	return &DecodeError{Kind: Kind(msg[0]), Reason: r.reason, Hex: fmt.Sprintf("% x", msg[:min(len(msg), 32)]), Length: len(msg)}
}

func (r *reader) bytes(n int) []byte {
	if n > len(r.b) {
		r.fail("%d bytes wanted, %d left", n, len(r.b))
		return nil
	}
	v := r.b[:n:n]
	r.b = r.b[n:]
	return v
}

// pgEpoch is 2000-01-01, where PostgreSQL's timestamps begin, in Unix seconds.
const pgEpoch = 946684800

func (r *reader) time() time.Time {
	us := int64(r.u64())
	s, f := us/1e6, us%1e6
	return time.Unix(pgEpoch+s, f*1000).UTC()
}

// text reads up to a zero byte.
func (r *reader) text() []byte {
	for i, c := range r.b {
		if c == 0 {
			v := r.b[:i:i]
			r.b = r.b[i+1:]
			return v
		}
	}
	r.fail("text without end")
	return nil
}

func (r *reader) flag() bool {
	v := r.u8()
	if v > 1 {
		r.fail("%#x where 0 or 1 is due", v)
	}
	return v == 1
}

func (r *reader) expect(k byte) {
	if got := r.u8(); got != k {
		r.fail("%s where %s is due", quoteByte(got), quoteByte(k))
	}
}

func (r *reader) prepare(m *Message) {
	m.LSN, m.EndLSN, m.Time = r.lsn(), r.lsn(), r.time()
	m.XID, m.GID = change.XID(r.u32()), string(r.text())
}

func quoteByte(b byte) string {
	if b > ' ' && b < 0x7f {
		return "'" + string(rune(b)) + "'"
	}
	return fmt.Sprintf("byte %#02x", b)
}

// schemaName gives the schema its name: the wire says "" for pg_catalog.
func schemaName(b []byte) string {
	if len(b) == 0 {
		return "pg_catalog"
	}
	return string(b)
}
