package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/walferry/walferry/agent"
	"github.com/walferry/walferry/change"
)

func (a *app) waitCommand() *cobra.Command {
	var o agent.WaitOptions
	cmd := &cobra.Command{
		Use:   "wait",
		Short: "Wait until the subscriptions have everything that is committed now",
		Long: `Waits until the subscriptions have applied what was committed on their publishers
when the command began, or up to --lsn, and until initial copies are complete.

Exit code 4: not in time. Exit code 5: a subscription has stopped with an error.`,
		Example: `  walferry wait -c walferry.yaml --subscription reporting --timeout 5m`,
		Args:    cobra.NoArgs,
	}
	a.shared.register(cmd)
	cmd.Flags().StringArrayVar(&o.Subscriptions, "subscription", nil, "`name` of a subscription, repeatable; all without")
	cmd.Flags().StringVar(&o.LSN, "lsn", "", "wait for this `position` of the publisher's log")
	cmd.Flags().DurationVar(&o.Timeout, "timeout", 30*time.Second, "give up after this `time`")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := a.shared.load(cmd)
		if err != nil {
			return err
		}
		if o.LSN != "" {
			if _, err := change.ParseLSN(o.LSN); err != nil {
				return usageError("as pg_current_wal_lsn() prints it: 16/B374D848", "--lsn: %w", err)
			}
		}
		for _, s := range o.Subscriptions {
			if err := hasSubscription(cfg, s); err != nil {
				return err
			}
		}
		o.Out = a.stderr
		return agent.Wait(cmd.Context(), cfg, o)
	}
	return cmd
}
