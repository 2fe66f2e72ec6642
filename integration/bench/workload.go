package bench

import (
	"embed"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A Workload is a schema with its first rows and a load of transactions.
type Workload struct {
	Name    string
	About   string
	Changes int
	Txns    int

	schema, load string
	verify       bool // compare all rows after the first drain
}

//go:embed workloads/*.sql
var files embed.FS

// workloads are described by files of SQL: a heading, the schema, and after a
// line "-- load" the load. $N(x) is x times the scale. A line of the load that
// begins with "pgbench " runs that program with what follows.
var workloads = []Workload{
	{Name: "w1", About: "TPC-B like, 4 clients", Changes: 400000, Txns: 100000},
	{Name: "w2", About: "single-row inserts", Changes: 200000, Txns: 200000},
	{Name: "w3", About: "one transaction of inserts", Changes: 2000000, Txns: 1},
	{Name: "w4", About: "updates of 1000 hot rows", Changes: 1000000, Txns: 10000},
	{Name: "w5", About: "updates of a wide table", Changes: 500000, Txns: 500},
	{Name: "w6", About: "deletes", Changes: 1000000, Txns: 100},
	{Name: "w7", About: "a queue table: insert, 2 updates, delete", Changes: 1200000, Txns: 120000},
	{Name: "w9", About: "updates beside a TOASTed value", Changes: 200000, Txns: 2000},
}

// Workloads returns the named ones, scaled; all when there is no name.
func Workloads(names []string, scale float64) ([]Workload, error) {
	var out []Workload
	for _, w := range workloads {
		if len(names) > 0 && !slices.Contains(names, w.Name) {
			continue
		}
		b, err := files.ReadFile("workloads/" + w.Name + ".sql")
		if err != nil {
			return nil, err
		}
		text := scaled(string(b), scale)
		var ok bool
		if w.schema, w.load, ok = strings.Cut(text, "-- load\n"); !ok {
			return nil, fmt.Errorf("workload %s has no line \"-- load\"", w.Name)
		}
		w.Changes, w.Txns = times(w.Changes, scale), times(w.Txns, scale)
		w.verify = w.Name != "w9" // its rows are too large to be read twice
		out = append(out, w)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no workload is named %s", strings.Join(names, ", "))
	}
	return out, nil
}

func times(n int, scale float64) int { return max(1, int(math.Round(float64(n)*scale))) }

var number = regexp.MustCompile(`\$N\((\d+)\)`)

func scaled(text string, scale float64) string {
	return number.ReplaceAllStringFunc(text, func(m string) string {
		n, _ := strconv.Atoi(number.FindStringSubmatch(m)[1]) // digits only
		return strconv.Itoa(times(n, scale))
	})
}
