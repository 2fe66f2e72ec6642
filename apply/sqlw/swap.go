package sqlw

import (
	"fmt"
	"strings"

	"github.com/walferry/walferry/change"
)

// A Swap applies changes of a table so that its unique indexes are not looked
// at until the end: rows that change are deleted from the table and kept in a
// temporary one, and all are inserted at once when the transaction ends.
//
// The publisher may let two rows exchange unique values within a transaction
// (its constraint is deferrable, or it has none); an ordinary unique index on
// the subscriber refuses the first of the two updates. Table and temporary table
// together are what the publisher has at that point of its transaction: a
// change looks for its row in the temporary table first.
type Swap struct {
	g     *Target
	temp  string
	stmts map[string]*Stmt
	began bool
}

// NewSwap prepares swapping for a target.
func NewSwap(g *Target) *Swap {
	return &Swap{g: g, temp: fmt.Sprintf("pg_temp.walferry_swap_%d", g.Table.OID), stmts: map[string]*Stmt{}}
}

// CanSwap reports whether deleting and inserting rows touches nothing but the
// rows: in a session where foreign keys act, deletes could take other rows along.
func (g *Target) CanSwap() bool { return g.identErr == nil && (g.replica || !g.Table.Cascades) }

// Begin makes the temporary table; it is dropped with the end of the
// transaction.
func (w *Swap) Begin(s *Session, step Step) error {
	if w.began {
		return nil
	}
	w.began = true
	make := &Stmt{SQL: "CREATE TEMP TABLE " + w.temp[len("pg_temp."):] + " (LIKE " + w.g.Table.SQL() + " INCLUDING DEFAULTS) ON COMMIT DROP", Want: -1}
	if err := s.Control(make, step); err != nil {
		return err
	}
	if w.g.key == nil {
		return nil
	}
	var cols []string
	for _, c := range w.g.key {
		cols = append(cols, QuoteIdent(w.g.columns[c].Name))
	}
	return s.Control(&Stmt{SQL: "CREATE INDEX ON " + w.temp + " (" + strings.Join(cols, ", ") + ")", Want: -1}, step)
}

// Insert is the statement for a new row.
func (w *Swap) Insert() *Stmt {
	return w.cached("I", func() *Stmt {
		b := &builder{g: w.g}
		vals := make([]string, len(w.g.columns))
		for i := range vals {
			vals[i] = b.value(i)
		}
		return b.stmt("INSERT INTO "+w.temp+" ("+w.g.columnList()+") VALUES ("+strings.Join(vals, ", ")+")", 1)
	})
}

func (w *Swap) cached(shape string, build func() *Stmt) *Stmt {
	st := w.stmts[shape]
	if st == nil {
		st = build()
		w.stmts[shape] = st
	}
	return st
}

// Update is the statement for an update.
func (w *Swap) Update(kind byte, old, row []change.Value) (*Stmt, error) {
	at, err := w.g.locate(kind, old, row)
	if err != nil {
		return nil, err
	}
	w.g.shape('U', kind, old, row)
	return w.cached(string(w.g.scratch), func() *Stmt {
		b := &builder{g: w.g}
		var sets []string
		for i, c := range w.g.columns {
			if row[i].Kind != change.Unchanged {
				sets = append(sets, QuoteIdent(c.Name)+" = "+b.value(i))
			}
		}
		names, vals := w.g.wholeRowValues(b, row, "d")
		return b.stmt("WITH s AS (UPDATE "+w.temp+" t SET "+strings.Join(sets, ", ")+" WHERE "+w.inTemp(b, &at)+" RETURNING 1), "+
			w.deleted(b, &at)+", i AS (INSERT INTO "+w.temp+" ("+names+") SELECT "+vals+" FROM d RETURNING 1) "+
			"SELECT FROM s UNION ALL SELECT FROM i", 1)
	}), nil
}

// Delete is the statement for a delete.
func (w *Swap) Delete(kind byte, old []change.Value) (*Stmt, error) {
	at, err := w.g.locate(kind, old, nil)
	if err != nil {
		return nil, err
	}
	w.g.shape('D', kind, old, nil)
	return w.cached(string(w.g.scratch), func() *Stmt {
		b := &builder{g: w.g}
		return b.stmt("WITH s AS (DELETE FROM "+w.temp+" t WHERE "+w.inTemp(b, &at)+" RETURNING 1), "+w.deleted(b, &at)+
			" SELECT FROM s UNION ALL SELECT FROM d", 1)
	}), nil
}

func (w *Swap) inTemp(b *builder, at *where) string {
	m := b.match(at, "t.")
	if !at.one {
		return m
	}
	return "t.ctid OPERATOR(pg_catalog.=) (SELECT t.ctid FROM " + w.temp + " t WHERE " + m + " LIMIT 1)"
}

// deleted removes the row from the table unless the temporary one had it.
func (w *Swap) deleted(b *builder, at *where) string {
	t := w.g.Table.only()
	if at.one {
		return w.g.oneRow(b, at) + ", d AS (DELETE FROM " + t + " t USING m WHERE " + found + " AND NOT EXISTS (SELECT FROM s) RETURNING t.*)"
	}
	return "d AS (DELETE FROM " + t + " t WHERE " + b.match(at, "t.") + " AND NOT EXISTS (SELECT FROM s) RETURNING t.*)"
}

// Finish inserts all rows that were kept.
func (w *Swap) Finish(s *Session, step Step) error {
	if !w.began {
		return nil
	}
	var names []string
	for i := range w.g.Table.Columns {
		if c := &w.g.Table.Columns[i]; c.Generated == "" {
			names = append(names, QuoteIdent(c.Name))
		}
	}
	list := strings.Join(names, ", ")
	step.Target = w.g
	put := w.cached("put", func() *Stmt {
		return &Stmt{SQL: "INSERT INTO " + w.g.Table.SQL() + " (" + list + ") OVERRIDING SYSTEM VALUE SELECT " + list + " FROM " + w.temp, Want: -1}
	})
	if err := s.Control(put, step); err != nil {
		return err
	}
	empty := w.cached("empty", func() *Stmt { return &Stmt{SQL: "DELETE FROM " + w.temp, Want: -1} })
	return s.Control(empty, step)
}
