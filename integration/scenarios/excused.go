package scenarios

import (
	"fmt"
	"os"
	"strings"
)

// Excused are the names of scenarios that fail for a known reason.
type Excused map[string]string

// LoadExcused reads a file with a scenario a line: its name, then the reason.
// Empty lines and lines that begin with # say nothing.
func LoadExcused(path string) (Excused, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read excused scenarios: %w", err)
	}
	out := Excused{}
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, reason, _ := strings.Cut(line, " ")
		reason = strings.TrimSpace(reason)
		switch {
		case reason == "":
			return nil, fmt.Errorf("%s: %s has no reason", path, name)
		case out[name] != "":
			return nil, fmt.Errorf("%s: %s stands there twice", path, name)
		}
		out[name] = reason
	}
	return out, nil
}
