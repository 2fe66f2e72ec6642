package apply

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/change"
)

// rowJSON writes a tuple as a JSON object of texts. Columns that were not sent
// are left out; binary values are shown as \x and hexadecimal digits. ascii is
// for databases that cannot hold every character: others are written as their
// escapes, as text.
func rowJSON(rel *change.Relation, row []change.Value, ascii bool) []byte {
	if len(row) == 0 {
		return nil
	}
	b := []byte{'{'}
	for i := range row {
		v := &row[i]
		if v.Kind == change.Unchanged || i >= len(rel.Columns) {
			continue
		}
		if len(b) > 1 {
			b = append(b, ", "...)
		}
		b = appendJSONString(b, rel.Columns[i].Name, ascii)
		b = append(b, ": "...)
		switch v.Kind {
		case change.Null:
			b = append(b, "null"...)
		case change.Binary:
			b = appendJSONString(b, fmt.Sprintf(`\x%x`, v.Data), ascii)
		default:
			b = appendJSONString(b, string(v.Data), ascii)
		}
	}
	return append(b, '}')
}

func keyJSON(t *sqlw.Target, row []change.Value, ascii bool) []byte {
	key := &change.Relation{}
	var vals []change.Value
	for _, i := range t.KeyColumns() {
		if i < len(row) {
			key.Columns = append(key.Columns, t.Rel.Columns[i])
			vals = append(vals, row[i])
		}
	}
	return rowJSON(key, vals, ascii)
}

// appendJSONString appends s as a JSON string. Bytes that are not UTF-8 become
// question marks.
func appendJSONString(b []byte, s string, ascii bool) []byte {
	b = append(b, '"')
	for _, r := range strings.ToValidUTF8(s, "?") {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r < 0x20:
			b = fmt.Appendf(b, `\u%04x`, r)
		case r >= utf8.RuneSelf && ascii:
			b = fmt.Appendf(b, `\\u{%x}`, r)
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}

// asciiText replaces the characters that a database may not hold.
func asciiText(s string) string {
	var b strings.Builder
	for _, r := range strings.ToValidUTF8(s, "?") {
		if r >= utf8.RuneSelf {
			fmt.Fprintf(&b, `\u{%x}`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// appendASCIIJSON copies JSON text and replaces characters that a database may
// not hold; in JSON such characters stand in strings only.
func appendASCIIJSON(b []byte, s string) []byte {
	for _, r := range strings.ToValidUTF8(s, "?") {
		if r >= utf8.RuneSelf {
			b = fmt.Appendf(b, `\\u{%x}`, r)
		} else {
			b = append(b, byte(r))
		}
	}
	return b
}
