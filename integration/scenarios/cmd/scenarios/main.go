// Command scenarios runs scenario folders through the walferry binary and prints
// a line for each. Exit codes: 0 all as they should be, 1 a failure, 2 wrong usage.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/walferry/walferry/integration/scenarios"
)

type options struct {
	dir, binary, mode string
	only              []string
	versions          []int
	keep, verbose     bool
	strict            bool // the corpus of this tree
	control           bool
	parallel          int
	timeout           time.Duration
}

var modes = []string{"log-order", "hvar", "auto"}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	fs := flag.NewFlagSet("scenarios", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&o.dir, "dir", "", "folder with scenarios (integration/testdata/scenarios)")
	fs.StringVar(&o.mode, "mode", "", "apply mode of the subscriptions: "+strings.Join(modes, ", ")+" (walferry's default)")
	fs.StringVar(&o.binary, "walferry", "", "binary to test (built from this tree)")
	fs.BoolVar(&o.keep, "keep", false, "leave servers and databases until interrupted")
	fs.BoolVar(&o.verbose, "v", false, "show the end of walferry's log for each failure")
	fs.BoolVar(&o.control, "control", false, "replicate nothing: every scenario must fail")
	fs.IntVar(&o.parallel, "par", 3, "scenarios at the same time")
	fs.DurationVar(&o.timeout, "timeout", 0, "upper limit for waiting on walferry in a step")
	only := fs.String("only", "", "names or beginnings of names, with * and ?, comma separated")
	pg := fs.String("pg", "15", "PostgreSQL major versions, comma separated")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %s", fs.Arg(0))
	}
	if o.mode != "" && !slices.Contains(modes, o.mode) {
		return o, fmt.Errorf("-mode %s: want one of %s", o.mode, strings.Join(modes, ", "))
	}
	if o.parallel < 1 {
		return o, fmt.Errorf("-par %d: want 1 or more", o.parallel)
	}
	if *only != "" {
		o.only = strings.Split(*only, ",")
	}
	for _, v := range strings.Split(*pg, ",") {
		n, err := strconv.Atoi(v)
		if err != nil {
			return o, fmt.Errorf("-pg %s: not a major version", v)
		}
		o.versions = append(o.versions, n)
	}
	if o.dir == "" {
		o.dir = filepath.Join(sourceDir(), "..", "..", "..", "testdata", "scenarios")
		o.strict = true
	}
	return o, nil
}

// sourceDir is the folder of this file.
func sourceDir() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(file)
}

func main() {
	o, err := parse(os.Args[1:], os.Stderr)
	if err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "scenarios:", err)
			os.Exit(2)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ok, err := run(ctx, o, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "scenarios:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// run runs all versions and says whether everything was as it should be.
func run(ctx context.Context, o options, out io.Writer) (bool, error) {
	list, err := scenarios.Load(o.dir, o.only)
	if err != nil {
		return false, err
	}
	excused, err := scenarios.LoadExcused(filepath.Join(sourceDir(), "..", "..", "excused.txt"))
	if err != nil {
		return false, err
	}
	work, err := os.MkdirTemp("", "walferry-scenarios-")
	if err != nil {
		return false, err
	}
	ok := false
	defer func() {
		if ok && !o.keep {
			_ = os.RemoveAll(work) // nothing in it is wanted
		} else {
			fmt.Fprintln(out, "logs and results of failures:", work)
		}
	}()
	if o.binary == "" && !o.control {
		if o.binary, err = scenarios.Build(ctx, work); err != nil {
			return false, err
		}
	}
	good := true
	for _, v := range o.versions {
		s := &scenarios.Suite{
			Version: v, Binary: o.binary, WorkDir: filepath.Join(work, strconv.Itoa(v)),
			Mode: o.mode, Control: o.control, Keep: o.keep, Timeout: o.timeout, Excused: excused, Strict: o.strict,
		}
		err := scenarios.Guard("scenarios", func(t testing.TB) {
			s.Pub, s.Sub = scenarios.StartServers(t, v)
			good = report(ctx, s, list, o, out) && good
			if o.keep && ctx.Err() == nil {
				fmt.Fprintf(out, "publisher %s, subscriber %s, databases scn_<id>; interrupt to end\n", s.Pub.URL("postgres"), s.Sub.URL("postgres"))
				<-ctx.Done()
			}
		})
		if err != nil {
			return false, err
		}
	}
	ok = good && ctx.Err() == nil
	return ok, context.Cause(ctx)
}

// report runs the list on one version and prints it.
func report(ctx context.Context, s *scenarios.Suite, list []*scenarios.Scenario, o options, out io.Writer) bool {
	fmt.Fprintf(out, "PostgreSQL %d\n", s.Version)
	began := time.Now()
	counts := map[scenarios.Status]int{}
	good := true
	for r := range s.RunAll(ctx, list, o.parallel) {
		counts[r.Status]++
		good = good && !r.Bad()
		fmt.Fprintf(out, "%-45s %-8s %6.1f  %s\n", r.Scenario.Name, r.Status, r.Took.Seconds(), r.Note)
		if r.LogTail != "" && o.verbose {
			fmt.Fprintln(out, "    | "+strings.ReplaceAll(r.LogTail, "\n", "\n    | "))
		}
	}
	fmt.Fprintf(out, "PostgreSQL %d:", s.Version)
	for _, st := range []scenarios.Status{scenarios.Passed, scenarios.ControlOK, scenarios.Excuse, scenarios.Skipped, scenarios.Failed, scenarios.Vacuous} {
		if counts[st] > 0 || st == scenarios.Failed {
			fmt.Fprintf(out, " %s %d", st, counts[st])
		}
	}
	fmt.Fprintf(out, " in %.0f s\n", time.Since(began).Seconds())
	return good
}
