package pgcontainer_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/walferry/walferry/internal/pgtest"
	"github.com/walferry/walferry/internal/pgtest/pgcontainer"
	"github.com/walferry/walferry/internal/testreq"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Run(m)) }

// requireImage skips where the server cannot run in a container. Only
// PostgreSQL 17 is an image that every machine with Docker must have.
func requireImage(t *testing.T, major int) {
	t.Helper()
	testreq.Docker(t)
	image := pgcontainer.Image(major)
	if major != 17 && !testreq.HasImage(image) {
		t.Skipf("no image %s", image)
	}
	testreq.Image(t, image)
}

func TestCluster_CommittedRowsSurviveStopRestartAndKill(t *testing.T) {
	for _, major := range []int{17, 18} {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			requireImage(t, major)
			c := pgtest.New(t, pgcontainer.Option(), pgtest.WithVersion(major), pgtest.WithSetting("work_mem", "5MB"))
			url := c.URL("postgres")
			got := pgtest.QueryString(t, url, "SELECT current_setting('work_mem'), current_setting('wal_level'), current_setting('server_version_num')::int / 10000")
			if want := fmt.Sprintf("5MB|logical|%d", major); got != want {
				t.Errorf("settings: got %s, want %s", got, want)
			}
			port := c.Port()
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
			if c.Port() != port {
				t.Errorf("port: got %d after restarts, want %d", c.Port(), port)
			}
		})
	}
}
