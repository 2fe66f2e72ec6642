package scenarios

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Suite runs scenarios on a pair of servers.
type Suite struct {
	Pub, Sub Server
	Version  int           // major version of both
	Binary   string        // walferry; unused with Control
	WorkDir  string        // gets a folder for each scenario
	Mode     string        // apply mode of the subscriptions; empty: walferry's own choice
	Control  bool          // replicate nothing: every scenario must fail
	Keep     bool          // leave databases and folders
	Timeout  time.Duration // upper limit for waiting on walferry; 0: that of the scenario
	Excused  Excused
	Strict   bool // a scenario without left_out wants an empty walferry.exceptions
}

// Status is the outcome of a scenario.
type Status string

// The outcomes. The last two are failures of the run.
const (
	Passed    Status = "PASS"
	Skipped   Status = "SKIP"    // needs a newer server
	Excuse    Status = "EXCUSED" // failed, and is known to
	ControlOK Status = "CTRL"    // failed in a control run, as it must
	Failed    Status = "FAIL"
	Vacuous   Status = "VACUOUS" // passed without replication
)

// Result is what one scenario came to.
type Result struct {
	Scenario *Scenario
	Status   Status
	Note     string // why, or something worth knowing
	Took     time.Duration
	LogTail  string // of walferry, when it failed
	Dir      string // what is kept of a failure: walferry.log, got.txt, want.txt
}

// Bad says that the result makes the run a failure.
func (r Result) Bad() bool { return r.Status == Failed || r.Status == Vacuous }

// Run runs one scenario.
func (s *Suite) Run(ctx context.Context, sc *Scenario) Result {
	r := Result{Scenario: sc, Dir: filepath.Join(s.WorkDir, sc.Name)}
	if m := sc.Meta.MaxPG; m != 0 && s.Version > m {
		r.Status, r.Note = Skipped, fmt.Sprintf("for PostgreSQL %d and older", m)
		return r
	}
	if sc.Meta.MinPG > s.Version {
		r.Status, r.Note = Skipped, fmt.Sprintf("needs PostgreSQL %d", sc.Meta.MinPG)
		return r
	}
	began := time.Now()
	x := &execution{
		suite: s, sc: sc, dir: r.Dir, db: "scn_" + sc.Meta.ID, servers: [2]Server{s.Pub, s.Sub},
		sessions: map[string]*session{},
		ferry:    &ferry{binary: s.Binary, dir: r.Dir, name: "scn_" + sc.Meta.ID},
	}
	note, err := x.run(ctx)
	if ctx.Err() != nil {
		err = context.Cause(ctx) // what went wrong is that the run was ended
	}
	r.Took = time.Since(began)
	r.Status, r.Note = s.judge(sc, note, err)
	if r.Bad() && !s.Control {
		r.LogTail = x.ferry.logTail(20)
	}
	if !s.Keep {
		if err := x.cleanup(context.WithoutCancel(ctx)); err != nil && !r.Bad() {
			r.Status, r.Note = Failed, "clean up: "+err.Error()
		}
		if !r.Bad() {
			_ = os.RemoveAll(r.Dir) // small, and the whole folder goes at the end of a good run
		}
	}
	return r
}

func (s *Suite) judge(sc *Scenario, note string, err error) (Status, string) {
	reason, excused := s.Excused[sc.Name]
	switch {
	case s.Control && err == nil:
		return Vacuous, "passes without any replication"
	case s.Control && !isDifference(err):
		// A setup that fails proves as little as a scenario that passes.
		return Vacuous, "not a difference: " + oneLine(err)
	case s.Control:
		return ControlOK, oneLine(err)
	case err == nil && excused:
		return Failed, "passes, but is excused: " + reason
	case err == nil:
		return Passed, note
	case excused:
		return Excuse, reason
	}
	return Failed, oneLine(err)
}

func oneLine(err error) string {
	return strings.Join(strings.Fields(err.Error()), " ")
}

// execution is one run of one scenario.
type execution struct {
	suite    *Suite
	sc       *Scenario
	dir      string
	db       string
	servers  [2]Server
	sessions map[string]*session // by side and name
	ferry    *ferry
}

