package preflight

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/config"
	"github.com/walferry/walferry/internal/pgquery"
	"github.com/walferry/walferry/source/snapshot"
)

// compare looks at what needs both sides.
func (s *subscriber) compare(ctx context.Context) {
	if s.conn == nil || s.pub == nil || s.pub.conn == nil {
		return
	}
	p := s.pub
	if s.systemID == p.systemID && s.databaseID == p.databaseID {
		s.add(Error, "database "+s.database, "correct one of the urls", "is the same database as that of %s", p.name)
		return
	}
	if s.knownSystem != "" && s.knownSystem != "0" && s.knownSystem != p.systemID {
		s.add(Error, "subscription "+s.cfg.Name, "walferry drop --subscription "+s.cfg.Name+" --empty, then start again with a new initial copy, or correct the publisher's url",
			"was made from the server with system identifier %s, but %s is now %s: slot %s there is another one", s.knownSystem, p.name, p.systemID, p.cfg.Slot)
	}
	s.encodings()
	var selected []*table
	for _, t := range p.tables {
		if s.cfg.Tables.Match(t.schema, t.name) {
			selected = append(selected, t)
		}
	}
	s.unmatched(&s.cfg.Tables, p.tables, "tables")
	if err := s.tables(ctx, selected); err != nil {
		s.broken("tables", err)
	}
}

func (s *subscriber) encodings() {
	const none = "SQL_ASCII"
	from, to := s.pub.encoding, s.encoding
	object := "encoding"
	switch {
	case from == to:
	case from == none:
		s.add(Error, object, fmt.Sprintf("CREATE DATABASE ... ENCODING '%s' TEMPLATE template0; for the subscriber", none), "is %s, but %s has %s: its bytes cannot be converted", to, s.pub.name, from)
	case to == none:
		s.add(Warning, object, "use a subscriber database with ENCODING 'UTF8'", "is %s: text arrives in UTF8, whatever programs here expect (%s has %s)", to, s.pub.name, from)
	case to != "UTF8":
		s.add(Warning, object, "use a subscriber database with ENCODING 'UTF8'", "is %s, but %s has %s: a character that %s does not have stops the subscription", to, s.pub.name, from, to)
	}
}

// pairing is a published table and what it is on the subscriber.
type pairing struct {
	from *table
	to   *table // nil: absent
	name config.TableName
}

func (s *subscriber) tables(ctx context.Context, selected []*table) error {
	var names []config.TableName
	var schemas, tables []string
	for _, t := range selected {
		names = append(names, config.TableName{Schema: t.schema, Table: t.name})
		schema, name := s.cfg.Rename.Target(t.schema, t.name)
		schemas, tables = append(schemas, schema), append(tables, name)
	}
	for _, c := range s.cfg.Rename.Collisions(names) {
		s.add(Error, sqlw.DisplayName(c.Target.Schema, c.Target.Table), "rename or exclude one of them", "%s", c)
	}
	rows, err := pgquery.Rows(ctx, s.conn, tablesSQL+` JOIN (SELECT DISTINCT * FROM unnest($1::text[], $2::text[]) w(s, t)) w ON w.s = n.nspname AND w.t = c.relname`, pgquery.TextArray(schemas), pgquery.TextArray(tables))
	if err != nil {
		return err
	}
	found := map[config.TableName]*table{}
	var targets []*table
	for _, r := range rows {
		t := readTable(r)
		found[config.TableName{Schema: t.schema, Table: t.name}] = t
		targets = append(targets, t)
	}
	if err := s.readColumns(ctx, targets); err != nil {
		return err
	}
	var absent []pairing
	for i, t := range selected {
		n := config.TableName{Schema: schemas[i], Table: tables[i]}
		pair := pairing{from: t, to: found[n], name: n}
		s.pairs = append(s.pairs, pair)
		switch {
		case pair.to == nil:
			absent = append(absent, pair)
		case pair.to.kind != "r" && pair.to.kind != "p":
			s.add(Error, pair.to.String(), "rename it, or rename the target in the configuration", "is not a table (relkind %q)", pair.to.kind)
		default:
			s.columns(pair)
		}
	}
	if err := s.absent(ctx, absent); err != nil {
		return err
	}
	s.privileges()
	return s.deferrable(ctx, targets)
}

