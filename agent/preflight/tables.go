package preflight

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/config"
	"github.com/walferry/walferry/internal/pgquery"
)

// table is a published table of a publisher, or a target of a subscriber.
type table struct {
	schema, name string
	oid          string
	kind         string // relkind
	identity     string // relreplident
	// identityColumns are those that the log names a row by; nil: it cannot.
	identityColumns []string
	owned           bool
	usage           bool // of the schema
	rlsActive       bool
	columns         []column
	privileges      []string // of SELECT, INSERT, UPDATE, DELETE, TRUNCATE
	leaves          []*table // of a partitioned table

	published               []string // column list; nil: all that can be
	insert, update, del, tr bool     // published operations
}

func (t *table) String() string { return sqlw.DisplayName(t.schema, t.name) }

func (t *table) can(privilege string) bool { return slices.Contains(t.privileges, privilege) }

type column struct {
	name, typ       string
	typeSchema      string // "" for types of PostgreSQL
	extension       string // that the type belongs to
	typeKey         string // schema-qualified type name
	generated       string // attgenerated
	identity        string
	notNull, filled bool // filled: it has a default
	num             string
}

const tablesSQL = `SELECT n.nspname, c.relname, c.oid, c.relkind, c.relreplident, pg_has_role(c.relowner, 'USAGE'), has_schema_privilege(n.oid, 'USAGE'),
	row_security_active(c.oid),
	concat_ws(',', CASE WHEN has_table_privilege(c.oid, 'SELECT') THEN 'SELECT' END, CASE WHEN has_table_privilege(c.oid, 'INSERT') THEN 'INSERT' END,
	  CASE WHEN has_table_privilege(c.oid, 'UPDATE') THEN 'UPDATE' END, CASE WHEN has_table_privilege(c.oid, 'DELETE') THEN 'DELETE' END,
	  CASE WHEN has_table_privilege(c.oid, 'TRUNCATE') THEN 'TRUNCATE' END),
	COALESCE((SELECT string_agg(a.attname, chr(1) ORDER BY a.attnum) FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
	  WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END), ''),
	c.relispartition
	FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace`

func readTable(r pgquery.Row) *table {
	t := &table{schema: r[0], name: r[1], oid: r[2], kind: r[3], identity: r[4], owned: r.Bool(5), usage: r.Bool(6), rlsActive: r.Bool(7)}
	t.privileges = strings.Split(r[8], ",")
	if r[9] != "" {
		t.identityColumns = strings.Split(r[9], "\x01")
	}
	return t
}

// readColumns fills in the columns of tables.
func (s *side) readColumns(ctx context.Context, tables []*table) error {
	byOID := map[string]*table{}
	var oids []string
	for _, t := range tables {
		byOID[t.oid] = t
		oids = append(oids, t.oid)
	}
	rows, err := pgquery.Rows(ctx, s.conn, `SELECT a.attrelid, a.attname, format_type(a.atttypid, a.atttypmod), CASE WHEN n.nspname <> 'pg_catalog' THEN n.nspname ELSE '' END,
		COALESCE((SELECT e.extname FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid WHERE d.classid = 'pg_type'::regclass AND d.objid = b.oid
		  AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'), ''), format_type(b.oid, NULL), a.attgenerated, a.attidentity, a.attnotnull, a.atthasdef, a.attnum
		FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid JOIN pg_type b ON b.oid = CASE WHEN t.typelem <> 0 AND t.typlen = -1 THEN t.typelem ELSE t.oid END
		  JOIN pg_namespace n ON n.oid = b.typnamespace
		WHERE a.attrelid = ANY ($1::oid[]) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attrelid, a.attnum`, "{"+strings.Join(oids, ",")+"}")
	if err != nil {
		return err
	}
	for _, r := range rows {
		t := byOID[r[0]]
		t.columns = append(t.columns, column{
			name: r[1], typ: r[2], typeSchema: r[3], extension: r[4], typeKey: r[5],
			generated: r[6], identity: r[7], notNull: r.Bool(8), filled: r.Bool(9), num: r[10],
		})
	}
	return nil
}

