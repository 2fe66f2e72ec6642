package scenarios

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Side is one of the two databases.
type Side int

// The sides.
const (
	Pub Side = iota
	Sub
)

func (s Side) String() string { return [...]string{"pub", "sub"}[s] }

// Kind says what a step does.
type Kind int

// The kinds of steps; the README says what each one means.
const (
	KindSQL     Kind = iota // run File on Side
	KindSession             // run File in the open session Session of Side
	KindFail                // run File on the publisher: fails with an error that Want matches
	KindWait
	KindRestart // of what Target names
	KindRefresh
	KindError // replication has stopped with an error that has each of Mention
	KindSkip
)

// Step is one NNN_* file.
type Step struct {
	Name    string // of the file
	File    string // path
	Kind    Kind
	Side    Side
	Session string
	Want    *regexp.Regexp
	Target  string
	Mention []string
}

// Meta is what the runner uses of meta.json.
type Meta struct {
	ID           string         `json:"id"`
	Title        string         `json:"title"`
	MinPG        int            `json:"min_pg"`
	MaxPG        int            `json:"max_pg"` // 0: any
	Tags         []string       `json:"tags"`
	Publications []string       `json:"publications"`
	SubOptions   map[string]any `json:"sub_options"`
	WorkMemKB    int            `json:"decoding_work_mem_kb"`
	TimeoutS     int            `json:"timeout_s"`
	NoWait       bool           `json:"no_initial_wait"`
	PubEncoding  string         `json:"pub_encoding"`
	SubEncoding  string         `json:"sub_encoding"`
	LeftOut      *int           `json:"left_out"` // rows in walferry.exceptions at the end; nil: any number
}

// Scenario is one folder.
type Scenario struct {
	Name  string // of the folder
	Dir   string
	Meta  Meta
	Steps []Step
}

const defaultTimeout = 60 * time.Second

// Timeout bounds each step.
func (s *Scenario) Timeout() time.Duration {
	if s.Meta.TimeoutS > 0 {
		return time.Duration(s.Meta.TimeoutS) * time.Second
	}
	return defaultTimeout
}

// RestartsServer says that the scenario cannot run beside others.
func (s *Scenario) RestartsServer() bool {
	return slices.ContainsFunc(s.Steps, func(st Step) bool {
		return st.Kind == KindRestart && (strings.HasPrefix(st.Target, "publisher") || strings.HasPrefix(st.Target, "subscriber"))
	})
}

// option is a subscription option of meta.json as text, "" when not given.
func (s *Scenario) option(name string) string {
	v, ok := s.Meta.SubOptions[name]
	if !ok {
		return ""
	}
	return strings.ToLower(fmt.Sprint(v))
}

// path is a file of the scenario, ok is false when it does not exist.
func (s *Scenario) path(name string) (path string, ok bool) {
	path = filepath.Join(s.Dir, name)
	_, err := os.Stat(path)
	return path, err == nil
}

var (
	folderName = regexp.MustCompile(`^\d{3}_`)
	identifier = regexp.MustCompile(`^[a-z0-9_]+$`)
)

// Load reads the scenarios of a folder in order. A globs entry selects by the
// folder's name or by its beginning up to a _, so 06* and 184 work; none selects all.
func Load(dir string, globs []string) ([]*Scenario, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read scenarios: %w", err)
	}
	var out []*Scenario
	for _, e := range entries {
		if !e.IsDir() || !folderName.MatchString(e.Name()) {
			continue
		}
		if ok, err := selected(e.Name(), globs); err != nil {
			return nil, err
		} else if !ok {
			continue
		}
		s, err := Parse(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no scenario in %s matches %s", dir, strings.Join(globs, ", "))
	}
	return out, nil
}

func selected(name string, globs []string) (bool, error) {
	for _, g := range globs {
		for _, pattern := range []string{g, g + "_*"} {
			ok, err := filepath.Match(pattern, name)
			if err != nil {
				return false, fmt.Errorf("pattern %s: %w", g, err)
			}
			if ok {
				return true, nil
			}
		}
	}
	return len(globs) == 0, nil
}

