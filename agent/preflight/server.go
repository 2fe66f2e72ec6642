package preflight

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/internal/pgconnect"
	"github.com/walferry/walferry/internal/pgquery"
)

// minVersion is the oldest server that works, as in server_version_num.
const minVersion = 140000

// side is one end of the configuration and what was found about it.
type side struct {
	name     string // "publisher main"
	url      string
	findings []Finding
	conn     *pgconn.PgConn // nil: not reachable

	version    int
	systemID   string
	started    string
	database   string
	databaseID string
	user       string
	super      bool
	encoding   string
	recovery   bool
	settings   map[string]setting
	managed    string // a hosting service that has its own ways: rds, cloudsql, azure
}

type setting struct{ value, unit string }

func (s *side) add(sev Severity, object, remedy, format string, args ...any) {
	s.findings = append(s.findings, Finding{Side: s.name, Object: object, Severity: sev, Problem: fmt.Sprintf(format, args...), Remedy: remedy})
}

// broken records that a query of the check itself did not work.
func (s *side) broken(what string, err error) {
	s.add(Error, what, "", "cannot be checked: %s", err)
}

func (s *side) close() {
	if s.conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = s.conn.Close(ctx) // the connection is given up in any case
	}
}

// connections is how often a server is connected to, to notice a load balancer.
const connections = 3

// open connects and reads the facts about the server.
func (s *side) open(ctx context.Context) {
	cfg, err := pgconnect.Parse(s.url, "check")
	if err != nil {
		s.add(Error, "connection string", "correct the url", "%s", err)
		return
	}
	conn, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		s.connectFailed(cfg, err)
		return
	}
	if err := s.facts(ctx, conn); err != nil {
		s.broken("server", err)
		_ = conn.Close(ctx) // the error that matters is recorded
		return
	}
	s.conn = conn
	if p := versionProblem(s.version); p != "" {
		s.add(Error, "server", "upgrade the server", "%s", p)
	}
	s.sameServer(ctx, cfg)
}

func versionProblem(version int) string {
	if version >= minVersion {
		return ""
	}
	major := fmt.Sprint(version / 10000)
	if version < 100000 {
		major = fmt.Sprintf("%d.%d", version/10000, version/100%100)
	}
	return fmt.Sprintf("PostgreSQL %s is too old: walferry needs version %d or newer", major, minVersion/10000)
}

func (s *side) facts(ctx context.Context, c *pgconn.PgConn) error {
	r, err := pgquery.One(ctx, c, `SELECT (SELECT system_identifier FROM pg_control_system()), pg_postmaster_start_time(), current_database(),
		(SELECT oid FROM pg_database WHERE datname = current_database()), current_user, (SELECT rolsuper FROM pg_roles WHERE rolname = current_user),
		pg_is_in_recovery(), current_setting('server_encoding'),
		(SELECT CASE rolname WHEN 'rds_superuser' THEN 'rds' WHEN 'cloudsqlsuperuser' THEN 'cloudsql' WHEN 'azure_pg_admin' THEN 'azure' END
		   FROM pg_roles WHERE rolname IN ('rds_superuser', 'cloudsqlsuperuser', 'azure_pg_admin') LIMIT 1)`)
	if err != nil {
		return err
	}
	s.systemID, s.started, s.database, s.databaseID, s.user = r[0], r[1], r[2], r[3], r[4]
	s.super, s.recovery, s.encoding, s.managed = r.Bool(5), r.Bool(6), r[7], r[8]
	s.version = pgconnect.ServerVersion(c.ParameterStatus("server_version"))
	rows, err := pgquery.Rows(ctx, c, `SELECT name, setting, COALESCE(unit, '') FROM pg_settings`)
	if err != nil {
		return err
	}
	s.settings = make(map[string]setting, len(rows))
	for _, r := range rows {
		s.settings[r[0]] = setting{r[1], r[2]}
	}
	return nil
}

// sameServer connects again and compares.
func (s *side) sameServer(ctx context.Context, cfg *pgconn.Config) {
	for range connections - 1 {
		c, err := pgconn.ConnectConfig(ctx, cfg)
		if err != nil {
			s.connectFailed(cfg, err)
			return
		}
		r, err := pgquery.One(ctx, c, `SELECT (SELECT system_identifier FROM pg_control_system()), pg_postmaster_start_time(),
			COALESCE(host(inet_server_addr()) || ':' || inet_server_port(), 'local socket')`)
		_ = c.Close(ctx) // nothing was changed
		if err != nil {
			s.broken("server", err)
			return
		}
		if r[0] != s.systemID || r[1] != s.started {
			s.add(Error, "connection string", "use the address of one server; with several hosts add target_session_attrs=primary",
				"repeated connections reach different servers (system %s started %s, then system %s started %s at %s): a load balancer, a pool or several hosts", s.systemID, s.started, r[0], r[1], r[2])
			return
		}
	}
}

// connectFailed explains why a connection could not be made. pgconn's text
// names user, database and host, and never the password.
func (s *side) connectFailed(cfg *pgconn.Config, err error) {
	host := cfg.Host
	if cfg.Port != 0 && !strings.HasPrefix(host, "/") {
		host = net.JoinHostPort(host, fmt.Sprint(cfg.Port))
	}
	object, remedy := "server "+host, "start the server, and check host, port and firewall"
	var pg *pgconn.PgError
	var dns *net.DNSError
	switch {
	case errors.As(err, &pg):
		err = errors.New(pg.Message)
		switch {
		case pg.Code == "3D000": // invalid_catalog_name
			object, remedy = "database "+cfg.Database, "CREATE DATABASE "+sqlw.DisplayIdent(cfg.Database)+";"
		case pg.Code == "28P01": // invalid_password
			object, remedy = "role "+cfg.User, "correct the password in the url, PGPASSWORD or the password file, or set it: ALTER ROLE "+sqlw.DisplayIdent(cfg.User)+" PASSWORD '...';"
		case pg.Code[:2] == "28": // invalid authorization
			object, remedy = "role "+cfg.User, fmt.Sprintf("CREATE ROLE %s LOGIN; if it is missing, and a line in pg_hba.conf that lets it in: host %s %s <address> scram-sha-256", sqlw.DisplayIdent(cfg.User), sqlw.DisplayIdent(cfg.Database), sqlw.DisplayIdent(cfg.User))
		case pg.Code == "42501": // no CONNECT privilege
			object, remedy = "role "+cfg.User, fmt.Sprintf("GRANT CONNECT ON DATABASE %s TO %s;", sqlw.DisplayIdent(cfg.Database), sqlw.DisplayIdent(cfg.User))
		case pg.Code == "53300": // too_many_connections
			object, remedy = "max_connections", "end unused sessions or raise max_connections (restart)"
		case pg.Code == "57P03": // cannot_connect_now
			remedy = "wait until the server has started"
		}
	case errors.As(err, &dns):
		remedy = "correct the host name in the url"
	}
	s.add(Error, object, remedy, "cannot connect: %s", oneLine(err))
}

func oneLine(err error) string {
	return strings.Join(strings.Fields(err.Error()), " ")
}
