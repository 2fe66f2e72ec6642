package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/walferry/walferry/agent"
	"github.com/walferry/walferry/monitor"
	"github.com/walferry/walferry/source/snapshot"
	"github.com/walferry/walferry/source/snapshot/progress"
)

func (a *app) runCommand() *cobra.Command {
	return a.agentCommand(agent.RoleAll, &cobra.Command{
		Use:   "run",
		Short: "Run everything of the configuration: queue, log readers, appliers",
		Long: `Runs the log reader of every publisher and the applier of every subscription,
and the queue itself when none is configured, until SIGINT or SIGTERM.`,
		Example: `  walferry run --from postgres://app@src/app --to postgres://app@dst/app --tables 'public.*'
  walferry run -c walferry.yaml`,
	})
}

// agentCommand completes a verb that runs agents until a signal comes.
func (a *app) agentCommand(roles agent.Roles, cmd *cobra.Command) *cobra.Command {
	cmd.Args = cobra.NoArgs
	a.shared.register(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := a.shared.load(cmd)
		if err != nil {
			return err
		}
		if roles&agent.RoleReader == 0 && cfg.Queue.Embedded() {
			return usageError("run the reader with queue.listen: 127.0.0.1:4222 and give the applier queue.url: nats://127.0.0.1:4222",
				"queue.url is missing: the embedded queue runs with the reader")
		}
		limitMemory()
		o := agent.Options{Roles: roles, State: monitor.NewState(version())}
		if monitor.IsTerminal(a.stderr) && cfg.Log.Format != "json" {
			line := monitor.NewLine(a.stderr)
			o.Logger = newLogger(cfg.Log, line)
			o.Progress, o.IsTerminal = line, true
			o.CopyView = func(tables int) (snapshot.Events, func()) {
				release := line.Hold()
				v := progress.New(a.stderr, tables)
				return v.Events(), func() { v.Close(); release() }
			}
		} else {
			o.Logger = newLogger(cfg.Log, a.stderr)
			o.Progress = lineLogger{o.Logger}
		}
		if err := agent.Run(cmd.Context(), cfg, o); err != nil {
			return fmt.Errorf("%s: %w", cmd.Name(), err)
		}
		return nil
	}
	return cmd
}
