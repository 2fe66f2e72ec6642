package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/walferry/walferry/agent"
	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/config"
)

func (a *app) skipCommand() *cobra.Command {
	var subscription, lsn string
	cmd := &cobra.Command{
		Use:   "skip",
		Short: "Leave out the transaction that a subscription has stopped at",
		Long: `Makes a subscription leave out one transaction, named by its commit LSN as the
error shows it. Its rows are recorded in walferry.exceptions on the subscriber.`,
		Example: `  walferry skip -c walferry.yaml --subscription reporting --lsn 16/B374D848`,
		Args:    cobra.NoArgs,
	}
	a.shared.register(cmd)
	cmd.Flags().StringVar(&subscription, "subscription", "", "`name` of the subscription (required)")
	cmd.Flags().StringVar(&lsn, "lsn", "", "commit `position` of the transaction (required)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := a.shared.load(cmd)
		if err != nil {
			return err
		}
		if subscription == "" || lsn == "" {
			return usageError("walferry status shows both", "--subscription and --lsn are required")
		}
		if err := hasSubscription(cfg, subscription); err != nil {
			return err
		}
		at, err := change.ParseLSN(lsn)
		if err != nil {
			return usageError("as walferry status shows it: 16/B374D848", "--lsn: %w", err)
		}
		if err := agent.Skip(cmd.Context(), cfg, subscription, at); err != nil {
			return fmt.Errorf("skip: %w", err)
		}
		fmt.Fprintf(a.stdout, "subscription %s leaves out the transaction with commit LSN %s\n", subscription, at)
		return nil
	}
	return cmd
}

func hasSubscription(cfg *config.Config, name string) error {
	if cfg.SubscriptionByName(name) != nil {
		return nil
	}
	have := make([]string, len(cfg.Subscriptions))
	for i := range cfg.Subscriptions {
		have[i] = cfg.Subscriptions[i].Name
	}
	return usageError("configured: "+strings.Join(have, ", "), "subscription %q is not in the configuration", name)
}
