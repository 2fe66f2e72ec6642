package source

import (
	"bytes"
	"encoding/binary"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/source/pgoutput"
)

// catalog keeps the Relation and Type messages of a session, and which of them
// the batch under construction has.
type catalog struct {
	gen       uint64 // of the batch; entries with another one are not in it
	relations map[change.OID]*relation
	types     map[change.OID]*typeEntry

	// overlay hides relations while a spooled transaction is replayed.
	overlay map[change.OID]*relation

	lastOID change.OID // what find answered last
	last    *relation
}

type relation struct {
	raw     []byte
	types   []change.OID // of its columns
	ignored bool
	gen     uint64
}

type typeEntry struct {
	raw []byte
	gen uint64
}

func newCatalog() catalog {
	return catalog{gen: 1, relations: map[change.OID]*relation{}, types: map[change.OID]*typeEntry{}}
}

func (c *catalog) newBatch() { c.gen++ }

// find returns the relation, or nil.
func (c *catalog) find(oid change.OID) *relation {
	if oid == c.lastOID && c.last != nil {
		return c.last
	}
	r := c.overlay[oid]
	if r == nil {
		r = c.relations[oid]
	}
	if r != nil {
		c.lastOID, c.last = oid, r
	}
	return r
}

func (c *catalog) forget() { c.lastOID, c.last = 0, nil }

// changes reports whether raw says something new.
func (c *catalog) changes(oid change.OID, raw []byte) bool {
	r := c.find(oid)
	return r == nil || !bytes.Equal(r.raw, raw)
}

func (c *catalog) changesType(oid change.OID, raw []byte) bool {
	t := c.types[oid]
	return t == nil || !bytes.Equal(t.raw, raw)
}

func (c *catalog) setRelation(m *pgoutput.Message, raw []byte) {
	r := &relation{raw: bytes.Clone(raw), ignored: isOwnSchema(m.Relation.Schema)}
	for _, col := range m.Relation.Columns {
		if col.Type >= firstUserType {
			r.types = append(r.types, col.Type)
		}
	}
	if c.overlay != nil {
		c.overlay[m.RelationOID] = r
	} else {
		c.relations[m.RelationOID] = r
	}
	c.forget()
}

func (c *catalog) setType(m *pgoutput.Message, raw []byte) {
	c.types[m.TypeOID] = &typeEntry{raw: bytes.Clone(raw)}
}

// missing is the size of what the batch lacks to describe the relations.
func (c *catalog) missing(rels []*relation) int {
	n := 0
	for _, r := range rels {
		if r.gen == c.gen {
			continue
		}
		n += change.RecordOverhead + len(r.raw)
		for _, oid := range r.types {
			if t := c.types[oid]; t != nil && t.gen != c.gen {
				n += change.RecordOverhead + len(t.raw)
			}
		}
	}
	return n
}

// beginReplay hides relations behind those that a spooled transaction brings.
func (c *catalog) beginReplay() {
	c.overlay = map[change.OID]*relation{}
	c.forget()
}

// endReplay keeps the relations that keep names, and restores the others: the
// server will describe those again before it uses them outside.
func (c *catalog) endReplay(keep map[change.OID]bool) {
	for oid, r := range c.overlay {
		if old := c.relations[oid]; keep[oid] || old == nil {
			c.relations[oid] = r
		} else {
			old.gen = 0 // the batch's latest description is r's
		}
	}
	c.overlay = nil
	c.forget()
}

// firstUserType is the first OID that is not assigned by PostgreSQL itself
// (FirstGenbkiObjectId); pgoutput sends Type messages from there on.
const firstUserType = 10000

// isOwnSchema reports whether a schema holds walferry's own tables, whose
// changes are no business of a subscriber.
func isOwnSchema(s string) bool { return s == "walferry" || s == "walferry_merge" }

// truncated reads the relations of a Truncate message that was decoded before.
func truncated(raw []byte) []change.OID {
	n := binary.BigEndian.Uint32(raw[1:])
	oids := make([]change.OID, n)
	for i := range oids {
		oids[i] = change.OID(binary.BigEndian.Uint32(raw[6+4*i:]))
	}
	return oids
}
