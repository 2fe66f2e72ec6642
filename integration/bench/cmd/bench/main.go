// Command bench measures walferry against PostgreSQL's own logical replication
// and prints tables in Markdown. Exit codes: 0 measured, 1 a failure, 2 wrong
// usage.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/walferry/walferry/integration/bench"
	"github.com/walferry/walferry/internal/pgserver"
)

func main() {
	var o bench.Options
	workloads := flag.String("workloads", "", "names, comma separated (all)")
	methods := flag.String("methods", "native,native-bin,walferry-slot,walferry-queue", "methods, comma separated; empty: none")
	bin := flag.String("bin", "", "folder of PostgreSQL's programs (looked for)")
	flag.BoolVar(&o.Live, "live", true, "measure latencies too")
	rates := flag.String("rates", "", "rates for latencies, comma separated (200, and the highest that all methods sustain)")
	flag.IntVar(&o.Runs, "runs", 3, "runs of each method")
	flag.Float64Var(&o.Scale, "scale", 1, "size of the workloads")
	copies := flag.String("copies", "", "initial copies, comma separated: "+strings.Join(bench.CopySets, ", ")+" (none)")
	flag.StringVar(&o.Dir, "dir", "", "folder for the servers (temporary folder)")
	flag.StringVar(&o.Walferry, "walferry", "", "binary to measure (built from this tree)")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "bench: unexpected argument", flag.Arg(0))
		os.Exit(2)
	}
	for _, v := range list(*rates) {
		rate, err := strconv.Atoi(v)
		if err != nil || rate <= 0 {
			fmt.Fprintf(os.Stderr, "bench: rate %q: want a number of transactions per second\n", v)
			os.Exit(2)
		}
		o.Rates = append(o.Rates, rate)
	}
	o.Copies = list(*copies)
	o.Workloads = list(*workloads)
	for _, m := range list(*methods) {
		o.Methods = append(o.Methods, bench.Method(m))
	}
	o.Progress = os.Stderr
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, *bin); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, o bench.Options, bin string) error {
	var err error
	if o.Binaries, err = pgserver.At(ctx, bin); err != nil {
		return err
	}
	if o.Walferry == "" {
		dir, err := os.MkdirTemp("", "walferry-bin-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		o.Walferry = filepath.Join(dir, "walferry")
		if out, err := exec.CommandContext(ctx, "go", "build", "-o", o.Walferry, "github.com/walferry/walferry/cmd/walferry").CombinedOutput(); err != nil {
			return fmt.Errorf("build walferry: %w: %s", err, out)
		}
	}
	r, err := bench.Run(ctx, o)
	r.Markdown(os.Stdout)
	return err
}

func list(s string) []string {
	var out []string
	for v := range strings.SplitSeq(s, ",") {
		if v = strings.TrimSpace(v); v != "" {
			out = append(out, v)
		}
	}
	return out
}
