package pgtest_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/walferry/walferry/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Run(m)) }

func TestShared_IsOneClusterWithLogicalDecoding(t *testing.T) {
	a, b := pgtest.Shared(t), pgtest.Shared(t)
	if a != b {
		t.Fatal("two calls of Shared gave two clusters")
	}
	got := pgtest.QueryString(t, a.URL("postgres"),
		"SELECT current_setting('wal_level'), current_setting('TimeZone'), current_setting('server_encoding'), current_setting('max_replication_slots')")
	if want := "logical|UTC|UTF8|32"; got != want {
		t.Errorf("settings: got %q, want %q", got, want)
	}
	if got, want := pgtest.QueryString(t, a.URL("postgres"), "SHOW server_version_num")[:2], fmt.Sprint(a.Version()); got != want {
		t.Errorf("version: got %s, want %s", got, want)
	}
}

func TestDB_IsDroppedWithSlotsPreparedTransactionsAndConnections(t *testing.T) {
	c := pgtest.Shared(t)
	var name string
	t.Run("use", func(t *testing.T) {
		url := c.DB(t)
		name = pgtest.QueryString(t, url, "SELECT current_database()")
		pgtest.Exec(t, url,
			"CREATE TABLE a (id int PRIMARY KEY)",
			"SELECT pg_create_logical_replication_slot('s_"+name+"', 'pgoutput')",
			"BEGIN; INSERT INTO a VALUES (1); PREPARE TRANSACTION 'p_"+name+"'")
	})
	got := pgtest.QueryString(t, c.URL("postgres"), fmt.Sprintf(`
		SELECT (SELECT count(*) FROM pg_database WHERE datname = '%[1]s'),
		       (SELECT count(*) FROM pg_replication_slots WHERE database = '%[1]s'),
		       (SELECT count(*) FROM pg_prepared_xacts WHERE gid = 'p_%[1]s')`, name))
	if got != "0|0|0" {
		t.Errorf("left behind (database|slots|prepared): %s", got)
	}
}

func TestNew_ClustersHaveTheirOwnSystemIdentifier(t *testing.T) {
	id := func(c *pgtest.Cluster) string {
		return pgtest.QueryString(t, c.URL("postgres"), "SELECT system_identifier FROM pg_control_system()")
	}
	if a, b := id(pgtest.New(t)), id(pgtest.New(t)); a == b {
		t.Errorf("two clusters have the system identifier %s", a)
	}
}

func TestCluster_CommittedRowsSurviveStopRestartAndKill(t *testing.T) {
	for _, v := range pgtest.Versions() {
		t.Run(fmt.Sprint(v), func(t *testing.T) {
			c := pgtest.New(t, pgtest.WithVersion(v), pgtest.WithSetting("work_mem", "5MB"))
			url := c.URL("postgres")
			if got := pgtest.QueryString(t, url, "SHOW work_mem"); got != "5MB" {
				t.Errorf("work_mem: got %s, want 5MB", got)
			}
			pgtest.Exec(t, url, "CREATE TABLE a (id int)", "INSERT INTO a VALUES (1)")
			c.Restart(t, "fast")
			pgtest.Exec(t, url, "INSERT INTO a VALUES (2)")
			c.Restart(t, "immediate")
			pgtest.Exec(t, url, "INSERT INTO a VALUES (3)")
			c.Kill(t)
			c.Start(t)
			if got := pgtest.QueryString(t, url, "SELECT string_agg(id::text, ',' ORDER BY id) FROM a"); got != "1,2,3" {
				t.Errorf("rows: got %s, want 1,2,3", got)
			}
		})
	}
}

func TestQueryString_PrintsAsPsqlDoes(t *testing.T) {
	url := pgtest.Shared(t).URL("postgres")
	got := pgtest.QueryString(t, url, "SELECT 1; SELECT * FROM (VALUES (1, 'a'), (2, NULL)) v")
	if want := "1|a\n2|"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestEventually_ReturnsAtTheFirstSuccess(t *testing.T) {
	n := 0
	pgtest.Eventually(t, 5*time.Second, func() error {
		if n++; n < 3 {
			return errors.New("not yet")
		}
		return nil
	})
	if n != 3 {
		t.Errorf("called %d times, want 3", n)
	}
}

func TestCluster_ListensOnLoopbackOnly(t *testing.T) {
	c := pgtest.Shared(t)
	if c.DataDir() == "" {
		t.Skip("the server runs in a container network")
	}
	if got := pgtest.QueryString(t, c.URL("postgres"), "SHOW listen_addresses"); got != "127.0.0.1" {
		t.Errorf("listen_addresses: got %s", got)
	}
	if got := pgtest.QueryString(t, c.URL("postgres"), "SHOW unix_socket_directories"); !strings.HasPrefix(got, os.TempDir()) {
		t.Errorf("unix_socket_directories: got %s", got)
	}
}
