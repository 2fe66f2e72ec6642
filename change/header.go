package change

import (
	"fmt"
	"hash/crc32"
	"strconv"
	"time"
)

// FormatVersion is the version of the batch format that this package writes.
const FormatVersion = 1

// Names of the message headers. Every one is written with each batch, but for
// those of chunks.
const (
	HeaderVersion    = "Walferry-Version"
	HeaderSystem     = "Walferry-System"
	HeaderTimeline   = "Walferry-Timeline"
	HeaderPrev       = "Walferry-Prev"
	HeaderFirst      = "Walferry-First"
	HeaderLast       = "Walferry-Last"
	HeaderEnd        = "Walferry-End"
	HeaderTxns       = "Walferry-Txns"
	HeaderRows       = "Walferry-Rows"
	HeaderTotal      = "Walferry-Total"
	HeaderCommitTime = "Walferry-Commit-Time"
	HeaderXID        = "Walferry-Xid"
	HeaderChunk      = "Walferry-Chunk"    // "<number> open" or "<number> last"; chunks only
	HeaderTxMsgs     = "Walferry-Tx-Msgs"  // chunks only
	HeaderTxCRC      = "Walferry-Tx-Crc"   // chunks only
	HeaderChecksum   = "Walferry-Checksum" // CRC-32C over the other headers and the body
)

// BatchHeader describes one batch.
//
// Three kinds exist. A packed batch holds whole transactions. A mark is a
// packed batch without any: it says that nothing published was committed
// between Prev and End. A chunk is one part of a transaction that is larger
// than a batch.
type BatchHeader struct {
	Version  int
	System   uint64 // system identifier of the publisher's cluster
	Timeline uint32

	// Prev is the End of the predecessor batch, or the starting point of the
	// slot for the first batch of a stream.
	Prev LSN
	// First and Last are the commit LSNs of the first and last transaction
	// (of the transaction, for a chunk; zero in a mark).
	First, Last LSN
	// End is the end LSN of the last transaction that this batch completes.
	// A chunk that leaves its transaction open has End = Prev.
	End LSN

	Txns       int       // transactions that end in this batch
	Rows       int       // row changes and truncates in this batch
	Total      uint64    // transactions that ended in the stream up to and with this batch, since it was made
	CommitTime time.Time // of the last transaction, microseconds, UTC; zero in a mark
	XID        XID       // of the last transaction

	Chunked bool
	Chunk   int  // number of the chunk, from 0
	Open    bool // more chunks follow
	// TxMsgs and TxCRC run over the change messages (I, U, D, T, M) of a
	// chunked transaction up to the end of this chunk: their number and the
	// CRC-32C over their bytes. With them a reader that is restarted
	// in the middle of a transaction goes on behind the last stored chunk.
	TxMsgs uint64
	TxCRC  uint32
}

// IsMark reports whether the batch holds no transaction and only moves End.
func (h *BatchHeader) IsMark() bool { return !h.Chunked && h.Txns == 0 }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// UpdateCRC adds b to a running CRC-32C.
func UpdateCRC(crc uint32, b []byte) uint32 { return crc32.Update(crc, castagnoli, b) }

// Fields calls set for each header of the batch, in a fixed order, checksum
// last. The checksum covers all fields before it, and the body.
func (h *BatchHeader) Fields(body []byte, set func(key, value string)) {
	crc := uint32(0)
	h.fields(func(k, v string) {
		crc = sumField(crc, k, v)
		set(k, v)
	})
	crc = UpdateCRC(crc, body)
	set(HeaderChecksum, fmt.Sprintf("%08x", crc))
}

func sumField(crc uint32, k, v string) uint32 {
	crc = UpdateCRC(crc, []byte(k))
	crc = UpdateCRC(crc, []byte{':'})
	crc = UpdateCRC(crc, []byte(v))
	return UpdateCRC(crc, []byte{'\n'})
}

func (h *BatchHeader) fields(set func(key, value string)) {
	set(HeaderVersion, strconv.Itoa(h.Version))
	set(HeaderSystem, strconv.FormatUint(h.System, 10))
	set(HeaderTimeline, strconv.FormatUint(uint64(h.Timeline), 10))
	set(HeaderPrev, h.Prev.String())
	set(HeaderFirst, h.First.String())
	set(HeaderLast, h.Last.String())
	set(HeaderEnd, h.End.String())
	set(HeaderTxns, strconv.Itoa(h.Txns))
	set(HeaderRows, strconv.Itoa(h.Rows))
	set(HeaderTotal, strconv.FormatUint(h.Total, 10))
	t := ""
	if !h.CommitTime.IsZero() {
		t = h.CommitTime.UTC().Format(timeFormat)
	}
	set(HeaderCommitTime, t)
	set(HeaderXID, strconv.FormatUint(uint64(h.XID), 10))
	if h.Chunked {
		state := "last"
		if h.Open {
			state = "open"
		}
		set(HeaderChunk, strconv.Itoa(h.Chunk)+" "+state)
		set(HeaderTxMsgs, strconv.FormatUint(h.TxMsgs, 10))
		set(HeaderTxCRC, fmt.Sprintf("%08x", h.TxCRC))
	}
}

