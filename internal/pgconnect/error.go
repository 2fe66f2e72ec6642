package pgconnect

import (
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// A ParseError says that a connection string cannot be used. It never contains
// the string.
type ParseError struct{ Reason string }

func (e *ParseError) Error() string { return "read connection string: " + e.Reason }

const urlReason = "not a valid URL: percent-encode special characters in the user name and password (@ is %40, / is %2F, : is %3A)"

// parseError keeps the reason that pgconn gives if it cannot have come from
// the user's string; the text of a URL error quotes pieces of the password.
func parseError(connString string, err error) error {
	if strings.HasPrefix(connString, "postgres://") || strings.HasPrefix(connString, "postgresql://") {
		if strings.Contains(err.Error(), "parse as URL") {
			return &ParseError{Reason: urlReason}
		}
	} else if strings.Contains(err.Error(), "parse as keyword/value") {
		return &ParseError{Reason: "not keyword=value pairs: quote values that hold spaces with ' and write \\' for a quote"}
	}
	reason := err.Error()
	var pe *pgconn.ParseConfigError
	if errors.As(err, &pe) {
		// "cannot parse `...`: reason": the string may hold any character, so
		// the reason begins behind its last closing quote.
		if i := strings.LastIndex(reason, "`: "); i >= 0 {
			reason = reason[i+3:]
		}
	}
	for _, w := range strings.FieldsFunc(connString, func(r rune) bool {
		return strings.ContainsRune(" '\"=@:/?&", r)
	}) {
		if len(w) > 3 && !harmless[w] && strings.Contains(reason, w) {
			return &ParseError{Reason: "a value is missing or not valid (not shown, as it may be a password)"}
		}
	}
	return &ParseError{Reason: reason}
}

// harmless are words of connection strings that may be quoted in an error.
var harmless = map[string]bool{
	"postgres": true, "postgresql": true, "port": true, "host": true, "user": true, "password": true,
	"dbname": true, "sslmode": true, "sslrootcert": true, "sslcert": true, "sslkey": true, "service": true,
	"connect_timeout": true, "target_session_attrs": true, "channel_binding": true, "sslpassword": true,
	"sslnegotiation": true, "localhost": true, "options": true, "passfile": true, "servicefile": true,
}
