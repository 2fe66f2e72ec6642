package change

import (
	"fmt"
	"strconv"
	"strings"
)

// LSN is a position in the publisher's write-ahead log, in bytes. The zero
// value is no position (InvalidXLogRecPtr in PostgreSQL).
type LSN uint64

// OID is a PostgreSQL object identifier. It means something only in the
// database that issued it.
type OID uint32

// XID is a 32-bit PostgreSQL transaction identifier, without epoch.
type XID uint32

// ParseLSN reads the form that pg_lsn prints, as in 16/B374D848. Nothing may
// stand before or after it.
func ParseLSN(s string) (LSN, error) {
	hi, lo, ok := strings.Cut(s, "/")
	if !ok || len(hi) == 0 || len(hi) > 8 || len(lo) == 0 || len(lo) > 8 || !isHex(hi) || !isHex(lo) {
		return 0, fmt.Errorf("parse LSN %q: want the form 16/B374D848", s)
	}
	h, err := strconv.ParseUint(hi, 16, 32)
	if err != nil {
		return 0, fmt.Errorf("parse LSN %q: %w", s, err)
	}
	l, err := strconv.ParseUint(lo, 16, 32)
	if err != nil {
		return 0, fmt.Errorf("parse LSN %q: %w", s, err)
	}
	return LSN(h<<32 | l), nil
}

func isHex(s string) bool {
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') {
			return false
		}
	}
	return true
}

// String gives the form that pg_lsn prints.
func (l LSN) String() string {
	b := make([]byte, 0, 17)
	b = strconv.AppendUint(b, uint64(l>>32), 16)
	b = append(b, '/')
	b = strconv.AppendUint(b, uint64(l&0xFFFFFFFF), 16)
	return strings.ToUpper(string(b))
}

// MarshalText writes the form that pg_lsn prints.
func (l LSN) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText reads the form that pg_lsn prints.
func (l *LSN) UnmarshalText(b []byte) error {
	v, err := ParseLSN(string(b))
	if err != nil {
		return err
	}
	*l = v
	return nil
}
