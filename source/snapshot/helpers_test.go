package snapshot

import (
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"strconv"
	"strings"
	"testing"

	"github.com/walferry/walferry/internal/pgtest"
)

func decimal(n uint64) string { return strconv.FormatUint(n, 10) }

func testLog(t testing.TB) *slog.Logger { return slog.New(slog.NewTextHandler(t.Output(), nil)) }

func dbName(t testing.TB, url string) string {
	return pgtest.QueryString(t, url, "SELECT current_database()")
}

// newRole makes a role that is dropped with what it was granted in the
// database.
func newRole(t testing.TB, url, attributes string) string {
	t.Helper()
	b := make([]byte, 5)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	name := "r" + hex.EncodeToString(b)
	pgtest.Exec(t, url, "CREATE ROLE "+name+" "+attributes)
	t.Cleanup(func() { pgtest.Exec(t, url, "DROP OWNED BY "+name+"; DROP ROLE "+name) })
	return name
}

// as is url with another user.
func as(url, role string) string { return strings.Replace(url, "postgres@", role+"@", 1) }
