package sizes

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/walferry/walferry/internal/pgtest"
)

var full = flag.Bool("sizes.full", false, "the full sizes: hours, and 30 GB of disk")

// binary is the program under test.
var binary string

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "walferry-sizes-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "walferry")
	if out, err := exec.Command("go", "build", "-o", binary, "github.com/walferry/walferry/cmd/walferry").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build walferry: %v\n%s", err, out)
		return 1
	}
	return pgtest.Run(m)
}

// bound is the most resident memory in MiB, the largest row aside.
func bound() int64 { return 512 }

// scaled chooses a size.
func scaled(small, large int) int {
	if *full {
		return large
	}
	return small
}

// patience is how long a step may take.
func patience() time.Duration {
	if *full {
		return 40 * time.Minute
	}
	return 2 * time.Minute
}

// servers are a publisher and a subscriber with a database each. The full sizes
// have a cluster for each.
func servers(t *testing.T) (pub, sub string) {
	t.Helper()
	if !*full {
		return pgtest.Shared(t).DB(t), pgtest.Shared(t).DB(t)
	}
	big := []pgtest.Option{
		pgtest.WithSetting("max_wal_size", "4GB"), pgtest.WithSetting("shared_buffers", "256MB"),
		pgtest.WithSetting("checkpoint_timeout", "15min"), pgtest.WithSetting("wal_compression", "off"),
	}
	return pgtest.New(t, big...).DB(t), pgtest.New(t, big...).DB(t)
}

// pair is a configuration of one publisher and one subscription.
func pair(pub, sub, publisherKeys, queueKeys string) string {
	return fmt.Sprintf(`queue: {%s}
publishers:
  - {name: main, url: %q, slot: %q, %s}
subscriptions:
  - {name: copy, url: %q}
`, queueKeys, pub, slot(), publisherKeys, sub)
}

func slot() string { return fmt.Sprintf("walferry_sizes_%d", os.Getpid()) }

// same fails unless a query gives the same on both sides.
func same(t *testing.T, pub, sub, sql string) {
	t.Helper()
	want, got := pgtest.QueryString(t, pub, sql), pgtest.QueryString(t, sub, sql)
	if got != want {
		t.Errorf("%s: subscriber has %.200s, publisher %.200s", sql, got, want)
	} else {
		t.Logf("both sides: %s = %.120s", sql, want)
	}
}

// digest is a query for count and content of a table.
func digest(table string) string {
	return `SELECT count(*), sum(hashtextextended(x::text, 0)) FROM ` + table + ` x`
}
