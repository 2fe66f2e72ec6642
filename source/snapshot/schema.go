package snapshot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/internal/pgconnect"
	"github.com/walferry/walferry/internal/pgquery"
)

// What is made of an absent table: the table with its columns, defaults,
// sequences, constraints, indexes and statistics, its partitions and its
// ancestors, and the schemas, types, functions, collations and extensions that
// those need. What acts on rows is left out: triggers, rules and row security.
//
// The definitions come from pg_dump in the snapshot of the copy. The list of
// contents of its archive names every entry by catalog OID, so that what is
// needed is chosen by the publisher's pg_depend and not by names. Indexes and
// constraints that need them are made after the rows are there; see pending.

// absentTargets returns the tables that the subscriber does not have.
func absentTargets(ctx context.Context, c *pgconn.PgConn, tables []TableMap) ([]TableMap, error) {
	var absent []TableMap
	for _, t := range tables {
		rows, err := pgquery.Rows(ctx, c, "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2",
			t.TargetSchema, t.TargetName)
		if err != nil {
			return nil, fmt.Errorf("look for table %s on the subscriber: %w", t.Target(), err)
		}
		if len(rows) == 0 {
			absent = append(absent, t)
		}
	}
	return absent, nil
}

func createSchema(ctx context.Context, r *run, absent []TableMap) error {
	var problems []string
	for _, t := range absent {
		if t.Source() != t.Target() {
			problems = append(problems, fmt.Sprintf("subscriber has no table %s, and a table that is renamed (from %s) cannot be made automatically: create it by hand", t.Target(), t.Source()))
		}
	}
	if len(problems) > 0 {
		return &PlanError{Problems: problems}
	}
	tools, err := FindTools(ctx, r.in.version/10000)
	if err != nil {
		return err
	}
	need, err := needed(ctx, r, absent)
	if err != nil {
		return err
	}
	if err := checkLocks(ctx, r.out.conn, len(need.relations)); err != nil {
		return err
	}
	before, after, err := dumpScripts(ctx, r, tools, need)
	if err != nil {
		return err
	}
	later := append(splitScript(after), sequenceValues(need.sequences)...)
	if err := r.execScript(ctx, before, later); err != nil {
		return err
	}
	r.log.Info("tables created on the subscriber", "tables", len(absent))
	r.tell(func(e *Events) { e.schemaCreated(absent) })
	return nil
}

// locksPerTable are those of a table that is being made: itself, its primary key,
// its TOAST table and that one's index.
const locksPerTable = 4

// A LocksError says that the subscriber's lock table is far too small for making
// all tables in one transaction. Trying would fill it, and fail everybody else's
// statements and connections on that server until it is rolled back.
type LocksError struct{ Tables, Locks, Room, Setting int }

func (e *LocksError) Error() string {
	return fmt.Sprintf("making %d tables takes about %d locks, the subscriber's lock table is made for %d: set max_locks_per_transaction = %d on the subscriber and restart it, "+
		"or create the tables by hand and set schema: require", e.Tables, e.Locks, e.Room, e.Setting)
}

// checkLocks refuses what cannot work. The lock table holds more than it is made
// for (PostgreSQL: NLOCKENTS in lock.c, and what shared memory is left), so that
// only twice as much is refused; PostgreSQL itself says when less is too much.
func checkLocks(ctx context.Context, c *pgconn.PgConn, tables int) error {
	r, err := pgquery.One(ctx, c, `SELECT current_setting('max_locks_per_transaction')::int, current_setting('max_connections')::int
		+ current_setting('max_prepared_transactions')::int + current_setting('autovacuum_max_workers')::int + 1
		+ current_setting('max_worker_processes')::int + current_setting('max_wal_senders')::int`)
	if err != nil {
		return fmt.Errorf("read the size of the subscriber's lock table: %w", err)
	}
	per, err1 := strconv.Atoi(r[0])
	backends, err2 := strconv.Atoi(r[1])
	if err := errors.Join(err1, err2); err != nil {
		return fmt.Errorf("read the size of the subscriber's lock table: %w", err)
	}
	const least = 2000 // shared memory always has room for some
	locks := locksPerTable * tables
	if room := per * backends; locks > 2*room+least {
		return &LocksError{Tables: tables, Locks: locks, Room: room, Setting: locks*5/4/backends + 1}
	}
	return nil
}

// dumpScripts makes the SQL that creates what is needed before the rows, and after
// them.
func dumpScripts(ctx context.Context, r *run, tools Tools, need *needs) (before, after string, err error) {
	dir, err := os.MkdirTemp("", "walferry-schema-")
	if err != nil {
		return "", "", fmt.Errorf("make folder for the schema: %w", err)
	}
	defer os.RemoveAll(dir)
	cfg, err := pgconnect.Parse(r.o.Publisher, "schema")
	if err != nil {
		return "", "", err
	}
	env := libpqEnv(r.o.Publisher, cfg, r.in.conn.Conn().RemoteAddr())
	// Without tables nothing is locked, so rights on other tables are not
	// needed; with a list of tables pg_dump leaves out all that is no table.
	others, err := dumpPart(ctx, r, tools, env, filepath.Join(dir, "before"), need, false, "--exclude-table=*.*")
	if err != nil {
		return "", "", err
	}
	var only []string
	for _, t := range need.relations {
		only = append(only, "--table="+dumpPattern(t.schema)+"."+dumpPattern(t.name))
	}
	tables, err := dumpPart(ctx, r, tools, env, filepath.Join(dir, "tables"), need, true, only...)
	if err != nil {
		return "", "", err
	}
	before = others.before + tables.before
	for _, st := range need.statistics {
		before += st + ";\n"
	}
	return before, others.after + tables.after, nil
}