// sent are the columns whose values the publisher sends.
func (t *table) sent(version int) []column {
	var out []column
	for _, c := range t.columns {
		if t.published != nil && !slices.Contains(t.published, c.name) {
			continue
		}
		if c.generated != "" && (t.published == nil || version < 180000 || c.generated != "s") {
			continue
		}
		out = append(out, c)
	}
	return out
}

// publications finds the published tables and what is wrong with the
// publications.
func (p *publisher) publications(ctx context.Context) {
	var err error
	if p.makesPublication() {
		err = p.futureTables(ctx)
	} else {
		err = p.publishedTables(ctx)
	}
	if err == nil {
		err = p.readLeaves(ctx)
	}
	if err != nil {
		p.broken("publications", err)
		return
	}
	if err := p.readColumns(ctx, p.tables); err != nil {
		p.broken("columns", err)
	}
}

// futureTables are those that walferry's own publication will hold.
func (p *publisher) futureTables(ctx context.Context) error {
	rows, err := pgquery.Rows(ctx, p.conn, tablesSQL+` WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition ORDER BY 1, 2`)
	if err != nil {
		return err
	}
	for _, r := range rows {
		t := readTable(r)
		if p.cfg.Tables.Match(t.schema, t.name) {
			t.insert, t.update, t.del, t.tr = true, true, true, true
			p.tables = append(p.tables, t)
		}
	}
	p.unmatched(&p.cfg.Tables, p.tables, "tables")
	return p.mayPublish(ctx)
}

// unmatched names the patterns that select nothing.
func (s *side) unmatched(set *config.TableSet, tables []*table, what string) {
	matched := 0
	for _, t := range tables {
		if set.Match(t.schema, t.name) {
			matched++
		}
	}
	if matched == 0 {
		s.add(Error, what, "correct include and exclude in the configuration (names are schema.table; * stands for any characters)", "no table is selected")
		return
	}
	for _, pattern := range set.Include {
		if !slices.ContainsFunc(tables, func(t *table) bool { return pattern.Match(t.schema, t.name) }) {
			s.add(Warning, "pattern "+pattern.String(), "correct or remove the pattern", "selects no table")
		}
	}
}

// mayPublish looks whether the role can make walferry's publication.
func (p *publisher) mayPublish(ctx context.Context) error {
	rows, err := pgquery.Rows(ctx, p.conn, `SELECT pg_has_role(pubowner, 'USAGE') FROM pg_publication WHERE pubname = $1`, p.ownPublication())
	if err != nil {
		return err
	}
	object := "publication " + p.ownPublication()
	if len(rows) > 0 {
		if !rows[0].Bool(0) {
			p.add(Error, object, fmt.Sprintf("ALTER PUBLICATION %s OWNER TO %s;", sqlw.DisplayIdent(p.ownPublication()), sqlw.DisplayIdent(p.user)), "belongs to another role than %s, which has to change it", p.user)
		}
	} else {
		r, err := pgquery.One(ctx, p.conn, `SELECT has_database_privilege(current_database(), 'CREATE')`)
		if err != nil {
			return err
		}
		if !r.Bool(0) {
			p.add(Error, "database "+p.database, fmt.Sprintf("GRANT CREATE ON DATABASE %s TO %s; or make the publication by hand and name it under publications", sqlw.DisplayIdent(p.database), sqlw.DisplayIdent(p.user)), "role %s lacks CREATE, which it needs to make publication %s", p.user, p.ownPublication())
		}
		if p.recovery {
			p.add(Error, object, "make it on the primary and name it under publications", "cannot be made on a standby")
		}
	}
	var foreign []string
	for _, t := range p.tables {
		if !t.owned {
			foreign = append(foreign, t.String())
		}
	}
	if len(foreign) > 0 {
		list := strings.Join(foreign, ", ")
		p.add(Error, list, fmt.Sprintf("let an owner run: CREATE PUBLICATION %s FOR TABLE %s; and name it under publications; or GRANT <owner> TO %s;", sqlw.DisplayIdent(p.ownPublication()), list, sqlw.DisplayIdent(p.user)),
			"role %s does not own the table, so it cannot publish it", p.user)
	}
	return nil
}

