package apply

import (
	"bytes"
	"fmt"
	"time"

	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/source/pgoutput"
)

const (
	// catalogAge is how long the catalog of a table is trusted under load, and
	// idleCatalogAge when there is time to look.
	catalogAge     = 5 * time.Second
	idleCatalogAge = time.Second
	// catalogCost is added to catalogAge for each table, so that looking stays
	// a small part of the work.
	catalogCost = 20 * time.Millisecond
)

type tableName struct{ schema, name string }

// tableRow is a row of walferry.subscription_table.
type tableRow struct {
	ready   bool
	copyLSN change.LSN
	// removed is where the table left the publication: changes before it are
	// applied, later ones need a copy first. 0: it has not left.
	removed change.LSN
}

// relation is a table of the publisher.
type relation struct {
	raw     []byte // the message that described it
	rel     *change.Relation
	ignored bool
	schema  string // of the target
	table   string
	row     *tableRow
	target  *sqlw.Target
	looked  uint64 // number of the group in which the catalog was looked at
}

// ours are schemas that are never replicated.
var ours = map[string]bool{"walferry": true, "walferry_merge": true, "pg_catalog": true, "information_schema": true}

// relation takes note of the description of a table.
func (e *engine) relation(msg []byte) error {
	oid, ok := pgoutput.RelationOID(msg)
	if !ok {
		return fmt.Errorf("relation message of %d bytes", len(msg))
	}
	if r := e.rels[oid]; r != nil && bytes.Equal(r.raw, msg) {
		return nil
	}
	m, err := e.dec.Decode(msg)
	if err != nil {
		return fmt.Errorf("decode relation: %w", err)
	}
	r := &relation{raw: bytes.Clone(msg), rel: m.Relation}
	if ours[r.rel.Schema] {
		r.ignored = true
	} else if r.schema, r.table, ok = e.o.Map(r.rel.Schema, r.rel.Name); !ok {
		r.ignored = true
	}
	e.rels[oid] = r
	return nil
}

// target returns where the changes of a relation go; nil: nowhere.
func (e *engine) target(oid change.OID) (*sqlw.Target, error) {
	r, err := e.selected(oid)
	if r == nil || err != nil {
		return nil, err
	}
	if r.target != nil && r.looked == e.grp.number {
		return r.target, nil
	}
	return e.look(r)
}

// selected returns the relation if its changes in this transaction are to be
// applied.
func (e *engine) selected(oid change.OID) (*relation, error) {
	r := e.rels[oid]
	if r == nil {
		return nil, fmt.Errorf("change of relation %d, which was not described", oid)
	}
	if r.ignored {
		return nil, nil
	}
	if r.row == nil {
		if err := e.admit(r); err != nil {
			return nil, err
		}
	}
	if e.tx.commit < r.row.copyLSN {
		return nil, nil
	}
	if !r.row.ready || r.row.removed != 0 && e.tx.commit >= r.row.removed {
		return nil, &NeedCopy{Relation: r.rel}
	}
	return r, nil
}

// admit finds the table in walferry.subscription_table.
func (e *engine) admit(r *relation) error {
	name := tableName{r.rel.Schema, r.rel.Name}
	row := e.tables[name]
	if (row == nil || !row.ready && e.tx.commit >= row.copyLSN) && e.o.OnUnknown == Apply {
		if err := e.open(); err != nil {
			return err
		}
		if _, err := e.sess.Query(`INSERT INTO walferry.subscription_table
				(subscription, schema_name, table_name, target_schema, target_table, state, copy_lsn)
			VALUES ($1, $2, $3, $4, $5, 'ready', '0/0')
			ON CONFLICT (subscription, schema_name, table_name) DO UPDATE SET state = 'ready'`,
			e.o.Subscription, name.schema, name.name, r.schema, r.table); err != nil {
			return fmt.Errorf("record table %s: %w", sqlw.DisplayName(name.schema, name.name), err)
		}
		if row == nil {
			row = &tableRow{}
		}
		row.ready = true
	}
	if row == nil {
		return &NeedCopy{Relation: r.rel}
	}
	e.tables[name], r.row = row, row
	return nil
}

// look reads the subscriber's catalog for a relation, unless that was done a
// moment ago.
func (e *engine) look(r *relation) (*sqlw.Target, error) {
	age := catalogAge + time.Duration(e.targets)*catalogCost
	if e.idle {
		age = idleCatalogAge
	}
	if r.target != nil && time.Since(r.target.Table.Loaded) < age {
		r.looked = e.grp.number
		return r.target, nil
	}
	if err := e.open(); err != nil {
		return nil, err
	}
	var old *sqlw.Table
	if r.target != nil {
		old = r.target.Table
	}
	t, err := sqlw.LoadTable(e.sess, r.schema, r.table, old)
	if err != nil {
		return nil, err
	}
	if t == nil {
		return nil, &MissingTable{Schema: r.schema, Name: r.table}
	}
	if r.target == nil || t != old {
		g, err := sqlw.NewTarget(r.rel, t, e.replica)
		if err != nil {
			return nil, &tableError{Schema: r.schema, Name: r.table, Err: err}
		}
		if r.target == nil {
			e.targets++
		}
		r.target = g
	}
	r.looked = e.grp.number
	return r.target, nil
}

// loadTables reads walferry.subscription_table.
func (e *engine) loadTables() error {
	rows, err := e.sess.Query(`SELECT schema_name, table_name, state, coalesce(copy_lsn, '0/0')::text,
			CASE WHEN state = 'removed' THEN coalesce(removed_lsn, '0/0') ELSE '0/0' END::text
		FROM walferry.subscription_table WHERE subscription = $1`, e.o.Subscription)
	if err != nil {
		return fmt.Errorf("read walferry.subscription_table: %w", err)
	}
	e.tables = make(map[tableName]*tableRow, len(rows))
	for _, r := range rows {
		l, err := change.ParseLSN(string(r[3]))
		if err != nil {
			return fmt.Errorf("read walferry.subscription_table: %w", err)
		}
		removed, err := change.ParseLSN(string(r[4]))
		if err != nil {
			return fmt.Errorf("read walferry.subscription_table: %w", err)
		}
		ready := string(r[2]) == "ready" || removed != 0
		e.tables[tableName{string(r[0]), string(r[1])}] = &tableRow{ready: ready, copyLSN: l, removed: removed}
	}
	return nil
}
