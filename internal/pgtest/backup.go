package pgtest

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// A Backup is a cold copy of a cluster's data directory, slots included, as a
// snapshot of its file system would be.
type Backup struct{ dir string }

// Save stops the server, copies its data directory and starts it again.
func (c *Cluster) Save(t testing.TB) *Backup {
	t.Helper()
	b := &Backup{dir: filepath.Join(filepath.Dir(c.DataDir()), fmt.Sprintf("saved%d", time.Now().UnixNano()))}
	if err := c.Stop("fast"); err != nil {
		t.Fatal(err)
	}
	c.copyDir(t, c.DataDir(), b.dir)
	c.Start(t)
	return b
}

// Restore stops the server, puts the copy in place of its data and starts it
// on the same port. The copy can be used again.
func (c *Cluster) Restore(t testing.TB, b *Backup) {
	t.Helper()
	if err := c.Stop("immediate"); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(c.DataDir()); err != nil {
		t.Fatal(err)
	}
	c.copyDir(t, b.dir, c.DataDir())
	c.Start(t)
}

func (c *Cluster) copyDir(t testing.TB, from, to string) {
	t.Helper()
	if out, err := asServerUser(exec.Command("cp", "-a", from, to)).CombinedOutput(); err != nil {
		t.Fatalf("copy data directory: %v: %s", err, out)
	}
}

// Standby makes a streaming standby by pg_basebackup and starts it. settings are
// added to those of the primary. It is removed when the test ends.
func (c *Cluster) Standby(t testing.TB, settings map[string]string) *Cluster {
	t.Helper()
	base, err := processDir()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(base, "s")
	if err != nil {
		t.Fatal(err)
	}
	s := &local{bin: c.BinDir(), dir: dir}
	t.Cleanup(s.Remove)
	if err := giveToServerUser(dir); err != nil {
		t.Fatal(err)
	}
	if s.prt, err = FreePort(); err != nil {
		t.Fatal(err)
	}
	// The database name is for the synchronisation of slots (17 and newer).
	from := fmt.Sprintf("host=127.0.0.1 port=%d user=postgres dbname=postgres", c.Port())
	cmd := asServerUser(exec.Command(filepath.Join(c.BinDir(), "pg_basebackup"), "-D", s.DataDir(), "-d", from, "-X", "stream", "-c", "fast", "--no-sync"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("run pg_basebackup: %v: %s", err, out)
	}
	all := map[string]string{"port": fmt.Sprint(s.prt), "unix_socket_directories": dir, "primary_conninfo": from, "hot_standby": "on"}
	maps.Copy(all, settings)
	var conf strings.Builder
	for _, k := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&conf, "%s = '%s'\n", k, strings.ReplaceAll(all[k], "'", "''"))
	}
	// What ALTER SYSTEM writes wins over postgresql.conf.
	for name, text := range map[string]string{"postgresql.auto.conf": conf.String(), "standby.signal": ""} {
		path := filepath.Join(s.DataDir(), name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := giveToServerUser(path); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Start(); err != nil {
		t.Fatalf("start standby: %v\n%s", err, s.LogTail())
	}
	return &Cluster{version: c.version, srv: s, settings: c.settings}
}

// Promote makes a standby a primary on a new timeline.
func (c *Cluster) Promote(t testing.TB) {
	t.Helper()
	cmd := asServerUser(exec.Command(filepath.Join(c.BinDir(), "pg_ctl"), "promote", "-w", "-D", c.DataDir()))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("promote: %v: %s\n%s", err, out, c.Log())
	}
}
