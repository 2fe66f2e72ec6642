package pgoutput

import (
	"time"

	"github.com/walferry/walferry/change"
)

// Kind is the first byte of a message.
type Kind byte

// The kinds of messages. Protocol 2 added the streaming of transactions in
// progress, protocol 3 prepared transactions, protocol 4 the position of an
// abort.
const (
	Begin            Kind = 'B'
	Commit           Kind = 'C'
	Origin           Kind = 'O'
	Relation         Kind = 'R'
	Type             Kind = 'Y'
	Insert           Kind = 'I'
	Update           Kind = 'U'
	Delete           Kind = 'D'
	Truncate         Kind = 'T'
	Logical          Kind = 'M' // pg_logical_emit_message
	StreamStart      Kind = 'S'
	StreamStop       Kind = 'E'
	StreamCommit     Kind = 'c'
	StreamAbort      Kind = 'A'
	BeginPrepare     Kind = 'b'
	Prepare          Kind = 'P'
	CommitPrepared   Kind = 'K'
	RollbackPrepared Kind = 'r'
	StreamPrepare    Kind = 'p'
)

// String names the kind as PostgreSQL's documentation does.
func (k Kind) String() string {
	if n, ok := kindNames[k]; ok {
		return n
	}
	return "unknown " + quoteByte(byte(k))
}

var kindNames = map[Kind]string{
	Begin: "Begin", Commit: "Commit", Origin: "Origin", Relation: "Relation", Type: "Type",
	Insert: "Insert", Update: "Update", Delete: "Delete", Truncate: "Truncate", Logical: "Message",
	StreamStart: "Stream Start", StreamStop: "Stream Stop", StreamCommit: "Stream Commit", StreamAbort: "Stream Abort",
	BeginPrepare: "Begin Prepare", Prepare: "Prepare", CommitPrepared: "Commit Prepared",
	RollbackPrepared: "Rollback Prepared", StreamPrepare: "Stream Prepare",
}

// OldKind says what the old tuple of an update or delete holds.
type OldKind byte

// The kinds of old tuples.
const (
	NoOld  OldKind = 0   // an update that left the replica identity as it was
	OldKey OldKind = 'K' // the columns of the replica identity; the others are Null and mean nothing
	OldRow OldKind = 'O' // the whole row (REPLICA IDENTITY FULL)
)

// Message is a union of all messages. Which fields are set is said by Kind;
// the others are zero.
type Message struct {
	Kind Kind

	// XID is the transaction of Begin, of the stream and prepare kinds, and the
	// (sub)transaction that precedes a message inside a stream block.
	XID      change.XID
	Streamed bool       // the message stood inside a stream block
	SubXID   change.XID // Stream Abort: what is aborted; equal to XID for the whole transaction

	// LSN is the commit LSN of Begin (final_lsn), Commit, Stream Commit and
	// Commit Prepared, the prepare LSN of Begin Prepare, Prepare and Stream
	// Prepare, the end of the prepare for Rollback Prepared, the commit LSN at
	// the origin for Origin, the position of a logical message, and the abort
	// LSN of a Stream Abort that has one.
	LSN change.LSN
	// EndLSN is the first byte after the record that LSN is the start of;
	// for Rollback Prepared it is the end of the rollback record.
	EndLSN change.LSN
	// Time is when it happened, in microseconds, UTC; for Rollback Prepared
	// the time of the prepare. Zero in kinds without.
	Time         time.Time
	RollbackTime time.Time // Rollback Prepared
	AbortInfo    bool      // Stream Abort: LSN and Time are there
	FirstSegment bool      // Stream Start: the first block of its transaction
	GID          string    // prepare kinds

	RelationOID change.OID       // Relation, Insert, Update, Delete
	Relation    *change.Relation // Relation; owned by the caller, never changed again
	OldKind     OldKind          // Update, Delete
	Old, New    []change.Value   // borrowed, see the package comment

	Relations       []change.OID // Truncate; overwritten by the next call
	Cascade         bool         // Truncate
	RestartIdentity bool         // Truncate

	TypeOID    change.OID // Type
	TypeSchema string     // Type
	TypeName   string     // Type

	Transactional bool   // Logical
	Prefix        []byte // Logical; borrowed
	Content       []byte // Logical; borrowed
	OriginName    []byte // Origin; borrowed
}

// IsChange reports whether the kind is a change of a transaction: a row
// change, a truncate or a logical message.
func (k Kind) IsChange() bool {
	switch k {
	case Insert, Update, Delete, Truncate, Logical:
		return true
	}
	return false
}

// hasXID reports whether the kind carries a transaction ID inside a stream
// block.
func (k Kind) hasXID() bool { return k.IsChange() || k == Relation || k == Type }
