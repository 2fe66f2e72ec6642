package sqlw

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/walferry/walferry/change"
)

// textType is pg_catalog.text.
const textType = 25

// builder collects the parameters of a statement.
type builder struct {
	g      *Target
	params []Param
	values bool // parameters are columns of a VALUES list
}

// value is the new value of a relation column, typed as the column.
func (b *builder) value(col int) string {
	return b.param(Param{Col: col, Type: b.g.columns[col].Type})
}

func (b *builder) param(p Param) string {
	i := slices.Index(b.params, p)
	if i < 0 {
		i = len(b.params)
		b.params = append(b.params, p)
	}
	if b.values {
		return "v.p" + strconv.Itoa(i+1)
	}
	return "$" + strconv.Itoa(i+1)
}

func (b *builder) stmt(sql string, want int64) *Stmt {
	return &Stmt{SQL: sql, Params: b.params, Want: want}
}

// equals compares a column with a value that is not NULL. An operator with an
// empty name is the type's default; without one the texts are compared.
func (b *builder) equals(col int, op Operator, old bool, alias string) string {
	c := b.g.columns[col]
	if op.Name == "" {
		op = b.g.Table.eq[c.Num]
	}
	if op.Name == "" {
		return alias + QuoteIdent(c.Name) + `::pg_catalog.text OPERATOR(pg_catalog.=) ` + b.param(Param{Old: old, Col: col, Type: textType}) + ` COLLATE "pg_catalog"."C"`
	}
	return c.operand(alias) + " " + op.SQL() + " " + b.param(Param{Old: old, Col: col, Type: c.Base})
}

// match is the condition that finds the old row. nulls says which of the
// columns are NULL in it.
func (b *builder) match(w *where, alias string) string {
	if len(w.cols) == 0 {
		return "true"
	}
	var s []string
	for i, c := range w.cols {
		switch {
		case w.vals[c].Kind == change.Null:
			s = append(s, alias+QuoteIdent(b.g.columns[c].Name)+" IS NULL")
		case w.vals[c].Kind == change.Unchanged: // nothing known: the rest must do
		default:
			var op Operator
			if w.ops != nil {
				op = w.ops[i]
			}
			s = append(s, b.equals(c, op, w.old, alias))
		}
	}
	if len(s) == 0 {
		return "true"
	}
	return strings.Join(s, " AND ")
}

// where says how the row of one change is found.
type where struct {
	cols []int
	ops  []Operator // nil: the types' defaults
	vals []change.Value
	old  bool // the values are those of the old tuple
	one  bool // several rows may match, one is meant
}

// locate chooses how to find the row of a change.
func (g *Target) locate(kind byte, old, row []change.Value) (where, error) {
	if g.identErr != nil {
		return where{}, g.identErr
	}
	w := where{cols: g.key, ops: g.keyOps, vals: old, old: true}
	if kind == 0 {
		w.vals, w.old = row, false
	}
	if !g.full {
		return w, nil
	}
	if kind == 0 {
		return w, fmt.Errorf("table %s: update without the old row", g.Table)
	}
	if !g.keyed(old) {
		return g.wholeRow(w), nil
	}
	return w, nil
}

// keyed reports whether a whole old row has a key to find it by.
func (g *Target) keyed(old []change.Value) bool {
	for _, c := range g.key {
		if k := old[c].Kind; k == change.Null || k == change.Unchanged {
			return false
		}
	}
	return g.key != nil
}

func (g *Target) wholeRow(w where) where {
	w.ops, w.one = nil, true
	w.cols = make([]int, len(g.columns))
	for i := range w.cols {
		w.cols[i] = i
	}
	return w
}

