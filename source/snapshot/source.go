package snapshot

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/internal/pgquery"
)

// sourceTable is a table of the publisher as the snapshot shows it.
type sourceTable struct {
	TableMap
	oid            string
	partitioned    bool
	columns        []sourceColumn // published ones, in table order
	key            []string       // columns that tell rows apart; none: there are no such
	estimatedRows  int64
	estimatedBytes int64
}

type sourceColumn struct {
	name      string
	typ       string // format_type
	generated bool
	columnType
}

// readSources looks up all tables and names everything that is wrong at once.
func readSources(ctx context.Context, in *reader, tables []TableMap) ([]*sourceTable, error) {
	var sources []*sourceTable
	var problems []string
	for _, t := range tables {
		s, problem, err := readSource(ctx, in, t)
		if err != nil {
			return nil, fmt.Errorf("read publisher's table %s: %w", t.Source(), err)
		}
		if problem != "" {
			problems = append(problems, problem)
			continue
		}
		sources = append(sources, s)
	}
	if len(problems) > 0 {
		return nil, &PlanError{Problems: problems}
	}
	return sources, nil
}

func readSource(ctx context.Context, in *reader, t TableMap) (*sourceTable, string, error) {
	rows, err := pgquery.Rows(ctx, in.conn, `SELECT c.oid, c.relkind, c.reltuples::int8,
		CASE WHEN c.relkind = 'p' THEN (SELECT COALESCE(sum(pg_table_size(relid)), 0) FROM pg_partition_tree(c.oid)) ELSE pg_table_size(c.oid) END
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2`, t.SourceSchema, t.SourceName)
	if err != nil {
		return nil, "", err
	}
	if len(rows) == 0 {
		return nil, fmt.Sprintf("publisher has no table %s", t.Source()), nil
	}
	kind := rows[0][1]
	if kind != "r" && kind != "p" || t.Kind != 0 && kind != string(t.Kind) {
		return nil, fmt.Sprintf("%s on the publisher has relkind %q, which is not the kind of a published table", t.Source(), kind), nil
	}
	s := &sourceTable{TableMap: t, oid: rows[0][0], partitioned: kind == "p", estimatedRows: -1, estimatedBytes: -1}
	if n, err := strconv.ParseInt(rows[0][2], 10, 64); err == nil {
		s.estimatedRows = n // -1 when never analyzed
	}
	if n, err := strconv.ParseInt(rows[0][3], 10, 64); err == nil {
		s.estimatedBytes = n
	}
	rows, err = pgquery.Rows(ctx, in.conn, `SELECT attname, format_type(atttypid, atttypmod), attgenerated <> '', `+columnTypeSQL+`, attnum
		FROM pg_attribute JOIN pg_type t ON t.oid = atttypid WHERE attrelid = $1::oid AND attnum > 0 AND NOT attisdropped ORDER BY attnum`, s.oid)
	if err != nil {
		return nil, "", err
	}
	missing := slices.Clone(t.Columns)
	numbers := map[string]string{} // names of published columns by attnum
	for _, r := range rows {
		c := sourceColumn{name: r[0], typ: r[1], generated: r.Bool(2), columnType: readColumnType(r[3:])}
		if i := slices.Index(missing, c.name); i >= 0 {
			missing = slices.Delete(missing, i, i+1)
		} else if t.Columns != nil {
			continue
		}
		// Before 18 generated columns are never sent, though the view
		// pg_publication_tables of 15 lists them.
		if c.generated && (t.Columns == nil || in.version < 180000) {
			continue
		}
		s.columns = append(s.columns, c)
		numbers[r[6]] = c.name
	}
	if len(missing) > 0 {
		return nil, fmt.Sprintf("publisher's table %s has no column %s", t.Source(), sqlw.QuoteList(missing)), nil
	}
	if rows, err = pgquery.Rows(ctx, in.conn, keySQL, s.oid); err != nil {
		return nil, "", err
	}
	for _, r := range rows {
		s.key = keyNames(r[0], numbers)
	}
	return s, "", nil
}

// keySQL finds the columns of a unique index that tells all rows apart.
const keySQL = `SELECT array_to_string(ARRAY(SELECT k.attnum FROM unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, n) WHERE k.n <= i.indnkeyatts ORDER BY k.n), ' ')
	FROM pg_index i WHERE i.indrelid = $1::oid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
	AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey::int2[]) AND NOT a.attnotnull)
	ORDER BY i.indisprimary DESC, i.indexrelid LIMIT 1`

// keyNames are the columns of a key by their numbers: none, if one is not published.
func keyNames(key string, names map[string]string) []string {
	var columns []string
	for n := range strings.FieldsSeq(key) {
		name, ok := names[n]
		if !ok {
			return nil
		}
		columns = append(columns, name)
	}
	return columns
}

// A PlanError lists why tables cannot be copied as they are. It is found
// before a row has been copied.
type PlanError struct{ Problems []string }

func (e *PlanError) Error() string {
	return "cannot copy: " + strings.Join(e.Problems, "; ")
}
