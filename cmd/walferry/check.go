package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/walferry/walferry/agent/preflight"
)

func (a *app) checkCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check what publishers, subscribers and queue must fulfil",
		Long: `Looks at every database of the configuration and says what is missing, with the
command that mends it. Nothing is changed.

Exit code 3: a requirement is not met.`,
		Example: `  walferry check -c walferry.yaml`,
		Args:    cobra.NoArgs,
	}
	a.shared.register(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := a.shared.load(cmd)
		if err != nil {
			return err
		}
		r, err := preflight.Check(cmd.Context(), cfg)
		if err != nil {
			return fmt.Errorf("check: %w", err)
		}
		if asJSON {
			enc := json.NewEncoder(a.stdout)
			enc.SetIndent("", "  ")
			err = enc.Encode(r)
		} else {
			err = r.WriteText(a.stdout)
		}
		if err != nil {
			return fmt.Errorf("print findings: %w", err)
		}
		if r.Failed() {
			return &codeError{code: exitCheck}
		}
		return nil
	}
	return cmd
}