// columns compares the columns of two tables.
func (s *subscriber) columns(pair pairing) {
	to := map[string]column{}
	for _, c := range pair.to.columns {
		to[c.name] = c
	}
	sent := map[string]bool{}
	t := pair.to.String()
	for _, c := range pair.from.sent(s.pub.version) {
		sent[c.name] = true
		d, ok := to[c.name]
		switch {
		case !ok:
			s.add(Error, t, fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s %s;", t, sqlw.DisplayIdent(c.name), c.typ), "column %s is missing", sqlw.DisplayIdent(c.name))
		case d.generated != "" && c.generated == "":
			s.add(Error, t, fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s DROP EXPRESSION; or leave the column out of the publication", t, sqlw.DisplayIdent(c.name)), "column %s is generated here and an ordinary one on the publisher", sqlw.DisplayIdent(c.name))
		case d.typ != c.typ:
			s.add(Warning, t, fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s TYPE %s;", t, sqlw.DisplayIdent(c.name), c.typ), "column %s has type %s, on the publisher %s: a value that does not fit stops the subscription", sqlw.DisplayIdent(c.name), d.typ, c.typ)
		}
	}
	for _, d := range pair.to.columns {
		if !sent[d.name] && d.notNull && !d.filled && d.identity == "" && d.generated == "" {
			s.add(Error, t, fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s DROP NOT NULL; or SET DEFAULT ...", t, sqlw.DisplayIdent(d.name)), "column %s is NOT NULL without a default, and the publisher sends nothing for it", sqlw.DisplayIdent(d.name))
		}
	}
}

// absent looks whether the tables that are not there can be made.
func (s *subscriber) absent(ctx context.Context, absent []pairing) error {
	if len(absent) == 0 {
		return nil
	}
	create := s.cfg.Schema == config.SchemaCreate && s.cfg.Initial == config.InitialCopy
	by := "make it (pg_dump --schema-only --table shows how on the publisher), or set schema: create"
	if s.cfg.Schema == config.SchemaCreate && !create {
		by = "make it: tables are only made with initial: copy"
	}
	for _, a := range absent {
		name := sqlw.DisplayName(a.name.Schema, a.name.Table)
		switch {
		case !create:
			s.add(Error, name, by, "does not exist")
		case name != a.from.String():
			s.add(Error, name, "make it by hand", "does not exist, and a renamed table (%s on the publisher) is not made automatically", a.from)
		}
	}
	if err := s.types(ctx, absent, create); err != nil {
		return err
	}
	if !create {
		return nil
	}
	if _, err := snapshot.FindTools(ctx, s.pub.version/10000); err != nil {
		s.add(Error, "pg_dump", fmt.Sprintf("install postgresql-client-%d where walferry runs, or make the tables by hand and set schema: require", s.pub.version/10000), "%s", err)
	}
	return s.mayCreate(ctx, absent)
}

// mayCreate looks whether the role may make tables in the schemas.
func (s *subscriber) mayCreate(ctx context.Context, absent []pairing) error {
	var schemas []string
	for _, a := range absent {
		if !slices.Contains(schemas, a.name.Schema) {
			schemas = append(schemas, a.name.Schema)
		}
	}
	rows, err := pgquery.Rows(ctx, s.conn, `SELECT w.s, n.oid IS NOT NULL, COALESCE(has_schema_privilege(n.oid, 'CREATE'), has_database_privilege(current_database(), 'CREATE'))
		FROM unnest($1::text[]) w(s) LEFT JOIN pg_namespace n ON n.nspname = w.s`, pgquery.TextArray(schemas))
	if err != nil {
		return err
	}
	for _, r := range rows {
		switch {
		case r.Bool(2):
		case r.Bool(1):
			s.add(Error, "schema "+r[0], fmt.Sprintf("GRANT CREATE ON SCHEMA %s TO %s;", sqlw.DisplayIdent(r[0]), sqlw.DisplayIdent(s.user)), "role %s lacks CREATE, which it needs to make tables", s.user)
		default:
			s.add(Error, "schema "+r[0], fmt.Sprintf("CREATE SCHEMA %s AUTHORIZATION %s; or GRANT CREATE ON DATABASE %s TO %s;", sqlw.DisplayIdent(r[0]), sqlw.DisplayIdent(s.user), sqlw.DisplayIdent(s.database), sqlw.DisplayIdent(s.user)), "does not exist, and role %s may not make it", s.user)
		}
	}
	return nil
}

// types looks whether the types of absent tables are there. Those that belong
// to no extension are made with the tables.
func (s *subscriber) types(ctx context.Context, absent []pairing, create bool) error {
	seen := map[string]bool{}
	for _, a := range absent {
		for _, c := range a.from.sent(s.pub.version) {
			if c.typeSchema == "" || seen[c.typeKey] {
				continue
			}
			seen[c.typeKey] = true
			r, err := pgquery.One(ctx, s.conn, `SELECT to_regtype($1) IS NOT NULL, EXISTS (SELECT FROM pg_extension WHERE extname = $2), EXISTS (SELECT FROM pg_available_extensions WHERE name = $2)`, c.typeKey, c.extension)
			if err != nil {
				return err
			}
			object, where := "type "+c.typeKey, ""
			if c.typeSchema != "public" {
				where = fmt.Sprintf("CREATE SCHEMA IF NOT EXISTS %s; ", sqlw.DisplayIdent(c.typeSchema))
			}
			ext := fmt.Sprintf("%sCREATE EXTENSION %s SCHEMA %s;", where, sqlw.DisplayIdent(c.extension), sqlw.DisplayIdent(c.typeSchema))
			switch {
			case r.Bool(0):
			case c.extension != "" && !r.Bool(1) && !r.Bool(2):
				s.add(Error, object, fmt.Sprintf("install the package with extension %s on the subscriber's server, then %s", c.extension, ext), "its extension %s is not available (column %s of %s)", c.extension, sqlw.DisplayIdent(c.name), a.from)
			case c.extension != "" && !create:
				s.add(Error, object, ext, "is missing: extension %s is not installed (column %s of %s)", c.extension, sqlw.DisplayIdent(c.name), a.from)
			case !create:
				s.add(Error, object, "make it as it is on the publisher, before its tables", "is missing (column %s of %s)", sqlw.DisplayIdent(c.name), a.from)
			}
		}
	}
	return nil
}

// privileges looks whether the role may write the tables that are there.
func (s *subscriber) privileges() {
	missing := map[string][]string{}
	schemas := map[string]bool{}
	for _, pair := range s.pairs {
		t := pair.to
		if t == nil || t.kind != "r" && t.kind != "p" {
			continue
		}
		if !t.usage && !schemas[t.schema] {
			schemas[t.schema] = true
			s.add(Error, "schema "+t.schema, fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s;", sqlw.DisplayIdent(t.schema), sqlw.DisplayIdent(s.user)), "role %s lacks USAGE", s.user)
		}
		if t.rlsActive {
			s.add(Error, t.String(), fmt.Sprintf("ALTER ROLE %s BYPASSRLS; or ALTER TABLE %s DISABLE ROW LEVEL SECURITY;", sqlw.DisplayIdent(s.user), t), "row-level security applies to role %s, and PostgreSQL refuses to replicate through it", s.user)
		}
		var lacks []string
		for _, w := range []struct {
			privilege string
			needed    bool
		}{
			{"SELECT", pair.from.update || pair.from.del}, // for the WHERE of an update or delete
			{"INSERT", pair.from.insert},
			{"UPDATE", pair.from.update},
			{"DELETE", pair.from.del},
			{"TRUNCATE", pair.from.tr},
		} {
			if w.needed && !t.can(w.privilege) {
				lacks = append(lacks, w.privilege)
			}
		}
		if len(lacks) > 0 {
			key := strings.Join(lacks, ", ")
			missing[key] = append(missing[key], t.String())
		}
	}
	for lacks, tables := range missing {
		list := strings.Join(tables, ", ")
		s.add(Error, list, fmt.Sprintf("GRANT %s ON %s TO %s;", lacks, list, sqlw.DisplayIdent(s.user)), "role %s lacks %s", s.user, lacks)
	}
}

// deferrable lists constraints that PostgreSQL does not check at once, or not
// at all in a replication session.
func (s *subscriber) deferrable(ctx context.Context, targets []*table) error {
	var oids []string
	for _, t := range targets {
		oids = append(oids, t.oid)
	}
	rows, err := pgquery.Rows(ctx, s.conn, `SELECT n.nspname, c.relname, k.conname, k.contype FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE k.condeferrable AND k.contype IN ('u', 'p', 'x') AND k.conrelid = ANY ($1::oid[]) ORDER BY 1, 2, 3`, "{"+strings.Join(oids, ",")+"}")
	if err != nil {
		return err
	}
	for _, r := range rows {
		kind := map[string]string{"u": "unique", "p": "primary key", "x": "exclusion"}[r[3]]
		t := sqlw.DisplayName(r[0], r[1])
		s.add(Info, t, fmt.Sprintf("if nothing needs it deferrable: ALTER TABLE %s DROP CONSTRAINT %s; and add it again without DEFERRABLE", t, sqlw.DisplayIdent(r[2])),
			"%s constraint %s is deferrable: it cannot be used to find rows, and PostgreSQL does not enforce it while session_replication_role is replica", kind, sqlw.DisplayIdent(r[2]))
	}
	return nil
}
