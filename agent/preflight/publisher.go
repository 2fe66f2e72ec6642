package preflight

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/config"
	"github.com/walferry/walferry/internal/pgconnect"
	"github.com/walferry/walferry/internal/pgquery"
)

func (s *side) setting(name string) string { return s.settings[name].value }

// number is 0 for a setting that is missing or not a number.
func (s *side) number(name string) int64 {
	n, _ := strconv.ParseInt(s.setting(name), 10, 64) // missing on old versions
	return n
}

// bytes is a setting in bytes, -1 for "no limit".
func (s *side) bytes(name string) int64 {
	n := s.number(name)
	if n < 0 {
		return n
	}
	switch s.settings[name].unit {
	case "kB":
		return n << 10
	case "8kB":
		return n << 13
	case "MB":
		return n << 20
	}
	return n
}

func alterSystem(name, value string, restart bool) string {
	if restart {
		return fmt.Sprintf("ALTER SYSTEM SET %s = %s; then restart the server", name, value)
	}
	return fmt.Sprintf("ALTER SYSTEM SET %s = %s; SELECT pg_reload_conf();", name, value)
}

func (p *publisher) walLevel() {
	if p.setting("wal_level") == "logical" {
		return
	}
	remedy := alterSystem("wal_level", "logical", true)
	switch p.managed {
	case "rds":
		remedy = "set rds.logical_replication = 1 in the parameter group, then reboot"
	case "cloudsql":
		remedy = "set the flag cloudsql.logical_decoding = on, then restart"
	}
	p.add(Error, "wal_level", remedy, "is %s: the log does not hold what logical decoding needs", p.setting("wal_level"))
}

func (p *publisher) inRecovery() {
	if p.recovery {
		p.recoveryProblem(p.version)
	}
}

func (p *publisher) recoveryProblem(version int) {
	if version < 160000 {
		p.add(Error, "server", "use the primary's address, or add target_session_attrs=primary", "is a standby: logical decoding on a standby needs version 16")
		return
	}
	p.add(Warning, "server", "keep hot_standby_feedback = on; SELECT pg_log_standby_snapshot() on the primary speeds up the creation of slots", "is a standby: its slots are lost when the primary's wal_level is lowered, and publications are made on the primary")
}

const smallKeepSize = 1 << 30

func (p *publisher) walSettings() {
	if p.number("wal_sender_timeout") == 0 {
		p.add(Warning, "wal_sender_timeout", alterSystem("wal_sender_timeout", "'60s'", false), "is 0: the server holds the slot of a vanished reader for a long time, and a new one cannot take it over")
	}
	switch n := p.bytes("max_slot_wal_keep_size"); {
	case n < 0:
		p.add(Info, "max_slot_wal_keep_size", alterSystem("max_slot_wal_keep_size", "'50GB'", false), "is unlimited: while walferry is stopped the log is kept until the disk is full")
	case n < smallKeepSize:
		p.add(Warning, "max_slot_wal_keep_size", alterSystem("max_slot_wal_keep_size", "'50GB'", false), "is only %d MB: a slot that is that far behind is lost and everything has to be copied again", n>>20)
	}
	if n := p.number("idle_replication_slot_timeout"); n > 0 {
		p.add(Warning, "idle_replication_slot_timeout", alterSystem("idle_replication_slot_timeout", "0", false), "is %d %s: a slot that walferry does not use for that long is lost", n, p.settings["idle_replication_slot_timeout"].unit)
	}
	if n := p.bytes("logical_decoding_work_mem"); n > 0 && n < 64<<20 {
		p.add(Info, "logical_decoding_work_mem", alterSystem("logical_decoding_work_mem", "'64MB'", false), "is %d kB: larger transactions are written to disk while they are decoded", n>>10)
	}
}

// replicationRole looks whether the role may start a replication connection,
// and whether pg_hba.conf lets it.
func (p *publisher) replicationRole(ctx context.Context) {
	r, err := pgquery.One(ctx, p.conn, `SELECT rolreplication OR rolsuper OR COALESCE((SELECT pg_has_role(oid, 'USAGE') FROM pg_roles WHERE rolname = 'rds_replication'), false)
		FROM pg_roles WHERE rolname = current_user`)
	if err != nil {
		p.broken("role "+p.user, err)
		return
	}
	if !r.Bool(0) {
		remedy := fmt.Sprintf("ALTER ROLE %s REPLICATION;", sqlw.DisplayIdent(p.user))
		if p.managed == "rds" {
			remedy = fmt.Sprintf("GRANT rds_replication TO %s;", sqlw.DisplayIdent(p.user))
		}
		p.add(Error, "role "+p.user, remedy, "lacks REPLICATION")
		return
	}
	cfg, err := pgconnect.Parse(p.url, pgconnect.Replication)
	if err != nil {
		p.broken("replication connection", err)
		return
	}
	c, err := pgconn.ConnectConfig(ctx, cfg)
	if err == nil {
		_ = c.Close(ctx) // nothing was done on it
		return
	}
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg) && pg.Code == "53300": // too_many_connections; see capacity
	case errors.As(err, &pg) && pg.Code[:2] == "28":
		p.add(Error, "role "+p.user, fmt.Sprintf("add to pg_hba.conf and reload: host %s %s <address> scram-sha-256", sqlw.DisplayIdent(p.database), sqlw.DisplayIdent(p.user)), "cannot make a replication connection: %s", pg.Message)
	default:
		p.add(Error, "replication connection", "", "cannot be made: %s", oneLine(err))
	}
}

