package config

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/goccy/go-yaml"
)

// YAML is the configuration with its defaults, as a file that [Parse] reads,
// except that secrets are replaced.
func (c *Config) YAML() ([]byte, error) {
	doc := yaml.MapSlice{
		{Key: "data_dir", Value: literal(c.DataDir)},
		{Key: "queue", Value: c.Queue.yaml()},
		{Key: "publishers", Value: list(c.Publishers, (*Publisher).yaml)},
		{Key: "subscriptions", Value: list(c.Subscriptions, (*Subscription).yaml)},
		{Key: "monitor", Value: drop(yaml.MapSlice{
			{Key: "listen", Value: literal(c.Monitor.Listen)},
			{Key: "silence", Value: c.Monitor.Silence.String()},
			{Key: "stuck", Value: c.Monitor.Stuck.String()},
		})},
		{Key: "log", Value: yaml.MapSlice{{Key: "level", Value: c.Log.Level}, {Key: "format", Value: c.Log.Format}}},
	}
	b, err := yaml.MarshalWithOptions(doc, yaml.IndentSequence(true), yaml.UseSingleQuote(true))
	if err != nil {
		return nil, fmt.Errorf("print configuration: %w", err)
	}
	return b, nil
}

func list[T any](in []T, f func(*T) yaml.MapSlice) []yaml.MapSlice {
	out := make([]yaml.MapSlice, len(in))
	for i := range in {
		out[i] = f(&in[i])
	}
	return out
}

// literal keeps $ from being read as a variable.
func literal(s string) string {
	b := make([]byte, 0, len(s))
	for i := range len(s) {
		b = append(b, s[i])
		if s[i] == '$' {
			b = append(b, '$')
		}
	}
	return string(b)
}

// drop leaves out what is empty.
func drop(m yaml.MapSlice) yaml.MapSlice {
	return slices.DeleteFunc(m, func(i yaml.MapItem) bool {
		switch v := i.Value.(type) {
		case string:
			return v == ""
		case []string:
			return len(v) == 0
		case yaml.MapSlice:
			return len(v) == 0
		}
		return false
	})
}

func (q *Queue) yaml() yaml.MapSlice {
	return drop(yaml.MapSlice{
		{Key: "url", Value: literal(Redact(q.URL))},
		{Key: "credentials", Value: literal(q.Credentials)},
		{Key: "max_bytes", Value: q.MaxBytes.String()},
		{Key: "replicas", Value: q.Replicas},
		{Key: "retention", Value: q.Retention.String()},
		{Key: "listen", Value: literal(q.Listen)},
		{Key: "token", Value: hide(q.Token)},
	})
}

// hide shows that a secret is there.
func hide(secret string) string {
	if secret == "" {
		return ""
	}
	return hidden
}

func (p *Publisher) yaml() yaml.MapSlice {
	return drop(yaml.MapSlice{
		{Key: "name", Value: p.Name},
		{Key: "url", Value: literal(Redact(p.URL))},
		{Key: "slot", Value: p.Slot},
		{Key: "publications", Value: literals(p.Publications)},
		{Key: "tables", Value: p.Tables.yaml()},
		{Key: "confirm", Value: p.Confirm},
		{Key: "heartbeat", Value: p.Heartbeat.String()},
		{Key: "streaming", Value: p.Streaming},
		{Key: "failover", Value: p.Failover},
		{Key: "origin", Value: p.Origin},
	})
}

func (s *Subscription) yaml() yaml.MapSlice {
	position := ""
	if s.Position != 0 {
		position = s.Position.String()
	}
	return drop(yaml.MapSlice{
		{Key: "name", Value: s.Name},
		{Key: "publisher", Value: s.Publisher},
		{Key: "url", Value: literal(Redact(s.URL))},
		{Key: "tables", Value: s.Tables.yaml()},
		{Key: "rename", Value: s.Rename.yaml()},
		{Key: "initial", Value: s.Initial},
		{Key: "position", Value: position},
		{Key: "schema", Value: s.Schema},
		{Key: "copy", Value: printCopy(&s.Copy)},
		{Key: "policies", Value: yaml.MapSlice{
			{Key: "insert_conflict", Value: string(s.Policies.InsertConflict)},
			{Key: "update_missing", Value: string(s.Policies.UpdateMissing)},
			{Key: "delete_missing", Value: string(s.Policies.DeleteMissing)},
			{Key: "other", Value: string(s.Policies.Other)},
		}},
		{Key: "group", Value: yaml.MapSlice{
			{Key: "rows", Value: s.Group.Rows},
			{Key: "bytes", Value: s.Group.Bytes.String()},
			{Key: "time", Value: s.Group.Time.String()},
		}},
		{Key: "replication_role", Value: s.ReplicationRole},
	})
}

func (s *TableSet) yaml() yaml.MapSlice {
	texts := func(ps []Pattern) []string {
		out := make([]string, len(ps))
		for i, p := range ps {
			out[i] = literal(p.String())
		}
		return out
	}
	return drop(yaml.MapSlice{
		{Key: "include", Value: texts(s.Include)},
		{Key: "exclude", Value: texts(s.Exclude)},
	})
}

func (r *Rename) yaml() yaml.MapSlice {
	var schemas, tables yaml.MapSlice
	for from, to := range r.Schemas {
		// Keys are not expanded, values are.
		schemas = append(schemas, yaml.MapItem{Key: quoteLiteral(from), Value: literal(quoteLiteral(to))})
	}
	for from, to := range r.Tables {
		tables = append(tables, yaml.MapItem{Key: from.String(), Value: literal(to.String())})
	}
	for _, m := range []yaml.MapSlice{schemas, tables} {
		slices.SortFunc(m, func(a, b yaml.MapItem) int { return cmp.Compare(a.Key.(string), b.Key.(string)) })
	}
	return drop(yaml.MapSlice{{Key: "schemas", Value: schemas}, {Key: "tables", Value: tables}})
}

func literals(in []string) []string {
	out := make([]string, len(in))
	for i, s := range in {
		out[i] = literal(s)
	}
	return out
}

func sortTables(ts []TableName) {
	slices.SortFunc(ts, func(a, b TableName) int {
		return cmp.Or(cmp.Compare(a.Schema, b.Schema), cmp.Compare(a.Table, b.Table))
	})
}

func printCopy(c *Copy) yaml.MapSlice {
	m := yaml.MapSlice{
		{Key: "mode", Value: c.Mode},
		{Key: "workers", Value: c.Workers},
		{Key: "on_existing", Value: c.OnExisting},
		{Key: "max_mb_per_s", Value: c.MaxMB},
	}
	if c.Window != (Window{}) {
		m = append(m, yaml.MapItem{Key: "window", Value: c.Window.String()})
	}
	return m
}
