package sqlw

import (
	"fmt"
	"slices"
	"strings"

	"github.com/walferry/walferry/change"
)

// A ColumnError says that columns of the publisher cannot be written on the
// subscriber.
type ColumnError struct {
	Table     *Table
	Missing   []string // the subscriber has no such columns
	Generated []string // the subscriber computes them
}

func (e *ColumnError) Error() string {
	var p []string
	if len(e.Missing) > 0 {
		p = append(p, "has no column "+QuoteList(e.Missing))
	}
	if len(e.Generated) > 0 {
		p = append(p, "computes column "+QuoteList(e.Generated)+" itself (GENERATED), the publisher sends it as a plain one")
	}
	return fmt.Sprintf("table %s on the subscriber %s", e.Table, strings.Join(p, " and "))
}

// Hint is what mends it.
func (e *ColumnError) Hint() string {
	if len(e.Missing) > 0 {
		return fmt.Sprintf("ALTER TABLE %s ADD COLUMN ... on the subscriber; the stream goes on by itself", e.Table)
	}
	return fmt.Sprintf("ALTER TABLE %s ALTER COLUMN ... DROP EXPRESSION on the subscriber, or leave the column out of the publication", e.Table)
}

// An IdentityError says that rows of the table cannot be found on the
// subscriber.
type IdentityError struct {
	Table  *Table
	Reason string
	Remedy string
}

func (e *IdentityError) Error() string {
	return fmt.Sprintf("table %s: rows cannot be found for update and delete: %s", e.Table, e.Reason)
}

// Hint is what mends it.
func (e *IdentityError) Hint() string { return e.Remedy }

// A Target applies the changes of a publisher's relation to a subscriber's
// table.
type Target struct {
	Rel   *change.Relation
	Table *Table

	replica  bool
	columns  []*Column // by relation column
	key      []int     // relation columns that identify a row; nil: none, or whole rows
	keyOps   []Operator
	full     bool // whole old rows are sent; key is used where it is not null
	identErr error
	always   []int // relation columns that are GENERATED ALWAYS AS IDENTITY
	deferred []*deferredKey

	insert  *Stmt
	copy    *Stmt
	cols    []int // of copy
	stmts   map[string]*Stmt
	scratch []byte
}

// NewTarget joins a relation and a table. replica says whether the session has
// session_replication_role = replica. The error is a *ColumnError, or says that
// the table is no table.
func NewTarget(rel *change.Relation, t *Table, replica bool) (*Target, error) {
	if t.Kind != "r" && t.Kind != "p" {
		return nil, fmt.Errorf("%s on the subscriber is not a table (relkind %q)", t, t.Kind)
	}
	g := &Target{Rel: rel, Table: t, replica: replica, columns: make([]*Column, len(rel.Columns)), stmts: map[string]*Stmt{}}
	bad := &ColumnError{Table: t}
	for i := range rel.Columns {
		c := t.column(rel.Columns[i].Name)
		switch {
		case c == nil:
			bad.Missing = append(bad.Missing, rel.Columns[i].Name)
		case c.Generated != "":
			bad.Generated = append(bad.Generated, c.Name)
		case c.Identity == "a":
			g.always = append(g.always, i)
		}
		g.columns[i] = c
	}
	if len(bad.Missing) > 0 || len(bad.Generated) > 0 {
		return nil, bad
	}
	g.identify()
	g.findDeferred()
	return g, nil
}

// identify chooses how rows are found.
func (g *Target) identify() {
	if g.Rel.Identity == change.IdentityFull {
		g.full = true
		g.key, g.keyOps = g.bestUnique()
		return
	}
	for i := range g.Rel.Columns {
		if g.Rel.Columns[i].Key {
			g.key = append(g.key, i)
		}
	}
	if len(g.key) == 0 {
		g.identErr = &IdentityError{
			Table: g.Table, Reason: "the publisher sends no key for it",
			Remedy: fmt.Sprintf("ALTER TABLE %s REPLICA IDENTITY ... on the publisher", DisplayName(g.Rel.Schema, g.Rel.Name)),
		}
		return
	}
	indexed := false
	g.keyOps = make([]Operator, len(g.key))
	var names []string
	for k, c := range g.key {
		names = append(names, g.columns[c].Name)
		op, first := g.indexOperator(g.columns[c])
		g.keyOps[k] = op
		indexed = indexed || first
	}
	if !indexed {
		g.identErr = &IdentityError{
			Table: g.Table, Reason: fmt.Sprintf("the subscriber has no index on its key (%s)", QuoteList(names)),
			Remedy: fmt.Sprintf("ALTER TABLE %s ADD PRIMARY KEY (%s) on the subscriber", g.Table, QuoteList(names)),
		}
	}
}

// indexOperator returns the equality operator that finds a column in an index,
// and whether such an index begins with it.
func (g *Target) indexOperator(c *Column) (op Operator, first bool) {
	for i := range g.Table.Indexes {
		ix := &g.Table.Indexes[i]
		if ix.Partial || ix.Exclusion || ix.Method != "btree" && ix.Method != "hash" {
			continue
		}
		for k, ic := range ix.Columns {
			if ic.Num != c.Num || ic.Op == "" || ic.Collation != c.Collation {
				continue
			}
			if op.Name == "" || k == 0 && !first {
				op = Operator{ic.Schema, ic.Op}
			}
			first = first || k == 0
		}
	}
	return op, first
}

// bestUnique chooses the unique index of the subscriber that finds whole old
// rows: immediate, over published columns; the primary key comes first.
func (g *Target) bestUnique() ([]int, []Operator) {
	for i := range g.Table.Indexes {
		ix := &g.Table.Indexes[i]
		if !ix.Unique || ix.Exclusion || !ix.Immediate || ix.Partial {
			continue
		}
		var key []int
		var ops []Operator
		for _, ic := range ix.Columns {
			r := slices.IndexFunc(g.columns, func(c *Column) bool { return c.Num == ic.Num })
			if r < 0 || ic.Op == "" || g.columns[r].Collation != ic.Collation {
				key = nil
				break
			}
			key = append(key, r)
			ops = append(ops, Operator{ic.Schema, ic.Op})
		}
		if key != nil {
			return key, ops
		}
	}
	return nil, nil
}

// NeedsEquality reports whether Table.LoadEquality must be called before
// updates and deletes.
func (g *Target) NeedsEquality() bool {
	if g.Table.eq != nil {
		return false
	}
	for k, c := range g.key {
		if g.keyOps[k].Name == "" || g.full && !g.columns[c].NotNull {
			return true
		}
	}
	return g.full && g.key == nil
}

// Identifiable returns why rows cannot be found, or nil.
func (g *Target) Identifiable() error { return g.identErr }

// KeyColumns are the relation columns that name a row to people.
func (g *Target) KeyColumns() []int {
	if g.key != nil {
		return g.key
	}
	var key []int
	for i := range g.Rel.Columns {
		if g.Rel.Columns[i].Key {
			key = append(key, i)
		}
	}
	return key
}

// Column is the subscriber's column for a column of the relation.
func (g *Target) Column(i int) *Column { return g.columns[i] }

// CanCopy reports whether a run of inserts may be sent as COPY with the same
// outcome: nothing on the table sees the single inserts.
func (g *Target) CanCopy() bool {
	t := g.Table
	return len(g.columns) > 0 && !t.RLS && !t.Foreign && !t.RuleFires('I', g.replica) && !t.trigger(g.replica, trigInsert)
}
