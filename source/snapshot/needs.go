package snapshot

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/internal/pgquery"
)

// object is an entry of a system catalog of the publisher.
type object struct{ class, oid uint32 }

type relationName struct{ schema, name string }

// needs is what has to be made on the subscriber.
type needs struct {
	relations []relationName  // tables and sequences that it does not have
	sequences []relationName  // those of them that are sequences
	objects   map[object]bool // what the tables depend on and it does not have
	fks       map[object]bool // foreign keys whose other table is or will be there
	// statistics are statements for extended statistics, which pg_dump leaves
	// out with a list of tables.
	statistics []string
}

// needed asks the publisher what the absent tables depend on and the
// subscriber what it has of that.
func needed(ctx context.Context, r *run, absent []TableMap) (*needs, error) {
	n := &needs{objects: map[object]bool{}, fks: map[object]bool{}}
	oids, err := n.addRelations(ctx, r, absent)
	if err != nil {
		return nil, fmt.Errorf("read tables to create: %w", err)
	}
	if err := n.addObjects(ctx, r, oids); err != nil {
		return nil, fmt.Errorf("read what the tables depend on: %w", err)
	}
	if err := n.addForeignKeys(ctx, r, oids); err != nil {
		return nil, fmt.Errorf("read foreign keys: %w", err)
	}
	rows, err := pgquery.Rows(ctx, r.in.conn, `SELECT pg_get_statisticsobjdef(oid) FROM pg_statistic_ext WHERE stxrelid = ANY ($1::oid[]) ORDER BY oid`, "{"+strings.Join(oids, ",")+"}")
	if err != nil {
		return nil, fmt.Errorf("read extended statistics: %w", err)
	}
	for _, w := range rows {
		n.statistics = append(n.statistics, w[0])
	}
	return n, nil
}

const relationsSQL = `WITH RECURSIVE wanted AS (
	SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
	  JOIN unnest($1::text[], $2::text[]) w(s, t) ON w.s = n.nspname AND w.t = c.relname
), down AS (
	SELECT oid FROM wanted
	UNION SELECT p.relid FROM wanted w JOIN pg_class c ON c.oid = w.oid AND c.relkind = 'p', pg_partition_tree(w.oid) p
), up AS (
	SELECT oid FROM down
	UNION SELECT i.inhparent FROM up JOIN pg_inherits i ON i.inhrelid = up.oid
), seqs AS (
	SELECT d.refobjid AS oid FROM up JOIN pg_attrdef a ON a.adrelid = up.oid
	  JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = a.oid AND d.refclassid = 'pg_class'::regclass
)
SELECT c.oid, n.nspname, c.relname, c.relkind FROM (SELECT oid FROM up UNION SELECT oid FROM seqs) o
  JOIN pg_class c ON c.oid = o.oid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p', 'S') ORDER BY 2, 3`

func (n *needs) addRelations(ctx context.Context, r *run, absent []TableMap) (oids []string, err error) {
	var schemas, names []string
	for _, t := range absent {
		schemas, names = append(schemas, t.SourceSchema), append(names, t.SourceName)
	}
	rows, err := pgquery.Rows(ctx, r.in.conn, relationsSQL, pgquery.TextArray(schemas), pgquery.TextArray(names))
	if err != nil {
		return nil, err
	}
	for _, w := range rows {
		there, err := hasRelation(ctx, r.out.conn, w[1], w[2])
		if err != nil {
			return nil, err
		}
		if !there {
			oids = append(oids, w[0])
			name := relationName{w[1], w[2]}
			n.relations = append(n.relations, name)
			if w[3] == "S" {
				n.sequences = append(n.sequences, name)
			}
		}
	}
	return oids, nil
}

// objectsSQL walks pg_depend from the tables $1, their defaults, constraints,
// indexes and statistics. Other tables are not walked into, and members of an
// extension lead only to the extension.
const objectsSQL = `WITH RECURSIVE start(class, oid) AS (
	SELECT 'pg_class'::regclass::oid, unnest($1::oid[])
	UNION ALL SELECT 'pg_attrdef'::regclass, oid FROM pg_attrdef WHERE adrelid = ANY ($1::oid[])
	UNION ALL SELECT 'pg_constraint'::regclass, oid FROM pg_constraint WHERE conrelid = ANY ($1::oid[]) AND contype <> 'f'
	UNION ALL SELECT 'pg_class'::regclass, indexrelid FROM pg_index WHERE indrelid = ANY ($1::oid[])
	UNION ALL SELECT 'pg_statistic_ext'::regclass, oid FROM pg_statistic_ext WHERE stxrelid = ANY ($1::oid[])
), edge(class, oid, refclass, refoid) AS (
	SELECT d.classid, d.objid, d.refclassid, d.refobjid FROM pg_depend d
	 WHERE d.deptype = 'e' OR NOT EXISTS (SELECT FROM pg_depend e WHERE e.classid = d.classid AND e.objid = d.objid AND e.deptype = 'e')
	UNION ALL SELECT 'pg_type'::regclass, t.oid, 'pg_class'::regclass, t.typrelid FROM pg_type t WHERE t.typrelid <> 0
	UNION ALL SELECT 'pg_type'::regclass, k.contypid, 'pg_constraint'::regclass, k.oid FROM pg_constraint k WHERE k.contypid <> 0
), need(class, oid) AS (
	SELECT class, oid FROM start
	UNION SELECT e.refclass, e.refoid FROM need JOIN edge e ON e.class = need.class AND e.oid = need.oid
	 WHERE NOT (e.refclass = 'pg_class'::regclass AND EXISTS (SELECT FROM pg_class c WHERE c.oid = e.refoid AND c.relkind <> 'c'))
)
SELECT need.class, need.oid, a.type, a.object_names, a.object_args
  FROM need, pg_identify_object_as_address(need.class, need.oid, 0) a
 WHERE need.class IN ('pg_namespace'::regclass, 'pg_extension'::regclass, 'pg_type'::regclass, 'pg_proc'::regclass, 'pg_collation'::regclass,
	'pg_operator'::regclass, 'pg_opclass'::regclass, 'pg_opfamily'::regclass, 'pg_ts_config'::regclass, 'pg_ts_dict'::regclass,
	'pg_language'::regclass, 'pg_cast'::regclass, 'pg_conversion'::regclass)`

