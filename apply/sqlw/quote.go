package sqlw

import "strings"

// QuoteIdent quotes an identifier for SQL text.
func QuoteIdent(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

// QuoteName quotes a name with its schema for SQL text.
func QuoteName(schema, name string) string { return QuoteIdent(schema) + "." + QuoteIdent(name) }

// QuoteList is QuoteIdent of each name, with commas between them.
func QuoteList(names []string) string {
	q := make([]string, len(names))
	for i, n := range names {
		q[i] = QuoteIdent(n)
	}
	return strings.Join(q, ", ")
}

// QuoteLiteral quotes a string for SQL text; it relies on
// standard_conforming_strings, which every walferry session has on. The grammar
// of replication commands knows no other form.
func QuoteLiteral(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// DisplayName is the name of a table for people: quoted only where needed. It
// can be pasted into SQL.
func DisplayName(schema, name string) string { return DisplayIdent(schema) + "." + DisplayIdent(name) }

// DisplayIdent is an identifier for people: quoted only where needed. It can be
// pasted into SQL.
func DisplayIdent(s string) string {
	if s == "" || reserved[s] {
		return QuoteIdent(s)
	}
	for i, c := range []byte(s) {
		lower := c >= 'a' && c <= 'z' || c == '_'
		if !lower && (i == 0 || (c < '0' || c > '9') && c != '$') {
			return QuoteIdent(s)
		}
	}
	return s
}

// reserved holds the key words that cannot be the name of a table, a column or
// a function without quotes: those that PostgreSQL 18 does not list as
// unreserved (pg_get_keywords()).
var reserved = wordSet(`
all analyse analyze and any array as asc asymmetric authorization between bigint binary bit boolean
both case cast char character check coalesce collate collation column concurrently constraint
create cross current_catalog current_date current_role current_schema current_time
current_timestamp current_user dec decimal default deferrable desc distinct do else end except
exists extract false fetch float for foreign freeze from full grant greatest group grouping having
ilike in initially inner inout int integer intersect interval into is isnull join json json_array
json_arrayagg json_exists json_object json_objectagg json_query json_scalar json_serialize
json_table json_value lateral leading least left like limit localtime localtimestamp merge_action
national natural nchar none normalize not notnull null nullif numeric offset on only or order out
outer overlaps overlay placing position precision primary real references returning right row
select session_user setof similar smallint some substring symmetric system_user table tablesample
then time timestamp to trailing treat trim true union unique user using values varchar variadic
verbose when where window with xmlattributes xmlconcat xmlelement xmlexists xmlforest xmlnamespaces
xmlparse xmlpi xmlroot xmlserialize xmltable
`)

func wordSet(text string) map[string]bool {
	set := map[string]bool{}
	for _, w := range strings.Fields(text) {
		set[w] = true
	}
	return set
}
