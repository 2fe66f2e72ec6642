package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/walferry/walferry/internal/pgserver"
)

var settings = map[string]string{
	"wal_level":                "logical",
	"fsync":                    "off", // the data are thrown away
	"full_page_writes":         "off",
	"shared_buffers":           "64MB",
	"max_wal_size":             "1GB",
	"log_line_prefix":          "%m [%p] %a ",
	"max_wal_senders":          "10",
	"max_connections":          "50",
	"cluster_name":             "walferry demo",
	"autovacuum":               "on",
	"log_replication_commands": "off",
}

// pair is the two servers.
type pair struct {
	pub, sub *pgserver.Server
	what     string // for people
}

// noServerError says what would give the demo a server.
type noServerError struct{ err error }

func (e *noServerError) Error() string {
	return "the demo needs PostgreSQL " + fmt.Sprint(pgserver.OldestMajor) + " or newer: " + e.err.Error()
}
func (e *noServerError) Unwrap() error { return e.err }
func (e *noServerError) Hint() string {
	return "install a server (Debian, Ubuntu: apt-get install postgresql), put its bin folder into PATH, or start Docker"
}

// startServers starts both servers. The pair holds what has to be stopped, also
// when an error is returned.
func startServers(ctx context.Context, dir string, d *display) (*pair, error) {
	p := &pair{}
	bin, err := pgserver.Find(ctx)
	if errors.Is(err, pgserver.ErrNotFound) {
		d.say("%s: installing", err)
		bin, err = pgserver.Install(ctx, d)
	}
	switch {
	case err == nil:
		p.what = fmt.Sprintf("PostgreSQL %s (%s)", bin.Version, bin.Dir)
		return p, p.start(func(name string) (*pgserver.Server, error) {
			sub := filepath.Join(dir, name)
			if err := os.Mkdir(sub, 0o700); err != nil {
				return nil, fmt.Errorf("make server folder: %w", err)
			}
			return pgserver.Start(ctx, bin, pgserver.Options{Dir: sub, Settings: settings})
		})
	case ctx.Err() != nil:
		return p, context.Cause(ctx)
	case !pgserver.DockerWorks(ctx):
		return p, &noServerError{err}
	}
	d.say("%s: using Docker", err)
	if err := pgserver.Pull(ctx, d); err != nil {
		return p, &noServerError{err}
	}
	p.what = "Docker image " + pgserver.Image
	return p, p.start(func(name string) (*pgserver.Server, error) {
		return pgserver.StartContainer(ctx, filepath.Base(dir)+"-"+name, pgserver.Options{Settings: settings})
	})
}

// start starts both at the same time.
func (p *pair) start(one func(name string) (*pgserver.Server, error)) error {
	var g errgroup.Group
	for name, dst := range map[string]**pgserver.Server{"publisher": &p.pub, "subscriber": &p.sub} {
		g.Go(func() error {
			s, err := one(name)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			*dst = s
			return nil
		})
	}
	return g.Wait()
}

func (p *pair) stop() error {
	var g errgroup.Group
	for _, s := range []*pgserver.Server{p.pub, p.sub} {
		if s != nil {
			g.Go(s.Stop)
		}
	}
	return g.Wait()
}
