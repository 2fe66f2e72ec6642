package source

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/internal/pgconnect"
)

// server is what IDENTIFY_SYSTEM and the settings say.
type server struct {
	version  int // as server_version_num
	system   uint64
	timeline uint32
	flushed  change.LSN // end of the WAL that is on its disk
	database string
	oid      string // of the database
	sync     bool   // synchronous_standby_names is set: commits may wait for us
}

// minVersion is the oldest server that can be read.
const minVersion = 140000

func identify(ctx context.Context, conn *pgconn.PgConn) (server, error) {
	var s server
	s.version = pgconnect.ServerVersion(conn.ParameterStatus("server_version"))
	if s.version < minVersion {
		return s, &Error{Kind: ErrUnsupported, Detail: "PostgreSQL " + conn.ParameterStatus("server_version"), Hint: "use PostgreSQL 14 or newer"}
	}
	r, err := query(ctx, conn, "identify system", "IDENTIFY_SYSTEM")
	if err != nil {
		return s, err
	}
	if len(r) != 1 || len(r[0]) < 4 {
		return s, protocolError("IDENTIFY_SYSTEM answers %v", r)
	}
	v := r[0]
	s.system, err = strconv.ParseUint(v[0], 10, 64)
	if err != nil {
		return s, protocolError("system identifier %q", v[0])
	}
	tli, err := strconv.ParseUint(v[1], 10, 32)
	if err != nil {
		return s, protocolError("timeline %q", v[1])
	}
	s.timeline = uint32(tli)
	s.flushed, err = change.ParseLSN(v[2])
	if err != nil {
		return s, protocolError("position %q", v[2])
	}
	s.database = v[3]
	r, err = query(ctx, conn, "read settings", `SELECT pg_catalog.current_setting('wal_level'), pg_catalog.current_setting('synchronous_standby_names'), pg_catalog.current_setting('effective_wal_level', true),
  (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())`)
	if err != nil {
		return s, err
	}
	if r[0][0] != "logical" && r[0][2] != "logical" && s.version < 190000 { // 19 raises the level when a slot is made
		return s, &Error{
			Kind: ErrUnsupported, Detail: "wal_level is " + r[0][0],
			Hint: "run ALTER SYSTEM SET wal_level = logical on the publisher and restart it",
		}
	}
	s.sync, s.oid = r[0][1] != "", r[0][3]
	return s, nil
}

// slotState is a row of pg_replication_slots.
type slotState struct {
	exists    bool
	plugin    string
	database  string
	temporary bool
	active    bool
	pid       string
	confirmed change.LSN
	restart   change.LSN
	lost      string // why it was invalidated; "" if it was not
	created   bool   // by this call
}

// readSlot reads the slot by names that every version has: columns that a
// version lacks are NULL.
func readSlot(ctx context.Context, conn *pgconn.PgConn, name string) (slotState, error) {
	r, err := query(ctx, conn, "read slot", `
SELECT j->>'plugin', j->>'database', j->>'temporary', j->>'active', j->>'active_pid',
       j->>'confirmed_flush_lsn', j->>'restart_lsn', j->>'wal_status', j->>'invalidation_reason', j->>'conflicting', j->>'slot_type'
  FROM (SELECT pg_catalog.to_jsonb(s) AS j FROM pg_catalog.pg_replication_slots s WHERE slot_name = `+sqlw.QuoteLiteral(name)+`) x`)
	if err != nil || len(r) == 0 {
		return slotState{}, err
	}
	v := r[0]
	s := slotState{exists: true, plugin: v[0], database: v[1], temporary: v[2] == "true", active: v[3] == "true", pid: v[4]}
	if v[10] == "physical" {
		s.plugin = "none, it is a physical slot"
	}
	for i, p := range []*change.LSN{&s.confirmed, &s.restart} {
		if v[5+i] == "" {
			continue
		}
		if *p, err = change.ParseLSN(v[5+i]); err != nil {
			return s, fmt.Errorf("read slot: %w", err)
		}
	}
	switch {
	case v[8] != "":
		s.lost = v[8]
	case v[7] == "lost":
		s.lost = "wal_removed"
	case v[9] == "true":
		s.lost = "conflict with recovery"
	}
	return s, nil
}

// check verifies that a slot can be used for the database.
func (s *slotState) check(name, database string, end change.LSN) error {
	switch {
	case !s.exists:
		return nil
	case s.plugin != "pgoutput":
		return &Error{Kind: ErrSlotForeign, Slot: name, Detail: "its plugin is " + s.plugin, Hint: "configure another slot name, or drop this slot if nothing needs it"}
	case s.database != database:
		return &Error{Kind: ErrSlotForeign, Slot: name, Detail: fmt.Sprintf("it belongs to database %s, not %s", s.database, database), Hint: "configure a slot name of its own for each published database"}
	case s.lost != "":
		e := &Error{
			Kind: ErrSlotLost, Slot: name, Queue: end, Server: s.confirmed,
			Detail: fmt.Sprintf("the server invalidated it (%s); transactions after %v are gone from the publisher's log", lostReason(s.lost), max(end, s.confirmed)),
			Hint:   hintCopyAll,
		}
		if s.lost == "wal_removed" {
			e.Hint += "; raise max_slot_wal_keep_size so that it does not happen again"
		}
		return e
	}
	return nil
}

