package snapshot

import "github.com/walferry/walferry/internal/pgquery"

// columnType is what decides on the format of a column.
type columnType struct {
	oid  string
	kind string // pg_type.typtype
	elem string // oid of the elements of an array, else "0"
}

// columnTypeSQL are the fields of a columnType, of pg_type t.
const columnTypeSQL = `t.oid, t.typtype, CASE WHEN t.typcategory = 'A' THEN t.typelem ELSE 0 END`

func readColumnType(r pgquery.Row) columnType { return columnType{oid: r[0], kind: r[1], elem: r[2]} }

// binaryTypes are the built-in types whose binary format carries what their text
// does, whatever the settings of the databases (PostgreSQL: catalog/pg_type.dat).
// Not among them: money, whose text depends on lc_monetary, and xml, which names
// its encoding.
var binaryTypes = map[string]bool{
	"16": true, "17": true, "18": true, "19": true, "20": true, "21": true, "23": true, "25": true, "26": true, // bool bytea "char" name int8 int2 int4 text oid
	"114": true, "3802": true, "2950": true, "3220": true, // json jsonb uuid pg_lsn
	"600": true, "601": true, "602": true, "603": true, "604": true, "628": true, "718": true, // geometric types
	"650": true, "869": true, "829": true, "774": true, // cidr inet macaddr macaddr8
	"700": true, "701": true, "1700": true, // float4 float8 numeric
	"1042": true, "1043": true, // bpchar varchar
	"1082": true, "1083": true, "1114": true, "1184": true, "1186": true, "1266": true, // date time timestamp timestamptz interval timetz
	"1560": true, "1562": true, // bit varbit
}

// binary reports whether a column can be sent in binary format: both sides have
// the same built-in type, or an array of one, or enumerations, which are sent as
// their labels. The servers must have the same major version.
func (from columnType) binary(to columnType) bool {
	switch {
	case from.kind == "e":
		return to.kind == "e"
	case from.oid != to.oid:
		return false
	}
	return binaryTypes[from.oid] || binaryTypes[from.elem]
}
