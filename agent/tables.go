package agent

import (
	"strings"

	"github.com/walferry/walferry/change"
)

// tableName is a table of the publisher.
type tableName struct{ schema, table string }

func (t tableName) String() string { return quoteName(t.schema) + "." + quoteName(t.table) }

// target is where a published table goes.
type target struct {
	source        tableName
	oid           change.OID // in the publisher's database
	schema, table string
}

// quoteName quotes a name for people where PostgreSQL would need it.
func quoteName(s string) string {
	plain := s != ""
	for i, c := range []byte(s) {
		if c != '_' && (c < 'a' || c > 'z') && (i == 0 || (c < '0' || c > '9') && c != '$') {
			plain = false
			break
		}
	}
	if plain {
		return s
	}
	b := make([]byte, 0, len(s)+2)
	b = append(b, '"')
	for _, c := range []byte(s) {
		if c == '"' {
			b = append(b, '"')
		}
		b = append(b, c)
	}
	return string(append(b, '"'))
}

// ownSchema reports whether walferry keeps its own objects in the schema;
// those are never replicated.
func ownSchema(schema string) bool {
	switch schema {
	case "walferry", "walferry_merge", "pg_catalog", "information_schema":
		return true
	}
	return false
}

// quoteIdent quotes a name for SQL.
func quoteIdent(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }
