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
type Messages struct {
	body  []byte
	parts [][]byte // copies of the parts of an unfinished message
	size  int      // of all parts, in bytes
	open  bool     // a message has begun
}

// Reset begins with a new body. A message that the previous body left
// unfinished is continued. The body is borrowed until the next Reset.
func (m *Messages) Reset(body []byte) { m.body = body }

// Discard forgets a message that was left unfinished and the rest of the body.
func (m *Messages) Discard() {
	m.body = nil
	m.drop()
}

func (m *Messages) drop() { m.parts, m.size, m.open = nil, 0, false }

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
		if m.size += n; m.size > MaxMessage {
			return nil, &CorruptError{Field: "body", Reason: fmt.Sprintf("message of more than %d bytes", MaxMessage)}
		}
		if more {
			m.parts, m.open = append(m.parts, append([]byte(nil), payload...)), true
			continue
		}
		return m.join(payload), nil
	}
	return nil, nil
}

// join puts the parts and the last one together. Every byte is copied twice
// however many parts there are.
func (m *Messages) join(last []byte) []byte {
	whole := make([]byte, 0, m.size)
	for i, p := range m.parts {
		whole = append(whole, p...)
		m.parts[i] = nil
	}
	whole = append(whole, last...)
	m.drop()
	return whole
}
