package sqlw

import (
	"slices"
	"strconv"
	"strings"

	"github.com/walferry/walferry/change"
)

// many is a statement of one row as it looks for several: what stands before
// and behind the rows.
type many struct {
	head, tail string
	stmts      [batchShift + 1]*Stmt // for 1<<i rows
}

// sized is the statement for 1<<shift rows.
func (m *many) sized(one *Stmt, shift int) *Stmt {
	if st := m.stmts[shift]; st != nil {
		return st
	}
	rows, params := 1<<shift, len(one.Params)
	sql := []byte(m.head)
	types := make([]change.OID, 0, rows*params)
	for r := range rows {
		if r > 0 {
			sql = append(sql, ", "...)
		}
		for i, p := range one.Params {
			if i == 0 {
				sql = append(sql, '(')
			} else {
				sql = append(sql, ", "...)
			}
			sql = append(sql, '$')
			sql = strconv.AppendInt(sql, int64(r*params+i+1), 10)
			types = append(types, p.Type)
		}
		sql = append(sql, ')')
	}
	st := &Stmt{SQL: string(append(sql, m.tail...)), Types: types, Want: int64(rows)}
	m.stmts[shift] = st
	return st
}

// maxParams is the most that a Bind message can carry.
const maxParams = 1<<16 - 1

// batches reports whether several rows of a statement may be changed by one
// command with the same outcome: nothing on the table sees the single rows, and
// the key finds at most one, so that the number of all rows says whether each
// was found.
func (g *Target) batches(op byte) bool {
	t := g.Table
	if t.Kind != "r" || t.RLS || t.Foreign || t.RuleFires(op, g.replica) {
		return false
	}
	switch op {
	case 'I':
		return !t.trigger(g.replica, trigInsert)
	case 'U':
		return !t.trigger(g.replica, trigUpdate) && g.uniqueKey()
	default:
		return !t.trigger(g.replica, trigDelete) && g.uniqueKey()
	}
}

// uniqueKey reports whether a unique index makes sure that a key finds one row
// at most.
func (g *Target) uniqueKey() bool {
	if g.key == nil || slices.ContainsFunc(g.keyOps, func(o Operator) bool { return o.Name == "" }) {
		return false
	}
	for i := range g.Table.Indexes {
		ix := &g.Table.Indexes[i]
		if !ix.Unique || ix.Exclusion || !ix.Immediate || ix.Partial || ix.Method != "btree" || len(ix.Columns) == 0 {
			continue
		}
		covered := true
		for _, ic := range ix.Columns {
			covered = covered && slices.ContainsFunc(g.key, func(c int) bool {
				k := slices.Index(g.key, c)
				return g.columns[c].Num == ic.Num && g.columns[c].Collation == ic.Collation && g.keyOps[k] == Operator{ic.Schema, ic.Op}
			})
		}
		if covered {
			return true
		}
	}
	return false
}

// manyRows adds to a statement what is needed to send several rows at once.
// build makes the text for rows that are named v.
func (g *Target) manyRows(st *Stmt, keys []int, build func(b *builder) (head, tail string)) *Stmt {
	if len(st.Params) == 0 || len(st.Params)<<batchShift > maxParams {
		return st
	}
	b := &builder{g: g, values: true}
	m := &many{}
	m.head, m.tail = build(b)
	if !slices.Equal(b.params, st.Params) {
		return st
	}
	st.many, st.keys = m, keys
	return st
}

// valuesTail names the columns of a VALUES list.
func valuesTail(params int) string {
	var s strings.Builder
	s.WriteString(") v(")
	for i := range params {
		if i > 0 {
			s.WriteString(", ")
		}
		s.WriteString("p")
		s.WriteString(strconv.Itoa(i + 1))
	}
	s.WriteString(")")
	return s.String()
}
