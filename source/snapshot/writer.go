package snapshot

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/internal/pgconnect"
	"github.com/walferry/walferry/internal/pgquery"
)

// writer is the connection to the subscriber.
type writer struct {
	conn    *pgconn.PgConn
	version int // as server_version_num
	// replica: triggers and foreign keys are off, as in an applier of native
	// replication, but for triggers that are enabled for replica or always.
	replica bool
}

// openWriter connects. origin names the replication origin of the session; empty:
// none.
func openWriter(ctx context.Context, o *Options, origin string, st *stall) (*writer, error) {
	c, err := connect(ctx, o.Subscriber, "copy writer")
	if err != nil {
		return nil, fmt.Errorf("connect to subscriber: %w", err)
	}
	w := &writer{conn: c, version: pgconnect.ServerVersion(c.ParameterStatus("server_version"))}
	if err := w.prepare(ctx, o, origin); err != nil {
		closeConn(c)
		return nil, err
	}
	st.follow(sideSubscriber, c.PID())
	return w, nil
}

func (w *writer) prepare(ctx context.Context, o *Options, origin string) error {
	if o.ReplicationRole != "origin" {
		err := execSQL(ctx, w.conn, "SET session_replication_role = replica")
		var pg *pgconn.PgError
		switch {
		case err == nil:
			w.replica = true
		case o.ReplicationRole == "replica":
			return fmt.Errorf("set session_replication_role on the subscriber: %w", err)
		case !errors.As(err, &pg) || pg.Code != "42501": // insufficient_privilege
			return fmt.Errorf("set session_replication_role on the subscriber: %w", err)
		}
	}
	if origin == "" {
		return nil
	}
	_, err := pgquery.Rows(ctx, w.conn, `SELECT pg_replication_origin_create($1) WHERE NOT EXISTS (SELECT FROM pg_replication_origin WHERE roname = $1)`, origin)
	if err == nil {
		_, err = pgquery.Rows(ctx, w.conn, `SELECT pg_replication_origin_session_setup($1)`, origin)
	}
	if err != nil {
		return fmt.Errorf("set up replication origin %s on the subscriber: %w", origin, err)
	}
	return nil
}

// An EncodingError says that the two databases cannot exchange text.
type EncodingError struct{ Publisher, Subscriber string }

func (e *EncodingError) Error() string {
	return fmt.Sprintf("the publisher's database has encoding %s and the subscriber's %s: bytes without a known encoding cannot be converted; "+
		"create the subscriber's database with ENCODING 'SQL_ASCII'", e.Publisher, e.Subscriber)
}

// checkEncodings refuses a source without an encoding whose bytes would have
// to be valid in the target's. All other pairs are converted by way of UTF8,
// and a character that does not exist on the subscriber is an error there.
func checkEncodings(in, out *pgconn.PgConn) error {
	const none = "SQL_ASCII"
	p, s := in.ParameterStatus("server_encoding"), out.ParameterStatus("server_encoding")
	if p == none && s != none {
		return &EncodingError{Publisher: p, Subscriber: s}
	}
	return nil
}

// begin starts the transaction of one table and locks its ledger row. If the
// row says that the rows are there, the transaction is ended and lsn is that of
// the copy.
func (w *writer) begin(ctx context.Context, subscription string, t TableMap) (there bool, lsn change.LSN, err error) {
	if err := execSQL(ctx, w.conn, "BEGIN"); err != nil {
		return false, 0, fmt.Errorf("begin: %w", err)
	}
	r, err := pgquery.One(ctx, w.conn, `INSERT INTO walferry.subscription_table AS s
			(subscription, schema_name, table_name, target_schema, target_table, state)
		VALUES ($1, $2, $3, $4, $5, 'copying')
		ON CONFLICT (subscription, schema_name, table_name) DO UPDATE SET target_schema = excluded.target_schema, target_table = excluded.target_table
		RETURNING state, COALESCE(copy_lsn, '0/0')`, subscription, t.SourceSchema, t.SourceName, t.TargetSchema, t.TargetName)
	if err != nil {
		return false, 0, fmt.Errorf("lock row of walferry.subscription_table: %w", err)
	}
	if r[0] != "ready" && r[0] != "copied" {
		return false, 0, nil
	}
	if lsn, err = change.ParseLSN(r[1]); err != nil {
		return false, 0, fmt.Errorf("read walferry.subscription_table: %w", err)
	}
	if err := execSQL(ctx, w.conn, "ROLLBACK"); err != nil {
		return false, 0, fmt.Errorf("rollback: %w", err)
	}
	return true, lsn, nil
}

// makeEmpty removes the rows that the target holds, if they may be removed, and what
// the ledger knows of parts, in the transaction of the table.
func (w *writer) makeEmpty(ctx context.Context, subscription string, p *plan) error {
	if err := w.forgetParts(ctx, subscription, p.TableMap); err != nil {
		return err
	}
	if !p.freeze && !p.truncate { // a table that is frozen must be new in the transaction
		return nil
	}
	truncate := "TRUNCATE " + p.only()
	err := execSQL(ctx, w.conn, "SAVEPOINT walferry_empty; "+truncate+"; RELEASE SAVEPOINT walferry_empty")
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "0A000" && w.replica {
		// A foreign key refers to the table. In this session it is not checked.
		err = execSQL(ctx, w.conn, "ROLLBACK TO SAVEPOINT walferry_empty; DELETE FROM "+p.only())
	}
	if err != nil {
		return fmt.Errorf("empty the subscriber's table: %w", err)
	}
	return nil
}

// commit records that the rows are there and ends the transaction.
func (w *writer) commit(ctx context.Context, subscription string, t TableMap, lsn change.LSN, rows int64) error {
	if _, err := pgquery.One(ctx, w.conn, `UPDATE walferry.subscription_table SET state = 'copied', copy_lsn = $4::pg_lsn, rows = $5::int8
		WHERE subscription = $1 AND schema_name = $2 AND table_name = $3 RETURNING true`,
		subscription, t.SourceSchema, t.SourceName, lsn.String(), fmt.Sprint(rows)); err != nil {
		return fmt.Errorf("record in walferry.subscription_table: %w", err)
	}
	if err := execSQL(ctx, w.conn, "COMMIT"); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

func (w *writer) rollback(ctx context.Context) {
	if !w.conn.IsClosed() && w.conn.TxStatus() != 'I' {
		_ = execSQL(ctx, w.conn, "ROLLBACK") // a connection that is not idle afterwards is replaced
	}
}
