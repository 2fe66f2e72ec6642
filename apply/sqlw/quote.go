package sqlw

import "strings"

// QuoteIdent quotes an identifier for SQL text.
func QuoteIdent(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

// QuoteName quotes a name with its schema for SQL text.
func QuoteName(schema, name string) string { return QuoteIdent(schema) + "." + QuoteIdent(name) }

// QuoteLiteral quotes a string for SQL text; it relies on
// standard_conforming_strings, which every walferry session has on.
func QuoteLiteral(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// DisplayName is the name of a table for people: quoted only where needed.
func DisplayName(schema, name string) string { return displayIdent(schema) + "." + displayIdent(name) }

func displayIdent(s string) string {
	for i, c := range []byte(s) {
		lower := c >= 'a' && c <= 'z' || c == '_'
		if !lower && (i == 0 || c < '0' || c > '9') {
			return QuoteIdent(s)
		}
	}
	if s == "" {
		return `""`
	}
	return s
}
