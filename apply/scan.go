package apply

import (
	"encoding/binary"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/source/pgoutput"
)

// minCopy is the least number of consecutive inserts that go as COPY.
const minCopy = 30

// scanRun counts the messages at the beginning of body that are inserts into
// rel, up to limit. It looks at record headers only.
func scanRun(body []byte, rel change.OID, limit int) int {
	n := 0
	for n < limit && len(body) >= change.RecordOverhead {
		w := binary.BigEndian.Uint32(body)
		size := int(w & (1<<30 - 1))
		if w>>30 != 0 || size > len(body)-change.RecordOverhead {
			break
		}
		msg := body[change.RecordOverhead : change.RecordOverhead+size]
		oid, ok := pgoutput.RelationOID(msg)
		if !ok || pgoutput.Kind(msg[0]) != pgoutput.Insert || oid != rel {
			break
		}
		n++
		body = body[change.RecordOverhead+size:]
	}
	return n
}

// recordsEnd returns where the records of the message that begins at off end.
func recordsEnd(body []byte, off int) int {
	for len(body)-off >= change.RecordOverhead {
		w := binary.BigEndian.Uint32(body[off:])
		off += change.RecordOverhead + int(w&(1<<30-1))
		if w&(1<<31) == 0 {
			break
		}
	}
	return min(off, len(body))
}
