package snapshot

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/internal/pgquery"
)

// plan is what the copy of one table does.
type plan struct {
	*sourceTable
	targetOID string
	leaves    bool     // the target is partitioned
	foreign   bool     // its rows, or those of a partition, are not in a heap of this server
	columns   []string // copied ones
	// freeze: the table was made by this run, so that nobody can miss rows that
	// its older snapshot should not see (PostgreSQL: COPY, FREEZE).
	freeze bool
	statements
	truncate bool
	// empty: the target has no rows, or only such as may be thrown away.
	empty bool
	// earlier are parts that an interrupted run has recorded, and present the rows of the
	// target by the transaction that stored them.
	earlier []recordedPart
	present map[uint32]int64
	// mayDrop: a BEFORE trigger that fires in this session can drop rows.
	mayDrop bool
	// rechecks find rows that violate a deferrable constraint. PostgreSQL does
	// not enforce those in a session with session_replication_role=replica.
	rechecks []recheck
}

// only is the target without tables that inherit from it, which have rows of their own.
func (p *plan) only() string {
	if p.leaves {
		return p.Target()
	}
	return "ONLY " + p.Target()
}

func (p *plan) rowsOnly() bool { return len(p.columns) == 0 }

// makePlans compares the tables of both sides. All that is wrong is named in
// one [*PlanError].
func makePlans(ctx context.Context, r *run, sources []*sourceTable, made []TableMap) ([]*plan, error) {
	sameVersion := r.in.version/10000 == r.out.version/10000
	there, err := haveRows(ctx, r)
	if err != nil {
		return nil, err
	}
	var plans []*plan
	var problems []string
	for _, s := range sources {
		p := &plan{sourceTable: s, statements: statements{binary: sameVersion}}
		p.freeze = slices.ContainsFunc(made, func(t TableMap) bool { return t.Target() == s.Target() })
		bad, err := p.compare(ctx, r.out)
		p.empty = p.freeze
		if err == nil && len(bad) == 0 && !p.freeze && !there[relationName{s.SourceSchema, s.SourceName}] {
			bad, err = p.existing(ctx, r)
		}
		if err != nil {
			return nil, fmt.Errorf("read subscriber's table %s: %w", s.Target(), err)
		}
		if len(bad) > 0 {
			problems = append(problems, bad...)
			continue
		}
		p.setSQL()
		plans = append(plans, p)
	}
	if len(problems) > 0 {
		return nil, &PlanError{Problems: problems}
	}
	return plans, nil
}

// compare fills in the target side and returns what is wrong.
func (p *plan) compare(ctx context.Context, out *writer) ([]string, error) {
	rows, err := pgquery.Rows(ctx, out.conn, `SELECT c.oid, c.relkind,
		EXISTS (SELECT FROM pg_class l LEFT JOIN pg_am a ON a.oid = l.relam WHERE (l.oid = c.oid OR l.oid IN (SELECT relid FROM pg_partition_tree(c.oid)))
			AND l.relkind <> 'p' AND a.amname IS DISTINCT FROM 'heap')
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2`, p.TargetSchema, p.TargetName)
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return []string{fmt.Sprintf("subscriber has no table %s: create it or set schema: create", p.Target())}, nil
	}
	if kind := rows[0][1]; kind != "r" && kind != "p" {
		return []string{fmt.Sprintf("%s on the subscriber is not a table (relkind %q)", p.Target(), kind)}, nil
	}
	p.targetOID, p.leaves, p.foreign = rows[0][0], rows[0][1] == "p", rows[0].Bool(2)
	p.freeze = p.freeze && !p.leaves // not through a partitioned table
	rows, err = pgquery.Rows(ctx, out.conn, `SELECT attname, attgenerated <> '', `+columnTypeSQL+` FROM pg_attribute JOIN pg_type t ON t.oid = atttypid
		WHERE attrelid = $1::oid AND attnum > 0 AND NOT attisdropped`, p.targetOID)
	if err != nil {
		return nil, err
	}
	generated, types := map[string]bool{}, map[string]columnType{} // columns of the target
	for _, r := range rows {
		generated[r[0]], types[r[0]] = r.Bool(1), readColumnType(r[2:])
	}
	var bad []string
	for _, c := range p.sourceTable.columns {
		gen, ok := generated[c.name]
		switch {
		case !ok:
			bad = append(bad, fmt.Sprintf("subscriber's table %s has no column %s (%s): ALTER TABLE %s ADD COLUMN %s %s",
				p.Target(), sqlw.QuoteIdent(c.name), c.typ, p.Target(), sqlw.QuoteIdent(c.name), c.typ))
		case gen && c.generated:
			// Both sides compute it.
		case gen:
			bad = append(bad, fmt.Sprintf("column %s of the subscriber's table %s is generated, but the publisher sends values for it: ALTER TABLE %s ALTER COLUMN %s DROP EXPRESSION, or leave the column out of the publication",
				sqlw.QuoteIdent(c.name), p.Target(), p.Target(), sqlw.QuoteIdent(c.name)))
		default:
			p.columns = append(p.columns, c.name)
			p.binary = p.binary && c.binary(types[c.name])
		}
	}
	if len(bad) > 0 {
		return bad, nil
	}
	if p.mayDrop, err = mayDropRows(ctx, out, p.targetOID); err != nil {
		return nil, err
	}
	if out.replica {
		p.rechecks, err = deferrable(ctx, out.conn, p.targetOID)
	}
	return nil, err
}

