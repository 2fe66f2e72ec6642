package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPattern_Match(t *testing.T) {
	for _, c := range []struct {
		pattern, schema, table string
		want                   bool
	}{
		{"public.orders", "public", "orders", true},
		{"public.orders", "public", "Orders", false},
		{"public.Orders", "public", "Orders", true},
		{"public.orders", "app", "orders", false},
		{"public.*", "public", "", true},
		{"*.*", "any", "thing.with.dots", true},
		{"*.o", "app", "o", true},
		{"app_?.t*_x", "app_1", "t_1_x", true},
		{"app_?.t*_x", "app_12", "t_1_x", false},
		{"a.?", "a", "é", true},
		{"a.*b*c", "a", "xbxbc", true},
		{"a.*b*c", "a", "xbxb", false},
		{`"My Schema"."Order.Items"`, "My Schema", "Order.Items", true},
		{`"My Schema".*`, "My Schema", "x", true},
		{`a."x*"`, "a", "x*", true},
		{`a."x*"`, "a", "xy", false},
		{`a."say ""hi"""`, "a", `say "hi"`, true},
		{`a.größe`, "a", "größe", true},
	} {
		p, err := ParsePattern(c.pattern)
		if err != nil {
			t.Errorf("%s: %v", c.pattern, err)
			continue
		}
		if got := p.Match(c.schema, c.table); got != c.want {
			t.Errorf("%s matches %q.%q = %v", c.pattern, c.schema, c.table, got)
		}
		again, err := ParsePattern(p.String())
		if err != nil || again != p {
			t.Errorf("%s prints as %s, which reads as %v (%v)", c.pattern, p, again, err)
		}
	}
}

func TestPattern_Errors(t *testing.T) {
	for s, want := range map[string]string{
		"orders":                       "the schema is missing",
		"*":                            "the schema is missing",
		"":                             "name is empty",
		"a.":                           "a name is empty",
		".a":                           "a name is empty",
		"db.a.b":                       "more than two names",
		`a."b`:                         "not closed",
		`a."b"c`:                       "followed by a dot",
		`a.""`:                         "a name is empty",
		"a.my table":                   "must be quoted",
		`a.b"c`:                        "must be quoted",
		"a.b,a.c":                      "must be quoted",
		"a." + strings.Repeat("x", 64): "at most 63",
	} {
		if _, err := ParsePattern(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", s, err, want)
		}
	}
}

func TestTableSet_SystemSchemasAreNeverSelected(t *testing.T) {
	var all TableSet
	for schema, want := range map[string]bool{
		"public": true, "pg_catalog": false, "information_schema": false, "walferry": false,
		"walferry_merge": false, "pg_temp_3": false, "pgx": true,
	} {
		if got := all.Match(schema, "t"); got != want {
			t.Errorf("%s: %v", schema, got)
		}
	}
}

func TestRename_TableWinsOverSchema(t *testing.T) {
	r := Rename{Schemas: map[string]string{"a": "b"}, Tables: map[TableName]TableName{{"a", "x"}: {"c", "y"}}}
	for in, want := range map[TableName]TableName{
		{"a", "x"}: {"c", "y"}, {"a", "z"}: {"b", "z"}, {"q", "x"}: {"q", "x"},
	} {
		var got TableName
		got.Schema, got.Table = r.Target(in.Schema, in.Table)
		if got != want {
			t.Errorf("%v becomes %v, want %v", in, got, want)
		}
	}
	got := r.Collisions([]TableName{{"b", "z"}, {"a", "z"}, {"a", "x"}})
	if len(got) != 1 || got[0].Target != (TableName{"b", "z"}) {
		t.Errorf("collisions: %v", got)
	}
}

func TestSplitPatterns_CommasInQuotesStay(t *testing.T) {
	got := SplitPatterns(`public.*, "a,b"."c""d" ,x.y,`)
	if d := cmp.Diff([]string{"public.*", `"a,b"."c""d"`, "x.y"}, got); d != "" {
		t.Error(d)
	}
}

func TestUnits(t *testing.T) {
	for s, want := range map[string]string{
		"256KiB": "256KiB", "10 GiB": "10GiB", "1048576": "1MiB", "1.5KiB": "1536B", "1kB": "1000B", "0": "0B", "7B": "7B",
	} {
		if b, err := ParseByteSize(s); err != nil || b.String() != want {
			t.Errorf("size %q = %v (%v), want %s", s, b, err, want)
		}
	}
	for _, s := range []string{"", "-1", "1XB", "9999999TiB", "nan", "1e300GiB", "0x10"} {
		if b, err := ParseByteSize(s); err == nil {
			t.Errorf("size %q = %v, want an error", s, b)
		}
	}
	for s, want := range map[string]string{"200ms": "200ms", "2d": "48h", "1d12h": "36h", "90s": "1m30s", "0s": "0s", "10m": "10m"} {
		if d, err := ParseDuration(s); err != nil || d.String() != want {
			t.Errorf("time %q = %v (%v), want %s", s, d, err, want)
		}
	}
	for _, s := range []string{"", "30", "-1s", "99999d", "d"} {
		if d, err := ParseDuration(s); err == nil {
			t.Errorf("time %q = %v, want an error", s, d)
		}
	}
}