// Insert is the statement for a new row.
func (g *Target) Insert() *Stmt {
	if g.insert == nil {
		want := int64(1)
		if g.Table.trigger(g.replica, trigRow|trigBefore|trigInsert) {
			want = -1 // a trigger may drop the row
		}
		b := &builder{g: g}
		g.insert = b.stmt(g.insertSQL(b), want)
		if len(b.params) == len(g.columns) && g.batches('I') {
			g.manyRows(g.insert, nil, func(m *builder) (head, tail string) {
				m.params = b.params
				return g.insertHead(), ""
			})
		}
	}
	return g.insert
}

func (g *Target) insertSQL(b *builder) string {
	if len(g.columns) == 0 {
		return "INSERT INTO " + g.Table.SQL() + " DEFAULT VALUES"
	}
	vals := make([]string, len(g.columns))
	for i := range g.columns {
		vals[i] = b.value(i)
	}
	return g.insertHead() + "(" + strings.Join(vals, ", ") + ")"
}

func (g *Target) insertHead() string {
	return "INSERT INTO " + g.Table.SQL() + " (" + g.columnList() + ")" + g.overriding() + " VALUES "
}

func (g *Target) overriding() string {
	if len(g.always) > 0 {
		return " OVERRIDING SYSTEM VALUE"
	}
	return ""
}

func (g *Target) columnList() string {
	names := make([]string, len(g.columns))
	for i, c := range g.columns {
		names[i] = QuoteIdent(c.Name)
	}
	return strings.Join(names, ", ")
}

// Copy is the COPY for a run of inserts, and the relation columns of its rows.
func (g *Target) Copy() (*Stmt, []int) {
	if g.copy == nil {
		g.copy = &Stmt{SQL: "COPY " + g.Table.SQL() + " (" + g.columnList() + ") FROM STDIN"}
		for i := range g.columns {
			g.cols = append(g.cols, i)
		}
	}
	return g.copy, g.cols
}

// cached looks for a statement whose shape is in g.scratch.
func (g *Target) cached() *Stmt { return g.stmts[string(g.scratch)] }

func (g *Target) remember(st *Stmt) *Stmt {
	if len(g.stmts) >= maxStatements {
		clear(g.stmts)
	}
	g.stmts[string(bytes.Clone(g.scratch))] = st
	return st
}

// shape writes into g.scratch what makes the statement of a change differ from
// others: which values are there and which are NULL in the condition.
func (g *Target) shape(op, kind byte, old, row []change.Value) {
	s := append(g.scratch[:0], op, kind)
	for i := range row {
		if row[i].Kind == change.Unchanged {
			s = append(s, 'u', byte(i), byte(i>>8))
		}
	}
	if g.full && !g.keyed(old) {
		for i := range old {
			if k := old[i].Kind; k == change.Null || k == change.Unchanged {
				s = append(s, byte(k), byte(i), byte(i>>8))
			}
		}
	}
	for _, c := range g.always {
		if kind != 0 && row != nil && !same(&old[c], &row[c]) {
			s = append(s, 'a', byte(c), byte(c>>8))
		}
	}
	g.scratch = s
}

func same(a, b *change.Value) bool { return a.Kind == b.Kind && bytes.Equal(a.Data, b.Data) }

// Update is the statement for an update. kind is the kind of the old tuple:
// 'K', 'O', or 0 for none.
func (g *Target) Update(kind byte, old, row []change.Value) (*Stmt, error) {
	g.shape('U', kind, old, row)
	if st := g.cached(); st != nil {
		return st, nil
	}
	w, err := g.locate(kind, old, row)
	if err != nil {
		return nil, err
	}
	return g.remember(g.buildUpdate(kind, &w, old, row)), nil
}