func lostReason(r string) string {
	switch r {
	case "wal_removed":
		return "wal_removed: it kept more WAL than max_slot_wal_keep_size"
	case "idle_timeout":
		return "idle_timeout: it was not used for idle_replication_slot_timeout"
	case "rows_removed":
		return "rows_removed: a standby removed rows it needed"
	case "wal_level_insufficient":
		return "wal_level_insufficient: wal_level was lowered"
	}
	return r
}

// EnsureSlot creates the logical slot if it does not exist and returns the
// position from which it streams. conn must be a replication connection to the
// published database. Creating waits until all transactions that are open
// have ended.
//
// It must not be called for a slot that was lost: see invariant 3.
func EnsureSlot(ctx context.Context, conn *pgconn.PgConn, name string, failover bool) (start change.LSN, created bool, err error) {
	s, err := ensureSlot(ctx, conn, name, failover)
	return s.confirmed, s.created, err
}

func ensureSlot(ctx context.Context, conn *pgconn.PgConn, name string, failover bool) (slotState, error) {
	if !slotName.MatchString(name) {
		return slotState{}, fmt.Errorf("create slot: name %q: use 1 to 63 of a-z, 0-9 and _", name)
	}
	s, err := readSlot(ctx, conn, name)
	if err != nil || s.exists {
		return s, err
	}
	version := pgconnect.ServerVersion(conn.ParameterStatus("server_version"))
	cmd := "CREATE_REPLICATION_SLOT " + sqlw.QuoteIdent(name) + " LOGICAL pgoutput "
	switch {
	case version < 150000:
		cmd += "NOEXPORT_SNAPSHOT"
	case version >= 170000 && failover:
		cmd += "(SNAPSHOT 'nothing', FAILOVER true)"
	default:
		cmd += "(SNAPSHOT 'nothing')"
	}
	r, err := query(ctx, conn, "create slot "+name, cmd)
	if err != nil && strings.Contains(cmd, "FAILOVER") && !canceled(ctx, err) {
		// A standby refuses failover slots.
		r, err = query(ctx, conn, "create slot "+name, strings.Replace(cmd, ", FAILOVER true", "", 1))
	}
	if err != nil {
		return s, err
	}
	if len(r) != 1 || len(r[0]) < 2 {
		return s, protocolError("CREATE_REPLICATION_SLOT answers %v", r)
	}
	s = slotState{exists: true, created: true, plugin: "pgoutput"}
	if s.confirmed, err = change.ParseLSN(r[0][1]); err != nil {
		return s, protocolError("consistent point %q", r[0][1])
	}
	return s, nil
}

// canceled reports whether the statement failed for another reason than what
// it asked for.
func canceled(ctx context.Context, err error) bool { return ctx.Err() != nil || sqlstate(err) == "" }

// DropSlot drops a logical slot of this database and reports whether it did. A
// slot that does not exist is no error; one that is in use is.
func DropSlot(ctx context.Context, conn *pgconn.PgConn, name string) (bool, error) {
	r, err := query(ctx, conn, "drop slot "+name, `SELECT pg_catalog.pg_drop_replication_slot(slot_name)
  FROM pg_catalog.pg_replication_slots WHERE slot_name = `+sqlw.QuoteLiteral(name)+` AND database = pg_catalog.current_database()`)
	return len(r) > 0, err
}

// switchPoint reads where history left a timeline. ok is false if it never
// was on it.
func switchPoint(ctx context.Context, conn *pgconn.PgConn, now, from uint32) (lsn change.LSN, ok bool, err error) {
	r, err := query(ctx, conn, "read timeline history", fmt.Sprintf("TIMELINE_HISTORY %d", now))
	if err != nil {
		return 0, false, err
	}
	if len(r) != 1 || len(r[0]) < 2 {
		return 0, false, protocolError("TIMELINE_HISTORY answers %d rows", len(r))
	}
	return parseHistory(r[0][1], from)
}

// parseHistory finds the end of a timeline in a history file: lines of
// timeline, switch point and reason.
func parseHistory(content string, from uint32) (lsn change.LSN, ok bool, err error) {
	for line := range strings.Lines(content) {
		f := strings.Fields(line)
		if len(f) < 2 || strings.HasPrefix(f[0], "#") {
			continue
		}
		if f[0] == strconv.FormatUint(uint64(from), 10) {
			lsn, err := change.ParseLSN(f[1])
			if err != nil {
				return 0, false, fmt.Errorf("read timeline history: %w", err)
			}
			return lsn, true, nil
		}
	}
	return 0, false, nil
}
