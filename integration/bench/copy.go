package bench

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

//go:embed copies/*.sql
var copyFiles embed.FS

// CopySets are the data of the initial copy, by name.
var CopySets = []string{"rows", "schema", "skewed"}

// The ways to copy.
const (
	CopyNative   Method = "native"      // pg_dump of the schema, then a subscription that copies
	CopyPgcopydb Method = "pgcopydb"    // pgcopydb clone
	CopyText     Method = "pipe text"   // COPY piped into COPY, with the schema before and after
	CopyBinary   Method = "pipe binary" // the same in binary format
	CopyFerry    Method = "walferry"
)

// CopyMethods are all of them.
var CopyMethods = []Method{CopyNative, CopyPgcopydb, CopyText, CopyBinary, CopyFerry}

// CopyResult is what one set took, until its tables were ready and had their
// indexes.
type CopyResult struct {
	Set    string
	Tables int
	Rows   int64
	Bytes  int64 // on the publisher's disk
	Costs  map[Method][]cost
}

const (
	copyDB      = "copied"
	copyWorkers = 4
)

// copies measures the initial copy of each set by each method.
func (p *pair) copies(ctx context.Context, sets []string, runs int, scale float64) (out []*CopyResult, err error) {
	p.db = copyDB
	for _, set := range sets {
		if !slices.Contains(CopySets, set) {
			return out, fmt.Errorf("no set %q: there are %v", set, CopySets)
		}
		r, err := p.copySet(ctx, set, runs, scale)
		if err != nil {
			return out, fmt.Errorf("copy %s: %w", set, err)
		}
		out = append(out, r)
	}
	return out, nil
}

func (p *pair) copySet(ctx context.Context, set string, runs int, scale float64) (r *CopyResult, err error) {
	text, err := copyFiles.ReadFile("copies/" + set + ".sql")
	if err != nil {
		return nil, err
	}
	if err := p.pub.exec(ctx, "postgres", "CREATE DATABASE "+copyDB); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.pub.dropDatabase(ctx, copyDB)) }()
	if err := p.pub.script(ctx, copyDB, scaled(string(text), scale)); err != nil {
		return nil, err
	}
	if err := p.pub.exec(ctx, copyDB, "CREATE PUBLICATION "+publication+" FOR TABLES IN SCHEMA public", "VACUUM ANALYZE", "CHECKPOINT"); err != nil {
		return nil, err
	}
	r = &CopyResult{Set: set, Costs: map[Method][]cost{}}
	for sql, to := range map[string]*int64{
		"SELECT pg_database_size(current_database())::text": &r.Bytes,
		countRows: &r.Rows,
	} {
		v, err := p.pub.get(ctx, copyDB, sql)
		if err != nil {
			return nil, err
		}
		if *to, err = strconv.ParseInt(v, 10, 64); err != nil {
			return nil, err
		}
	}
	v, err := p.pub.get(ctx, copyDB, "SELECT count(*)::text FROM pg_stat_user_tables")
	if err != nil {
		return nil, err
	}
	if r.Tables, err = strconv.Atoi(v); err != nil {
		return nil, err
	}
	p.log("copy %s: %d tables, %d rows, %d MB", set, r.Tables, r.Rows, r.Bytes>>20)
	for range runs {
		for _, m := range CopyMethods {
			c, err := p.copyOnce(ctx, m, r)
			if errors.Is(err, exec.ErrNotFound) {
				p.log("copy %s %-12s left out: %v", set, m, err)
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", m, err)
			}
			p.log("copy %s %-12s %6.2f s   walferry: CPU %4.1f s, %d MB", set, m, c.Wall.Seconds(), c.Ferry.Seconds(), c.Memory>>20)
			r.Costs[m] = append(r.Costs[m], c)
		}
	}
	return r, nil
}

// countRows sums over all tables.
const countRows = `SELECT sum((xpath('/row/c/text()', query_to_xml(format('SELECT count(*) AS c FROM %I.%I', schemaname, relname), false, true, '')))[1]::text::bigint)::text
	FROM pg_stat_user_tables WHERE schemaname = 'public'`

// copyOnce copies into an empty database and compares rows and indexes.
func (p *pair) copyOnce(ctx context.Context, m Method, r *CopyResult) (c cost, err error) {
	if err := p.sub.dropDatabase(ctx, "run"); err != nil {
		return c, err
	}
	if err := p.sub.exec(ctx, "postgres", "CREATE DATABASE run", "CHECKPOINT"); err != nil {
		return c, err
	}
	defer func(ctx context.Context) { err = errors.Join(err, p.sub.dropDatabase(ctx, "run")) }(ctx)
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	switch m {
	case CopyNative:
		c, err = p.copyNative(ctx)
	case CopyPgcopydb:
		c, err = p.copyPgcopydb(ctx)
	case CopyText:
		c, err = p.copyPipe(ctx, "text")
	case CopyBinary:
		c, err = p.copyPipe(ctx, "binary")
	default:
		c, err = p.copyFerry(ctx, r.Tables)
	}
	if err != nil {
		return c, err
	}
	for _, sql := range []string{
		countRows, "SELECT count(*)::text FROM pg_index i JOIN pg_class c ON c.oid = indexrelid WHERE relnamespace = 'public'::regnamespace AND indisvalid",
		"SELECT count(*)::text FROM pg_constraint WHERE connamespace = 'public'::regnamespace",
	} {
		want, err := p.pub.get(ctx, copyDB, sql)
		if err != nil {
			return c, err
		}
		have, err := p.sub.get(ctx, "run", sql)
		if err != nil {
			return c, err
		}
		if have != want {
			return c, fmt.Errorf("%.40s: %s on the subscriber, %s on the publisher", sql, have, want)
		}
	}
	return c, nil
}

