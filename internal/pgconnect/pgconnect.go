package pgconnect

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Replication is the role of a connection that speaks the replication
// protocol (CREATE_REPLICATION_SLOT, START_REPLICATION). Any other role only
// names the connection.
const Replication = "replication"

const (
	connectTimeout    = 15 * time.Second // when the connection string has no connect_timeout
	keepaliveIdle     = 15 * time.Second
	keepaliveInterval = 10 * time.Second
	keepaliveCount    = 3
	userTimeout       = 45 * time.Second // unacknowledged bytes (tcp(7), TCP_USER_TIMEOUT)
)

// pinned are the settings of every session (PostgreSQL: "Client Connection
// Defaults").
var pinned = map[string]string{
	"client_encoding":                     "UTF8",
	"DateStyle":                           "ISO, YMD",
	"IntervalStyle":                       "postgres",
	"TimeZone":                            "UTC",
	"extra_float_digits":                  "3",
	"bytea_output":                        "hex",
	"lc_monetary":                         "C",
	"search_path":                         "",
	"xmloption":                           "content",
	"standard_conforming_strings":         "on",
	"statement_timeout":                   "0",
	"lock_timeout":                        "0",
	"idle_in_transaction_session_timeout": "0",
}

// watched makes the server notice within about a minute that this side has
// vanished: the machine of an applier that died holds its locks, that of the
// subscription and of rows, until the server ends its session, which without these
// takes more than two hours (Linux, tcp(7)). The connection string may set others.
var watched = map[string]string{
	"tcp_keepalives_idle":     strconv.Itoa(int(keepaliveIdle.Seconds())),
	"tcp_keepalives_interval": strconv.Itoa(int(keepaliveInterval.Seconds())),
	"tcp_keepalives_count":    strconv.Itoa(keepaliveCount),
	"tcp_user_timeout":        strconv.Itoa(int(userTimeout.Milliseconds())),
}

// Parse reads a connection string: a URL or keyword/value pairs, completed
// from the environment as libpq does. role is shown in application_name unless
// the string or PGAPPNAME sets one; the role [Replication] makes a logical
// replication connection.
//
// A database in SQL_ASCII has no encoding to convert from: there the session
// is switched to SQL_ASCII after connecting and bytes pass as they are.
func Parse(connString, role string) (*pgconn.Config, error) {
	c, err := pgconn.ParseConfig(connString)
	if err != nil {
		return nil, parseError(connString, err)
	}
	pin(c, role)
	return c, nil
}

// ParseConn is [Parse] for users of pgx.
func ParseConn(connString, role string) (*pgx.ConnConfig, error) {
	c, err := pgx.ParseConfig(connString)
	if err != nil {
		return nil, parseError(connString, err)
	}
	pin(&c.Config, role)
	return c, nil
}

// Connect opens a connection with the settings of [ParseConn].
func Connect(ctx context.Context, connString, role string) (*pgx.Conn, error) {
	c, err := ParseConn(connString, role)
	if err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("connect %s: %w", role, err)
	}
	return conn, nil
}

func pin(c *pgconn.Config, role string) {
	for k := range c.RuntimeParams {
		for p := range pinned {
			if strings.EqualFold(k, p) { // names of settings ignore case
				delete(c.RuntimeParams, k)
			}
		}
	}
	for k, v := range pinned {
		c.RuntimeParams[k] = v
	}
	for k, v := range watched {
		if !hasSetting(c.RuntimeParams, k) {
			c.RuntimeParams[k] = v
		}
	}
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = strings.TrimSpace("walferry " + role)
	}
	delete(c.RuntimeParams, "replication")
	if role == Replication {
		c.RuntimeParams["replication"] = "database"
	} else {
		c.RuntimeParams["row_security"] = "off" // an error instead of a silent subset
	}
	if c.ConnectTimeout <= 0 {
		c.ConnectTimeout = connectTimeout
	}
	Control(c, nil)
	c.AfterConnect = afterConnect
}

// Control makes f prepare each socket of c before it is connected, in the way of
// [net.Dialer]. f may be nil.
func Control(c *pgconn.Config, f func(network, address string, raw syscall.RawConn) error) {
	d := &net.Dialer{
		Timeout: c.ConnectTimeout,
		KeepAliveConfig: net.KeepAliveConfig{
			Enable: true, Idle: keepaliveIdle, Interval: keepaliveInterval, Count: keepaliveCount,
		},
		Control: func(network, address string, raw syscall.RawConn) error {
			if err := setUserTimeout(network, address, raw); err != nil || f == nil {
				return err
			}
			return f(network, address, raw)
		},
	}
	c.DialFunc = d.DialContext
}

// hasSetting reports whether a setting is given; its name ignores case.
func hasSetting(params map[string]string, name string) bool {
	for k := range params {
		if strings.EqualFold(k, name) {
			return true
		}
	}
	return false
}

// afterConnect makes the settings that depend on the server.
func afterConnect(ctx context.Context, conn *pgconn.PgConn) error {
	var set []string
	v := ServerVersion(conn.ParameterStatus("server_version"))
	if v >= 140000 {
		set = append(set, "SET idle_session_timeout = 0")
	}
	if v >= 170000 {
		set = append(set, "SET transaction_timeout = 0")
	}
	if conn.ParameterStatus("server_encoding") == "SQL_ASCII" {
		set = append(set, "SET client_encoding = 'SQL_ASCII'")
	}
	if len(set) == 0 {
		return nil
	}
	if _, err := conn.Exec(ctx, strings.Join(set, "; ")).ReadAll(); err != nil {
		return fmt.Errorf("pin session settings: %w", err)
	}
	return nil
}

// ServerVersion turns the parameter server_version ("15.17 (Debian ...)",
// "18beta1") into the form of server_version_num (150017). It is 0 when the
// text has no number.
func ServerVersion(s string) int {
	major, rest := leadingInt(s)
	if major == 0 {
		return 0
	}
	minor := 0
	if strings.HasPrefix(rest, ".") {
		minor, _ = leadingInt(rest[1:])
	}
	return major*10000 + minor
}

func leadingInt(s string) (int, string) {
	n := 0
	for n < len(s) && n < 5 && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	i, _ := strconv.Atoi(s[:n]) // "" and 0 mean the same here
	return i, s[n:]
}
