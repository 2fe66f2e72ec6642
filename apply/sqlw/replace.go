package sqlw

import (
	"slices"
	"strings"

	"github.com/walferry/walferry/change"
)

// movesIdentity returns the columns that UPDATE cannot write (GENERATED ALWAYS
// AS IDENTITY) and whose value an update changes or may change.
func (g *Target) movesIdentity(kind byte, old, row []change.Value) []int {
	var moved []int
	for _, c := range g.always {
		if row[c].Kind == change.Unchanged {
			continue
		}
		known := kind == 'O' || g.Rel.Columns[c].Key
		switch {
		case known && kind == 0: // a key without an old tuple is as it was
		case known && same(&old[c], &row[c]):
		default:
			moved = append(moved, c)
		}
	}
	return moved
}

// replaceSQL updates a row that keeps its always-identity columns, and deletes
// and inserts one whose such columns change. What was not sent is taken from
// the deleted row.
func (g *Target) replaceSQL(b *builder, w *where, row []change.Value, moved []int) string {
	t := g.Table.only()
	var eq []string
	for _, c := range moved {
		eq = append(eq, g.columns[c].operand("t.")+" OPERATOR(pg_catalog.=) "+b.param(Param{Col: c, Type: g.columns[c].Base}))
	}
	kept := "(" + strings.Join(eq, " AND ") + ")"
	with, from, match := "", "", b.match(w, "t.")
	using := ""
	if w.one {
		with, from, using, match = g.oneRow(b, w)+", ", " FROM m", " USING m", found
	}
	names, vals := g.wholeRowValues(b, row, "d")
	sql := "WITH " + with + "d AS (DELETE FROM " + t + " t" + using + " WHERE " + match + " AND NOT " + kept + " RETURNING t.*), " +
		"i AS (INSERT INTO " + g.Table.SQL() + " (" + names + ") OVERRIDING SYSTEM VALUE SELECT " + vals + " FROM d RETURNING 1)"
	sets := g.sets(b, row)
	if sets == "" {
		return sql + " SELECT FROM i UNION ALL SELECT FROM " + t + " t WHERE " + b.match(w, "t.") + " AND " + kept
	}
	return sql + ", u AS (UPDATE " + t + " t SET " + sets + from + " WHERE " + match + " AND " + kept + " RETURNING 1) SELECT FROM i UNION ALL SELECT FROM u"
}

// wholeRowValues lists all columns that can be inserted, and for each the new
// value, or that of the row named alias when it was not sent.
func (g *Target) wholeRowValues(b *builder, row []change.Value, alias string) (names, vals string) {
	var n, v []string
	for i := range g.Table.Columns {
		c := &g.Table.Columns[i]
		if c.Generated != "" {
			continue
		}
		n = append(n, QuoteIdent(c.Name))
		r := slices.Index(g.columns, c)
		if r >= 0 && row[r].Kind != change.Unchanged {
			v = append(v, b.value(r))
		} else {
			v = append(v, alias+"."+QuoteIdent(c.Name))
		}
	}
	return strings.Join(n, ", "), strings.Join(v, ", ")
}
