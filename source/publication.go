package source

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/apply/sqlw"
)

// PublicationSpec describes the publication that walferry makes for a
// publisher. It is always a list of tables, never FOR ALL TABLES: a table
// that is created later must not begin to refuse the application's updates
// because it has no replica identity.
//
// It publishes via the root of partitioned tables, so that the subscriber may
// partition otherwise or not at all. Publications that exist already and are
// only used keep their own setting.
type PublicationSpec struct {
	Name string // default: see [PublicationName]

	// Tables lists what to publish. Match, if set, selects more from all
	// ordinary and partitioned tables outside of the system schemas and
	// walferry's own; partitions are offered only through their root.
	Tables []TableName
	Match  func(schema, table string) bool

	// AllowNoIdentity publishes tables without replica identity: the
	// publisher then refuses updates and deletes on them.
	AllowNoIdentity bool
}

// TableName names a table.
type TableName struct{ Schema, Name string }

// String quotes the name for SQL.
func (t TableName) String() string { return sqlw.QuoteIdent(t.Schema) + "." + sqlw.QuoteIdent(t.Name) }

// PublicationName is the default name of a publisher's publication.
func PublicationName(publisher string) string {
	n := "walferry_" + publisher
	return n[:min(len(n), 63)]
}

// pubComment marks a publication as made by walferry.
const pubComment = "made by walferry"

// pubUnfinished marks one whose tables are still being added.
const pubUnfinished = pubComment + ", not finished"

// PublicationResult is what [EnsurePublication] did.
type PublicationResult struct {
	Changed bool
	// Without are tables that were selected by Match and have no replica
	// identity. Those that were published before still are, the others are
	// left out.
	Without []TableName
}

// EnsurePublication creates or alters a publication so that it publishes the
// tables of the spec. Like the rest of a publication's definition the change
// is transactional: no moment exists at which a table is missing.
//
// A new publication, and a table named in Tables, is refused with
// [ErrNoIdentity] if there is no replica identity. When the publication
// exists, tables without one that Match selects are reported only: somebody
// creates such a table, and the log reader must still be able to start.
func EnsurePublication(ctx context.Context, conn *pgconn.PgConn, spec PublicationSpec) (res PublicationResult, err error) {
	have, comment, exists, err := readPublication(ctx, conn, spec.Name)
	if err != nil {
		return res, err
	}
	if exists && !mine(comment) {
		return res, &Error{
			Kind: ErrForeignPub, Detail: spec.Name,
			Hint: "list it under publications to use it as it is, or choose another name for the publisher",
		}
	}
	want, without, err := spec.resolve(ctx, conn)
	if err != nil {
		return res, err
	}
	if !spec.AllowNoIdentity && len(without) > 0 {
		if !exists {
			return res, noIdentity(without)
		}
		for _, t := range without {
			if slices.Contains(spec.Tables, t) {
				return res, noIdentity(without)
			}
		}
		res.Without = without
		lacking, published := tableSet(without), tableSet(have)
		want = slices.DeleteFunc(want, func(t TableName) bool { return lacking[t] && !published[t] })
	}
	sql := spec.statements(exists, comment == pubUnfinished, have, want)
	for _, st := range sql {
		// Not synchronous: the standby that such a commit waits for may be the
		// log reader itself.
		if _, err = query(ctx, conn, "make publication "+spec.Name, "BEGIN; SET LOCAL synchronous_commit = local; "+st+"; COMMIT"); err != nil {
			_, _ = query(ctx, conn, "roll back", "ROLLBACK")
			return res, err
		}
	}
	if len(sql) == 0 {
		return res, nil
	}
	res.Changed = true
	return res, nil
}

// lockBatch is how many tables are locked in one transaction: far fewer than
// max_locks_per_transaction * max_connections of a server as it is installed.
const lockBatch = 500

// statements are the transactions that bring a publication from have to want.
func (s *PublicationSpec) statements(exists, unfinished bool, have, want []TableName) []string {
	name := sqlw.QuoteIdent(s.Name)
	published, wanted := tableSet(have), tableSet(want)
	var drop, add []string
	for _, t := range have {
		if !wanted[t] {
			drop = append(drop, t.String())
		}
	}
	for _, t := range want {
		if !published[t] {
			add = append(add, t.String())
		}
	}
	var sql []string
	if !exists {
		first := add[:min(len(add), lockBatch)]
		create := "CREATE PUBLICATION " + name
		if add = add[len(first):]; len(first) > 0 {
			create += " FOR TABLE " + strings.Join(first, ", ")
		}
		comment := pubComment
		if unfinished = len(add) > 0; unfinished {
			comment = pubUnfinished
		}
		sql = append(sql, create+" WITH (publish_via_partition_root = true); COMMENT ON PUBLICATION "+name+" IS "+sqlw.QuoteLiteral(comment))
	}
	for b := range slices.Chunk(drop, lockBatch) {
		sql = append(sql, "ALTER PUBLICATION "+name+" DROP TABLE "+strings.Join(b, ", "))
	}
	for b := range slices.Chunk(add, lockBatch) {
		sql = append(sql, "ALTER PUBLICATION "+name+" ADD TABLE "+strings.Join(b, ", "))
	}
	if unfinished {
		sql = append(sql, "COMMENT ON PUBLICATION "+name+" IS "+sqlw.QuoteLiteral(pubComment))
	}
	return sql
}