// haveRows are the tables that an earlier run has copied.
func haveRows(ctx context.Context, r *run) (map[relationName]bool, error) {
	rows, err := pgquery.Rows(ctx, r.out.conn, `SELECT schema_name, table_name FROM walferry.subscription_table
		WHERE subscription = $1 AND state IN ('copied', 'ready')`, r.o.Subscription)
	if err != nil {
		return nil, fmt.Errorf("read walferry.subscription_table: %w", err)
	}
	there := make(map[relationName]bool, len(rows))
	for _, w := range rows {
		there[relationName{w[0], w[1]}] = true
	}
	return there, nil
}

// existing decides what to do with rows that the target holds.
func (p *plan) existing(ctx context.Context, r *run) ([]string, error) {
	w, err := pgquery.One(ctx, r.out.conn, "SELECT EXISTS (SELECT FROM "+p.only()+")")
	if err != nil {
		return nil, err
	}
	if p.earlier, err = r.out.readParts(ctx, r.o.Subscription, p.TableMap); err != nil {
		return nil, err
	}
	holds, strangers := w.Bool(0), int64(0)
	if holds && len(p.earlier) > 0 {
		if p.present, err = r.out.presentRows(ctx, p); err != nil {
			return nil, err
		}
		strangers = p.strangers()
	}
	switch {
	case !holds:
		p.empty = true
	case strangers > 0 && r.o.OnExisting != Truncate:
		return []string{fmt.Sprintf("subscriber's table %s holds %d rows that an interrupted copy has not brought: empty it (TRUNCATE %s), or set copy.on_existing to truncate",
			p.Target(), strangers, p.Target())}, nil
	case len(p.earlier) > 0, r.o.OnExisting == Truncate: // the rows are of an earlier run, or not wanted
		p.truncate, p.empty = true, true
	case r.o.OnExisting == Append:
	default:
		unique, err := pgquery.Rows(ctx, r.out.conn, "SELECT indexrelid::regclass FROM pg_index WHERE indrelid = $1::oid AND indisunique ORDER BY 1", p.targetOID)
		if err != nil {
			return nil, err
		}
		why := "the copy would bring them a second time"
		if len(unique) > 0 {
			why = "the copy could violate " + unique[0][0]
		}
		return []string{fmt.Sprintf("subscriber's table %s holds rows, and %s: empty it (TRUNCATE %s), or set copy.on_existing to truncate, or to append to keep them, "+
			"or set initial: none if the subscriber has everything already", p.Target(), why, p.Target())}, nil
	}
	if strangers > 0 {
		p.earlier = nil // with all of them
	}
	return nil, nil
}