// bounded gives the time of one step.
func bounded(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, limit, fmt.Errorf("timed out after %s", limit))
}

// limit is how long walferry may take for a step.
func (x *execution) limit() time.Duration {
	limit := x.sc.Timeout()
	if t := x.suite.Timeout; t > 0 {
		limit = min(limit, t)
	}
	return limit
}

func (x *execution) run(ctx context.Context) (note string, err error) {
	defer x.closeSessions(-1)
	// What an earlier run of the scenario left: its queue knows another slot.
	if err := os.RemoveAll(x.dir); err != nil {
		return "", err
	}
	if err := os.MkdirAll(x.dir, 0o755); err != nil {
		return "", err
	}
	if err := x.prepare(ctx); err != nil {
		return "", err
	}
	if !x.suite.Control {
		if err := x.begin(ctx); err != nil {
			return "", err
		}
		defer x.ferry.kill()
	}
	for _, st := range x.sc.Steps {
		if err := x.step(ctx, st); err != nil {
			return "", &stepError{st, err}
		}
	}
	x.closeSessions(-1)
	if err := x.compare(ctx); err != nil {
		return "", err
	}
	if x.suite.Control {
		return "", nil
	}
	return x.end(ctx)
}

type stepError struct {
	step Step
	err  error
}

func (e *stepError) Error() string { return e.step.Name + ": " + e.err.Error() }
func (e *stepError) Unwrap() error { return e.err }

// prepare makes the databases, what stands in them, and the publication.
func (x *execution) prepare(ctx context.Context) error {
	ctx, cancel := bounded(ctx, x.sc.Timeout())
	defer cancel()
	encodings := [2]string{x.sc.Meta.PubEncoding, x.sc.Meta.SubEncoding}
	for side, srv := range x.servers {
		enc, locale := encodings[side], "C"
		if enc == "" || enc == "UTF8" {
			enc, locale = "UTF8", "C.UTF-8"
		}
		create := fmt.Sprintf("CREATE DATABASE %s TEMPLATE template0 ENCODING '%s' LC_COLLATE '%s' LC_CTYPE '%s'", x.db, enc, locale, locale)
		if _, err := admin(ctx, srv, "postgres", create); err != nil {
			return fmt.Errorf("create database (%s): %w", Side(side), err)
		}
		for _, name := range []string{"setup.sql", fmt.Sprintf("setup_%s.sql", Side(side))} {
			if file, ok := x.sc.path(name); ok {
				if err := runFile(ctx, srv, x.db, file); err != nil {
					return fmt.Errorf("%s (%s): %w", name, Side(side), err)
				}
			}
		}
	}
	if file, ok := x.sc.path("publication.sql"); ok {
		if err := runFile(ctx, x.servers[Pub], x.db, file); err != nil {
			return fmt.Errorf("publication.sql: %w", err)
		}
	} else if _, err := admin(ctx, x.servers[Pub], x.db, "CREATE PUBLICATION scn_pub FOR ALL TABLES"); err != nil {
		return fmt.Errorf("create publication: %w", err)
	}
	if kb := x.sc.Meta.WorkMemKB; kb > 0 {
		if _, err := admin(ctx, x.servers[Pub], x.db, fmt.Sprintf("ALTER DATABASE %s SET logical_decoding_work_mem = '%dkB'", x.db, kb)); err != nil {
			return fmt.Errorf("set logical_decoding_work_mem: %w", err)
		}
	}
	return nil
}

// begin starts walferry and waits for the copy.
func (x *execution) begin(ctx context.Context) error {
	if err := x.ferry.writeConfig(x.sc, x.servers[Pub].URL(x.db), x.servers[Sub].URL(x.db), x.suite.Mode); err != nil {
		return err
	}
	if err := x.ferry.start(); err != nil {
		return err
	}
	if x.sc.Meta.NoWait {
		return nil
	}
	if err := x.ferry.wait(ctx, x.limit()); err != nil {
		return fmt.Errorf("initial copy: %w", err)
	}
	return nil
}

