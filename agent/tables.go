package agent

import (
	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/change"
)

// tableName is a table of the publisher.
type tableName struct{ schema, table string }

func (t tableName) String() string { return sqlw.DisplayName(t.schema, t.table) }

// target is where a published table goes.
type target struct {
	source        tableName
	oid           change.OID // in the publisher's database
	schema, table string
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
