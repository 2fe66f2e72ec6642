package preflight

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/config"
	"github.com/walferry/walferry/internal/pgquery"
)

// writable looks for what keeps the whole database from being written.
func (s *subscriber) writable() {
	if s.recovery {
		s.add(Error, "server", "use the primary's address, or add target_session_attrs=primary", "is a standby and cannot be written")
	}
	if s.setting("default_transaction_read_only") == "on" {
		s.add(Error, "default_transaction_read_only", fmt.Sprintf("ALTER ROLE %s IN DATABASE %s SET default_transaction_read_only = off;", sqlw.DisplayIdent(s.user), sqlw.DisplayIdent(s.database)), "is on: nothing can be written")
	}
}

// ownSchema looks whether walferry's tables can be made and written.
func (s *subscriber) ownSchema(ctx context.Context) {
	r, err := pgquery.One(ctx, s.conn, `SELECT has_database_privilege(current_database(), 'CREATE'), to_regnamespace('walferry') IS NOT NULL,
		COALESCE(has_schema_privilege(to_regnamespace('walferry')::oid, 'USAGE'), false), COALESCE(has_schema_privilege(to_regnamespace('walferry')::oid, 'CREATE'), false)`)
	if err != nil {
		s.broken("schema walferry", err)
		return
	}
	if !r.Bool(1) {
		if !r.Bool(0) {
			s.add(Error, "database "+s.database, fmt.Sprintf("GRANT CREATE ON DATABASE %s TO %s;", sqlw.DisplayIdent(s.database), sqlw.DisplayIdent(s.user)), "role %s lacks CREATE, which it needs to make schema walferry", s.user)
		}
		return
	}
	if !r.Bool(2) || !r.Bool(3) {
		s.add(Error, "schema walferry", fmt.Sprintf("GRANT USAGE, CREATE ON SCHEMA walferry TO %s;", sqlw.DisplayIdent(s.user)), "role %s may not use it", s.user)
		return
	}
	rows, err := pgquery.Rows(ctx, s.conn, `SELECT relname FROM pg_class WHERE relnamespace = 'walferry'::regnamespace AND relkind IN ('r', 'p')
		AND NOT (has_table_privilege(oid, 'SELECT') AND has_table_privilege(oid, 'INSERT') AND has_table_privilege(oid, 'UPDATE') AND has_table_privilege(oid, 'DELETE')) LIMIT 1`)
	if err != nil {
		s.broken("schema walferry", err)
		return
	}
	if len(rows) > 0 {
		s.add(Error, "schema walferry", fmt.Sprintf("GRANT ALL ON ALL TABLES IN SCHEMA walferry TO %s;", sqlw.DisplayIdent(s.user)), "role %s may not write table %s", s.user, rows[0][0])
		return
	}
	s.sameSource(ctx)
}

// sameSource compares the publisher with what the subscription was made from.
func (s *subscriber) sameSource(ctx context.Context) {
	if s.pub == nil {
		return
	}
	r, err := pgquery.One(ctx, s.conn, `SELECT to_regclass('walferry.subscription') IS NOT NULL`)
	if err != nil {
		s.broken("schema walferry", err)
		return
	}
	if !r.Bool(0) {
		return
	}
	rows, err := pgquery.Rows(ctx, s.conn, `SELECT COALESCE(system_id, '') FROM walferry.subscription WHERE name = $1`, s.cfg.Name)
	if err != nil {
		s.broken("table walferry.subscription", err)
		return
	}
	if len(rows) > 0 {
		s.knownSystem = rows[0][0]
	}
}

func (s *subscriber) sessionRole(ctx context.Context) {
	if s.cfg.ReplicationRole == config.RoleOrigin {
		return
	}
	_, err := s.conn.Exec(ctx, "BEGIN; SET LOCAL session_replication_role = replica; ROLLBACK").ReadAll()
	if err == nil {
		return
	}
	_, _ = s.conn.Exec(ctx, "ROLLBACK").ReadAll() // ends the failed transaction
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "42501" { // insufficient_privilege
		s.broken("session_replication_role", err)
		return
	}
	remedy := "make the role a superuser: only they may set it before version 15"
	if s.version >= 150000 {
		remedy = fmt.Sprintf("GRANT SET ON PARAMETER session_replication_role TO %s;", sqlw.DisplayIdent(s.user))
	}
	sev, effect := Warning, "triggers fire and foreign keys are checked for every replicated row"
	if s.cfg.ReplicationRole == config.RoleReplica {
		sev, effect = Error, "replication_role: replica asks for it"
	}
	s.add(sev, "session_replication_role", remedy, "role %s may not set it: %s", s.user, effect)
}

// originFunctions keep the position of the applier, where they are permitted.
var originFunctions = []string{
	"pg_replication_origin_create(text)", "pg_replication_origin_oid(text)", "pg_replication_origin_session_setup(text)",
	"pg_replication_origin_session_reset()", "pg_replication_origin_xact_setup(pg_lsn,timestamp with time zone)",
	"pg_replication_origin_progress(text,boolean)", "pg_replication_origin_drop(text)",
}

func (s *subscriber) origins(ctx context.Context) {
	remedy := ""
	for _, f := range originFunctions {
		// Version 19 gives a function another signature; what is not there is not needed.
		rows, err := pgquery.Rows(ctx, s.conn, `SELECT has_function_privilege(to_regprocedure($1)::oid, 'EXECUTE') WHERE to_regprocedure($1) IS NOT NULL`, "pg_catalog."+f)
		if err != nil {
			s.broken("replication origins", err)
			return
		}
		if len(rows) > 0 && !rows[0].Bool(0) {
			remedy += fmt.Sprintf("GRANT EXECUTE ON FUNCTION %s TO %s;\n", f, sqlw.DisplayIdent(s.user))
		}
	}
	if remedy != "" {
		s.add(Info, "replication origins", remedy, "role %s may not use them: the position is kept in table walferry.subscription, and replicated rows are not marked for a publisher in the same database", s.user)
		return
	}
	limit := "max_replication_slots"
	if s.version >= 180000 {
		limit = "max_active_replication_origins"
	}
	r, err := pgquery.One(ctx, s.conn, `SELECT (SELECT count(*) FROM pg_replication_origin_status), (SELECT count(*) FROM pg_replication_origin WHERE roname = $1)`, "walferry_"+s.cfg.Name)
	if err != nil {
		return // the view needs rights of its own; the applier falls back
	}
	if r[1] == "0" && atoi(r[0]) >= s.number(limit) {
		s.add(Info, limit, alterSystem(limit, fmt.Sprint(atoi(r[0])+1), true), "all %s replication origins are in use: the position is kept in table walferry.subscription", r[0])
	}
}
