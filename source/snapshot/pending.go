package snapshot

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/internal/pgquery"
)

// A table that is made gets its rows first and then what slows loading down, or
// can only hold with all rows: indexes, constraints, foreign keys, values of
// sequences. walferry.subscription_pending keeps the statements, written in the
// transaction that makes the tables. Each is deleted in the transaction that runs
// it, so that whoever comes after an interruption does what is missing.

// stage orders what is pending. Statements of one stage do not need one another.
type stage int

const (
	settings    stage = iota // of the session that runs the others; kept until all are done
	indexes                  // indexes and constraints with an index
	connections              // what connects them: partitions, replica identities, comments
	references               // foreign keys
	sequences                // values of sequences, of which only the name is known
)

// pending is something that is to be done when the rows are there.
type pending struct {
	id     string // in walferry.subscription_pending
	stage  stage
	object string // for messages
	sql    string
}

// entryRE is the heading that pg_restore writes over each entry of an archive.
var entryRE = regexp.MustCompile(`(?m)^--\n-- Name: (.*); Type: ([^;]*); Schema: ([^;]*); Owner: .*\n--\n`)

// splitScript cuts the script of a section into its entries.
func splitScript(script string) []pending {
	heads := entryRE.FindAllStringSubmatchIndex(script, -1)
	if len(heads) == 0 {
		return nil
	}
	all := []pending{{stage: settings, object: "settings", sql: script[:heads[0][0]]}}
	for i, h := range heads {
		end := len(script)
		if i+1 < len(heads) {
			end = heads[i+1][0]
		}
		field := func(n int) string { return script[h[2*n]:h[2*n+1]] }
		p := pending{object: strings.ToLower(field(2)) + " " + field(1), sql: script[h[1]:end]}
		if s := field(3); s != "-" {
			p.object = strings.ToLower(field(2)) + " " + s + "." + field(1)
		}
		switch field(2) {
		case "INDEX", "CONSTRAINT":
			p.stage = indexes
		case "FK CONSTRAINT":
			p.stage = references
		default:
			p.stage = connections
		}
		all = append(all, p)
	}
	return all
}

// sequenceValues are the values of sequences that are made: they are read when
// they are set.
func sequenceValues(names []relationName) []pending {
	var all []pending
	for _, n := range names {
		all = append(all, pending{stage: sequences, object: sqlw.QuoteName(n.schema, n.name)})
	}
	return all
}

// record writes what is pending in the transaction of c.
func record(ctx context.Context, c *pgconn.PgConn, subscription string, later []pending) error {
	var stages, objects, statements []string
	for _, p := range later {
		stages = append(stages, strconv.Itoa(int(p.stage)))
		objects, statements = append(objects, p.object), append(statements, p.sql)
	}
	_, err := pgquery.Rows(ctx, c, `INSERT INTO walferry.subscription_pending (subscription, stage, object, statement)
		SELECT $1, p.stage::int, p.object, p.statement FROM unnest($2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS p(stage, object, statement, n) ORDER BY n`,
		subscription, pgquery.TextArray(stages), pgquery.TextArray(objects), pgquery.TextArray(statements))
	if err != nil {
		return fmt.Errorf("record in walferry.subscription_pending: %w", err)
	}
	return nil
}

// readPending returns what is left of earlier runs and this one, in order.
func readPending(ctx context.Context, c *pgconn.PgConn, subscription string) ([]pending, error) {
	rows, err := pgquery.Rows(ctx, c, "SELECT id, stage, object, statement FROM walferry.subscription_pending WHERE subscription = $1 ORDER BY stage, id", subscription)
	if err != nil {
		return nil, fmt.Errorf("read walferry.subscription_pending: %w", err)
	}
	var all []pending
	for _, r := range rows {
		n, err := strconv.Atoi(r[1])
		if err != nil {
			return nil, fmt.Errorf("read walferry.subscription_pending: %w", err)
		}
		all = append(all, pending{id: r[0], stage: stage(n), object: r[2], sql: r[3]})
	}
	return all, nil
}

// do runs one statement and forgets it.
func (p *pending) do(ctx context.Context, c *pgconn.PgConn) error {
	return execSQL(ctx, c, "BEGIN;\n"+p.sql+"\n;DELETE FROM walferry.subscription_pending WHERE id = "+p.id+";\nCOMMIT")
}

// referenceRE ends behind the definition of a foreign key.
var referenceRE = regexp.MustCompile(`(?s)^.*? REFERENCES .*?;\n`)

// unvalidated is a foreign key that does not look at the rows that are there.
func (p *pending) unvalidated() *pending {
	q := *p
	definition := referenceRE.FindString(p.sql + "\n")
	q.sql = strings.TrimSuffix(definition, ";\n") + " NOT VALID"
	return &q
}

// violates reports whether a foreign key does not hold.
func violates(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == "23503"
}
