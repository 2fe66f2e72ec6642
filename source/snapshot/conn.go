package snapshot

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"

	"github.com/walferry/walferry/internal/pgconnect"
)

const (
	cancelDeadline = 5 * time.Second // for the server's answer to a cancel request
	closeTimeout   = 2 * time.Second
)

// connect opens a connection on which the end of a context is sent to the
// server as a cancel request: a backend that waits for a lock or for another
// transaction would not notice that its client has gone.
func connect(ctx context.Context, url, role string) (*pgconn.PgConn, error) {
	c, err := pgconnect.Parse(url, role)
	if err != nil {
		return nil, err
	}
	c.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: cancelDeadline}
	}
	return pgconn.ConnectConfig(ctx, c)
}

func closeConn(c *pgconn.PgConn) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = c.Close(ctx) // the connection is given up in any case
}

// execSQL runs statements by the simple protocol.
func execSQL(ctx context.Context, c *pgconn.PgConn, sql string) error {
	_, err := c.Exec(ctx, sql).ReadAll()
	return err
}

// describe adds to a server error what PostgreSQL says beside the message.
func describe(err error) string {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err.Error()
	}
	var b strings.Builder
	b.WriteString(err.Error())
	if pg.ConstraintName != "" && !strings.Contains(pg.Message, pg.ConstraintName) {
		fmt.Fprintf(&b, "; constraint %s", pg.ConstraintName)
	}
	if pg.Detail != "" {
		fmt.Fprintf(&b, "; %s", pg.Detail)
	}
	if pg.Where != "" {
		fmt.Fprintf(&b, "; at %s", firstLine(pg.Where))
	}
	if pg.Hint != "" {
		fmt.Fprintf(&b, "; hint: %s", pg.Hint)
	}
	return b.String()
}

func firstLine(s string) string {
	if i := strings.IndexByte(s, '\n'); i >= 0 {
		s = s[:i]
	}
	const most = 300
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}

// tableOnly reports whether an error lies in the table or its rows, so that
// other tables may succeed: not in a connection, a server that shuts down or a
// resource that is used up.
func tableOnly(err error) bool {
	var mismatch *CountError
	var bad *PlanError
	var dup *DuplicateError
	var moved *RewrittenError
	if errors.As(err, &mismatch) || errors.As(err, &bad) || errors.As(err, &dup) || errors.As(err, &moved) {
		return true
	}
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || len(pg.Code) != 5 {
		return false
	}
	switch pg.Code[:2] {
	case "08", "53", "57", "58", "XX":
		return false
	}
	return true
}
