package sqlw

import "github.com/walferry/walferry/change"

// UpdateByKey is the statement that gives a row with the key of row all its
// values, or nil when the target has no key to find it by.
func (g *Target) UpdateByKey(row []change.Value) *Stmt {
	if g.key == nil || g.identErr != nil {
		return nil
	}
	for _, c := range g.key {
		if row[c].Kind == change.Null {
			return nil
		}
	}
	w := where{cols: g.key, ops: g.keyOps, vals: row}
	return g.buildUpdate(0, &w, nil, row)
}