// publishedTables reads the tables of existing publications.
func (p *publisher) publishedTables(ctx context.Context) error {
	names := pgquery.TextArray(p.cfg.Publications)
	pubs, err := pgquery.Rows(ctx, p.conn, `SELECT w.name, p.oid IS NOT NULL, pubinsert, pubupdate, pubdelete, pubtruncate FROM unnest($1::text[]) w(name) LEFT JOIN pg_publication p ON p.pubname = w.name`, names)
	if err != nil {
		return err
	}
	type ops struct{ insert, update, del, tr bool }
	byName := map[string]ops{}
	for _, r := range pubs {
		object := "publication " + r[0]
		if !r.Bool(1) {
			p.add(Error, object, fmt.Sprintf("CREATE PUBLICATION %s FOR TABLE ...; or remove publications from the configuration to let walferry make one from tables", sqlw.DisplayIdent(r[0])), "does not exist")
			continue
		}
		byName[r[0]] = ops{r.Bool(2), r.Bool(3), r.Bool(4), r.Bool(5)}
		var not []string
		for i, op := range []string{"insert", "update", "delete", "truncate"} {
			if !r.Bool(2 + i) {
				not = append(not, op)
			}
		}
		if len(not) > 0 {
			p.add(Warning, object, fmt.Sprintf("ALTER PUBLICATION %s SET (publish = 'insert, update, delete, truncate');", sqlw.DisplayIdent(r[0])), "does not publish %s: subscribers will differ after these", strings.Join(not, ", "))
		}
	}
	attnames := "NULL::text" // column lists came with 15
	if p.version >= 150000 {
		attnames = `array_to_string(t.attnames, chr(1))`
	}
	rows, err := pgquery.Rows(ctx, p.conn, `WITH t AS (SELECT * FROM pg_publication_tables t WHERE pubname = ANY ($1::text[])) SELECT x.*, t.pubname, `+attnames+` FROM t JOIN LATERAL (`+
		tablesSQL+` WHERE n.nspname = t.schemaname AND c.relname = t.tablename) x ON true ORDER BY 1, 2`, names)
	if err != nil {
		return err
	}
	byOID := map[string]*table{}
	for _, r := range rows {
		t := byOID[r[2]]
		if t == nil {
			t = readTable(r)
			byOID[t.oid] = t
			p.tables = append(p.tables, t)
		}
		o := byName[r[11]]
		t.insert, t.update, t.del, t.tr = t.insert || o.insert, t.update || o.update, t.del || o.del, t.tr || o.tr
		if r[12] != "" {
			t.published = strings.Split(r[12], "\x01")
		}
	}
	if len(p.tables) == 0 && len(byName) > 0 {
		p.add(Error, "publications", "ALTER PUBLICATION ... ADD TABLE ...;", "hold no table")
	}
	return nil
}

// readLeaves finds the partitions of partitioned tables; they are what the log
// holds.
func (p *publisher) readLeaves(ctx context.Context) error {
	roots := map[string]*table{}
	var oids []string
	for _, t := range p.tables {
		if t.kind == "p" {
			roots[t.oid] = t
			oids = append(oids, t.oid)
		}
	}
	if len(oids) == 0 {
		return nil
	}
	rows, err := pgquery.Rows(ctx, p.conn, `SELECT x.*, root FROM unnest($1::oid[]) root, pg_partition_tree(root) l JOIN LATERAL (`+tablesSQL+` WHERE c.oid = l.relid AND c.relkind = 'r') x ON l.isleaf ORDER BY 1, 2`,
		"{"+strings.Join(oids, ",")+"}")
	if err != nil {
		return err
	}
	for _, r := range rows {
		root := roots[r[11]]
		root.leaves = append(root.leaves, readTable(r))
	}
	return nil
}
