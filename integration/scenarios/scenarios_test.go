package scenarios

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/walferry/walferry/internal/pgtest"
)

// corpus is the folder of the scenarios.
const corpus = "../testdata/scenarios"

var binary struct {
	dir  string
	once sync.Once
	path string
	err  error
}

func TestMain(m *testing.M) {
	var err error
	if binary.dir, err = os.MkdirTemp("", "walferry-scenarios-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := pgtest.Run(m)
	_ = os.RemoveAll(binary.dir) // the process ends
	os.Exit(code)
}

// built is the walferry binary of this tree.
func built(t testing.TB) string {
	t.Helper()
	binary.once.Do(func() { binary.path, binary.err = Build(context.Background(), binary.dir) })
	if binary.err != nil {
		t.Fatal(binary.err)
	}
	return binary.path
}

// versions are those of PGTEST_VERSION, else the default one. `make scenarios`
// runs the others.
func versions(t testing.TB) []int {
	t.Helper()
	env := os.Getenv("PGTEST_VERSION")
	if env == "" {
		return []int{pgtest.DefaultVersion}
	}
	n, err := strconv.Atoi(env)
	if err != nil {
		t.Fatalf("PGTEST_VERSION: %v", err)
	}
	return []int{n}
}

func newSuite(t *testing.T, version int) *Suite {
	t.Helper()
	s := &Suite{Version: version, WorkDir: t.TempDir()}
	s.Pub, s.Sub = StartServers(t, version)
	return s
}

// TestScenarios runs the whole corpus. One scenario: -run 'TestScenarios/15/001_basic_iud'.
func TestScenarios(t *testing.T) {
	if testing.Short() {
		t.Skip("minutes long: not with -short")
	}
	list, err := Load(corpus, nil)
	if err != nil {
		t.Fatal(err)
	}
	excused, err := LoadExcused("excused.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range versions(t) {
		t.Run(strconv.Itoa(v), func(t *testing.T) {
			s := newSuite(t, v)
			s.Binary, s.Excused, s.Strict = built(t), excused, true
			// Tests that call Parallel begin when this function returns: those
			// that restart a server come before.
			slices.SortStableFunc(list, func(a, b *Scenario) int { return boolInt(b.RestartsServer()) - boolInt(a.RestartsServer()) })
			for _, sc := range list {
				t.Run(sc.Name, func(t *testing.T) {
					if !sc.RestartsServer() {
						t.Parallel()
					}
					switch r := s.Run(t.Context(), sc); {
					case r.Bad():
						t.Errorf("%s\nwalferry's log ends with\n%s", r.Note, r.LogTail)
					case r.Status == Skipped || r.Status == Excuse:
						t.Skip(r.Note)
					}
				})
			}
		})
	}
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Without replication every scenario must fail by a difference.
func TestControl_NoScenarioIsVacuous(t *testing.T) {
	if testing.Short() {
		t.Skip("minutes long: not with -short")
	}
	list, err := Load(corpus, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := newSuite(t, pgtest.DefaultVersion)
	s.Control = true
	counts := map[Status]int{}
	for r := range s.RunAll(t.Context(), list, 3) {
		counts[r.Status]++
		if r.Bad() {
			t.Errorf("%s: %s", r.Scenario.Name, r.Note)
		}
	}
	if counts[ControlOK] < 150 {
		t.Errorf("outcomes: %v", counts)
	}
}

// The control run itself must see scenarios that prove nothing.
func TestControl_SeesVacuousScenarios(t *testing.T) {
	s := newSuite(t, pgtest.DefaultVersion)
	s.Control = true
	for name, tc := range map[string]struct {
		files map[string]string
		want  Status
		note  string
	}{
		"needs no replication": {map[string]string{"010_wait": ""}, Vacuous, "passes without"},
		"setup fails":          {map[string]string{"setup.sql": "SELECT 1/0;"}, Vacuous, "division by zero"},
		"publisher step fails": {map[string]string{"010_pub.sql": "SELECT 1/0;"}, Vacuous, "division by zero"},
		"prints nothing":       {map[string]string{"check.sql": "SELECT WHERE false;"}, Vacuous, "proves nothing"},
		"no such expectation":  {map[string]string{"expected.txt": "2\n"}, ControlOK, `line 1 is "1", want "2"`},
	} {
		t.Run(name, func(t *testing.T) {
			sc, err := Parse(folder(t, tc.files))
			if err != nil {
				t.Fatal(err)
			}
			if r := s.Run(t.Context(), sc); r.Status != tc.want || !strings.Contains(r.Note, tc.note) {
				t.Errorf("got %s %s, want %s %s", r.Status, r.Note, tc.want, tc.note)
			}
		})
	}
}

// Each way in which a run can go wrong is a failure that names it.
func TestRun_FailuresAreSeen(t *testing.T) {
	if testing.Short() {
		t.Skip("a minute long: not with -short")
	}
	s := newSuite(t, pgtest.DefaultVersion)
	s.Binary = built(t)
	row := map[string]string{
		"setup.sql":   "CREATE TABLE t (a int PRIMARY KEY);",
		"010_pub.sql": "INSERT INTO t VALUES (1);",
		"020_wait":    "",
		"check.sql":   "SELECT * FROM t;",
	}
	// What must run into the time limit has a short one, and no other step that needs it.
	const hasty = `{"id": "900", "min_pg": 15, "no_initial_wait": true, "timeout_s": 10}`
	for name, tc := range map[string]struct {
		files   map[string]string
		excused string
		want    Status
		note    string
	}{
		"nothing":            {nil, "", Passed, ""},
		"wrong expectation":  {map[string]string{"expected.txt": "2\n"}, "", Failed, `line 1 is "1", want "2"`},
		"known difference":   {map[string]string{"expected.txt": "2\n"}, "known", Excuse, "known"},
		"needless excuse":    {nil, "known", Failed, "is excused: known"},
		"no error comes":     {map[string]string{"meta.json": hasty, "020_error": "must_mention: x"}, "", Failed, "reports no error"},
		"nothing to skip":    {map[string]string{"meta.json": hasty, "020_skip": ""}, "", Failed, "names no transaction"},
		"expected failure":   {map[string]string{"030_pub_fail.sql": "-- expect-error: x\nSELECT 1;"}, "", Failed, "expected an error"},
		"other failure":      {map[string]string{"030_pub_fail.sql": "-- expect-error: x\nSELECT 1/0;"}, "", Failed, "division by zero"},
		"session with error": {map[string]string{"030_pub@s.sql": "SELECT 1/0;"}, "", Failed, "division by zero"},
		"wrong mention": {map[string]string{
			"meta.json": hasty, "setup_sub.sql": "DROP TABLE t;", "020_error": "must_mention: nowhere",
		}, "", Failed, `does not mention "nowhere"`},
		"stopped at the end": {map[string]string{
			"005_sub.sql": "INSERT INTO t VALUES (1);",
		}, "", Failed, "020_wait: walferry wait"},
		"left out": {map[string]string{
			"meta.json":   `{"id": "900", "min_pg": 15, "left_out": 0}`,
			"030_sub.sql": "TRUNCATE t;", "040_pub.sql": "DELETE FROM t; INSERT INTO t VALUES (7);", "050_wait": "",
		}, "", Failed, "1 changes in walferry.exceptions, want 0"},
	} {
		t.Run(name, func(t *testing.T) {
			files := maps.Clone(row)
			maps.Copy(files, tc.files)
			if files["meta.json"] == hasty {
				delete(files, "020_wait")
			}
			sc, err := Parse(folder(t, files))
			if err != nil {
				t.Fatal(err)
			}
			one := *s
			if tc.excused != "" {
				one.Excused = Excused{sc.Name: tc.excused}
			}
			if r := one.Run(t.Context(), sc); r.Status != tc.want || !strings.Contains(r.Note, tc.note) {
				t.Errorf("got %s %s, want %s %s\n%s", r.Status, r.Note, tc.want, tc.note, r.LogTail)
			}
		})
	}
}
