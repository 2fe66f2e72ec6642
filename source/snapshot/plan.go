package snapshot

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/internal/pgquery"
)

// plan is what the copy of one table does.
type plan struct {
	*sourceTable
	targetOID string
	columns   []string // copied ones
	// reads is a COPY ... TO STDOUT, or a count for a table without columns,
	// of which COPY has nothing to say.
	reads  string
	writes string // COPY ... FROM STDIN
	// mayDrop: a BEFORE trigger that fires in this session can drop rows.
	mayDrop bool
	// rechecks find rows that violate a deferrable constraint. PostgreSQL does
	// not enforce those in a session with session_replication_role=replica.
	rechecks []recheck
}

func (p *plan) rowsOnly() bool { return len(p.columns) == 0 }

// makePlans compares the tables of both sides. All that is wrong is named in
// one [*PlanError].
func makePlans(ctx context.Context, out *writer, sources []*sourceTable) ([]*plan, error) {
	var plans []*plan
	var problems []string
	for _, s := range sources {
		p := &plan{sourceTable: s}
		bad, err := p.compare(ctx, out)
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
	rows, err := pgquery.Rows(ctx, out.conn, `SELECT c.oid, c.relkind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relname = $2`, p.TargetSchema, p.TargetName)
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return []string{fmt.Sprintf("subscriber has no table %s: create it or set schema: create", p.Target())}, nil
	}
	if kind := rows[0][1]; kind != "r" && kind != "p" {
		return []string{fmt.Sprintf("%s on the subscriber is not a table (relkind %q)", p.Target(), kind)}, nil
	}
	p.targetOID = rows[0][0]
	rows, err = pgquery.Rows(ctx, out.conn, `SELECT attname, attgenerated <> '' FROM pg_attribute
		WHERE attrelid = $1::oid AND attnum > 0 AND NOT attisdropped`, p.targetOID)
	if err != nil {
		return nil, err
	}
	generated := map[string]bool{} // columns of the target
	for _, r := range rows {
		generated[r[0]] = r.Bool(1)
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

func (p *plan) setSQL() {
	p.writes = "COPY " + p.Target() + " (" + sqlw.QuoteList(p.columns) + ") FROM STDIN"
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
		p.reads = "COPY " + p.Source() + " (" + sqlw.QuoteList(p.columns) + ") TO STDOUT"
	} else {
		p.reads = "COPY (SELECT " + sqlw.QuoteList(p.columns) + from + ") TO STDOUT"
	}
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
