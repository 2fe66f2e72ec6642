package config

import (
	"errors"
	"fmt"
	"strings"
)

// maxIdentifier is the longest name in bytes (NAMEDATALEN - 1).
const maxIdentifier = 63

// TableName is a table's name as PostgreSQL stores it.
type TableName struct{ Schema, Table string }

// String quotes what [ParseTableName] would not read otherwise.
func (t TableName) String() string { return quoteLiteral(t.Schema) + "." + quoteLiteral(t.Table) }

// ParseTableName reads schema.table; names with special characters are quoted
// as in SQL: "My Schema"."Order.Items". Upper and lower case are kept.
func ParseTableName(s string) (TableName, error) {
	p, err := ParsePattern(s)
	if err != nil {
		return TableName{}, err
	}
	if p.schema.wild || p.table.wild {
		return TableName{}, errors.New("wildcards are not possible here; quote a name that holds * or ?")
	}
	return TableName{p.schema.text, p.table.text}, nil
}

// parseIdentifier reads one name, quoted or not.
func parseIdentifier(s string) (string, error) {
	parts, err := splitName(s)
	if err != nil {
		return "", err
	}
	if len(parts) != 1 {
		return "", errors.New("want one name; quote a name that holds a dot")
	}
	if parts[0].wild {
		return "", errors.New("wildcards are not possible here; quote a name that holds * or ?")
	}
	return parts[0].text, nil
}

// namePart is one name of a dotted one.
type namePart struct {
	text string
	wild bool // text holds * or ? with a meaning
}

func (p namePart) match(s string) bool {
	if !p.wild {
		return p.text == s
	}
	return glob(p.text, s)
}

func (p namePart) String() string {
	if p.wild {
		return p.text
	}
	return quoteLiteral(p.text)
}

// special are the characters that stand for themselves only in quotes.
const special = " \t\r\n\".,*?"

func quoteLiteral(s string) string {
	if s != "" && !strings.ContainsAny(s, special) {
		return s
	}
	return `"` + strings.ReplaceAll(s, `"`, `""`) + `"`
}

// splitName reads names with dots between them.
func splitName(s string) ([]namePart, error) {
	s = strings.TrimSpace(s)
	if s == "" {
		return nil, errors.New("name is empty")
	}
	var parts []namePart
	for {
		p, rest, err := nextName(s)
		if err != nil {
			return nil, err
		}
		if !p.wild && len(p.text) > maxIdentifier {
			return nil, fmt.Errorf("name %s has %d bytes: PostgreSQL has names of at most %d", p, len(p.text), maxIdentifier)
		}
		parts = append(parts, p)
		if rest == "" {
			return parts, nil
		}
		if rest[0] != '.' {
			return nil, errors.New(`a quoted name must be followed by a dot or nothing; write "" for a quote inside`)
		}
		s = rest[1:]
	}
}

func nextName(s string) (p namePart, rest string, err error) {
	if !strings.HasPrefix(s, `"`) {
		end := strings.IndexByte(s, '.')
		if end < 0 {
			end = len(s)
		}
		p.text, rest = s[:end], s[end:]
		switch {
		case p.text == "":
			return p, "", errors.New("a name is empty")
		case strings.ContainsAny(p.text, " \t\r\n\","):
			return p, "", errors.New(`names with spaces, commas or quotes must be quoted: "my table"`)
		}
		p.wild = strings.ContainsAny(p.text, "*?")
		return p, rest, nil
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		if s[i] != '"' {
			b.WriteByte(s[i])
			continue
		}
		if i+1 < len(s) && s[i+1] == '"' {
			b.WriteByte('"')
			i++
			continue
		}
		if b.Len() == 0 {
			return p, "", errors.New("a name is empty")
		}
		return namePart{text: b.String()}, s[i+1:], nil
	}
	return p, "", errors.New("a quote is not closed")
}

// glob matches * (any characters) and ? (one character).
func glob(pattern, s string) bool {
	p, r := []rune(pattern), []rune(s)
	pi, si, star, mark := 0, 0, -1, 0
	for si < len(r) {
		switch {
		case pi < len(p) && p[pi] == '*':
			star, mark = pi, si
			pi++
		case pi < len(p) && (p[pi] == '?' || p[pi] == r[si]):
			pi++
			si++
		case star >= 0:
			mark++
			pi, si = star+1, mark
		default:
			return false
		}
	}
	for pi < len(p) && p[pi] == '*' {
		pi++
	}
	return pi == len(p)
}
