package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/walferry/walferry/agent"
	"github.com/walferry/walferry/config"
	"github.com/walferry/walferry/monitor"
)

func (a *app) statusCommand() *cobra.Command {
	var asJSON, watch bool
	var every time.Duration
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show where publishers, queue and subscriptions stand",
		Long: `Asks the running processes of the data folder, and the databases for what no
process knows. An error is shown with everything that resolves it.`,
		Example: `  walferry status -c walferry.yaml
  walferry status -c walferry.yaml --json | jq '.subscriptions[].lag_seconds'`,
		Args: cobra.NoArgs,
	}
	a.shared.register(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "show it again and again until interrupted")
	cmd.Flags().DurationVar(&every, "interval", 2*time.Second, "`time` between two looks with --watch")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := a.shared.load(cmd)
		if err != nil {
			return err
		}
		if every <= 0 {
			return usageError("", "--interval must be more than zero")
		}
		show := func() error { return a.showStatus(cmd.Context(), cfg, asJSON, watch) }
		if !watch {
			return show()
		}
		return repeat(cmd.Context(), every, show)
	}
	return cmd
}

// repeat calls f until the context ends, which is no error.
func repeat(ctx context.Context, every time.Duration, f func() error) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if err := f(); err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (a *app) showStatus(ctx context.Context, cfg *config.Config, asJSON, watch bool) error {
	doc, err := agent.Status(ctx, cfg)
	if err != nil {
		return fmt.Errorf("status: %w", err)
	}
	if asJSON {
		enc := json.NewEncoder(a.stdout)
		if !watch {
			enc.SetIndent("", "  ")
		}
		if err := enc.Encode(doc); err != nil {
			return fmt.Errorf("print status: %w", err)
		}
		return nil
	}
	if watch && monitor.IsTerminal(a.stdout) {
		if _, err := io.WriteString(a.stdout, "\x1b[H\x1b[2J"); err != nil {
			return fmt.Errorf("print status: %w", err)
		}
	}
	if err := writeStatus(a.stdout, doc, time.Now(), configFlag(a.shared.file)); err != nil {
		return fmt.Errorf("print status: %w", err)
	}
	return nil
}

// configFlag is what commands that are shown need to find the configuration.
func configFlag(file string) string {
	if file == "" {
		return ""
	}
	return " -c " + file
}
