// Package logkey names the keys of structured log lines, so that one thing has
// one name in all of them.
package logkey

// The keys. LSNs are logged in the form that pg_lsn prints.
const (
	Publisher    = "publisher"
	Subscription = "subscription"
	Slot         = "slot"
	Table        = "table"
	LSN          = "lsn"
	Position     = "position"
	XID          = "xid"
	Sequence     = "seq"
	State        = "state"
	Error        = "error"
	Hint         = "hint"
	RetryIn      = "retry_in"
	Address      = "address"
	Rows         = "rows"
	Transactions = "transactions"
	Bytes        = "bytes"
	Took         = "took"
)