func (n *needs) addObjects(ctx context.Context, r *run, oids []string) error {
	rows, err := pgquery.Rows(ctx, r.in.conn, objectsSQL, "{"+strings.Join(oids, ",")+"}")
	if err != nil {
		return err
	}
	for _, w := range rows {
		there, err := hasObject(ctx, r.out.conn, w[2], w[3], w[4])
		if err != nil {
			return err
		}
		if there {
			continue
		}
		o, err := parseObject(w)
		if err != nil {
			return err
		}
		n.objects[o] = true
	}
	return nil
}

func (n *needs) addForeignKeys(ctx context.Context, r *run, oids []string) error {
	rows, err := pgquery.Rows(ctx, r.in.conn, `SELECT 'pg_constraint'::regclass::oid, k.oid, n.nspname, c.relname, c.oid = ANY ($1::oid[])
		FROM pg_constraint k JOIN pg_class c ON c.oid = k.confrelid JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE k.contype = 'f' AND k.conrelid = ANY ($1::oid[])`, "{"+strings.Join(oids, ",")+"}")
	if err != nil {
		return err
	}
	for _, w := range rows {
		there := w.Bool(4)
		if !there {
			if there, err = hasRelation(ctx, r.out.conn, w[2], w[3]); err != nil {
				return err
			}
		}
		if !there {
			r.log.Warn("foreign key is not made: its other table is not on the subscriber", "table", sqlw.QuoteName(w[2], w[3]))
			continue
		}
		o, err := parseObject(w)
		if err != nil {
			return err
		}
		n.fks[o] = true
	}
	return nil
}

func parseObject(w pgquery.Row) (object, error) {
	class, err := strconv.ParseUint(w[0], 10, 32)
	if err != nil {
		return object{}, err
	}
	oid, err := strconv.ParseUint(w[1], 10, 32)
	return object{uint32(class), uint32(oid)}, err
}

func hasRelation(ctx context.Context, c *pgconn.PgConn, schema, name string) (bool, error) {
	rows, err := pgquery.Rows(ctx, c, "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2", schema, name)
	return len(rows) > 0, err
}

// hasObject asks whether an object with this address (PostgreSQL:
// pg_identify_object_as_address) is there.
func hasObject(ctx context.Context, c *pgconn.PgConn, kind, names, args string) (bool, error) {
	_, err := pgquery.One(ctx, c, "SELECT classid FROM pg_get_object_address($1, $2::text[], $3::text[])", kind, names, args)
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch pg.Code {
		case "42704", "3F000", "42883", "42P01": // undefined object, schema, function, table
			return false, nil
		}
	}
	return err == nil, err
}

// tableKinds are the kinds of entries that are taken from the archive of the
// tables.
var tableKinds = []string{
	"TABLE ATTACH", "TABLE", "SEQUENCE OWNED BY", "SEQUENCE", "DEFAULT", "CHECK CONSTRAINT", "CONSTRAINT", "INDEX ATTACH", "INDEX",
}

// wants decides on one entry of an archive. entry is the kind, schema, name
// and owner.
func (n *needs) wants(o object, entry string, tables bool) bool {
	if !tables {
		return n.objects[o] && !strings.HasPrefix(entry, "COMMENT ")
	}
	if strings.HasPrefix(entry, "FK CONSTRAINT ") {
		return n.fks[o]
	}
	if rest, ok := strings.CutPrefix(entry, "COMMENT "); ok {
		_, what, _ := strings.Cut(rest, " ") // behind the schema
		for _, k := range []string{"TABLE ", "COLUMN ", "INDEX ", "SEQUENCE "} {
			if strings.HasPrefix(what, k) {
				return true
			}
		}
		return false
	}
	for _, k := range tableKinds {
		if strings.HasPrefix(entry, k+" ") {
			return true
		}
	}
	return false
}