func (p *plan) setSQL() {
	var writes []string
	if p.binary {
		writes = append(writes, "FORMAT binary")
	}
	if p.freeze {
		writes = append(writes, "FREEZE")
	}
	p.writes = "COPY " + p.Target() + " (" + sqlw.QuoteList(p.columns) + ") FROM STDIN" + options(writes)
	from := " FROM ONLY " + p.Source()
	if p.partitioned {
		from = " FROM " + p.Source()
	}
	if p.RowFilter != "" {
		from += " WHERE (" + p.RowFilter + ")"
	}
	if p.rowsOnly() {
		p.reads = "SELECT pg_catalog.count(*)" + from
		return
	}
	plain := !p.partitioned && p.RowFilter == ""
	for _, c := range p.sourceTable.columns {
		plain = plain && !c.generated // COPY refuses to read them
	}
	if plain {
		p.reads = "COPY " + p.Source() + " (" + sqlw.QuoteList(p.columns) + ") TO STDOUT" + p.readOptions()
	} else {
		p.reads = "COPY (SELECT " + sqlw.QuoteList(p.columns) + from + ") TO STDOUT" + p.readOptions()
	}
}

// setPartSQL makes the statements copy a part, or what the subscriber does not have of
// it.
func (p *plan) setPartSQL(t *part, h horizon) {
	p.freeze = false // the table is not new in the transaction
	p.setSQL()
	age := ""
	if t.there() {
		age = h.young(t.bound)
	}
	p.reads = "COPY (SELECT " + sqlw.QuoteList(p.columns) + " FROM ONLY " + t.table + " WHERE " + p.filtered(t.where(age)) + ") TO STDOUT" + p.readOptions()
}

// filtered is a condition and that of the publication.
func (p *plan) filtered(where string) string {
	if p.RowFilter == "" {
		return where
	}
	return where + " AND (" + p.RowFilter + ")"
}

func (p *plan) readOptions() string {
	if p.binary {
		return options([]string{"FORMAT binary"})
	}
	return ""
}

// options are those of a COPY.
func options(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return " WITH (" + strings.Join(list, ", ") + ")"
}

// mayDropRows looks for BEFORE INSERT row triggers of the table or one of its
// partitions that fire in the role of the session.
func mayDropRows(ctx context.Context, out *writer, oid string) (bool, error) {
	fires := "'O', 'A'" // enabled for origin and always
	if out.replica {
		fires = "'R', 'A'"
	}
	// tgtype: 1 row, 2 before, 4 insert (PostgreSQL: catalog/pg_trigger.h).
	r, err := pgquery.One(ctx, out.conn, `SELECT EXISTS (SELECT FROM pg_trigger WHERE tgrelid IN (SELECT $1::oid UNION SELECT relid FROM pg_partition_tree($1::oid))
		AND tgtype & 7 = 7 AND tgenabled IN (`+fires+`))`, oid)
	if err != nil {
		return false, err
	}
	return r.Bool(0), nil
}

// parentsFirst orders the tables so that the rows a foreign key refers to come
// before those that refer. Tables of a cycle keep their order.
func parentsFirst(ctx context.Context, conn *pgconn.PgConn, plans []*plan) ([]*plan, error) {
	byOID := map[string]*plan{}
	var oids []string
	for _, p := range plans {
		byOID[p.targetOID] = p
		oids = append(oids, p.targetOID)
	}
	rows, err := pgquery.Rows(ctx, conn, `SELECT conrelid, confrelid FROM pg_constraint WHERE contype = 'f' AND conrelid = ANY ($1::oid[])`,
		"{"+strings.Join(oids, ",")+"}")
	if err != nil {
		return nil, fmt.Errorf("read foreign keys of the subscriber: %w", err)
	}
	parents := map[*plan][]*plan{}
	for _, r := range rows {
		child, parent := byOID[r[0]], byOID[r[1]]
		if parent != nil && parent != child {
			parents[child] = append(parents[child], parent)
		}
	}
	var order []*plan
	seen := map[*plan]bool{}
	var visit func(*plan)
	visit = func(p *plan) {
		if seen[p] {
			return
		}
		seen[p] = true
		for _, q := range parents[p] {
			visit(q)
		}
		order = append(order, p)
	}
	for _, p := range plans {
		visit(p)
	}
	return order, nil
}
