package sqlw

import (
	"slices"
	"strings"

	"github.com/walferry/walferry/change"
)

// deferredKey is a deferrable UNIQUE, PRIMARY KEY or EXCLUDE constraint. Under
// session_replication_role = replica the trigger that checks it does not fire,
// so that duplicates would be committed without an error.
type deferredKey struct {
	name  string
	cols  []int // relation columns
	check *Stmt // reports a row when the constraint is violated by the new values
}

// findDeferred looks for constraints that the session itself must check.
// Constraints over columns that are not published cannot be violated by
// changes of published ones alone and are left to the subscriber.
func (g *Target) findDeferred() {
	if !g.replica {
		return
	}
	for i := range g.Table.Indexes {
		ix := &g.Table.Indexes[i]
		if !ix.Deferrable || ix.Partial || ix.NullsEqual || len(ix.Columns) == 0 {
			continue
		}
		k := &deferredKey{name: ix.Constraint}
		b := &builder{g: g}
		var cond []string
		for _, ic := range ix.Columns {
			r := slices.IndexFunc(g.columns, func(c *Column) bool { return c.Num == ic.Num })
			if r < 0 || ic.Op == "" {
				cond = nil
				break
			}
			k.cols = append(k.cols, r)
			cond = append(cond, g.columns[r].operand("t.")+" "+Operator{ic.Schema, ic.Op}.SQL()+" "+b.param(Param{Col: r, Type: g.columns[r].Base}))
		}
		if cond == nil {
			continue
		}
		k.check = b.stmt("SELECT FROM (SELECT FROM "+g.Table.SQL()+" t WHERE "+strings.Join(cond, " AND ")+" LIMIT 2) x HAVING pg_catalog.count(*) OPERATOR(pg_catalog.>) 1", 0)
		g.deferred = append(g.deferred, k)
	}
}

// Deferred is the number of constraints that must be checked for new rows
// before the commit.
func (g *Target) Deferred() int { return len(g.deferred) }

// DeferredCheck returns the i-th check for a new row. ok is false when the row
// cannot violate the constraint. The statement reports a row when it is
// violated; its parameters are values of the new row.
func (g *Target) DeferredCheck(i int, row []change.Value) (st *Stmt, cols []int, ok bool) {
	k := g.deferred[i]
	for _, c := range k.cols {
		if row[c].Kind == change.Null {
			return nil, nil, false
		}
	}
	return k.check, k.cols, true
}

// DeferredName is the name of the constraint that a check belongs to.
func (g *Target) DeferredName(check *Stmt) string {
	for _, k := range g.deferred {
		if k.check == check {
			return k.name
		}
	}
	return ""
}
