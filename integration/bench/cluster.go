package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/walferry/walferry/internal/pgserver"
)

// settings are those of a server that is meant for such work: durable, with
// memory, and without the noise of autovacuum in short runs.
var settings = map[string]string{
	"shared_buffers": "1GB", "max_wal_size": "16GB", "min_wal_size": "2GB", "checkpoint_timeout": "30min",
	"wal_level": "logical", "max_replication_slots": "20", "max_wal_senders": "20", "max_worker_processes": "20",
	"wal_retrieve_retry_interval": "50ms", "max_logical_replication_workers": "8", "autovacuum": "off", "jit": "off",
	"logical_decoding_work_mem": "64MB", "wal_compression": "off",
}

// server is one of the two PostgreSQL servers.
type server struct {
	*pgserver.Server
	bin pgserver.Binaries
}

func startServer(ctx context.Context, bin pgserver.Binaries, dir string) (*server, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	s, err := pgserver.Start(ctx, bin, pgserver.Options{Dir: dir, Settings: settings})
	if err != nil {
		return nil, err
	}
	return &server{Server: s, bin: bin}, nil
}

// exec runs statements one by one, each by itself.
func (s *server) exec(ctx context.Context, db string, sql ...string) error {
	conn, err := pgx.Connect(ctx, s.URL(db))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, q := range sql {
		if _, err := conn.Exec(ctx, q); err != nil {
			return fmt.Errorf("%.60s: %w", q, err)
		}
	}
	return nil
}

// get returns the first column of the first row as text; without a row, "".
func (s *server) get(ctx context.Context, db, sql string, args ...any) (string, error) {
	conn, err := pgx.Connect(ctx, s.URL(db))
	if err != nil {
		return "", err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var v *string
	if err := conn.QueryRow(ctx, sql, args...).Scan(&v); err != nil {
		if err == pgx.ErrNoRows {
			return "", nil
		}
		return "", fmt.Errorf("%.60s: %w", sql, err)
	}
	if v == nil {
		return "", nil
	}
	return *v, nil
}

// script runs the lines of a workload: SQL, or pgbench.
func (s *server) script(ctx context.Context, db, text string, set ...string) error {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		var err error
		switch args, bench := strings.CutPrefix(line, "pgbench "); {
		case line == "" || strings.HasPrefix(line, "--"):
		case bench:
			err = s.pgbench(ctx, db, args)
		default:
			err = s.exec(ctx, db, append(set, line)...)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// pgbench runs the program; "<<" begins its script, whose lines "@@" parts.
func (s *server) pgbench(ctx context.Context, db, args string) error {
	args, script, own := strings.Cut(args, "<<")
	words := strings.Fields(args)
	if own {
		f, err := os.CreateTemp("", "walferry-bench-*.sql")
		if err != nil {
			return err
		}
		defer os.Remove(f.Name())
		if _, err := f.WriteString(strings.ReplaceAll(script, "@@", "\n") + "\n"); err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
		words = append(words, "-f", f.Name())
	}
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin.Dir, "pgbench"), append(words, s.URL(db))...)
	cmd.Env = append(os.Environ(), "PGOPTIONS=-c synchronous_commit=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("pgbench %s: %w: %.300s", args, err, out)
	}
	return nil
}

// cloneDatabase copies a database to another server.
func (s *server) cloneDatabase(ctx context.Context, db string, to *server, as string) error {
	if err := to.exec(ctx, "postgres", "CREATE DATABASE "+as); err != nil {
		return err
	}
	sh := exec.CommandContext(ctx, "sh", "-c", `"$0"/pg_dump --no-publications "$1" | "$0"/psql -XqAt -v ON_ERROR_STOP=1 -o /dev/null "$2"`,
		s.bin.Dir, s.URL(db), to.URL(as))
	if out, err := sh.CombinedOutput(); err != nil {
		return fmt.Errorf("copy database %s: %w: %.500s", db, err, out)
	}
	return nil
}

// dropDatabase removes a database and whatever still uses it.
func (s *server) dropDatabase(ctx context.Context, db string) error {
	return s.exec(ctx, "postgres", "DROP DATABASE IF EXISTS "+db+" WITH (FORCE)")
}

// fromTemplate makes a fresh copy of a database.
func (s *server) fromTemplate(ctx context.Context, db, template string) error {
	if err := s.dropDatabase(ctx, db); err != nil {
		return err
	}
	return s.exec(ctx, "postgres", "CREATE DATABASE "+db+" TEMPLATE "+template+" STRATEGY file_copy", "CHECKPOINT")
}

// marked waits until the row that ends a workload is visible.
func (s *server) marked(ctx context.Context, db string, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.URL(db))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for {
		var n int
		if err := conn.QueryRow(ctx, "SELECT count(*) FROM marker").Scan(&n); err != nil {
			return fmt.Errorf("the end of the workload was not seen: %w", err)
		}
		if n > 0 {
			return nil
		}
		time.Sleep(5 * time.Millisecond) // the poll is part of every method alike
	}
}

// digest is a checksum of all rows of a database that does not depend on their order.
func (s *server) digest(ctx context.Context, db string) (string, error) {
	return s.get(ctx, db, `SELECT string_agg(relname || ' ' || (xpath('//d/text()', query_to_xml(format(
		'SELECT count(*) || ''/'' || coalesce(sum(hashtextextended(t::text, 0)), 0) AS d FROM %I t', relname), false, true, '')))[1]::text, ', ' ORDER BY relname)
		FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND relname <> 'marker'`)
}
