package pgoutput

import (
	"encoding/binary"

	"github.com/walferry/walferry/change"
)

func (r *reader) u8() byte {
	if len(r.b) < 1 {
		r.fail("ends too early")
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	return v
}

func (r *reader) u16() uint16 {
	if len(r.b) < 2 {
		r.fail("ends too early")
		return 0
	}
	v := binary.BigEndian.Uint16(r.b)
	r.b = r.b[2:]
	return v
}

func (r *reader) u32() uint32 {
	if len(r.b) < 4 {
		r.fail("ends too early")
		return 0
	}
	v := binary.BigEndian.Uint32(r.b)
	r.b = r.b[4:]
	return v
}

func (r *reader) u64() uint64 {
	if len(r.b) < 8 {
		r.fail("ends too early")
		return 0
	}
	v := binary.BigEndian.Uint64(r.b)
	r.b = r.b[8:]
	return v
}

func (r *reader) lsn() change.LSN { return change.LSN(r.u64()) }

// length reads a length in bytes; the wire has it signed.
func (r *reader) length() int {
	n := r.u32()
	if n > 1<<31-1 {
		r.fail("negative length")
		return 0
	}
	return int(n)
}

// tuple reads the columns of a row into dst, which is reused.
func (r *reader) tuple(dst []change.Value) []change.Value {
	n := int(r.u16())
	dst = dst[:0]
	if n > len(r.b) {
		r.fail("%d columns in %d bytes", n, len(r.b))
		return dst
	}
	b := r.b
	for range n {
		if len(b) == 0 {
			r.fail("row ends too early")
			return dst
		}
		switch k := change.ValueKind(b[0]); k {
		case change.Null, change.Unchanged:
			dst = append(dst, change.Value{Kind: k})
			b = b[1:]
		case change.Text, change.Binary:
			if len(b) < 5 {
				r.fail("row ends too early")
				return dst
			}
			l := uint64(binary.BigEndian.Uint32(b[1:]))
			if l > uint64(len(b)-5) {
				r.fail("value of %d bytes where %d are left", l, len(b)-5)
				return dst
			}
			dst = append(dst, change.Value{Kind: k, Data: b[5 : 5+l : 5+l]})
			b = b[5+l:]
		default:
			r.fail("unknown kind of column %s", quoteByte(b[0]))
			return dst
		}
	}
	r.b = b
	return dst
}

// minColumn is the least a column of a Relation takes: flags, empty name,
// type and modifier.
const minColumn = 1 + 1 + 4 + 4

func (r *reader) relation() *change.Relation {
	rel := &change.Relation{OID: change.OID(r.u32()), Schema: schemaName(r.text()), Name: string(r.text())}
	rel.Identity = change.ReplicaIdentity(r.u8())
	switch rel.Identity {
	case change.IdentityDefault, change.IdentityNothing, change.IdentityFull, change.IdentityIndex:
	default:
		r.fail("unknown replica identity %s", quoteByte(byte(rel.Identity)))
	}
	n := int(r.u16())
	if n*minColumn > len(r.b) {
		r.fail("%d columns in %d bytes", n, len(r.b))
	}
	if r.reason != "" {
		return nil
	}
	rel.Columns = make([]change.Column, n)
	for i := range rel.Columns {
		rel.Columns[i] = change.Column{
			Key:  r.u8()&1 != 0,
			Name: string(r.text()), Type: change.OID(r.u32()), TypeMod: int32(r.u32()),
		}
	}
	return rel
}
