package sqlw

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Run(m)) }

func open(t *testing.T, url string) *Session {
	t.Helper()
	s, err := Connect(t.Context(), url, "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func text(s string) change.Value { return change.Value{Kind: change.Text, Data: []byte(s)} }

var insertT = &Stmt{SQL: "INSERT INTO public.t VALUES ($1)", Params: []Param{{Col: 0, Type: 25}}, Want: 1}

func TestConnect_TheServerNoticesWithinAMinuteThatTheClientVanished(t *testing.T) {
	s := open(t, pgtest.Shared(t).DB(t))
	for name, want := range map[string]string{
		"tcp_keepalives_idle": "15", "tcp_keepalives_interval": "10", "tcp_keepalives_count": "3", "tcp_user_timeout": "45000",
	} {
		rows, err := s.Query("SELECT current_setting($1)", name)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(rows[0][0]); got != want {
			t.Errorf("%s of the server's side: %s, want %s", name, got, want)
		}
	}
}

func TestSession_AnErrorBelongsToItsStepAndNothingBehindItIsDone(t *testing.T) {
	url := pgtest.Shared(t).DB(t)
	pgtest.Exec(t, url, "CREATE TABLE t (v text PRIMARY KEY)")
	s := open(t, url)
	var err error
	for i := range 2000 {
		v := fmt.Sprint(i)
		if i == 777 {
			v = "5"
		}
		if err = s.Row(insertT, nil, []change.Value{text(v)}, Step{Ordinal: uint64(i)}); err != nil {
			break
		}
	}
	if err == nil {
		err = s.Drain()
	}
	var se *StepError
	if !errors.As(err, &se) || se.Step.Ordinal != 777 || se.Err.Code != "23505" {
		t.Fatalf("error %v, want a unique violation of step 777", err)
	}
	if err := s.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := s.Row(insertT, nil, []change.Value{text("again")}, Step{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	if got := pgtest.QueryString(t, url, "SELECT v FROM t"); got != "again" {
		t.Errorf("rows %q: want those after the error only", got)
	}
}

func TestSession_CopyInsideThePipeline(t *testing.T) {
	for _, v := range []int{15, 17} {
		t.Run(fmt.Sprint(v), func(t *testing.T) {
			url := pgtest.Shared(t, pgtest.WithVersion(v)).DB(t)
			pgtest.Exec(t, url, "CREATE TABLE t (v text PRIMARY KEY)")
			s := open(t, url)
			cp := &Stmt{SQL: "COPY public.t (v) FROM STDIN"}
			copyRows := func(from, n int) {
				if err := s.StartCopy(cp, Step{Ordinal: uint64(from)}); err != nil {
					return
				}
				for i := range n {
					_ = s.CopyRow([]change.Value{text(fmt.Sprint(from + i))}, []int{0})
				}
			}
			copyRows(0, 10000)
			_ = s.Row(insertT, nil, []change.Value{text("x\ty\\z\n")}, Step{})
			copyRows(20000, 3)
			if err := s.Sync(); err != nil {
				t.Fatal(err)
			}
			if got := pgtest.QueryString(t, url, "SELECT count(*) FROM t"); got != "10004" {
				t.Errorf("%s rows, want 10004", got)
			}
			// A failed step in front of a COPY, and one inside: the data is
			// thrown away and the session works on.
			_ = s.Row(insertT, nil, []change.Value{text("1")}, Step{Ordinal: 1})
			copyRows(30000, 5000)
			if err := s.Sync(); err == nil {
				t.Error("the duplicate is accepted")
			}
			copyRows(9999, 5000)
			var se *StepError
			if err := s.Sync(); !errors.As(err, &se) || se.Step.Ordinal != 9999 {
				t.Errorf("error %v, want that of the COPY", err)
			}
			if got := pgtest.QueryString(t, url, "SELECT count(*) FROM t"); got != "10004" {
				t.Errorf("%s rows, want 10004", got)
			}
		})
	}
}

func TestSession_ATalkativeServerDoesNotBlockThePipeline(t *testing.T) {
	url := pgtest.Shared(t).DB(t)
	pgtest.Exec(t, url, `CREATE TABLE t (v text); CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE INFO '%', repeat('talk', 10000); RETURN NEW; END $$;
		CREATE TRIGGER tr BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f()`)
	s := open(t, url)
	big := strings.Repeat("x", 40000)
	for range 500 {
		if err := s.Row(insertT, nil, []change.Value{text(big)}, Step{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	if got := pgtest.QueryString(t, url, "SELECT count(*) FROM t"); got != "500" {
		t.Errorf("%s rows, want 500", got)
	}
}

func TestSession_StatementsAreBounded(t *testing.T) {
	s := open(t, pgtest.Shared(t).DB(t))
	for i := range 2500 {
		if err := s.Control(&Stmt{SQL: fmt.Sprintf("SELECT %d", i), Want: 1}, Step{Kind: KindControl}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	rows, err := s.Query("SELECT count(*) FROM pg_prepared_statements")
	if err != nil {
		t.Fatal(err)
	}
	if got := string(rows[0][0]); got != fmt.Sprint(maxStatements) {
		t.Errorf("%s statements, want %d", got, maxStatements)
	}
}

func FuzzAppendCopyText(f *testing.F) {
	f.Add([]byte("\\N"))
	f.Add([]byte("a\tb\nc\rd\\.\\"))
	f.Fuzz(func(t *testing.T, v []byte) {
		e := AppendCopyText(nil, v)
		if bytes.ContainsAny(e, "\t\n\r") || string(e) == `\N` || string(e) == `\.` {
			t.Fatalf("%q is not safe for %q", e, v)
		}
		back := strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\t`, "\t", `\r`, "\r").Replace(string(e))
		if back != string(v) {
			t.Fatalf("%q became %q", v, back)
		}
	})
}
