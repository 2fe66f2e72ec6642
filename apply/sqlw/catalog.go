package sqlw

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/walferry/walferry/change"
)

//go:embed catalog.sql
var catalogSQL string

//go:embed equality.sql
var equalitySQL string

// A Table is what the catalog of the subscriber says about a table.
type Table struct {
	Schema, Name string `json:"-"`

	OID      change.OID `json:"oid"`
	Kind     string     `json:"kind"` // pg_class.relkind
	RLS      bool       `json:"rls"`
	Rules    bool       `json:"rules"`
	Children bool       `json:"inherited"`
	Columns  []Column   `json:"columns"`
	Indexes  []Index    `json:"indexes"` // usable ones; the primary key first
	Triggers []Trigger  `json:"triggers"`
	Rewrite  []Rule     `json:"rewrite"`
	Cascades bool       `json:"cascades"` // foreign keys with an action point here
	Foreign  bool       `json:"foreign"`  // a partition is a foreign table

	// Loaded is when the catalog was read.
	Loaded time.Time `json:"-"`
	text   string    // as read, to see changes
	eq     map[int]Operator
}

// A Column of a subscriber's table.
type Column struct {
	Num       int        `json:"num"`
	Name      string     `json:"name"`
	Type      change.OID `json:"type"`
	Base      change.OID `json:"base"` // Type, or what the domain is over
	Cast      string     `json:"cast"` // SQL name of Base, for domains
	NotNull   bool       `json:"not_null"`
	Default   bool       `json:"default"`
	Generated string     `json:"generated"` // "", "s", "v"
	Identity  string     `json:"identity"`  // "", "a" always, "d" by default
	Collation change.OID `json:"collation"`
}

// operand is the column in a comparison. A domain is cast to what it is over:
// operators of polymorphic types (enums, arrays, ranges) do not take domains. Indexes
// are used all the same.
func (c *Column) operand(alias string) string {
	s := alias + QuoteIdent(c.Name)
	if c.Cast != "" {
		s += "::" + c.Cast
	}
	return s
}

// An Index of a subscriber's table.
type Index struct {
	OID        change.OID    `json:"oid"`
	Name       string        `json:"name"`
	Method     string        `json:"method"`
	Unique     bool          `json:"unique"`
	Primary    bool          `json:"primary"`
	Exclusion  bool          `json:"exclusion"`
	Immediate  bool          `json:"immediate"`
	Identity   bool          `json:"identity"`
	Clustered  bool          `json:"clustered"`
	Partial    bool          `json:"partial"`
	NullsEqual bool          `json:"nulls_equal"`
	Constraint string        `json:"constraint"`
	Deferrable bool          `json:"deferrable"`
	Columns    []IndexColumn `json:"columns"` // key columns
}

// An IndexColumn is a key column of an index, with its equality operator, or
// the operator of an exclusion constraint.
type IndexColumn struct {
	Num       int        `json:"num"` // 0: an expression
	Schema    string     `json:"schema"`
	Op        string     `json:"op"`
	Collation change.OID `json:"collation"`
}

// A Trigger is a kind of trigger that the table or a partition of it has.
type Trigger struct {
	Enabled string `json:"enabled"` // pg_trigger.tgenabled
	Type    int    `json:"type"`    // pg_trigger.tgtype
}

// A Rule is a rewrite rule other than SELECT.
type Rule struct {
	Event   string `json:"event"` // '2' update, '3' insert, '4' delete
	Enabled string `json:"enabled"`
}

// An Operator is named with its schema.
type Operator struct{ Schema, Name string }

// SQL is the operator as it is written between two operands.
func (o Operator) SQL() string { return "OPERATOR(" + QuoteIdent(o.Schema) + "." + o.Name + ")" }

// Bits of pg_trigger.tgtype.
const (
	trigRow     = 1
	trigBefore  = 2
	trigInsert  = 4
	trigDelete  = 8
	trigUpdate  = 16
	trigInstead = 64
)

// LoadTable reads the catalog for a table. It returns nil when there is no such
// table. When nothing has changed since old was read, old itself is returned.
func LoadTable(s *Session, schema, name string, old *Table) (*Table, error) {
	rows, err := s.QueryStmt(s.catalogStmt(), schema, name)
	if err != nil {
		return nil, fmt.Errorf("read catalog for %s: %w", DisplayName(schema, name), err)
	}
	if len(rows) == 0 {
		return nil, nil
	}
	text := string(rows[0][0])
	now := time.Now()
	if old != nil && old.text == text {
		old.Loaded = now
		return old, nil
	}
	t := &Table{Schema: schema, Name: name, Loaded: now, text: text}
	if err := json.Unmarshal([]byte(text), t); err != nil {
		return nil, fmt.Errorf("read catalog for %s: %w", DisplayName(schema, name), err)
	}
	return t, nil
}

// catalogStmt is the catalog query as one plan: planning it takes longer than
// running it.
func (s *Session) catalogStmt() *Stmt {
	if s.catalog == nil {
		s.catalog = &Stmt{SQL: catalogSQL, Types: []change.OID{19, 19}, Want: -1}
	}
	return s.catalog
}

// LoadEquality reads which operators compare whole rows of the table. Columns
// whose type has no equality, such as json, are compared by their text.
func (t *Table) LoadEquality(s *Session) error {
	if t.eq != nil {
		return nil
	}
	rows, err := s.Query(equalitySQL, strconv.FormatUint(uint64(t.OID), 10))
	if err != nil {
		return fmt.Errorf("read equality operators for %s: %w", t, err)
	}
	t.eq = make(map[int]Operator, len(rows))
	for _, r := range rows {
		num, err := strconv.Atoi(string(r[0]))
		if err != nil {
			return fmt.Errorf("read equality operators for %s: %w", t, err)
		}
		t.eq[num] = Operator{string(r[1]), string(r[2])}
	}
	return nil
}

// String is the table's name for people.
func (t *Table) String() string { return DisplayName(t.Schema, t.Name) }

// SQL is the table's name in SQL text.
func (t *Table) SQL() string { return QuoteName(t.Schema, t.Name) }

// only is the name for UPDATE and DELETE: without the children of an
// inheritance parent, which have changes of their own, but with partitions.
func (t *Table) only() string {
	if t.Kind == "p" {
		return t.SQL()
	}
	return "ONLY " + t.SQL()
}

// Fires reports whether something that is enabled as in enabled (tgenabled,
// ev_enabled) fires in a session with or without session_replication_role =
// replica.
func fires(enabled string, replica bool) bool {
	return enabled == "A" || enabled == "R" && replica || enabled == "O" && !replica
}

// trigger reports whether a trigger with all the bits fires.
func (t *Table) trigger(replica bool, bits int) bool {
	for _, tr := range t.Triggers {
		if tr.Type&bits == bits && fires(tr.Enabled, replica) {
			return true
		}
	}
	return false
}

// RuleFires reports whether a rewrite rule changes what an INSERT ('I'), UPDATE
// ('U') or DELETE ('D') does.
func (t *Table) RuleFires(op byte, replica bool) bool {
	event := map[byte]string{'U': "2", 'I': "3", 'D': "4"}[op]
	for _, r := range t.Rewrite {
		if r.Event == event && fires(r.Enabled, replica) {
			return true
		}
	}
	return false
}

// column finds a column by name.
func (t *Table) column(name string) *Column {
	for i := range t.Columns {
		if t.Columns[i].Name == name {
			return &t.Columns[i]
		}
	}
	return nil
}
