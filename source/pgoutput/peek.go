package pgoutput

import (
	"encoding/binary"

	"github.com/walferry/walferry/change"
)

// RelationOID reads the relation of a Relation, Insert, Update or Delete
// outside a stream block without decoding it. ok is false for other kinds and
// for messages that are too short.
func RelationOID(msg []byte) (oid change.OID, ok bool) {
	if len(msg) < 5 {
		return 0, false
	}
	switch Kind(msg[0]) {
	case Relation, Insert, Update, Delete:
		return change.OID(binary.BigEndian.Uint32(msg[1:])), true
	}
	return 0, false
}

// StripXID turns a message of a stream block into the bytes that protocol
// version 1 has for it, and returns the transaction ID that it carried. The
// work is done in place: msg is changed and out is a part of it. Kinds that
// carry none are returned as they are, with XID 0.
func StripXID(msg []byte) (xid change.XID, out []byte) {
	if len(msg) < 5 || !Kind(msg[0]).hasXID() {
		return 0, msg
	}
	xid = change.XID(binary.BigEndian.Uint32(msg[1:]))
	msg[4] = msg[0]
	return xid, msg[4:]
}
