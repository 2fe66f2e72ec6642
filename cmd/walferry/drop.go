package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/walferry/walferry/agent"
	"github.com/walferry/walferry/config"
)

func (a *app) dropCommand() *cobra.Command {
	var yes bool
	var o agent.DropOptions
	cmd := &cobra.Command{
		Use:   "drop",
		Short: "Remove slots, publications, queue and bookkeeping of the configuration",
		Long: `Removes what walferry made for this configuration: replication slots and its own
publications on the publishers, the streams in the queue, and its bookkeeping on
the subscribers. Tables and their rows stay, unless --empty is given: a new initial
copy needs empty tables. Stop walferry first.

With --subscription only those subscriptions go, and the others notice nothing.
With --queue only the streams go: at the next start they are filled from where the
slots stand, and a subscription that needs more than that says so.`,
		Example: `  walferry drop -c walferry.yaml
  walferry drop -c walferry.yaml --subscription reporting --empty   # to copy it again`,
		Args: cobra.NoArgs,
	}
	a.shared.register(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.Flags().StringArrayVar(&o.Subscriptions, "subscription", nil, "only this subscription; may be repeated (`name`)")
	cmd.Flags().BoolVar(&o.Queue, "queue", false, "only the streams of the queue")
	cmd.Flags().BoolVar(&o.Empty, "empty", false, "remove the replicated rows too")
	cmd.MarkFlagsMutuallyExclusive("queue", "subscription")
	cmd.MarkFlagsMutuallyExclusive("queue", "empty")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := a.shared.load(cmd)
		if err != nil {
			return err
		}
		if err := listDrop(a.stdout, cfg, o); err != nil {
			return err
		}
		if !yes {
			if err := a.confirm(); err != nil {
				return err
			}
		}
		o.Out, o.Logger = a.stdout, newLogger(cfg.Log, a.stderr)
		err = agent.Drop(cmd.Context(), cfg, o)
		if err != nil {
			return fmt.Errorf("drop: %w", err)
		}
		return nil
	}
	return cmd
}

// listDrop says what will go.
func listDrop(w io.Writer, cfg *config.Config, o agent.DropOptions) error {
	for _, name := range o.Subscriptions {
		if cfg.SubscriptionByName(name) == nil {
			return usageError("", "subscription %q is not in the configuration", name)
		}
	}
	fmt.Fprintln(w, "This will be removed:")
	for i := range cfg.Publishers {
		p := &cfg.Publishers[i]
		if len(o.Subscriptions) > 0 {
			break
		}
		fmt.Fprintf(w, "  publisher %s (%s)\n", p.Name, place(p.URL))
		if !o.Queue {
			fmt.Fprintf(w, "    replication slot %s\n", p.Slot)
			if len(p.Publications) == 0 {
				fmt.Fprintf(w, "    publication made by walferry\n")
			}
		}
		queue := "embedded in " + cfg.DataDir
		if !cfg.Queue.Embedded() {
			queue = config.Redact(cfg.Queue.URL)
		}
		fmt.Fprintf(w, "    stream of the queue (%s), with what no subscription has applied yet\n", queue)
	}
	rows := "the tables and their rows stay"
	if o.Empty {
		rows = "the tables stay, ALL THEIR ROWS GO"
	}
	for i := range cfg.Subscriptions {
		s := &cfg.Subscriptions[i]
		if o.Queue || len(o.Subscriptions) > 0 && !slices.Contains(o.Subscriptions, s.Name) {
			continue
		}
		fmt.Fprintf(w, "  subscription %s (%s)\n    position, exceptions and replication origin; %s\n", s.Name, place(s.URL), rows)
	}
	return nil
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