// Delete is the statement for a delete.
func (g *Target) Delete(kind byte, old []change.Value) (*Stmt, error) {
	g.shape('D', kind, old, nil)
	if st := g.cached(); st != nil {
		return st, nil
	}
	w, err := g.locate(kind, old, nil)
	if err != nil {
		return nil, err
	}
	b := &builder{g: g}
	keeps := g.Table.trigger(g.replica, trigRow|trigBefore|trigDelete)
	from := "DELETE FROM " + g.Table.only() + " t "
	if w.one {
		return g.remember(g.finish(b, &w, g.oneRow(b, &w), from+"USING m WHERE "+found, keeps)), nil
	}
	st := g.finish(b, &w, "", from+"WHERE "+b.match(&w, "t."), keeps)
	if g.batches('D') && !nullKey(&w) {
		g.manyRows(st, w.cols, func(b *builder) (head, tail string) {
			match := b.match(&w, "t.")
			return from + "USING (VALUES ", valuesTail(len(b.params)) + " WHERE " + match
		})
	}
	return g.remember(st), nil
}

// nullKey reports whether a value by which the row is found is not there.
func nullKey(w *where) bool {
	return slices.ContainsFunc(w.cols, func(c int) bool { return w.vals[c].Kind == change.Null || w.vals[c].Kind == change.Unchanged })
}

// oneRow selects the place of exactly one of the rows that match.
func (g *Target) oneRow(b *builder, w *where) string {
	return "m AS (SELECT t.tableoid AS o, t.ctid AS c FROM " + g.Table.only() + " t WHERE " + b.match(w, "t.") + " LIMIT 1)"
}

// finish puts a statement together: with names the row that is meant, write
// changes it. keeps says that a BEFORE trigger may keep the row as it is; then
// rows that were found but not written count too.
func (g *Target) finish(b *builder, w *where, with, write string, keeps bool) *Stmt {
	if !keeps {
		if with != "" {
			with = "WITH " + with + " "
		}
		return b.stmt(with+write, 1)
	}
	if with != "" {
		with += ", "
	}
	limit := ""
	if w.one {
		limit = " LIMIT 1"
	}
	return b.stmt("WITH "+with+"w AS ("+write+" RETURNING 1) SELECT FROM w UNION ALL (SELECT FROM "+g.Table.only()+" t WHERE "+
		b.match(w, "t.")+" AND NOT EXISTS (SELECT FROM w)"+limit+")", 1)
}

// found is the condition for the row named by with.
const found = "t.tableoid OPERATOR(pg_catalog.=) m.o AND t.ctid OPERATOR(pg_catalog.=) m.c"

// sets is the SET list: every value that was sent, without columns that an
// UPDATE cannot write.
func (g *Target) sets(b *builder, row []change.Value) string {
	var s []string
	for i, c := range g.columns {
		if row[i].Kind == change.Unchanged || c.Identity == "a" {
			continue
		}
		s = append(s, QuoteIdent(c.Name)+" = "+b.value(i))
	}
	return strings.Join(s, ", ")
}

func (g *Target) buildUpdate(kind byte, w *where, old, row []change.Value) *Stmt {
	b := &builder{g: g}
	if moved := g.movesIdentity(kind, old, row); moved != nil {
		return b.stmt(g.replaceSQL(b, w, row, moved), 1)
	}
	t, sets := g.Table.only(), g.sets(b, row)
	if sets == "" { // nothing can have changed
		return b.stmt("SELECT FROM "+t+" t WHERE "+b.match(w, "t.")+" LIMIT 1", 1)
	}
	keeps := g.Table.trigger(g.replica, trigRow|trigBefore|trigUpdate)
	update := "UPDATE " + t + " t SET " + sets
	if w.one {
		return g.finish(b, w, g.oneRow(b, w), update+" FROM m WHERE "+found, keeps)
	}
	st := g.finish(b, w, "", update+" WHERE "+b.match(w, "t."), keeps)
	if g.batches('U') && !nullKey(w) {
		g.manyRows(st, w.cols, func(b *builder) (head, tail string) {
			sets, match := g.sets(b, row), b.match(w, "t.")
			return "UPDATE " + t + " t SET " + sets + " FROM (VALUES ", valuesTail(len(b.params)) + " WHERE " + match
		})
	}
	return st
}