// Parse reads one folder. A file that the format does not know is an error:
// a step that is silently left out proves nothing.
func Parse(dir string) (*Scenario, error) {
	s := &Scenario{Name: filepath.Base(dir), Dir: dir}
	b, err := os.ReadFile(filepath.Join(dir, "meta.json"))
	if err != nil {
		return nil, fmt.Errorf("scenario %s: %w", s.Name, err)
	}
	if err := json.Unmarshal(b, &s.Meta); err != nil {
		return nil, fmt.Errorf("scenario %s: meta.json: %w", s.Name, err)
	}
	if !identifier.MatchString(s.Meta.ID) {
		return nil, fmt.Errorf("scenario %s: meta.json: id %q is not made of a-z, 0-9 and _", s.Name, s.Meta.ID)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("scenario %s: %w", s.Name, err)
	}
	check := false
	for _, e := range entries {
		switch name := e.Name(); {
		case folderName.MatchString(name):
			st, err := parseStep(filepath.Join(dir, name))
			if err != nil {
				return nil, fmt.Errorf("scenario %s: %s: %w", s.Name, name, err)
			}
			s.Steps = append(s.Steps, st)
		case name == "check.sql":
			check = true
		case slices.Contains(knownFiles, name):
		default:
			return nil, fmt.Errorf("scenario %s: %s is not a file of a scenario", s.Name, name)
		}
	}
	if !check {
		return nil, fmt.Errorf("scenario %s: no check.sql", s.Name)
	}
	return s, nil
}

var knownFiles = []string{"meta.json", "setup.sql", "setup_pub.sql", "setup_sub.sql", "publication.sql", "expected.txt"}

var targets = []string{"replication", "replication-crash", "subscriber", "subscriber-crash", "publisher", "publisher-crash", "broker"}

func parseStep(path string) (Step, error) {
	st := Step{Name: filepath.Base(path), File: path}
	_, what, _ := strings.Cut(st.Name, "_")
	what, isSQL := strings.CutSuffix(what, ".sql")
	side, session, isSession := strings.Cut(what, "@")
	body, err := os.ReadFile(path)
	if err != nil {
		return st, err
	}
	switch {
	case isSQL && (side == "pub" || side == "sub"):
		if side == "sub" {
			st.Side = Sub
		}
		if isSession {
			if !identifier.MatchString(session) {
				return st, fmt.Errorf("session name %q is not made of a-z, 0-9 and _", session)
			}
			st.Kind, st.Session = KindSession, session
		}
		return st, nil
	case isSQL && what == "pub_fail":
		st.Kind = KindFail
		expr, ok := strings.CutPrefix(firstLine(body), "-- expect-error: ")
		if !ok {
			return st, fmt.Errorf("the first line is not -- expect-error: regex")
		}
		st.Want, err = regexp.Compile(expr)
		return st, err
	case isSQL:
	case what == "wait":
		st.Kind = KindWait
		return st, nil
	case what == "refresh":
		st.Kind = KindRefresh
		return st, nil
	case what == "skip":
		st.Kind = KindSkip
		return st, nil
	case what == "restart":
		st.Kind, st.Target = KindRestart, firstLine(body)
		if !slices.Contains(targets, st.Target) {
			return st, fmt.Errorf("restart of %q: want one of %s", st.Target, strings.Join(targets, ", "))
		}
		return st, nil
	case what == "error":
		st.Kind = KindError
		for line := range strings.Lines(string(body)) {
			if m, ok := strings.CutPrefix(strings.TrimSpace(line), "must_mention: "); ok {
				st.Mention = append(st.Mention, m)
			}
		}
		if len(st.Mention) == 0 {
			return st, fmt.Errorf("no must_mention")
		}
		return st, nil
	}
	return st, fmt.Errorf("unknown step")
}

func firstLine(b []byte) string {
	line, _, _ := bytes.Cut(b, []byte("\n"))
	return strings.TrimSpace(string(line))
}
