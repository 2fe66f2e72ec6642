package snapshot

import (
	"errors"
	"strings"
	"testing"

	"github.com/walferry/walferry/internal/pgtest"
)

func TestCheckLocks_RefusesWhatWouldFillTheLockTable(t *testing.T) {
	c := pgtest.New(t, pgtest.WithSetting("max_locks_per_transaction", "64"), pgtest.WithSetting("max_connections", "100"),
		pgtest.WithSetting("max_worker_processes", "8"), pgtest.WithSetting("max_wal_senders", "10"), pgtest.WithSetting("max_prepared_transactions", "0"))
	conn, err := connect(t.Context(), c.URL("postgres"), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn(conn)
	if err := checkLocks(t.Context(), conn, 1000); err != nil {
		t.Errorf("1000 tables on a server as installed: %v", err)
	}
	err = checkLocks(t.Context(), conn, 10_000)
	if le, ok := errors.AsType[*LocksError](err); !ok || le.Room != 64*122 || !strings.Contains(err.Error(), "max_locks_per_transaction = 410") {
		t.Errorf("10000 tables on a server as installed: %v", err)
	}
}
