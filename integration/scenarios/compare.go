package scenarios

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// difference is a subscriber that does not say what it must.
type difference struct{ got, want string }

func (d *difference) Error() string {
	got, want := strings.Split(d.got, "\n"), strings.Split(d.want, "\n")
	for i := range max(len(got), len(want)) {
		g, w := line(got, i), line(want, i)
		if g != w {
			return fmt.Sprintf("line %d is %s, want %s", i+1, g, w)
		}
	}
	return "no difference"
}

// line is the i-th line, shortened.
func line(lines []string, i int) string {
	if i >= len(lines) {
		return "missing"
	}
	if l := lines[i]; len(l) > 100 {
		return fmt.Sprintf("%q...", l[:100])
	}
	return fmt.Sprintf("%q", lines[i])
}

// checkError is a check.sql that fails on the subscriber.
type checkError struct{ err error }

func (e *checkError) Error() string { return "check.sql (sub): " + e.err.Error() }
func (e *checkError) Unwrap() error { return e.err }

// isDifference says that a scenario failed because the subscriber was wrong: in
// its answer, or in what a step checks on its side.
func isDifference(err error) bool {
	var (
		d  *difference
		c  *checkError
		st *stepError
		pe *psqlError
	)
	return errors.As(err, &d) || errors.As(err, &c) ||
		errors.As(err, &st) && st.step.Side == Sub && errors.As(err, &pe)
}

// compare runs check.sql on the subscriber.
func (x *execution) compare(ctx context.Context) error {
	ctx, cancel := bounded(ctx, x.sc.Timeout())
	defer cancel()
	check, _ := x.sc.path("check.sql")
	got, err := queryFile(ctx, x.servers[Sub], x.db, check)
	if err != nil {
		return &checkError{err}
	}
	var want string
	if file, ok := x.sc.path("expected.txt"); ok {
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		want = string(b)
	} else if want, err = queryFile(ctx, x.servers[Pub], x.db, check); err != nil {
		return fmt.Errorf("check.sql (pub): %w", err)
	}
	if want == "" {
		return errors.New("check.sql gives nothing on the publisher: it proves nothing")
	}
	if got == want {
		return nil
	}
	for name, text := range map[string]string{"got.txt": got, "want.txt": want} {
		if err := os.WriteFile(filepath.Join(x.dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return &difference{got, want}
}
