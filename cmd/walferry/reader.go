package main

import (
	"github.com/spf13/cobra"

	"github.com/walferry/walferry/agent"
)

func (a *app) readerCommand() *cobra.Command {
	return a.agentCommand(agent.RoleReader, &cobra.Command{
		Use:   "reader",
		Short: "Run only the log readers (and the embedded queue, if any)",
		Long: `Runs the log reader of every publisher until SIGINT or SIGTERM. A second reader
of the same slot waits and takes over when the first one is gone.`,
		Example: `  walferry reader -c walferry.yaml`,
	})
}