func tableSet(tables []TableName) map[TableName]bool {
	m := make(map[TableName]bool, len(tables))
	for _, t := range tables {
		m[t] = true
	}
	return m
}

// DropPublication drops a publication that walferry made, and reports whether
// it did. One that others made stays.
func DropPublication(ctx context.Context, conn *pgconn.PgConn, name string) (bool, error) {
	_, comment, exists, err := readPublication(ctx, conn, name)
	if err != nil || !exists || !mine(comment) {
		return false, err
	}
	if _, err := query(ctx, conn, "drop publication "+name, "BEGIN; SET LOCAL synchronous_commit = local; DROP PUBLICATION IF EXISTS "+sqlw.QuoteIdent(name)+"; COMMIT"); err != nil {
		return false, err
	}
	return true, nil
}

// mine reports whether a publication with this comment was made by walferry.
func mine(comment string) bool { return comment == pubComment || comment == pubUnfinished }

func readPublication(ctx context.Context, conn *pgconn.PgConn, name string) (tables []TableName, comment string, exists bool, err error) {
	r, err := query(ctx, conn, "read publication "+name, `
SELECT pg_catalog.obj_description(p.oid, 'pg_publication'), n.nspname, c.relname
  FROM pg_catalog.pg_publication p
  LEFT JOIN pg_catalog.pg_publication_rel pr ON pr.prpubid = p.oid
  LEFT JOIN pg_catalog.pg_class c ON c.oid = pr.prrelid
  LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE p.pubname = `+sqlw.QuoteLiteral(name))
	if err != nil {
		return nil, "", false, err
	}
	for _, v := range r {
		exists, comment = true, v[0]
		if v[2] != "" {
			tables = append(tables, TableName{v[1], v[2]})
		}
	}
	return tables, comment, exists, nil
}

// listTables lists what can be published, and whether every table that holds
// rows of it has a replica identity: the leaves of a partitioned table are
// what the publisher logs (CB-026).
const listTables = `
SELECT n.nspname, c.relname, c.relispartition,
       CASE c.relkind
         WHEN 'r' THEN c.relreplident = 'f' OR EXISTS (SELECT FROM pg_catalog.pg_index i
              WHERE i.indrelid = c.oid AND i.indisvalid
                AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END)
         ELSE NOT EXISTS (SELECT FROM pg_catalog.pg_partition_tree(c.oid) p JOIN pg_catalog.pg_class l ON l.oid = p.relid
              WHERE p.isleaf AND l.relkind = 'r' AND l.relreplident <> 'f'
                AND NOT EXISTS (SELECT FROM pg_catalog.pg_index i
                     WHERE i.indrelid = l.oid AND i.indisvalid
                       AND CASE l.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END))
       END
  FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
   AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast', 'walferry', 'walferry_merge')
 ORDER BY 1, 2`

// resolve lists the tables of the spec, and those of them that have no replica
// identity.
func (s *PublicationSpec) resolve(ctx context.Context, conn *pgconn.PgConn) (want, without []TableName, err error) {
	r, err := query(ctx, conn, "list tables", listTables)
	if err != nil {
		return nil, nil, err
	}
	missing := slices.Clone(s.Tables)
	for _, v := range r {
		t := TableName{v[0], v[1]}
		named := slices.Contains(s.Tables, t)
		partition := v[2] == "t"
		if !named && (partition || s.Match == nil || !s.Match(t.Schema, t.Name)) {
			continue
		}
		missing = slices.DeleteFunc(missing, func(m TableName) bool { return m == t })
		want = append(want, t)
		if v[3] != "t" {
			without = append(without, t)
		}
	}
	if len(missing) > 0 {
		return nil, nil, &Error{
			Kind: ErrNoPublication, Detail: fmt.Sprintf("table %v cannot be published, as it does not exist or is no permanent table", missing[0]),
			Hint: "correct the list of tables",
		}
	}
	return want, without, nil
}

func noIdentity(tables []TableName) error {
	names := make([]string, len(tables))
	fix := make([]string, 0, 10)
	for i, t := range tables {
		names[i] = t.String()
		if i < cap(fix) {
			fix = append(fix, "ALTER TABLE "+t.String()+" REPLICA IDENTITY FULL;")
		}
	}
	return &Error{
		Kind: ErrNoIdentity, Detail: strings.Join(names, ", "),
		Hint: "publishing them would make the publisher refuse the application's updates and deletes: give them a primary key, name a unique index with REPLICA IDENTITY USING INDEX, exclude them, or run " + strings.Join(fix, " "),
	}
}
