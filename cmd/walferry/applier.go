package main

import (
	"github.com/spf13/cobra"

	"github.com/walferry/walferry/agent"
)

func (a *app) applierCommand() *cobra.Command {
	return a.agentCommand(agent.RoleApplier, &cobra.Command{
		Use:   "applier",
		Short: "Run only the appliers, against the queue at queue.url",
		Long: `Runs the applier of every subscription of the configuration until SIGINT or
SIGTERM. It needs queue.url: a NATS server, or the listen address of the
embedded queue of another process.`,
		Example: `  walferry applier -c walferry.yaml`,
	})
}
