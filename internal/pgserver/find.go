package pgserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// Binaries are the programs of one PostgreSQL version.
type Binaries struct {
	Dir     string
	Version string // such as 15.18
	Major   int
}

// OldestMajor is the oldest version that walferry works with.
const OldestMajor = 15

// ErrNotFound says that this machine has no PostgreSQL server that can be used.
var ErrNotFound = errors.New("no PostgreSQL server programs found")

var patterns = []string{
	"/usr/lib/postgresql/*/bin",      // Debian, Ubuntu
	"/usr/pgsql-*/bin",               // packages of postgresql.org for Red Hat
	"/usr/local/pgsql/bin",           // built from source
	"/usr/local/opt/postgresql*/bin", // Homebrew
	"/opt/homebrew/opt/postgresql*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
}

// Find looks for postgres and initdb in PATH, in the usual folders and where
// pg_config says; the newest version wins. The error is [ErrNotFound] or says
// which version is too old.
func Find(ctx context.Context) (Binaries, error) {
	var dirs []string
	if p, err := exec.LookPath("postgres"); err == nil {
		if real, err := filepath.EvalSymlinks(p); err == nil {
			dirs = append(dirs, filepath.Dir(real))
		}
	}
	for _, p := range patterns {
		found, err := filepath.Glob(p)
		if err != nil {
			return Binaries{}, fmt.Errorf("look for %s: %w", p, err)
		}
		dirs = append(dirs, found...)
	}
	if out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	return newest(ctx, dirs)
}

// At is the version in one folder; an empty dir means [Find].
func At(ctx context.Context, dir string) (Binaries, error) {
	if dir == "" {
		return Find(ctx)
	}
	return newest(ctx, []string{dir})
}

func newest(ctx context.Context, dirs []string) (Binaries, error) {
	var best Binaries
	for _, dir := range dirs {
		if b, ok := look(ctx, dir); ok && b.Major > best.Major {
			best = b
		}
	}
	switch {
	case ctx.Err() != nil:
		return Binaries{}, context.Cause(ctx)
	case best.Major == 0:
		return Binaries{}, ErrNotFound
	case best.Major < OldestMajor:
		return Binaries{}, fmt.Errorf("%w: %s holds PostgreSQL %s, and %d is needed", ErrNotFound, best.Dir, best.Version, OldestMajor)
	}
	return best, nil
}

var versionText = regexp.MustCompile(`\(PostgreSQL\) ((\d+)[\w.]*)`)

// look reads the version of the programs in dir; ok is false when they are not complete.
func look(ctx context.Context, dir string) (b Binaries, ok bool) {
	for _, name := range []string{"initdb", "pg_ctl", "postgres"} {
		if fi, err := os.Stat(program(dir, name)); err != nil || fi.IsDir() {
			return b, false
		}
	}
	out, err := exec.CommandContext(ctx, program(dir, "postgres"), "--version").Output()
	if err != nil {
		return b, false
	}
	m := versionText.FindStringSubmatch(string(out))
	if m == nil {
		return b, false
	}
	major, err := strconv.Atoi(m[2])
	return Binaries{Dir: dir, Version: m[1], Major: major}, err == nil
}

func program(dir, name string) string { return filepath.Join(dir, name+exeSuffix) }