// capacity counts free slots and WAL senders.
func (p *publisher) capacity(ctx context.Context) {
	r, err := pgquery.One(ctx, p.conn, `SELECT (SELECT count(*) FROM pg_replication_slots), (SELECT count(*) FROM pg_stat_replication),
		(SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1), (SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND active)`, p.cfg.Slot)
	if err != nil {
		p.broken("replication slots", err)
		return
	}
	need := map[string]int64{"max_replication_slots": 1 - atoi(r[2]), "max_wal_senders": 1 - atoi(r[3])}
	if p.copies {
		need["max_replication_slots"]++ // the initial copy's temporary one
		need["max_wal_senders"]++
	}
	used := map[string]int64{"max_replication_slots": atoi(r[0]), "max_wal_senders": atoi(r[1])}
	for _, name := range []string{"max_replication_slots", "max_wal_senders"} {
		limit := p.number(name)
		if missing := used[name] + need[name] - limit; need[name] > 0 && missing > 0 {
			what := map[string]string{"max_replication_slots": "SELECT * FROM pg_replication_slots shows them; drop unused ones with pg_drop_replication_slot, or ", "max_wal_senders": ""}[name]
			p.add(Error, name, what+alterSystem(name, strconv.FormatInt(limit+missing, 10), true), "is %d, of which %d are in use: walferry needs %d more", limit, used[name], need[name])
		}
	}
}

func atoi(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64) // a count of the server
	return n
}

// longTransactions tells what an initial copy would wait for.
func (p *publisher) longTransactions(ctx context.Context) {
	if !p.copies {
		return
	}
	rows, err := pgquery.Rows(ctx, p.conn, `SELECT 'pid ' || pid, date_trunc('second', now() - xact_start)::text, 'SELECT pg_terminate_backend(' || pid || ');' FROM pg_stat_activity
		WHERE backend_xid IS NOT NULL AND xact_start < now() - interval '5 minutes'
		UNION ALL SELECT 'prepared transaction ' || quote_literal(gid), date_trunc('second', now() - prepared)::text, 'COMMIT PREPARED ' || quote_literal(gid) || '; or ROLLBACK PREPARED ' || quote_literal(gid) || ';' FROM pg_prepared_xacts
		WHERE prepared < now() - interval '5 minutes'`)
	if err != nil {
		p.broken("transactions", err)
		return
	}
	for _, r := range rows {
		p.add(Warning, r[0], r[2], "its transaction is %s old: new slots and copies wait for its end", r[1])
	}
}

// slot looks at the state of the publisher's slot.
func (p *publisher) slot(ctx context.Context) {
	rows, err := pgquery.Rows(ctx, p.conn, `SELECT COALESCE(plugin, ''), slot_type, COALESCE(database, ''), temporary, active, COALESCE(wal_status, ''),
		COALESCE(a.application_name, ''), COALESCE(s.active_pid::text, ''), COALESCE(to_jsonb(s)->>'conflicting', ''), COALESCE(to_jsonb(s)->>'invalidation_reason', '')
		FROM pg_replication_slots s LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid WHERE slot_name = $1`, p.cfg.Slot)
	if err != nil {
		p.broken("slot "+p.cfg.Slot, err)
		return
	}
	if len(rows) == 0 {
		return
	}
	r := rows[0]
	object, drop := "slot "+p.cfg.Slot, fmt.Sprintf("SELECT pg_drop_replication_slot(%s);", sqlw.QuoteLiteral(p.cfg.Slot))
	other := "set another slot name, or if nothing needs it: " + drop
	switch {
	case r[1] != "logical":
		p.add(Error, object, other, "is a physical slot")
		return
	case r[0] != "pgoutput":
		p.add(Error, object, other, "belongs to output plugin %s, not pgoutput", r[0])
		return
	case r[2] != p.database:
		p.add(Error, object, other, "belongs to database %s, not %s", r[2], p.database)
		return
	case r.Bool(3):
		p.add(Error, object, "set another slot name", "is the temporary slot of pid %s", r[7])
		return
	}
	if r[5] == "lost" || r[8] == "true" || r[9] != "" {
		why := r[9]
		if why == "" {
			why = "its log was removed (max_slot_wal_keep_size)"
		}
		p.add(Error, object, "walferry drop --empty, then start again with a new initial copy; only the slot: "+drop, "is lost: %s", why)
	} else if r[5] == "unreserved" {
		p.add(Warning, object, alterSystem("max_slot_wal_keep_size", "-1", false), "is about to be lost: it holds more log than max_slot_wal_keep_size")
	}
	if r.Bool(4) {
		if strings.HasPrefix(r[6], "walferry") {
			p.add(Info, object, "", "is in use by pid %s (%s): walferry is running", r[7], r[6])
		} else {
			p.add(Error, object, fmt.Sprintf("stop it: SELECT pg_terminate_backend(%s); or set another slot name", r[7]), "is in use by pid %s (application %q), which is not walferry", r[7], r[6])
		}
	}
}

// ownPublication is the name of the publication that walferry makes.
func (p *publisher) ownPublication() string { return "walferry_" + p.cfg.Name }

func (p *publisher) makesPublication() bool { return len(p.cfg.Publications) == 0 }

func originNone(p *config.Publisher) bool { return p.Origin == config.OriginNone }
