package preflight

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// row is one result row in text form; a NULL is the empty string.
type row []string

func (r row) bool(i int) bool { return r[i] == "t" }

func query(ctx context.Context, c *pgconn.PgConn, sql string, args ...string) ([]row, error) {
	params := make([][]byte, len(args))
	for i, a := range args {
		params[i] = []byte(a)
	}
	res := c.ExecParams(ctx, sql, params, nil, nil, nil).Read()
	if res.Err != nil {
		return nil, res.Err
	}
	rows := make([]row, len(res.Rows))
	for i, r := range res.Rows {
		rows[i] = make(row, len(r))
		for j, v := range r {
			rows[i][j] = string(v)
		}
	}
	return rows, nil
}

func queryRow(ctx context.Context, c *pgconn.PgConn, sql string, args ...string) (row, error) {
	rows, err := query(ctx, c, sql, args...)
	if err != nil {
		return nil, err
	}
	if len(rows) != 1 {
		return nil, fmt.Errorf("query gave %d rows, want 1", len(rows))
	}
	return rows[0], nil
}

// ident quotes a name where SQL needs it.
func ident(s string) string {
	plain := s != "" && !keywords[s]
	for i, c := range []byte(s) {
		if c != '_' && (c < 'a' || c > 'z') && (i == 0 || c < '0' || c > '9') {
			plain = false
			break
		}
	}
	if plain {
		return s
	}
	return `"` + strings.ReplaceAll(s, `"`, `""`) + `"`
}

// keywords are the reserved words that are likely as names.
var keywords = map[string]bool{
	"all": true, "order": true, "user": true, "table": true, "group": true, "column": true, "end": true, "limit": true, "offset": true,
	"default": true, "check": true, "primary": true, "references": true, "select": true, "where": true, "from": true, "to": true, "using": true,
	"desc": true, "asc": true, "case": true, "when": true, "then": true, "analyse": true, "analyze": true, "both": true, "do": true, "grant": true,
	"in": true, "into": true, "new": true, "old": true, "not": true, "null": true, "on": true, "or": true, "and": true, "as": true, "session_user": true,
	"current_user": true, "unique": true, "union": true, "window": true, "with": true, "array": true, "cast": true, "create": true, "for": true,
}

func qualified(schema, name string) string { return ident(schema) + "." + ident(name) }

func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

func textArray(items []string) string {
	q := make([]string, len(items))
	for i, s := range items {
		q[i] = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
	}
	return "{" + strings.Join(q, ",") + "}"
}
