// Package pgoutputtest builds pgoutput messages for tests: what a server would
// send, without a server.
package pgoutputtest

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/walferry/walferry/change"
)

// Marker stands for a column value that is no text.
type Marker byte

// The markers.
const (
	Unchanged Marker = 'u' // an unchanged TOASTed value
)

// Row is the columns of a tuple: nil is NULL, string is text format, []byte is
// binary format, Unchanged is an unchanged TOASTed value.
type Row []any

var be = binary.BigEndian

// Begin builds a Begin message; commit is the commit LSN.
func Begin(commit change.LSN, at time.Time, xid change.XID) []byte {
	b := be.AppendUint64([]byte{'B'}, uint64(commit))
	b = be.AppendUint64(b, Time(at))
	return be.AppendUint32(b, uint32(xid))
}

// Commit builds a Commit message.
func Commit(commit, end change.LSN, at time.Time) []byte {
	b := be.AppendUint64([]byte{'C', 0}, uint64(commit))
	b = be.AppendUint64(b, uint64(end))
	return be.AppendUint64(b, Time(at))
}

// Time is the wire form of a time: microseconds since 2000-01-01 UTC.
func Time(at time.Time) uint64 {
	return uint64(at.UnixMicro() - 946684800*1e6)
}

// Origin builds an Origin message.
func Origin(lsn change.LSN, name string) []byte {
	return text(be.AppendUint64([]byte{'O'}, uint64(lsn)), name)
}

// Relation builds a Relation message.
func Relation(r *change.Relation) []byte {
	b := be.AppendUint32([]byte{'R'}, uint32(r.OID))
	schema := r.Schema
	if schema == "pg_catalog" {
		schema = ""
	}
	b = text(text(b, schema), r.Name)
	b = append(b, byte(r.Identity))
	b = be.AppendUint16(b, uint16(len(r.Columns)))
	for _, c := range r.Columns {
		k := byte(0)
		if c.Key {
			k = 1
		}
		b = text(append(b, k), c.Name)
		b = be.AppendUint32(b, uint32(c.Type))
		b = be.AppendUint32(b, uint32(c.TypeMod))
	}
	return b
}

// Type builds a Type message.
func Type(oid change.OID, schema, name string) []byte {
	return text(text(be.AppendUint32([]byte{'Y'}, uint32(oid)), schema), name)
}

// Insert builds an Insert message.
func Insert(rel change.OID, row Row) []byte {
	b := be.AppendUint32([]byte{'I'}, uint32(rel))
	return tuple(append(b, 'N'), row)
}

// Update builds an Update message. kind is 'K', 'O', or 0 without an old tuple.
func Update(rel change.OID, kind byte, old, row Row) []byte {
	b := be.AppendUint32([]byte{'U'}, uint32(rel))
	if kind != 0 {
		b = tuple(append(b, kind), old)
	}
	return tuple(append(b, 'N'), row)
}

// Delete builds a Delete message. kind is 'K' or 'O'.
func Delete(rel change.OID, kind byte, old Row) []byte {
	b := be.AppendUint32([]byte{'D'}, uint32(rel))
	return tuple(append(b, kind), old)
}

// Truncate builds a Truncate message.
func Truncate(cascade, restart bool, rels ...change.OID) []byte {
	b := be.AppendUint32([]byte{'T'}, uint32(len(rels)))
	o := byte(0)
	if cascade {
		o |= 1
	}
	if restart {
		o |= 2
	}
	b = append(b, o)
	for _, r := range rels {
		b = be.AppendUint32(b, uint32(r))
	}
	return b
}

// Logical builds a logical decoding message.
func Logical(transactional bool, lsn change.LSN, prefix string, content []byte) []byte {
	f := byte(0)
	if transactional {
		f = 1
	}
	b := text(be.AppendUint64([]byte{'M', f}, uint64(lsn)), prefix)
	b = be.AppendUint32(b, uint32(len(content)))
	return append(b, content...)
}

// StreamStart builds a Stream Start message.
func StreamStart(xid change.XID, first bool) []byte {
	f := byte(0)
	if first {
		f = 1
	}
	return append(be.AppendUint32([]byte{'S'}, uint32(xid)), f)
}

// StreamStop builds a Stream Stop message.
func StreamStop() []byte { return []byte{'E'} }

// StreamCommit builds a Stream Commit message.
func StreamCommit(xid change.XID, commit, end change.LSN, at time.Time) []byte {
	b := append(be.AppendUint32([]byte{'c'}, uint32(xid)), 0)
	b = be.AppendUint64(b, uint64(commit))
	b = be.AppendUint64(b, uint64(end))
	return be.AppendUint64(b, Time(at))
}

// StreamAbort builds a Stream Abort message without position.
func StreamAbort(xid, sub change.XID) []byte {
	return be.AppendUint32(be.AppendUint32([]byte{'A'}, uint32(xid)), uint32(sub))
}

// InStream puts the transaction ID of a stream block into a message.
func InStream(xid change.XID, msg []byte) []byte {
	b := be.AppendUint32([]byte{msg[0]}, uint32(xid))
	return append(b, msg[1:]...)
}

func text(b []byte, s string) []byte { return append(append(b, s...), 0) }

func tuple(b []byte, row Row) []byte {
	b = be.AppendUint16(b, uint16(len(row)))
	for _, v := range row {
		switch v := v.(type) {
		case nil:
			b = append(b, 'n')
		case Marker:
			b = append(b, byte(v))
		case string:
			b = append(be.AppendUint32(append(b, 't'), uint32(len(v))), v...)
		case []byte:
			b = append(be.AppendUint32(append(b, 'b'), uint32(len(v))), v...)
		default:
			panic(fmt.Sprintf("pgoutputtest: column of type %T", v))
		}
	}
	return b
}