func (x *execution) step(ctx context.Context, st Step) error {
	sqlCtx, cancel := bounded(ctx, x.sc.Timeout())
	defer cancel()
	switch st.Kind {
	case KindSQL:
		return runFile(sqlCtx, x.servers[st.Side], x.db, st.File)
	case KindSession:
		return x.inSession(sqlCtx, st)
	case KindFail:
		err := runFile(sqlCtx, x.servers[Pub], x.db, st.File)
		var pe *psqlError
		switch {
		case err == nil:
			return errors.New("expected an error")
		case errors.As(err, &pe) && st.Want.MatchString(pe.output):
			return nil
		}
		return fmt.Errorf("other error: %w", err)
	case KindRestart:
		return x.restart(st.Target)
	}
	if x.suite.Control {
		return nil
	}
	ferryCtx, cancel := bounded(ctx, x.limit())
	defer cancel()
	switch st.Kind {
	case KindWait:
		return x.ferry.wait(ctx, x.limit())
	case KindError:
		return x.ferry.waitError(ferryCtx, st.Mention)
	case KindSkip:
		return x.ferry.skip(ferryCtx)
	case KindRefresh: // walferry notices by itself
		return nil
	}
	return fmt.Errorf("unknown kind of step %d", st.Kind)
}

func (x *execution) inSession(ctx context.Context, st Step) error {
	key := st.Side.String() + "@" + st.Session
	s := x.sessions[key]
	if s == nil {
		var err error
		if s, err = openSession(x.servers[st.Side], st.Side, x.db); err != nil {
			return err
		}
		x.sessions[key] = s
	}
	return s.run(ctx, st.File)
}

// closeSessions closes those of one side, or all for -1.
func (x *execution) closeSessions(side Side) {
	for key, s := range x.sessions {
		if side < 0 || s.side == side {
			s.close()
			delete(x.sessions, key)
		}
	}
}

func (x *execution) restart(target string) error {
	what, how, _ := strings.Cut(target, "-")
	mode := "fast"
	if how == "crash" {
		mode = "immediate"
	}
	switch what {
	case "publisher":
		x.closeSessions(Pub)
		return x.servers[Pub].Restart(mode)
	case "subscriber":
		x.closeSessions(Sub)
		return x.servers[Sub].Restart(mode)
	}
	if x.suite.Control {
		return nil
	}
	// The queue is embedded, so the broker ends with walferry: for it as for
	// replication-crash by SIGKILL.
	if target == "replication" {
		if err := x.ferry.stop(); err != nil {
			return err
		}
	} else {
		if err := x.ferry.alive(); err != nil {
			return err
		}
		x.ferry.kill()
	}
	return x.ferry.start()
}

// end stops walferry, looks at what it recorded, and lets it remove its traces.
func (x *execution) end(ctx context.Context) (note string, err error) {
	ctx, cancel := bounded(ctx, x.sc.Timeout())
	defer cancel()
	if err := x.ferry.stop(); err != nil {
		return "", err
	}
	left, err := admin(ctx, x.servers[Sub], x.db, "SELECT count(*) FROM walferry.exceptions")
	if err != nil {
		return "", fmt.Errorf("count exceptions: %w", err)
	}
	want := x.sc.Meta.LeftOut
	if want == nil && x.suite.Strict {
		want = new(int)
	}
	if want != nil && left != fmt.Sprint(*want) {
		return "", fmt.Errorf("%s changes in walferry.exceptions, want %d", left, *want)
	}
	if left != "0" {
		note = left + " changes in walferry.exceptions"
	}
	if err := x.ferry.must(ctx, "drop", "--yes"); err != nil {
		return "", err
	}
	traces, err := admin(ctx, x.servers[Pub], x.db, "SELECT 'slot ' || slot_name FROM pg_replication_slots WHERE database = '"+x.db+"'")
	if err != nil {
		return "", err
	}
	more, err := admin(ctx, x.servers[Sub], x.db, `SELECT 'schema ' || nspname FROM pg_namespace WHERE nspname = 'walferry'
		UNION ALL SELECT 'origin ' || roname FROM pg_replication_origin WHERE roname = 'walferry_`+x.ferry.name+`'`)
	if err != nil {
		return "", err
	}
	if traces += more; traces != "" {
		return "", fmt.Errorf("walferry drop left behind: %s", traces)
	}
	return note, nil
}
