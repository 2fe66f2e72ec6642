package preflight

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// Severity says how bad a finding is.
type Severity string

// The severities.
const (
	Error   Severity = "error"
	Warning Severity = "warning"
	Info    Severity = "info"
)

func (s Severity) rank() int { return slices.Index([]Severity{Error, Warning, Info}, s) }

// Finding is one requirement that is not met, or something worth knowing.
type Finding struct {
	Side     string   `json:"side"`   // "publisher main", "subscription x" or "queue"
	Object   string   `json:"object"` // table, role, setting, slot ...
	Severity Severity `json:"severity"`
	Problem  string   `json:"problem"`
	Remedy   string   `json:"remedy,omitempty"` // SQL, or what to set where
}

// Report is the outcome of a check.
type Report struct {
	Findings []Finding `json:"findings"`
}

// Failed reports whether a requirement is not met.
func (r *Report) Failed() bool { return r.Count(Error) > 0 }

// Count is the number of findings of a severity.
func (r *Report) Count(s Severity) int {
	n := 0
	for _, f := range r.Findings {
		if f.Severity == s {
			n++
		}
	}
	return n
}

// sort puts the findings of each side together, in the order of sides, errors
// first.
func (r *Report) sort(sides []string) {
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		if d := slices.Index(sides, a.Side) - slices.Index(sides, b.Side); d != 0 {
			return d
		}
		return a.Severity.rank() - b.Severity.rank()
	})
}

// WriteText writes a list for people.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	side := ""
	for _, f := range r.Findings {
		if f.Side != side {
			if side != "" {
				b.WriteByte('\n')
			}
			side = f.Side
			b.WriteString(side + "\n")
		}
		fmt.Fprintf(&b, "  %-8s%s: %s\n", f.Severity, f.Object, f.Problem)
		for line := range strings.SplitSeq(f.Remedy, "\n") {
			if line != "" {
				b.WriteString("            " + line + "\n")
			}
		}
	}
	if len(r.Findings) > 0 {
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "%s, %s, %s\n", plural(r.Count(Error), "error"), plural(r.Count(Warning), "warning"), plural(r.Count(Info), "note"))
	_, err := io.WriteString(w, b.String())
	return err
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