const timeFormat = "2006-01-02T15:04:05.000000Z"

// A CorruptError says that a stored batch is not what walferry wrote: bytes
// were changed, cut or written by something else.
type CorruptError struct {
	Field  string // header, or "body"
	Reason string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("corrupt batch: %s: %s", e.Field, e.Reason)
}

// ParseHeader reads and verifies the headers of a stored batch; get returns
// "" for a header that is missing. The error is a [*CorruptError], or a
// [*VersionError] when a newer walferry wrote the batch.
func ParseHeader(get func(key string) string, body []byte) (BatchHeader, error) {
	p := headerParser{get: get}
	var h BatchHeader
	h.Version = int(p.uint(HeaderVersion, 31))
	if p.err == nil && h.Version != FormatVersion {
		return h, &VersionError{Got: h.Version}
	}
	h.System = p.uint(HeaderSystem, 64)
	h.Timeline = uint32(p.uint(HeaderTimeline, 32))
	h.Prev = p.lsn(HeaderPrev)
	h.First = p.lsn(HeaderFirst)
	h.Last = p.lsn(HeaderLast)
	h.End = p.lsn(HeaderEnd)
	h.Txns = int(p.uint(HeaderTxns, 31))
	h.Rows = int(p.uint(HeaderRows, 31))
	h.Total = p.uint(HeaderTotal, 64)
	h.CommitTime = p.time(HeaderCommitTime)
	h.XID = XID(p.uint(HeaderXID, 32))
	if c := get(HeaderChunk); c != "" {
		p.chunk(c, &h)
		h.TxMsgs = p.uint(HeaderTxMsgs, 64)
		h.TxCRC = p.hex(HeaderTxCRC)
	}
	sum := p.hex(HeaderChecksum)
	if p.err != nil {
		return h, p.err
	}
	crc := uint32(0)
	h.fields(func(k, v string) { crc = sumField(crc, k, v) })
	crc = UpdateCRC(crc, body)
	if crc != sum {
		return h, &CorruptError{Field: HeaderChecksum, Reason: fmt.Sprintf("stored %08x, computed %08x over %d bytes", sum, crc, len(body))}
	}
	return h, nil
}

// A VersionError says that a batch has a format this walferry does not know.
type VersionError struct{ Got int }

func (e *VersionError) Error() string {
	return fmt.Sprintf("batch format version %d is not known to this walferry, which reads version %d: run a walferry at least as new as the one that wrote the queue", e.Got, FormatVersion)
}

// headerParser keeps the first error.
type headerParser struct {
	get func(string) string
	err error
}

func (p *headerParser) fail(field, reason string) {
	if p.err == nil {
		p.err = &CorruptError{Field: field, Reason: reason}
	}
}

func (p *headerParser) value(field string) (string, bool) {
	v := p.get(field)
	if v == "" {
		p.fail(field, "missing")
		return "", false
	}
	return v, true
}

func (p *headerParser) uint(field string, bits int) uint64 {
	v, ok := p.value(field)
	if !ok {
		return 0
	}
	n, err := strconv.ParseUint(v, 10, bits)
	if err != nil {
		p.fail(field, fmt.Sprintf("%q is not a number", v))
	}
	return n
}

func (p *headerParser) hex(field string) uint32 {
	v, ok := p.value(field)
	if !ok {
		return 0
	}
	n, err := strconv.ParseUint(v, 16, 32)
	if err != nil {
		p.fail(field, fmt.Sprintf("%q is not a checksum", v))
	}
	return uint32(n)
}

func (p *headerParser) lsn(field string) LSN {
	v, ok := p.value(field)
	if !ok {
		return 0
	}
	l, err := ParseLSN(v)
	if err != nil {
		p.fail(field, err.Error())
	}
	return l
}

func (p *headerParser) time(field string) time.Time {
	v := p.get(field) // empty in a mark
	if v == "" {
		return time.Time{}
	}
	t, err := time.Parse(timeFormat, v)
	if err != nil {
		p.fail(field, fmt.Sprintf("%q is not a time", v))
	}
	return t
}

func (p *headerParser) chunk(v string, h *BatchHeader) {
	h.Chunked = true
	var state string
	if n, err := fmt.Sscanf(v, "%d %s", &h.Chunk, &state); err != nil || n != 2 || h.Chunk < 0 || (state != "open" && state != "last") {
		p.fail(HeaderChunk, fmt.Sprintf("%q is not a chunk number and state", v))
	}
	h.Open = state == "open"
}
