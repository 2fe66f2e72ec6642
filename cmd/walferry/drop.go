package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/walferry/walferry/agent"
	"github.com/walferry/walferry/config"
)

func (a *app) dropCommand() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "drop",
		Short: "Remove slots, publications, queue and bookkeeping of the configuration",
		Long: `Removes what walferry made for this configuration: replication slots and its own
publications on the publishers, the streams in the queue, and its bookkeeping on
the subscribers. Tables and their rows stay. Stop walferry first.`,
		Example: `  walferry drop -c walferry.yaml`,
		Args:    cobra.NoArgs,
	}
	a.shared.register(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := a.shared.load(cmd)
		if err != nil {
			return err
		}
		listDrop(a.stdout, cfg)
		if !yes {
			if err := a.confirm(); err != nil {
				return err
			}
		}
		err = agent.Drop(cmd.Context(), cfg, agent.DropOptions{Out: a.stdout, Logger: newLogger(cfg.Log, a.stderr)})
		if err != nil {
			return fmt.Errorf("drop: %w", err)
		}
		return nil
	}
	return cmd
}

// listDrop says what will go.
func listDrop(w io.Writer, cfg *config.Config) {
	fmt.Fprintln(w, "This will be removed:")
	for i := range cfg.Publishers {
		p := &cfg.Publishers[i]
		fmt.Fprintf(w, "  publisher %s (%s)\n    replication slot %s\n", p.Name, place(p.URL), p.Slot)
		if len(p.Publications) == 0 {
			fmt.Fprintf(w, "    publication made by walferry\n")
		}
		queue := "embedded in " + cfg.DataDir
		if !cfg.Queue.Embedded() {
			queue = config.Redact(cfg.Queue.URL)
		}
		fmt.Fprintf(w, "    stream of the queue (%s), with what no subscription has applied yet\n", queue)
	}
	for i := range cfg.Subscriptions {
		s := &cfg.Subscriptions[i]
		fmt.Fprintf(w, "  subscription %s (%s)\n    position, exceptions and replication origin; the tables and their rows stay\n", s.Name, place(s.URL))
	}
}

// place is a connection string that may be shown.
func place(url string) string {
	if url == "" {
		return "from the environment"
	}
	return config.Redact(url)
}

// confirm asks a person.
func (a *app) confirm() error {
	f, ok := a.stdin.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return usageError("use --yes where nobody can answer", "drop asks first, and the input is no terminal")
	}
	fmt.Fprint(a.stdout, "Type yes to go on: ")
	answer, err := bufio.NewReader(f).ReadString('\n')
	if err != nil && answer == "" {
		return fmt.Errorf("read the answer: %w", err)
	}
	if strings.TrimSpace(answer) != "yes" {
		return &codeError{code: exitError, err: fmt.Errorf("nothing was removed")}
	}
	return nil
}
