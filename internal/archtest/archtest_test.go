package archtest_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/walferry/walferry/internal/archtest"
)

func goList(t *testing.T, args ...string) []archtest.Package {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-e", "-json=ImportPath,Imports"}, args...)...)
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list %v: %v\n%s", args, err, exit.Stderr)
		}
		t.Fatalf("go list %v: %v", args, err)
	}
	var pkgs []archtest.Package
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatalf("decode go list: %v", err)
		}
		pkgs = append(pkgs, archtest.Package{Path: p.ImportPath, Imports: p.Imports})
	}
}

func TestImports_PointDown(t *testing.T) {
	pkgs := goList(t, archtest.Module+"/...")
	if len(pkgs) < 5 {
		t.Fatalf("go list found only %d packages", len(pkgs))
	}
	for _, v := range archtest.Violations(pkgs) {
		t.Error(v)
	}
}

// The directions above are of direct imports. What a layer pulls in through others
// matters where it would bring I/O under the vocabulary or tests into the program.
func TestDependencies_StayWhereTheyBelong(t *testing.T) {
	for _, tc := range []struct {
		pkg    string
		banned []string
	}{
		{"change", []string{"net", "os/exec", "github.com/"}},
		{"source/pgoutput", []string{"net", "os/exec", "github.com/jackc/"}},
		{"cmd/walferry", []string{"testing", "github.com/testcontainers/", "github.com/docker/", archtest.Module + "/internal/pgtest"}},
	} {
		root := archtest.Module + "/" + tc.pkg
		if found := goList(t, root); len(found) != 1 || len(found[0].Imports) == 0 {
			t.Errorf("%s: not a package", tc.pkg)
			continue
		}
		for _, dep := range goList(t, "-deps", root) {
			if strings.HasPrefix(dep.Path, archtest.Module) && !strings.HasPrefix(dep.Path, archtest.Module+"/internal/pgtest") {
				continue
			}
			for _, ban := range tc.banned {
				if dep.Path == ban || strings.HasSuffix(ban, "/") && strings.HasPrefix(dep.Path, ban) {
					t.Errorf("%s depends on %s", tc.pkg, dep.Path)
				}
			}
		}
	}
}

func TestViolations_NamesForbiddenImports(t *testing.T) {
	const m = archtest.Module + "/"
	for _, tc := range []struct {
		from, imp string
		want      string // part of the sentence; empty = allowed
	}{
		{"cmd/walferry", m + "agent", ""},
		{"agent", m + "apply", ""},
		{"apply", m + "apply/sqlw", ""},
		{"apply", m + "source/pgoutput", ""},
		{"source/snapshot", m + "source", ""},
		{"source", "github.com/jackc/pgx/v5", ""},
		{"queue", "github.com/nats-io/nats.go", ""},
		{"queue", m + "internal/logkey", ""},
		{"integration/scenarios", m + "internal/pgtest", ""},
		{"apply/sqlw", m + "apply", "may point to"},
		{"change", m + "queue", "may point to"},
		{"source", m + "apply", "may point to"},
		{"apply", m + "agent", "may point to"},
		{"queue", m + "internal/pgtest", "test helper"},
		{"source/pgoutput", "github.com/jackc/pglogrepl", "agents"},
		{"hvar", "github.com/jackc/pgx/v5", "agents"},
		{"apply", "github.com/nats-io/nats.go/jetstream", "queue"},
		{"apply", "github.com/prometheus/client_golang/prometheus", "events"},
		{"util", "fmt", "no row"},
	} {
		got := strings.Join(archtest.Violations([]archtest.Package{{Path: m + tc.from, Imports: []string{tc.imp}}}), "\n")
		if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s imports %s: got %q, want %q", tc.from, tc.imp, got, tc.want)
		}
	}
}
