package preflight

import (
	"fmt"
	"slices"
	"strings"

	"github.com/walferry/walferry/apply/sqlw"
)

// identities looks whether updates and deletes name their row in the log. If
// they do not, PostgreSQL refuses the statements of the application itself.
func (p *publisher) identities() {
	for _, t := range p.tables {
		if !t.update && !t.del {
			continue
		}
		for _, leaf := range t.leaves {
			p.identity(leaf)
			if leaf.identity != t.identity {
				p.add(Warning, leaf.String(), fmt.Sprintf("ALTER TABLE %s REPLICA IDENTITY %s;", leaf, identityClause(t)),
					"its replica identity (%s) is not that of its root %s (%s): partitions do not inherit it, and old rows are announced by the root's but logged by the partition's", identityName(leaf), t, identityName(t))
			}
		}
		if t.kind != "p" {
			p.identity(t)
		}
		p.identityPublished(t)
	}
}

func identityName(t *table) string {
	return map[string]string{"d": "default", "n": "nothing", "f": "full", "i": "index"}[t.identity]
}

func identityClause(t *table) string {
	if t.identity == "i" {
		return "USING INDEX <the partition's index>"
	}
	return strings.ToUpper(identityName(t))
}

func (p *publisher) identity(t *table) {
	const effect = "its UPDATE and DELETE statements fail on the publisher once it is published"
	switch {
	case t.identity == "f" || t.identityColumns != nil:
	case t.identity == "n":
		p.add(Error, t.String(), fmt.Sprintf("ALTER TABLE %s REPLICA IDENTITY DEFAULT; (with a primary key) or ALTER TABLE %s REPLICA IDENTITY FULL;", t, t), "has replica identity nothing: %s", effect)
	case t.identity == "i":
		p.add(Error, t.String(), fmt.Sprintf("ALTER TABLE %s REPLICA IDENTITY USING INDEX <unique index>; or REPLICA IDENTITY DEFAULT", t), "the index of its replica identity was dropped: %s", effect)
	default:
		p.add(Error, t.String(), fmt.Sprintf("ALTER TABLE %s ADD PRIMARY KEY (...); or ALTER TABLE %s REPLICA IDENTITY FULL;", t, t), "has no primary key and so no replica identity: %s", effect)
	}
}

// identityPublished looks whether the columns of the identity are sent.
func (p *publisher) identityPublished(t *table) {
	var missing, generated []string
	for _, c := range t.columns {
		part := t.identity == "f" || slices.Contains(t.identityColumns, c.name)
		if !part || slices.ContainsFunc(t.sent(p.version), func(s column) bool { return s.name == c.name }) {
			continue
		}
		if c.generated == "" {
			missing = append(missing, sqlw.DisplayIdent(c.name))
		} else if p.version >= 180000 {
			generated = append(generated, sqlw.DisplayIdent(c.name))
		}
	}
	if len(missing) > 0 {
		p.add(Error, t.String(), fmt.Sprintf("add %s to the column list of the publication", strings.Join(missing, ", ")),
			"column %s is part of its replica identity and not published: UPDATE and DELETE fail on the publisher", strings.Join(missing, ", "))
	}
	if len(generated) > 0 {
		remedy := "ALTER TABLE " + t.String() + " REPLICA IDENTITY DEFAULT; (with a primary key)"
		if !p.makesPublication() {
			remedy = fmt.Sprintf("ALTER PUBLICATION %s SET (publish_generated_columns = stored); or %s", sqlw.DisplayIdent(p.cfg.Publications[0]), remedy)
		}
		p.add(Error, t.String(), remedy, "generated column %s is part of its replica identity (%s) and not published: UPDATE and DELETE fail on the publisher", strings.Join(generated, ", "), identityName(t))
	}
}

// rights looks whether the initial copy may read all rows.
func (p *publisher) rights() {
	if !p.copies {
		return
	}
	var unreadable []string
	schemas := map[string]bool{}
	for _, t := range p.tables {
		if !t.usage && !schemas[t.schema] {
			schemas[t.schema] = true
			p.add(Error, "schema "+t.schema, fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s;", sqlw.DisplayIdent(t.schema), sqlw.DisplayIdent(p.user)), "role %s lacks USAGE", p.user)
		}
		if !t.can("SELECT") {
			unreadable = append(unreadable, t.String())
		}
		if t.rlsActive {
			p.add(Error, t.String(), fmt.Sprintf("ALTER ROLE %s BYPASSRLS;", sqlw.DisplayIdent(p.user)), "row-level security would hide rows of the initial copy from role %s", p.user)
		}
	}
	if len(unreadable) > 0 {
		list := strings.Join(unreadable, ", ")
		p.add(Error, list, fmt.Sprintf("GRANT SELECT ON %s TO %s;", list, sqlw.DisplayIdent(p.user)), "role %s lacks SELECT, which the initial copy needs", p.user)
	}
}