func (p *pair) copyNative(ctx context.Context) (c cost, err error) {
	began := time.Now()
	if err := p.shell(ctx, `"$0"/pg_dump --schema-only --no-publications "$1" | "$0"/psql -XqAt -v ON_ERROR_STOP=1 -o /dev/null "$2"`); err != nil {
		return c, err
	}
	err = p.sub.exec(ctx, "run", fmt.Sprintf("CREATE SUBSCRIPTION s CONNECTION 'host=127.0.0.1 port=%d user=postgres dbname=%s' PUBLICATION %s WITH (slot_name = '%s')",
		p.pub.Port(), copyDB, publication, drainSlot))
	if err != nil {
		return c, err
	}
	defer func() {
		err = errors.Join(err, p.sub.exec(context.WithoutCancel(ctx), "run", "DROP SUBSCRIPTION s"))
	}()
	if err := p.poll(ctx, "SELECT (count(*) > 0 AND count(*) FILTER (WHERE srsubstate <> 'r') = 0)::text FROM pg_subscription_rel"); err != nil {
		return c, err
	}
	c.Wall = time.Since(began)
	return c, nil
}

func (p *pair) copyPgcopydb(ctx context.Context) (c cost, err error) {
	program, err := exec.LookPath("pgcopydb")
	if err != nil {
		return c, err
	}
	dir, err := os.MkdirTemp(p.dir, "pgcopydb-")
	if err != nil {
		return c, err
	}
	defer os.RemoveAll(dir)
	cmd := exec.CommandContext(ctx, program, "clone", "--source", p.pub.URL(copyDB), "--target", p.sub.URL("run"), "--dir", filepath.Join(dir, "work"),
		"--table-jobs", strconv.Itoa(copyWorkers), "--index-jobs", strconv.Itoa(copyWorkers), "--no-owner", "--no-acl", "--not-consistent")
	cmd.Env = append(os.Environ(), "PATH="+p.pub.bin.Dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	began := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		return c, fmt.Errorf("%w: %s", err, out[max(0, len(out)-500):])
	}
	c.Wall = time.Since(began)
	return c, nil
}

// copyPipe is what can be done with psql.
func (p *pair) copyPipe(ctx context.Context, format string) (c cost, err error) {
	began := time.Now()
	err = p.shell(ctx, `set -e; PATH="$0:$PATH"; export PUB="$1" SUB="$2" FORMAT='`+format+`'
pg_dump --section=pre-data --no-publications "$PUB" | psql -XqAt -v ON_ERROR_STOP=1 -o /dev/null "$SUB"
psql -XqAt "$PUB" -c 'SELECT oid::regclass FROM pg_class WHERE relkind = $$r$$ AND relnamespace = $$public$$::regnamespace ORDER BY relpages DESC' |
	xargs -P `+strconv.Itoa(copyWorkers)+` -I {} sh -c 'psql -Xq "$PUB" -c "COPY {} TO STDOUT (FORMAT $FORMAT)" | psql -Xq -v ON_ERROR_STOP=1 "$SUB" -c "COPY {} FROM STDIN (FORMAT $FORMAT)"'
pg_dump --section=post-data --no-publications "$PUB" | psql -XqAt -v ON_ERROR_STOP=1 -o /dev/null "$SUB"
psql -Xq "$SUB" -c ANALYZE`)
	c.Wall = time.Since(began)
	return c, err
}

func (p *pair) copyFerry(ctx context.Context, tables int) (c cost, err error) {
	file, dir, err := p.config("", p.publisher("off")+fmt.Sprintf("subscriptions: [{name: bench, publisher: main, url: '%s', copy: {workers: %d}}]\n", p.sub.URL("run"), copyWorkers))
	if err != nil {
		return c, err
	}
	defer os.RemoveAll(dir)
	began := time.Now()
	f, err := p.start("run", file)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, f.stop(), p.dropSlot(context.WithoutCancel(ctx))) }()
	err = f.during(func() error {
		return p.poll(ctx, fmt.Sprintf(`SELECT CASE WHEN to_regclass('walferry.subscription_table') IS NULL THEN 'false'
			ELSE (xpath('/row/c/text()', query_to_xml('SELECT count(*) AS c FROM walferry.subscription_table WHERE state = ''ready''', false, true, '')))[1]::text::int = %d END::text`, tables))
	})
	if err != nil {
		return c, err
	}
	c.Wall = time.Since(began)
	c.Ferry, c.Memory = cpuTime(f.pid()), peakRSS(f.pid())
	return c, nil
}

// poll waits until a query on the subscriber says true.
func (p *pair) poll(ctx context.Context, sql string) error {
	for {
		v, err := p.sub.get(ctx, "run", sql)
		if err != nil {
			return err
		}
		if v == "true" {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// shell runs a script whose $0 is the folder of PostgreSQL's programs, $1 the
// publisher's database and $2 the subscriber's.
func (p *pair) shell(ctx context.Context, script string) error {
	cmd := exec.CommandContext(ctx, "sh", "-c", script, p.pub.bin.Dir, p.pub.URL(copyDB), p.sub.URL("run"))
	cmd.Env = append(os.Environ(), "PGOPTIONS=-c synchronous_commit=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %.500s", err, out)
	}
	return nil
}
