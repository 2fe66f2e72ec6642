// Command walferry carries committed transactions from a PostgreSQL publisher,
// through NATS JetStream, into PostgreSQL subscribers.
//
// Each verb has its file: flags and wiring only. See `walferry help`.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run is the program; it returns the exit code.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := withSignals(context.Background())
	defer stop()
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr}
	root := a.command()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	code := exitCode(ctx, err)
	if !a.started && code == exitError {
		code = exitUsage // cobra found fault with the arguments
	}
	report(stderr, err, code)
	return code
}

// app is what the verbs share.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	shared         sharedFlags
	started        bool // a verb runs: arguments are well-formed
}

func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use:   "walferry",
		Short: "Replicates PostgreSQL databases through a NATS queue",
		Long: `walferry carries committed transactions from a PostgreSQL publisher, through a
NATS JetStream queue, into any number of PostgreSQL subscribers.

  walferry run --from postgres://... --to postgres://... --tables 'public.*'
  walferry run -c walferry.yaml`,
		Args:              cobra.NoArgs,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
		PersistentPreRun:  func(*cobra.Command, []string) { a.started = true },
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.AddCommand(
		a.runCommand(),
		a.readerCommand(),
		a.applierCommand(),
		a.waitCommand(),
		a.statusCommand(),
		a.checkCommand(),
		a.skipCommand(),
		a.replcmdsCommand(),
		a.dropCommand(),
		a.configCommand(),
		newDemoCommand(),
		a.versionCommand(),
	)
	return root
}

var errInterrupted = errors.New("interrupted")

// withSignals ends the context at the first SIGINT or SIGTERM and the process
// at the second. stop undoes it.
func withSignals(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for n := 0; ; n++ {
			select {
			case <-end:
				return
			case <-signals:
			}
			if n > 0 {
				fmt.Fprintln(os.Stderr, "walferry: second signal: stopped at once")
				os.Exit(exitInterrupted)
			}
			cancel(errInterrupted)
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(end)
		<-ended
		cancel(nil)
	}
}
