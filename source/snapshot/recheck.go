package snapshot

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/internal/pgquery"
)

// recheck is a query that gives a row when a deferrable constraint of the
// subscriber is violated.
type recheck struct{ constraint, sql string }

// A DuplicateError says that a deferrable constraint would be violated.
type DuplicateError struct{ Table, Constraint, Key string }

func (e *DuplicateError) Error() string {
	return fmt.Sprintf("rows of %s violate constraint %q (deferrable, so checked after the copy); key: %s", e.Table, e.Constraint, e.Key)
}

// deferrable makes the queries for the deferrable unique, primary key and
// exclusion constraints of a table and, through the clones, its partitions.
func deferrable(ctx context.Context, c *pgconn.PgConn, oid string) ([]recheck, error) {
	rows, err := pgquery.Rows(ctx, c, `SELECT k.conname, k.contype, quote_ident(n.nspname) || '.' || quote_ident(t.relname),
			k.conrelid = $1::oid,
			(SELECT string_agg(quote_ident(a.attname), chr(1) ORDER BY x.ord) FROM unnest(k.conkey) WITH ORDINALITY x(num, ord)
			   JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = x.num),
			(SELECT string_agg('OPERATOR(' || quote_ident(o.nspname) || '.' || p.oprname || ')', chr(1) ORDER BY x.ord)
			   FROM unnest(k.conexclop) WITH ORDINALITY x(op, ord) JOIN pg_operator p ON p.oid = x.op JOIN pg_namespace o ON o.oid = p.oprnamespace),
			COALESCE((to_jsonb(i)->>'indnullsnotdistinct')::bool, false),
			COALESCE(pg_get_expr(i.indpred, i.indrelid), ''),
			0 = ANY (i.indkey::int2[])
		FROM pg_constraint k JOIN pg_class t ON t.oid = k.conrelid JOIN pg_namespace n ON n.oid = t.relnamespace
		  JOIN pg_index i ON i.indexrelid = k.conindid
		WHERE k.condeferrable AND k.contype IN ('u', 'p', 'x')
		  AND k.conrelid IN (SELECT $1::oid UNION SELECT relid FROM pg_partition_tree($1::oid))
		  AND (k.conparentid = 0 OR k.conrelid = $1::oid)`, oid)
	if err != nil {
		return nil, fmt.Errorf("read deferrable constraints: %w", err)
	}
	var out []recheck
	for _, r := range rows {
		name, table := r[0], r[2]
		if r.Bool(8) {
			return nil, fmt.Errorf("constraint %q of %s is deferrable and built on an expression, which the copy cannot check while session_replication_role is replica: set replication_role: origin", name, table)
		}
		cols := strings.Split(r[4], "\x01")
		if r[1] == "x" {
			out = append(out, recheck{name, excludeSQL(table, cols, strings.Split(r[5], "\x01"), r[7])})
		} else {
			out = append(out, recheck{name, uniqueSQL(table, cols, r.Bool(6))})
		}
	}
	return out, nil
}

func uniqueSQL(table string, cols []string, nullsEqual bool) string {
	where := ""
	if !nullsEqual {
		where = " WHERE " + strings.Join(cols, " IS NOT NULL AND ") + " IS NOT NULL"
	}
	list := strings.Join(cols, ", ")
	return "SELECT pg_catalog.row_to_json(d) FROM (SELECT " + list + " FROM " + table + where +
		" GROUP BY " + list + " HAVING pg_catalog.count(*) > 1 LIMIT 1) d"
}

func excludeSQL(table string, cols, ops []string, predicate string) string {
	rel := table
	if predicate != "" {
		rel = "(SELECT ctid, tableoid, * FROM " + table + " WHERE " + predicate + ")"
	}
	var on, key []string
	for i, c := range cols {
		on = append(on, "a."+c+" "+ops[i]+" b."+c)
		key = append(key, "a."+c)
	}
	return "SELECT pg_catalog.row_to_json(d) FROM (SELECT " + strings.Join(key, ", ") + " FROM " + rel + " a JOIN " + rel +
		" b ON (a.tableoid, a.ctid) IS DISTINCT FROM (b.tableoid, b.ctid) AND " + strings.Join(on, " AND ") + " LIMIT 1) d"
}

// recheck runs the queries of the plan.
func (w *worker) recheck(ctx context.Context, p *plan) error {
	for _, c := range p.rechecks {
		rows, err := pgquery.Rows(ctx, w.out.conn, c.sql)
		if err != nil {
			return fmt.Errorf("check constraint %q: %w", c.constraint, err)
		}
		if len(rows) > 0 {
			return &DuplicateError{Table: p.Target(), Constraint: c.constraint, Key: rows[0][0]}
		}
	}
	return nil
}
