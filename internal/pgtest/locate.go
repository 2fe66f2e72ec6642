package pgtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

var errNoBinaries = errors.New("no server binaries found (set PGTEST_BIN_<major>)")

// locate finds the folder with the server binaries of a major version.
func locate(major int) (string, error) {
	env := fmt.Sprintf("PGTEST_BIN_%d", major)
	if dir := os.Getenv(env); dir != "" {
		if majorOf(dir) != major {
			return "", fmt.Errorf("%s=%s holds no postgres of version %d", env, dir, major)
		}
		return dir, nil
	}
	var dirs []string
	for _, cache := range cacheDirs() {
		v := strconv.Itoa(major)
		dirs = append(dirs, filepath.Join(cache, "pgtest", v, "usr/lib/postgresql", v, "bin"))
	}
	if found, err := filepath.Glob("/usr/lib/postgresql/*/bin"); err == nil {
		dirs = append(dirs, found...)
	}
	if p, err := exec.LookPath("postgres"); err == nil {
		if real, err := filepath.EvalSymlinks(p); err == nil {
			dirs = append(dirs, filepath.Dir(real))
		}
	}
	if out, err := exec.Command("pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	i := slices.IndexFunc(dirs, func(dir string) bool { return majorOf(dir) == major })
	if i < 0 {
		return "", errNoBinaries
	}
	return dirs[i], nil
}

// cacheDirs are the folders where integration/images/binaries.sh keeps servers.
func cacheDirs() []string {
	if dir := os.Getenv("WALFERRY_CACHE"); dir != "" {
		return []string{dir}
	}
	dirs := []string{"/var/cache/walferry"}
	if user, err := os.UserCacheDir(); err == nil {
		dirs = append(dirs, filepath.Join(user, "walferry"))
	}
	return dirs
}

var versions sync.Map // bin folder -> full version string

var versionRE = regexp.MustCompile(`\(PostgreSQL\) (\d+[\w.]*)`)

func fullVersion(bin string) string {
	if v, ok := versions.Load(bin); ok {
		return v.(string)
	}
	v := ""
	if out, err := exec.Command(filepath.Join(bin, "postgres"), "--version").Output(); err == nil {
		if m := versionRE.FindSubmatch(out); m != nil {
			v = string(m[1])
		}
	}
	versions.Store(bin, v)
	return v
}

var majorRE = regexp.MustCompile(`^\d+`)

func majorOf(bin string) int {
	n, err := strconv.Atoi(majorRE.FindString(fullVersion(bin)))
	if err != nil {
		return 0
	}
	return n
}
