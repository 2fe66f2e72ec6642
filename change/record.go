package change

import (
	"encoding/binary"
	"fmt"
)

// A record of a batch body is a four-byte big-endian word and payload. The two
// top bits of the word say how the payload relates to its message, the other
// thirty are its length in bytes.
const (
	recordMore   = 1 << 31 // the message goes on in the next record
	recordCont   = 1 << 30 // this is not the first part of the message
	recordLength = recordCont - 1

	// RecordOverhead is what a record adds to its payload, in bytes.
	RecordOverhead = 4
	// MaxRecord is the longest payload of one record, in bytes.
	MaxRecord = recordLength
)

// AppendRecord appends msg as one whole record to body and returns the
// extended slice. msg must be at most MaxRecord bytes long and is copied.
func AppendRecord(body, msg []byte) []byte {
	body = binary.BigEndian.AppendUint32(body, uint32(len(msg)))
	return append(body, msg...)
}

// AppendPart appends one part of a message that does not fit one batch. first
// and last say whether the part begins or ends the message.
func AppendPart(body, part []byte, first, last bool) []byte {
	w := uint32(len(part))
	if !first {
		w |= recordCont
	}
	if !last {
		w |= recordMore
	}
	body = binary.BigEndian.AppendUint32(body, w)
	return append(body, part...)
}

// MaxMessage bounds a message that is put together from parts, in bytes.
// PostgreSQL builds a message in one allocation, of less than 1 GiB.
const MaxMessage = 1 << 30

// Messages walks over the messages of the bodies of successive batches and
// puts together those that were stored in parts. The zero value is ready.
//
// A message in parts is held once: Measure says how much room to make for it.
type Messages struct {
	// Measure, if set, is told the parts of each such message.
	Measure Measure

	body  []byte
	whole []byte // copy of the parts of an unfinished message
	open  bool   // a message has begun
}

// Measure tells from its beginning how much room a message takes.
type Measure interface {
	// Reset begins with another message.
	Reset()
	// Feed takes the next part and returns for how many bytes to make room.
	Feed(part []byte) int
}

// Reset begins with a new body. A message that the previous body left
// unfinished is continued. The body is borrowed until the next Reset.
func (m *Messages) Reset(body []byte) { m.body = body }

// Discard forgets a message that was left unfinished and the rest of the body.
func (m *Messages) Discard() {
	m.body = nil
	m.drop()
}

func (m *Messages) drop() { m.whole, m.open = nil, false }

// Partial reports whether a message has begun and its last part is missing.
func (m *Messages) Partial() bool { return m.open }

// Next returns the next whole message, or nil at the end of the body. The
// message is valid until the next call of Next, Reset or Discard. The error is
// a [*CorruptError].
func (m *Messages) Next() ([]byte, error) {
	for len(m.body) > 0 {
		if len(m.body) < RecordOverhead {
			return nil, &CorruptError{Field: "body", Reason: fmt.Sprintf("%d bytes where a record begins", len(m.body))}
		}
		w := binary.BigEndian.Uint32(m.body)
		n := int(w & recordLength)
		if n == 0 || n > len(m.body)-RecordOverhead {
			return nil, &CorruptError{Field: "body", Reason: fmt.Sprintf("record of %d bytes where %d remain", n, len(m.body)-RecordOverhead)}
		}
		payload := m.body[RecordOverhead : RecordOverhead+n]
		m.body = m.body[RecordOverhead+n:]
		cont, more := w&recordCont != 0, w&recordMore != 0
		if cont != m.open {
			return nil, &CorruptError{Field: "body", Reason: "part of a message without its neighbour"}
		}
		if !cont && !more {
			return payload, nil
		}
		if len(m.whole)+n > MaxMessage {
			return nil, &CorruptError{Field: "body", Reason: fmt.Sprintf("message of more than %d bytes", MaxMessage)}
		}
		if m.add(payload, !cont); more {
			m.open = true
			continue
		}
		whole := m.whole
		m.drop()
		return whole, nil
	}
	return nil, nil
}

// add copies a part. A buffer that is too short is replaced by one that holds
// what Measure knows of, and some more for what it does not know yet.
func (m *Messages) add(part []byte, first bool) {
	need, reach := len(m.whole)+len(part), 0
	if m.Measure != nil {
		if first {
			m.Measure.Reset()
		}
		reach = m.Measure.Feed(part)
	}
	if need > cap(m.whole) {
		size := need + need/4
		if reach > need {
			size = reach + reach/64
		}
		m.whole = append(make([]byte, 0, min(max(size, need), MaxMessage)), m.whole...)
	}
	m.whole = append(m.whole, part...)
}
