package scenarios

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// folder makes a scenario folder from file names and contents.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "900_made_up")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	all := map[string]string{"meta.json": `{"id": "900", "min_pg": 15}`, "check.sql": "SELECT 1;\n"}
	maps.Copy(all, files)
	for name, body := range all {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestParse_EveryKindOfStep(t *testing.T) {
	s, err := Parse(folder(t, map[string]string{
		"010_pub.sql":      "SELECT 1;",
		"020_sub.sql":      "SELECT 1;",
		"030_pub@s1.sql":   "BEGIN;",
		"040_sub@l.sql":    "BEGIN;",
		"050_pub_fail.sql": "-- expect-error: cannot .*\nSELECT 1/0;",
		"060_wait":         "",
		"070_restart":      "publisher-crash\n",
		"080_refresh":      "",
		"090_error":        "native: whatever\nmust_mention: t_pkey\nmust_mention: a b \n",
		"100_skip":         "",
	}))
	if err != nil {
		t.Fatal(err)
	}
	type view struct {
		Kind    Kind
		Side    Side
		Session string
		Want    string
		Target  string
		Mention []string
	}
	var got []view
	for _, st := range s.Steps {
		v := view{Kind: st.Kind, Side: st.Side, Session: st.Session, Target: st.Target, Mention: st.Mention}
		if st.Want != nil {
			v.Want = st.Want.String()
		}
		got = append(got, v)
	}
	want := []view{
		{Kind: KindSQL, Side: Pub},
		{Kind: KindSQL, Side: Sub},
		{Kind: KindSession, Side: Pub, Session: "s1"},
		{Kind: KindSession, Side: Sub, Session: "l"},
		{Kind: KindFail, Want: "cannot .*"},
		{Kind: KindWait},
		{Kind: KindRestart, Target: "publisher-crash"},
		{Kind: KindRefresh},
		{Kind: KindError, Mention: []string{"t_pkey", "a b"}},
		{Kind: KindSkip},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if !s.RestartsServer() {
		t.Error("a restart of the publisher is not seen")
	}
}

func TestParse_RefusesWhatItDoesNotKnow(t *testing.T) {
	for name, tc := range map[string]struct {
		files map[string]string
		want  string
	}{
		"step":           {map[string]string{"010_wiat": ""}, "unknown step"},
		"SQL step":       {map[string]string{"010_publisher.sql": ""}, "unknown step"},
		"file":           {map[string]string{"setup_publisher.sql": ""}, "is not a file of a scenario"},
		"restart":        {map[string]string{"010_restart": "everything"}, "want one of"},
		"error":          {map[string]string{"010_error": "native: x"}, "no must_mention"},
		"expected error": {map[string]string{"010_pub_fail.sql": "SELECT 1/0"}, "expect-error"},
		"regex":          {map[string]string{"010_pub_fail.sql": "-- expect-error: (\n"}, "missing closing"},
		"id":             {map[string]string{"meta.json": `{"id": "9'"}`}, "is not made of"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Parse(folder(t, tc.files)); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestLoad_SelectsByPatterns(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"001_a", "061_b", "062_c", "184_d", "notes"} {
		sub := filepath.Join(dir, name)
		if err := os.Mkdir(sub, 0o755); err != nil {
			t.Fatal(err)
		}
		for file, body := range map[string]string{"meta.json": `{"id": "1"}`, "check.sql": ""} {
			if err := os.WriteFile(filepath.Join(sub, file), []byte(body), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, tc := range []struct {
		globs []string
		want  string
	}{
		{nil, "001_a 061_b 062_c 184_d"},
		{[]string{"06*", "184"}, "061_b 062_c 184_d"},
		{[]string{"001_a"}, "001_a"},
		{[]string{"00"}, ""},
	} {
		list, err := Load(dir, tc.globs)
		var names []string
		for _, s := range list {
			names = append(names, s.Name)
		}
		if got := strings.Join(names, " "); got != tc.want || (err == nil) != (tc.want != "") {
			t.Errorf("%v: got %q, %v, want %q", tc.globs, got, err, tc.want)
		}
	}
}

func TestLoadExcused_WantsAReasonAndOneLineEach(t *testing.T) {
	for body, want := range map[string]string{
		"# note\n\n001_a  is known\n": "",
		"001_a\n":                     "has no reason",
		"001_a x\n001_a y\n":          "twice",
	} {
		path := filepath.Join(t.TempDir(), "excused.txt")
		if err := os.WriteFile(path, []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
		got, err := LoadExcused(path)
		if want == "" {
			if d := cmp.Diff(Excused{"001_a": "is known"}, got); err != nil || d != "" {
				t.Errorf("%q: %v %s", body, err, d)
			}
		} else if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", body, err, want)
		}
	}
}

func TestExcused_NamesScenariosThatExist(t *testing.T) {
	excused, err := LoadExcused("excused.txt")
	if err != nil {
		t.Fatal(err)
	}
	for name := range excused {
		if _, err := Parse(filepath.Join(corpus, name)); err != nil {
			t.Error(err)
		}
	}
}

func TestCorpus_IsValidAndHasUniqueIDs(t *testing.T) {
	list, err := Load(corpus, nil)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{}
	for _, s := range list {
		if other := seen[s.Meta.ID]; other != "" {
			t.Errorf("%s and %s have the id %s", other, s.Name, s.Meta.ID)
		}
		seen[s.Meta.ID] = s.Name
		if s.Meta.MinPG < 15 {
			t.Errorf("%s: min_pg is %d", s.Name, s.Meta.MinPG)
		}
	}
	if len(list) < 150 {
		t.Errorf("only %d scenarios", len(list))
	}
}
