package source

import (
	"context"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/internal/pgconnect"
)

// Table is a published table as the stream names it: a partitioned table that
// is published via its root is one Table, otherwise its leaves are.
type Table struct {
	Schema, Name string
	OID          change.OID
	Partitioned  bool
	Identity     change.ReplicaIdentity
	Columns      []change.Column // published ones, in the order of the stream
	// RowFilter is an SQL expression over the columns; "" publishes all rows.
	// Several publications of a table are joined by OR.
	RowFilter string
}

// PublishedTables lists what the publications publish, by schema and name. It
// is an error if one of them does not exist.
//
// The time it takes grows with the number of tables and columns and no faster:
// CTEs are read once, or through a hash table (IN that cannot become a join),
// because the planner knows nothing of their size.
func PublishedTables(ctx context.Context, conn *pgconn.PgConn, publications []string) ([]Table, error) {
	if err := checkPublications(ctx, conn, publications); err != nil {
		return nil, err
	}
	version := pgconnect.ServerVersion(conn.ParameterStatus("server_version"))
	filter, names, attnames := "pt.rowfilter", "pt.attnames", "a.attname = ANY (pt.attnames)"
	if version < 150000 { // no column lists and row filters
		filter, names, attnames = "NULL::text", "NULL::name[]", "true"
	}
	if version < 180000 { // never published, though the view may list them
		attnames += " AND a.attgenerated = ''"
	}
	r, err := query(ctx, conn, "list published tables", `
WITH pt AS MATERIALIZED (
  SELECT pt.schemaname, pt.tablename, `+filter+` AS filter, `+names+` AS attnames
    FROM pg_catalog.pg_publication_tables pt
   WHERE pt.pubname IN (`+quoteLiterals(publications)+`)
), tables AS MATERIALIZED (
  SELECT c.oid, c.relispartition, CASE WHEN bool_or(pt.filter IS NULL) THEN NULL ELSE string_agg(DISTINCT '(' || pt.filter || ')', ' OR ') END AS filter,
         array_agg(DISTINCT a.attnum) AS attnums
    FROM pt
    JOIN pg_catalog.pg_namespace n ON n.nspname = pt.schemaname
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = pt.tablename
    LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND `+attnames+`
   GROUP BY c.oid, c.relispartition
), `+hiddenCTE+`
SELECT n.nspname, c.relname, c.oid, c.relkind, c.relreplident, t.filter,
       a.attname, a.atttypid, a.atttypmod,
       c.relreplident = 'f' OR EXISTS (SELECT FROM pg_catalog.pg_index i
         WHERE i.indrelid = c.oid AND a.attnum = ANY (i.indkey::int2[]) AND i.indisvalid
           AND array_position(i.indkey::int2[], a.attnum) < i.indnkeyatts
           AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END)
  FROM tables t
  JOIN pg_catalog.pg_class c ON c.oid = t.oid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY (t.attnums)
 WHERE t.oid NOT IN (SELECT oid FROM hidden)
 ORDER BY n.nspname, c.relname, a.attnum`)
	if err != nil {
		return nil, err
	}
	var tables []Table
	for _, v := range r {
		oid, err := parseOID(v[2])
		if err != nil {
			return nil, err
		}
		if n := len(tables); n == 0 || tables[n-1].OID != oid {
			tables = append(tables, Table{
				Schema: v[0], Name: v[1], OID: oid, Partitioned: v[3] == "p",
				Identity: change.ReplicaIdentity(v[4][0]), RowFilter: v[5],
			})
		}
		if v[6] == "" { // a table without columns
			continue
		}
		typ, err := parseOID(v[7])
		if err != nil {
			return nil, err
		}
		mod, err := strconv.ParseInt(v[8], 10, 32)
		if err != nil {
			return nil, protocolError("type modifier %q", v[8])
		}
		t := &tables[len(tables)-1]
		t.Columns = append(t.Columns, change.Column{Name: v[6], Type: typ, TypeMod: int32(mod), Key: v[9] == "t"})
	}
	return tables, nil
}

// hiddenCTE lists those of tables that another publication publishes via their
// root.
const hiddenCTE = `hidden AS MATERIALIZED (
  SELECT t.oid
    FROM tables t
   CROSS JOIN LATERAL pg_catalog.pg_partition_ancestors(t.oid) x
   WHERE t.relispartition AND x.relid <> t.oid AND (x.relid IN (SELECT oid FROM tables)) IS TRUE
)`

func parseOID(s string) (change.OID, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0, protocolError("object identifier %q", s)
	}
	return change.OID(n), nil
}

// checkPublications fails with ErrNoPublication unless all exist. The server
// itself notices only when it decodes the first change.
func checkPublications(ctx context.Context, conn *pgconn.PgConn, names []string) error {
	if len(names) == 0 {
		return &Error{Kind: ErrNoPublication, Detail: "none is named", Hint: "name a publication"}
	}
	r, err := query(ctx, conn, "look for publications", `SELECT pubname FROM pg_catalog.pg_publication WHERE pubname IN (`+quoteLiterals(names)+`)
		AND pg_catalog.obj_description(oid, 'pg_publication') IS DISTINCT FROM `+sqlw.QuoteLiteral(pubUnfinished))
	if err != nil {
		return err
	}
	have := map[string]bool{}
	for _, v := range r {
		have[v[0]] = true
	}
	for _, n := range names {
		if !have[n] {
			return &Error{Kind: ErrNoPublication, Detail: n, Hint: "create it on the publisher, before the slot: a slot that is older cannot use it"}
		}
	}
	return nil
}

// A TableID names a published table and tells it from another one that has had
// its name.
type TableID struct {
	Schema, Name string
	OID          change.OID
}

// PublishedIDs lists the same tables as [PublishedTables], in the same order. It
// is cheap enough to be asked every few seconds.
func PublishedIDs(ctx context.Context, conn *pgconn.PgConn, publications []string) ([]TableID, error) {
	if err := checkPublications(ctx, conn, publications); err != nil {
		return nil, err
	}
	r, err := query(ctx, conn, "list published tables", `
WITH pt AS MATERIALIZED (
  SELECT DISTINCT pt.schemaname, pt.tablename
    FROM pg_catalog.pg_publication_tables pt
   WHERE pt.pubname IN (`+quoteLiterals(publications)+`)
), tables AS MATERIALIZED (
  SELECT n.nspname, c.relname, c.oid, c.relispartition
    FROM pt
    JOIN pg_catalog.pg_namespace n ON n.nspname = pt.schemaname
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = pt.tablename
), `+hiddenCTE+`
SELECT t.nspname, t.relname, t.oid
  FROM tables t
 WHERE t.oid NOT IN (SELECT oid FROM hidden)
 ORDER BY t.nspname, t.relname`)
	if err != nil {
		return nil, err
	}
	ids := make([]TableID, len(r))
	for i, v := range r {
		oid, err := parseOID(v[2])
		if err != nil {
			return nil, err
		}
		ids[i] = TableID{Schema: v[0], Name: v[1], OID: oid}
	}
	return ids, nil
}
