package change

// ReplicaIdentity says what of the old row the publisher logs for updates and
// deletes (pg_class.relreplident).
type ReplicaIdentity byte

// The replica identities of PostgreSQL.
const (
	IdentityDefault ReplicaIdentity = 'd' // the primary key, if there is one
	IdentityNothing ReplicaIdentity = 'n'
	IdentityFull    ReplicaIdentity = 'f' // the whole old row
	IdentityIndex   ReplicaIdentity = 'i' // the columns of a named unique index
)

// String names the identity as ALTER TABLE does.
func (r ReplicaIdentity) String() string {
	switch r {
	case IdentityDefault:
		return "default"
	case IdentityNothing:
		return "nothing"
	case IdentityFull:
		return "full"
	case IdentityIndex:
		return "index"
	}
	return "unknown"
}

// Column is one published column of a relation, in the order of its tuples.
type Column struct {
	Name    string
	Type    OID   // in the publisher's database
	TypeMod int32 // -1: none
	Key     bool  // part of the replica identity
}

// Relation is the publisher's description of a table at one moment of the log.
// Values are immutable once published to other goroutines: a changed table is
// a new Relation.
type Relation struct {
	OID      OID
	Schema   string // never empty: the wire's "" is pg_catalog
	Name     string
	Identity ReplicaIdentity
	Columns  []Column
}

// ValueKind says what a tuple holds for a column.
type ValueKind byte

// The kinds of a column value (PostgreSQL: "Logical Replication Message
// Formats", TupleData).
const (
	Null      ValueKind = 'n'
	Unchanged ValueKind = 'u' // a TOASTed value that the update did not touch and that is not sent; never NULL
	Text      ValueKind = 't' // output of the type's output function
	Binary    ValueKind = 'b' // output of the type's send function
)

// Value is one column of a tuple. Data belongs to the message that was
// decoded and is valid as long as that is; it is nil for Null and Unchanged.
type Value struct {
	Kind ValueKind
	Data []byte
}
