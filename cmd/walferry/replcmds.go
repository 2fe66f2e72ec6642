package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/walferry/walferry/agent"
	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/source"
	"github.com/walferry/walferry/source/pgoutput"
)

func (a *app) replcmdsCommand() *cobra.Command {
	var publisher string
	var limit int
	cmd := &cobra.Command{
		Use:   "replcmds",
		Short: "Show what the log reader would read next, without taking it",
		Long: `Prints the next transactions behind the position of a publisher's slot. It reads
a temporary copy of the slot, so that the slot does not move and may be in use.`,
		Example: `  walferry replcmds -c walferry.yaml --limit 100`,
		Args:    cobra.NoArgs,
	}
	a.shared.register(cmd)
	cmd.Flags().StringVar(&publisher, "publisher", "", "`name` of the publisher; needed when there are several")
	cmd.Flags().IntVar(&limit, "limit", 100, "stop after the transaction that reaches so many `messages`")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := a.shared.load(cmd)
		if err != nil {
			return err
		}
		p := cfg.PublisherByName(publisher)
		if publisher == "" && len(cfg.Publishers) == 1 {
			p = &cfg.Publishers[0]
		}
		if p == nil {
			return usageError("name one of the configuration", "publisher %q is not in the configuration", publisher)
		}
		if limit < 1 {
			return usageError("give a positive number", "--limit %d is too small", limit)
		}
		commands, err := agent.Peek(cmd.Context(), p, limit)
		if err != nil {
			return fmt.Errorf("replcmds: %w", err)
		}
		var errs []error
		for i := range commands {
			errs = append(errs, printCommand(a.stdout, &commands[i]))
		}
		if len(commands) == 0 {
			_, err := fmt.Fprintln(a.stdout, "nothing waits behind the slot's position")
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}
	return cmd
}

func printCommand(w io.Writer, c *source.Command) error {
	var line string
	switch c.Kind {
	case pgoutput.Begin:
		line = fmt.Sprintf("BEGIN xid %d, commit LSN %s", c.XID, c.CommitLSN)
	case pgoutput.Commit:
		line = "COMMIT, end LSN " + c.EndLSN.String()
	case pgoutput.Truncate:
		line = "  TRUNCATE " + strings.Join(c.Truncated, ", ")
	case pgoutput.Insert:
		line = fmt.Sprintf("  INSERT %s.%s %s", c.Schema, c.Table, tupleText(c.Columns, c.New))
	case pgoutput.Update:
		line = fmt.Sprintf("  UPDATE %s.%s %s", c.Schema, c.Table, tupleText(c.Columns, c.New))
		if len(c.Old) > 0 {
			line += " FROM " + tupleText(c.Columns, c.Old)
		}
	case pgoutput.Delete:
		line = fmt.Sprintf("  DELETE %s.%s %s", c.Schema, c.Table, tupleText(c.Columns, c.Old))
	}
	_, err := fmt.Fprintln(w, line)
	return err
}

// shownValue is how much of a value is shown, in bytes.
const shownValue = 60

func tupleText(columns []change.Column, values []change.Value) string {
	var parts []string
	for i, v := range values {
		name := fmt.Sprintf("$%d", i+1)
		if i < len(columns) {
			name = columns[i].Name
		}
		switch v.Kind {
		case change.Null:
			parts = append(parts, name+"=NULL")
		case change.Unchanged:
			parts = append(parts, name+"=(unchanged)")
		default:
			text := string(v.Data)
			if len(text) > shownValue {
				text = fmt.Sprintf("%.*s... (%d bytes)", shownValue, text, len(v.Data))
			}
			parts = append(parts, fmt.Sprintf("%s=%q", name, text))
		}
	}
	return "(" + strings.Join(parts, ", ") + ")"
}
