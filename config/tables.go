package config

import (
	"errors"
	"fmt"
	"strings"
)

// Pattern selects tables by name.
type Pattern struct{ schema, table namePart }

// ParsePattern reads schema.table, where * stands for any characters and ? for
// one, except in a quoted name. A name without a schema is an error: the same
// name may exist in several.
func ParsePattern(s string) (Pattern, error) {
	parts, err := splitName(s)
	if err != nil {
		return Pattern{}, err
	}
	switch len(parts) {
	case 1:
		return Pattern{}, fmt.Errorf("the schema is missing: write public.%s, or *.%s for every schema", parts[0], parts[0])
	case 2:
		return Pattern{parts[0], parts[1]}, nil
	}
	return Pattern{}, errors.New(`more than two names; quote a name that holds a dot: public."a.b"`)
}

// Match says whether the table is selected.
func (p Pattern) Match(schema, table string) bool {
	return p.schema.match(schema) && p.table.match(table)
}

// String is what ParsePattern reads.
func (p Pattern) String() string { return p.schema.String() + "." + p.table.String() }

// TableSet selects tables: those that an Include pattern matches and no
// Exclude pattern. Without Include it is all tables.
type TableSet struct{ Include, Exclude []Pattern }

// Match says whether the table is selected. Tables of PostgreSQL and of
// walferry itself never are.
func (s *TableSet) Match(schema, table string) bool {
	if systemSchema(schema) {
		return false
	}
	for _, p := range s.Exclude {
		if p.Match(schema, table) {
			return false
		}
	}
	if len(s.Include) == 0 {
		return true
	}
	for _, p := range s.Include {
		if p.Match(schema, table) {
			return true
		}
	}
	return false
}

func systemSchema(s string) bool {
	// Names that begin with pg_ are reserved (PostgreSQL: "System Catalog Schema").
	return strings.HasPrefix(s, "pg_") || s == "information_schema" || s == "walferry" || s == "walferry_merge"
}

// NewTableSet parses patterns.
func NewTableSet(include, exclude []string) (TableSet, error) {
	var s TableSet
	var errs []error
	for _, l := range []struct {
		in  []string
		out *[]Pattern
	}{{include, &s.Include}, {exclude, &s.Exclude}} {
		for _, t := range l.in {
			p, err := ParsePattern(t)
			if err != nil {
				errs = append(errs, fmt.Errorf("table pattern %q: %w", t, err))
			}
			*l.out = append(*l.out, p)
		}
	}
	return s, errors.Join(errs...)
}

// Rename says where tables go on the subscriber. An entry for the table wins
// over one for its schema.
type Rename struct {
	Schemas map[string]string
	Tables  map[TableName]TableName
}

// Target returns the subscriber's names for a table of the publisher.
func (r *Rename) Target(schema, table string) (targetSchema, targetTable string) {
	if t, ok := r.Tables[TableName{schema, table}]; ok {
		return t.Schema, t.Table
	}
	if s, ok := r.Schemas[schema]; ok {
		return s, table
	}
	return schema, table
}

// Collision is two tables of the publisher that would become one.
type Collision struct{ First, Second, Target TableName }

// Error says what to do.
func (c *Collision) Error() string {
	return fmt.Sprintf("tables %s and %s would both be %s on the subscriber: rename one of them or exclude it", c.First, c.Second, c.Target)
}

// Collisions looks for tables with the same target among those given.
func (r *Rename) Collisions(tables []TableName) []*Collision {
	var out []*Collision
	seen := make(map[TableName]TableName, len(tables))
	for _, t := range tables {
		var to TableName
		to.Schema, to.Table = r.Target(t.Schema, t.Table)
		if first, ok := seen[to]; ok && first != t {
			out = append(out, &Collision{first, t, to})
			continue
		}
		seen[to] = t
	}
	return out
}

// SplitPatterns splits a list of patterns at its commas, but not inside quotes.
func SplitPatterns(list string) []string {
	var out []string
	quoted, start := false, 0
	for i := range len(list) + 1 {
		switch {
		case i == len(list) || list[i] == ',' && !quoted:
			if t := strings.TrimSpace(list[start:i]); t != "" {
				out = append(out, t)
			}
			start = i + 1
		case list[i] == '"':
			quoted = !quoted
		}
	}
	return out
}
