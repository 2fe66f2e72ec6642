package snapshot

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/internal/pgconnect"
	"github.com/walferry/walferry/internal/pgquery"
)

// server identifies the process that a connection has reached.
type server struct {
	systemID uint64
	timeline uint32
	started  string // pg_postmaster_start_time
	addr     string // the server's own address, for messages
	database string
}

func (s server) String() string {
	return fmt.Sprintf("system %d at %s, started %s, database %s", s.systemID, s.addr, s.started, s.database)
}

// point is the consistent point of the copy. Its connection has to stay idle:
// the next command on it ends the exported snapshot.
type point struct {
	conn     *pgconn.PgConn
	server   server
	lsn      change.LSN
	snapshot string // for SET TRANSACTION SNAPSHOT
}

// identify may run only before the slot is created.
func identify(ctx context.Context, c *pgconn.PgConn) (server, error) {
	// The simple protocol is all that a replication connection understands.
	rows, err := pgquery.Simple(ctx, c, `SELECT (SELECT system_identifier FROM pg_catalog.pg_control_system()),
		(SELECT timeline_id FROM pg_catalog.pg_control_checkpoint()), pg_catalog.pg_postmaster_start_time(),
		COALESCE(pg_catalog.host(pg_catalog.inet_server_addr()) || ':' || pg_catalog.inet_server_port(), 'local socket'),
		pg_catalog.current_database()`)
	if err != nil {
		return server{}, fmt.Errorf("identify publisher: %w", err)
	}
	if len(rows) != 1 {
		return server{}, errors.New("identify publisher: no answer")
	}
	r := rows[0]
	id, err := strconv.ParseUint(r[0], 10, 64)
	if err != nil {
		return server{}, fmt.Errorf("identify publisher: %w", err)
	}
	tl, err := strconv.ParseUint(r[1], 10, 32)
	if err != nil {
		return server{}, fmt.Errorf("identify publisher: %w", err)
	}
	return server{systemID: id, timeline: uint32(tl), started: r[2], addr: r[3], database: r[4]}, nil
}

// openPoint finds the moment that is copied.
func (r *run) openPoint(ctx context.Context) (*point, error) {
	role := pgconnect.Replication
	if r.o.Locked {
		role = "copy lock"
	}
	c, err := connect(ctx, r.o.Publisher, role)
	if err != nil {
		if !r.o.Locked {
			return nil, fmt.Errorf("connect to publisher for replication: %w", err)
		}
		return nil, fmt.Errorf("connect to publisher: %w", err)
	}
	p := &point{conn: c}
	if r.o.Locked {
		err = p.lock(ctx, r)
	} else {
		err = p.open(ctx, r.stall)
	}
	if err != nil {
		closeConn(c)
		return nil, err
	}
	return p, nil
}

// open creates the temporary slot. That waits for all transactions that are
// running at the time; the slot ends with the connection.
func (p *point) open(ctx context.Context, st *stall) error {
	var err error
	if p.server, err = identify(ctx, p.conn); err != nil {
		return err
	}
	b := make([]byte, 6)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	option := "(SNAPSHOT 'export')"
	if pgconnect.ServerVersion(p.conn.ParameterStatus("server_version")) < 150000 {
		option = "EXPORT_SNAPSHOT"
	}
	defer st.expect(sidePublisher, p.conn.PID(), "a consistent point of the log")()
	rows, err := pgquery.Simple(ctx, p.conn, fmt.Sprintf("CREATE_REPLICATION_SLOT walferry_copy_%s TEMPORARY LOGICAL pgoutput %s", hex.EncodeToString(b), option))
	if err != nil {
		return fmt.Errorf("create temporary replication slot: %w", err)
	}
	if len(rows) != 1 || len(rows[0]) < 3 {
		return errors.New("create temporary replication slot: no answer")
	}
	r := rows[0]
	if p.lsn, err = change.ParseLSN(r[1]); err != nil {
		return fmt.Errorf("create temporary replication slot: %w", err)
	}
	if p.snapshot = r[2]; p.snapshot == "" {
		return errors.New("create temporary replication slot: no snapshot was exported")
	}
	return nil
}

// reader is an SQL connection in the snapshot of the point.
type reader struct {
	conn    *pgconn.PgConn
	version int // as server_version_num
	horizon
}

// A ServerError says that two connections with the same connection string have
// reached different servers.
type ServerError struct{ Replication, SQL string }

func (e *ServerError) Error() string {
	return fmt.Sprintf("the publisher's connection string leads to different servers: the replication connection reached %s, the SQL connection %s; "+
		"use the address of one server instead of a load balancer, or target_session_attrs=primary", e.Replication, e.SQL)
}

// openReader connects, makes sure that it has reached the server of the point,
// and imports the snapshot.
func openReader(ctx context.Context, url string, p *point, st *stall) (*reader, error) {
	c, err := connect(ctx, url, "copy reader")
	if err != nil {
		return nil, fmt.Errorf("connect to publisher: %w", err)
	}
	if err := importSnapshot(ctx, c, p); err != nil {
		closeConn(c)
		return nil, err
	}
	r := &reader{conn: c, version: pgconnect.ServerVersion(c.ParameterStatus("server_version"))}
	if r.horizon, err = readHorizon(ctx, c); err != nil {
		closeConn(c)
		return nil, err
	}
	st.follow(sidePublisher, c.PID())
	return r, nil
}

func readHorizon(ctx context.Context, c *pgconn.PgConn) (h horizon, err error) {
	r, err := pgquery.One(ctx, c, "SELECT pg_snapshot_xmin(s), pg_snapshot_xmax(s) FROM pg_current_snapshot() s")
	if err == nil {
		h.xmin, err = strconv.ParseUint(r[0], 10, 64)
	}
	if err == nil {
		h.xmax, err = strconv.ParseUint(r[1], 10, 64)
	}
	if err != nil {
		return h, fmt.Errorf("read the transactions of the snapshot: %w", err)
	}
	return h, nil
}

func importSnapshot(ctx context.Context, c *pgconn.PgConn, p *point) error {
	s, err := identify(ctx, c)
	if err != nil {
		return err
	}
	if s.systemID != p.server.systemID || s.started != p.server.started || s.database != p.server.database {
		return &ServerError{Replication: p.server.String(), SQL: s.String()}
	}
	if err := execSQL(ctx, c, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"); err != nil {
		return fmt.Errorf("begin snapshot transaction: %w", err)
	}
	if err := execSQL(ctx, c, "SET TRANSACTION SNAPSHOT "+sqlw.QuoteLiteral(p.snapshot)); err != nil {
		return fmt.Errorf("import snapshot: %w", err)
	}
	return nil
}
