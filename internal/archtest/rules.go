package archtest

import (
	"fmt"
	"slices"
	"strings"
)

// Module is the path of this module.
const Module = "github.com/walferry/walferry"

// layers says for each folder which other folders of the module its packages may
// import. A package belongs to the longest folder that is a prefix of its path.
// Packages of one folder may import each other.
var layers = map[string][]string{
	"change":          {},
	"source/pgoutput": {"change"},

	"queue":      {"change", "source/pgoutput"},
	"apply/sqlw": {"change", "source/pgoutput"},
	"hvar":       {"change", "source/pgoutput", "apply/sqlw"},

	"source":  {"change", "source/pgoutput", "queue", "hvar", "apply/sqlw"},
	"apply":   {"change", "source/pgoutput", "queue", "hvar", "apply/sqlw"},
	"merge":   {"change", "source/pgoutput", "queue", "hvar", "apply/sqlw"},
	"monitor": {"change", "source/pgoutput", "queue", "hvar", "apply/sqlw"},

	"config": {"change"},
	"agent":  {"change", "source/pgoutput", "queue", "hvar", "apply/sqlw", "source", "apply", "merge", "monitor", "config"},
	"cmd":    {"change", "source/pgoutput", "queue", "hvar", "apply/sqlw", "source", "apply", "merge", "monitor", "config", "agent"},

	// Leaf helpers know the vocabulary only.
	"internal":          {"change"},
	"internal/natstest": {"queue"},

	"integration": {"*"},
}

// testOnly are folders that only tests may import.
var testOnly = []string{"internal/pgtest", "internal/natstest", "internal/faultnet", "internal/testreq", "internal/archtest", "integration"}

// places says where the packages of an outside module may be imported, test files aside.
var places = []struct {
	prefixes []string // of the import path
	allowed  []string // folders
	except   []string // folders below an allowed one
	why      string
}{
	{
		prefixes: []string{"github.com/jackc/"},
		allowed:  []string{"source", "apply", "merge", "agent", "cmd", "internal/pgconnect", "internal/pgquery", "internal/demo", "internal/pgtest", "integration"},
		except:   []string{"source/pgoutput"},
		why:      "PostgreSQL is spoken by the agents; what lies below works on bytes and values",
	},
	{
		prefixes: []string{"github.com/nats-io/"},
		allowed:  []string{"queue", "agent", "cmd", "internal/natstest", "integration"},
		why:      "JetStream is the queue's business: another queue must be possible without touching the agents",
	},
	{
		prefixes: []string{"github.com/prometheus/"},
		allowed:  []string{"monitor"},
		why:      "agents report events; metrics are one listener of them",
	},
	{
		prefixes: []string{"github.com/testcontainers/"},
		allowed:  []string{"internal/pgtest", "integration"},
		why:      "containers are for tests",
	},
}

// Package is what the rules need to know of a package.
type Package struct {
	Path    string   // import path
	Imports []string // of its non-test files
}

// Violations returns one sentence for each import that no rule allows.
func Violations(pkgs []Package) []string {
	var out []string
	for _, p := range pkgs {
		dir, ok := strings.CutPrefix(p.Path, Module+"/")
		if !ok {
			continue
		}
		from, ok := folderOf(dir)
		if !ok {
			out = append(out, fmt.Sprintf("%s: its folder has no row in the layer table", dir))
			continue
		}
		for _, imp := range p.Imports {
			if v := check(dir, from, imp); v != "" {
				out = append(out, v)
			}
		}
	}
	return out
}

func check(dir, from, imp string) string {
	if to, ok := strings.CutPrefix(imp, Module+"/"); ok {
		return checkInside(dir, from, to)
	}
	for _, pl := range places {
		if !slices.ContainsFunc(pl.prefixes, func(p string) bool { return strings.HasPrefix(imp, p) }) {
			continue
		}
		if !anyUnder(dir, pl.allowed) || anyUnder(dir, pl.except) {
			return fmt.Sprintf("%s imports %s: %s", dir, imp, pl.why)
		}
	}
	return ""
}

func checkInside(dir, from, to string) string {
	if anyUnder(to, testOnly) {
		if anyUnder(dir, testOnly) {
			return ""
		}
		return fmt.Sprintf("%s imports %s outside its tests: it is a test helper", dir, to)
	}
	folder, ok := folderOf(to)
	switch allowed := layers[from]; {
	case !ok:
		return fmt.Sprintf("%s imports %s, whose folder has no row in the layer table", dir, to)
	case folder == from, folder == "internal", slices.Contains(allowed, folder), slices.Contains(allowed, "*"):
		return ""
	default:
		return fmt.Sprintf("%s imports %s: imports of %s may point to %v only", dir, to, from, allowed)
	}
}

func folderOf(dir string) (string, bool) {
	best := ""
	for f := range layers {
		if under(dir, f) && len(f) > len(best) {
			best = f
		}
	}
	return best, best != ""
}

func under(dir, folder string) bool { return dir == folder || strings.HasPrefix(dir, folder+"/") }

func anyUnder(dir string, folders []string) bool {
	return slices.ContainsFunc(folders, func(f string) bool { return under(dir, f) })
}
