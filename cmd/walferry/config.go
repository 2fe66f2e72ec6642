package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

func (a *app) configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check the configuration and print it with its defaults, without secrets",
		Long: `Reads the configuration, says everything that is wrong with it, and prints it as
YAML with all defaults. Passwords and tokens are replaced by xxxxx. No database
is asked.`,
		Example: `  walferry config -c walferry.yaml
  walferry config --from postgres://... --to postgres://... > walferry.yaml`,
		Args: cobra.NoArgs,
	}
	a.shared.register(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := a.shared.load(cmd)
		if err != nil {
			return err
		}
		b, err := cfg.YAML()
		if err != nil {
			return err
		}
		if _, err := a.stdout.Write(b); err != nil {
			return fmt.Errorf("print configuration: %w", err)
		}
		return nil
	}
	return cmd
}
