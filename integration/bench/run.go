package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/walferry/walferry/internal/pgserver"
)

// Options say what is measured.
type Options struct {
	Binaries  pgserver.Binaries
	Walferry  string // its binary
	Workloads []string
	Methods   []Method
	Live      bool
	Copies    []string // names of CopySets
	Rates     []int    // of Live, in transactions per second; none: 200 and the highest that all methods sustain
	Runs      int
	Scale     float64
	Dir       string // on a disk like that of real servers; empty: the temporary folder
	Progress  io.Writer
}

// A Report is what a run measured.
type Report struct {
	Date    time.Time
	Server  string
	CPUs    int
	Scale   float64
	Runs    int
	Results []*Result
	Live    []Latency
	Copies  []*CopyResult
}

const drainLimit = 10 * time.Minute

// Run measures. What was measured before an error is in the report.
func Run(ctx context.Context, o Options) (r *Report, err error) {
	r = &Report{Date: time.Now(), Server: o.Binaries.Version, CPUs: runtime.NumCPU(), Scale: o.Scale, Runs: o.Runs}
	list, err := Workloads(o.Workloads, o.Scale)
	if err != nil {
		return r, err
	}
	dir, err := os.MkdirTemp(o.Dir, "walferry-bench-")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o755); err != nil { // the server's user must enter it
		return r, err
	}
	began := time.Now()
	p := &pair{
		binary: o.Walferry, dir: dir, limit: drainLimit,
		log: func(format string, args ...any) {
			fmt.Fprintf(o.Progress, "%6.0f s  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
		},
	}
	for _, s := range []struct {
		name string
		to   **server
	}{{"publisher", &p.pub}, {"subscriber", &p.sub}} {
		if *s.to, err = startServer(ctx, o.Binaries, filepath.Join(dir, s.name)); err != nil {
			return r, fmt.Errorf("start %s: %w", s.name, err)
		}
		defer func() { err = errors.Join(err, (*s.to).Stop()) }()
	}
	if len(o.Methods) > 0 {
		for i := range list {
			res, err := p.drain(ctx, &list[i], o.Methods, o.Runs)
			if err != nil {
				return r, fmt.Errorf("workload %s: %w", list[i].Name, err)
			}
			r.Results = append(r.Results, res)
		}
	}
	if r.Copies, err = p.copies(ctx, o.Copies, o.Runs, o.Scale); err != nil {
		return r, err
	}
	if o.Live {
		if r.Live, err = p.live(ctx, o.Rates, o.Runs); err != nil {
			return r, fmt.Errorf("live: %w", err)
		}
	}
	return r, nil
}
