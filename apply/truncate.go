package apply

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/source/pgoutput"
)

// A TruncateError says that tables outside of the subscription keep a TRUNCATE
// from being applied.
type TruncateError struct {
	Tables []string // that reference a truncated table
	Target *sqlw.Target
}

func (e *TruncateError) Error() string {
	return fmt.Sprintf("cannot truncate table %s: %s on the subscriber references it and is not truncated with it", e.Target.Table, strings.Join(e.Tables, ", "))
}

// Hint is what mends it.
func (e *TruncateError) Hint() string {
	return fmt.Sprintf("drop the foreign key of %s, or skip the transaction and delete the rows by hand", strings.Join(e.Tables, ", "))
}

// truncate empties all tables that one TRUNCATE of the publisher named and that
// belong to the subscription, in one statement.
func (e *engine) truncate(m *pgoutput.Message) error {
	if e.tx.skipped {
		return e.leaveOut(m)
	}
	var list, later []*sqlw.Target
	for _, oid := range m.Relations {
		t, err := e.target(oid)
		if err != nil {
			return err
		}
		if t != nil {
			list = append(list, t)
			continue
		}
		if r := e.rels[oid]; r.row != nil && e.tx.commit < r.row.copyLSN {
			if t, err = e.look(r); err != nil {
				return err
			}
			if t != nil {
				later = append(later, t)
			}
		}
	}
	if len(list) == 0 {
		return nil
	}
	if err := e.open(); err != nil {
		return err
	}
	if err := e.finishSwaps(); err != nil {
		return err
	}
	names, kept, err := e.truncateNames(list, later)
	if err != nil {
		return err
	}
	statements := []string{"TRUNCATE " + strings.Join(names, ", ")}
	if m.RestartIdentity {
		statements[0] += " RESTART IDENTITY"
	}
	if kept {
		statements = statements[:0]
		for _, n := range names {
			statements = append(statements, "DELETE FROM "+n)
		}
	}
	e.grp.rows++
	e.grp.ops[3]++
	e.grp.counted = true
	if e.plan.careful {
		e.journal.reset()
	}
	for _, sql := range statements {
		if err := e.sess.Control(&sqlw.Stmt{SQL: sql, Want: -1}, sqlw.Step{Kind: sqlw.KindRow, Op: 'T', Ordinal: e.tx.ordinal, Target: list[0]}); err != nil {
			return err
		}
	}
	return nil
}

// referencing finds tables with foreign keys to the tables $1, all partitions
// included, that are not among them, and tells whether all their leaves are, and
// whether they are, or belong to, one of the tables $2.
const referencing = `WITH tree AS (SELECT DISTINCT coalesce(p.relid, o.oid) AS oid FROM unnest($1::oid[]) o(oid) LEFT JOIN LATERAL pg_partition_tree(o.oid) p ON true)
SELECT DISTINCT c.oid, n.nspname, c.relname,
  c.relkind = 'p' AND NOT EXISTS (SELECT FROM pg_partition_tree(c.oid) l WHERE l.isleaf AND l.relid NOT IN (SELECT oid FROM tree)),
  EXISTS (SELECT FROM unnest($2::oid[]) k(oid) LEFT JOIN LATERAL pg_partition_tree(k.oid) p ON true WHERE coalesce(p.relid, k.oid) = c.oid)
FROM pg_constraint f JOIN pg_class c ON c.oid = f.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE f.contype = 'f' AND f.confrelid IN (SELECT oid FROM tree) AND f.conrelid NOT IN (SELECT oid FROM tree)
ORDER BY 2, 3`

// truncateNames lists the tables for the statement. A partitioned table whose
// leaves are all truncated but which is not named itself, because the publisher
// publishes leaves, is added when it references one of the others.
//
// later are tables that the publisher truncated too, but whose copy here is of a
// later state and must stay. kept reports that one of them references the
// others: TRUNCATE would refuse that. Deleting does not, as long as foreign keys are not
// checked in the session, and the rest of the log brings the referenced rows.
func (e *engine) truncateNames(list, later []*sqlw.Target) (names []string, kept bool, err error) {
	var oids, keep []string
	for _, t := range list {
		name := t.Table.SQL()
		if t.Table.Kind != "p" {
			name = "ONLY " + name
		}
		names = append(names, name)
		oids = append(oids, strconv.FormatUint(uint64(t.Table.OID), 10))
	}
	for _, t := range later {
		keep = append(keep, strconv.FormatUint(uint64(t.Table.OID), 10))
	}
	for {
		rows, err := e.sess.Query(referencing, "{"+strings.Join(oids, ",")+"}", "{"+strings.Join(keep, ",")+"}")
		if err != nil {
			return nil, false, fmt.Errorf("look for tables that reference %s: %w", list[0].Table, err)
		}
		var foreign []string
		added := false
		for _, r := range rows {
			schema, name := string(r[1]), string(r[2])
			switch {
			case string(r[4]) == "t" && e.replica:
				kept = true
			case string(r[3]) == "t":
				names = append(names, sqlw.QuoteName(schema, name))
				oids = append(oids, string(r[0]))
				added = true
			default:
				foreign = append(foreign, sqlw.DisplayName(schema, name))
			}
		}
		if len(foreign) > 0 {
			return nil, false, &TruncateError{Tables: foreign, Target: list[0]}
		}
		if !added {
			return names, kept, nil
		}
	}
}
