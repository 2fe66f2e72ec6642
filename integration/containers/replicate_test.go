package containers_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/modules/postgres"

	"github.com/walferry/walferry/internal/pgtest"
	"github.com/walferry/walferry/internal/pgtest/pgcontainer"
	"github.com/walferry/walferry/internal/testreq"
)

const image = "postgres:17"

// startPostgres returns the URL of database app in a new container.
func startPostgres(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	ctr, err := postgres.Run(ctx, image,
		postgres.WithDatabase("app"),
		postgres.WithUsername("owner"),
		postgres.WithPassword("not-a-secret"),
		postgres.BasicWaitStrategies(),
		testcontainers.WithCmdArgs(args...),
	)
	testcontainers.CleanupContainer(t, ctr)
	if err != nil {
		t.Fatalf("start %s: %v", image, err)
	}
	url, err := ctr.ConnectionString(ctx, "sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	return url
}

func TestRun_CopiesAndReplicatesBetweenContainers(t *testing.T) {
	testreq.Image(t, image)
	if err := pgcontainer.Configure(); err != nil {
		t.Fatal(err)
	}
	publisher := startPostgres(t, "-c", "wal_level=logical")
	subscriber := startPostgres(t)
	const table = "CREATE TABLE item (id int PRIMARY KEY, name text NOT NULL)"
	pgtest.Exec(t, publisher, table, "INSERT INTO item SELECT g, 'old ' || g FROM generate_series(1, 1000) g")
	pgtest.Exec(t, subscriber, table)

	bin := buildWalferry(t)
	config := fmt.Sprintf(`
data_dir: %q
publishers:
  - name: main
    url: %q
    tables: {include: ['public.item']}
subscriptions:
  - name: copy
    publisher: main
    url: %q
    schema: require
`, t.TempDir(), publisher, subscriber)

	equal := func(p *program) {
		t.Helper()
		const digest = "SELECT count(*), coalesce(md5(string_agg(i::text, ',' ORDER BY id)), '') FROM item i"
		pgtest.Eventually(t, time.Minute, func() error {
			if err := p.alive(); err != nil {
				return err
			}
			want, got := pgtest.QueryString(t, publisher, digest), pgtest.QueryString(t, subscriber, digest)
			if got != want {
				return fmt.Errorf("subscriber has %s, publisher %s", got, want)
			}
			return nil
		})
	}

	p := startWalferry(t, bin, config)
	equal(p) // the initial copy
	pgtest.Exec(t, publisher,
		"INSERT INTO item VALUES (2001, 'new')",
		"UPDATE item SET name = 'changed' WHERE id <= 10",
		"DELETE FROM item WHERE id BETWEEN 500 AND 600")
	equal(p)
	if err := p.interrupt(t); err != nil {
		t.Errorf("walferry after an interrupt: %v", err)
	}

	// What is committed while it is away arrives after its return.
	pgtest.Exec(t, publisher, "BEGIN; DELETE FROM item WHERE id = 1; INSERT INTO item VALUES (1, 'again'), (3001, 'late'); COMMIT")
	equal(startWalferry(t, bin, config))
}
