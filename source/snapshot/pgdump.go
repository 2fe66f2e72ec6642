package snapshot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Tools are the client programs of one PostgreSQL version.
type Tools struct {
	Dump    string // path of pg_dump
	Restore string // path of pg_restore
	Major   int
}

// A ToolsError says that no suitable pg_dump is installed.
type ToolsError struct {
	Want  int // major version of the server
	Found int // newest that was found; 0: none
}

func (e *ToolsError) Error() string {
	found := "none was found"
	if e.Found > 0 {
		found = fmt.Sprintf("only version %d was found", e.Found)
	}
	return fmt.Sprintf("making tables needs pg_dump and pg_restore of version %d or newer, %s: install package postgresql-client-%d (Debian, Ubuntu) or postgresql%d (Red Hat), "+
		"or create the tables by hand and set schema: require", e.Want, found, e.Want, e.Want)
}

// FindTools looks for pg_dump and pg_restore in PATH and the usual folders and
// returns the oldest that can read a server of the major version: newer ones
// write settings that older subscribers do not know. The error is a
// [*ToolsError].
func FindTools(ctx context.Context, major int) (Tools, error) {
	dirs := filepath.SplitList(os.Getenv("PATH"))
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/local/pgsql/bin", "/opt/homebrew/opt/postgresql@*/bin", "/opt/homebrew/opt/libpq/bin"} {
		if found, err := filepath.Glob(pattern); err == nil {
			dirs = append(dirs, found...)
		}
	}
	return findTools(ctx, major, dirs)
}

func findTools(ctx context.Context, major int, dirs []string) (Tools, error) {
	var best Tools
	newest := 0
	for i, dir := range dirs {
		if dir == "" || slices.Contains(dirs[:i], dir) {
			continue
		}
		t := Tools{Dump: filepath.Join(dir, "pg_dump"), Restore: filepath.Join(dir, "pg_restore")}
		if !isFile(t.Dump) || !isFile(t.Restore) {
			continue
		}
		if t.Major = toolVersion(ctx, t.Dump); t.Major == 0 {
			continue
		}
		newest = max(newest, t.Major)
		if t.Major >= major && (best.Major == 0 || t.Major < best.Major) {
			best = t
		}
	}
	if best.Major == 0 {
		return best, &ToolsError{Want: major, Found: newest}
	}
	return best, nil
}

func isFile(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0
}

var toolVersionRE = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

func toolVersion(ctx context.Context, path string) int {
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return 0
	}
	m := toolVersionRE.FindSubmatch(out)
	if m == nil {
		return 0
	}
	n, _ := strconv.Atoi(string(m[1])) // digits
	return n
}

// runTool runs a program with extra environment variables and returns what it
// prints. The error holds the end of its error output.
func runTool(ctx context.Context, env []string, path string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = env
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return nil, fmt.Errorf("run %s: %s", filepath.Base(path), firstLine(strings.TrimSpace(errs.String())))
		}
		return nil, fmt.Errorf("run %s: %w", filepath.Base(path), err)
	}
	return []byte(out.String()), nil
}