// parts are the sections of an archive, as SQL.
type parts struct{ before, after string }

func dumpPart(ctx context.Context, r *run, tools Tools, env []string, file string, need *needs, tables bool, selection ...string) (p parts, err error) {
	args := []string{
		"--format=custom", "--schema-only", "--no-owner", "--no-privileges", "--no-publications", "--no-subscriptions",
		"--no-security-labels", "--no-tablespaces", "--no-password", "--snapshot=" + r.point.snapshot, "--file=" + file,
	}
	if _, err := runTool(ctx, env, tools.Dump, append(args, selection...)...); err != nil {
		return p, err
	}
	list, err := runTool(ctx, env, tools.Restore, "--list", file)
	if err != nil {
		return p, err
	}
	chosen := need.choose(string(list), tables)
	if chosen == "" {
		return p, nil
	}
	if err := os.WriteFile(file+".list", []byte(chosen), 0o600); err != nil {
		return p, fmt.Errorf("write list of the schema: %w", err)
	}
	version := pgconnect.ServerVersion(r.out.conn.ParameterStatus("server_version"))
	for section, to := range map[string]*string{"pre-data": &p.before, "post-data": &p.after} {
		script, err := runTool(ctx, env, tools.Restore, "--no-owner", "--no-privileges", "--section="+section, "--use-list="+file+".list", "--file=-", file)
		if err != nil {
			return p, err
		}
		*to = cleanScript(string(script), version)
	}
	return p, nil
}

// dumpPattern quotes a name for a pattern of pg_dump: inside double quotes
// nothing is special but the quote.
func dumpPattern(name string) string { return sqlw.QuoteIdent(name) }

var (
	restrictRE    = regexp.MustCompile(`(?m)^\\(un)?restrict [A-Za-z0-9]+\n`)
	transactionRE = regexp.MustCompile(`(?m)^SET transaction_timeout = 0;\n`)
)

// cleanScript removes what only psql understands and what an older subscriber
// does not know.
func cleanScript(s string, version int) string {
	s = restrictRE.ReplaceAllString(s, "")
	if version < 170000 {
		s = transactionRE.ReplaceAllString(s, "")
	}
	return s
}

// execScript runs the script in one transaction on a connection of its own,
// because the script changes settings, and records what is to be done after the
// rows are there.
func (r *run) execScript(ctx context.Context, script string, later []pending) error {
	c, err := connect(ctx, r.o.Subscriber, "schema")
	if err != nil {
		return fmt.Errorf("connect to subscriber: %w", err)
	}
	defer closeConn(c)
	script = "BEGIN;\n" + script
	if err := execSQL(ctx, c, script); err != nil {
		return &SchemaError{Object: scriptObject(script, err), Err: err}
	}
	if err := record(ctx, c, r.o.Subscription, later); err != nil {
		return err
	}
	if err := execSQL(ctx, c, "COMMIT"); err != nil {
		return &SchemaError{Err: err}
	}
	return nil
}

// A SchemaError says that an object could not be made on the subscriber.
// Nothing was made then.
type SchemaError struct {
	Object string // kind and name, empty when unknown
	Err    error
}

func (e *SchemaError) Error() string {
	what := "schema"
	if e.Object != "" {
		what = e.Object
	}
	return fmt.Sprintf("create %s on the subscriber: %s (create it by hand and try again)", what, describe(e.Err))
}

func (e *SchemaError) Unwrap() error { return e.Err }

var objectRE = regexp.MustCompile(`(?m)^-- Name: (.*); Type: ([^;]*); Schema: ([^;]*);`)

// scriptObject finds the entry of the script that an error belongs to.
func scriptObject(script string, err error) string {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Position <= 0 {
		return ""
	}
	at := 0
	for i := range script { // the position counts characters
		if at++; at == int(pg.Position) {
			script = script[:i]
			break
		}
	}
	all := objectRE.FindAllStringSubmatch(script, -1)
	if len(all) == 0 {
		return ""
	}
	m := all[len(all)-1]
	name := m[1]
	if m[3] != "-" {
		name = m[3] + "." + name
	}
	return strings.ToLower(m[2]) + " " + name
}

// tocRE reads a line of pg_restore --list: dump id; catalog and object OIDs,
// kind, schema, name, owner.
var tocRE = regexp.MustCompile(`^\d+; (\d+) (\d+) (.*)$`)

// choose keeps the lines of an archive's contents that are needed.
func (n *needs) choose(list string, tables bool) string {
	var b strings.Builder
	for line := range strings.SplitSeq(list, "\n") {
		m := tocRE.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		class, _ := strconv.ParseUint(m[1], 10, 32) // digits
		oid, _ := strconv.ParseUint(m[2], 10, 32)
		if n.wants(object{uint32(class), uint32(oid)}, m[3], tables) {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}
