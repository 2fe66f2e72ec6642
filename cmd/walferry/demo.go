package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/walferry/walferry/internal/demo"
	"github.com/walferry/walferry/monitor"
)

func newDemoCommand() *cobra.Command {
	var seconds int
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show it at work on this machine: two servers, a workload, a crash, a comparison",
		Long: `Starts two PostgreSQL servers on 127.0.0.1 in a temporary folder, replicates from
one to the other under a mixed workload, kills the applier in the middle, lets it
catch up, and compares both sides. Nothing is left running or behind.

PostgreSQL is looked for in PATH and the usual folders; without one, root gets it
by apt-get, and otherwise Docker is used.

Exit code 1: the two sides differ, or the demo cannot run. Exit code 6: interrupted.`,
		Example: `  walferry demo --seconds 10`,
		Args:    cobra.NoArgs,
	}
	cmd.Flags().IntVar(&seconds, "seconds", 20, "`time` to write for")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if seconds < 1 || seconds > 3600 {
			return usageError("", "--seconds must be from 1 to 3600")
		}
		exe, err := os.Executable()
		if err != nil {
			return fmt.Errorf("demo: find walferry's own program: %w", err)
		}
		out := cmd.OutOrStdout()
		err = demo.Run(cmd.Context(), demo.Options{
			Duration: time.Duration(seconds) * time.Second, Executable: exe, Out: out, Terminal: monitor.IsTerminal(out),
		})
		if err != nil {
			return fmt.Errorf("demo: %w", err)
		}
		return nil
	}
	return cmd
}
