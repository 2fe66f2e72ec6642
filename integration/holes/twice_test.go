package holes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/walferry/walferry/agent"
	"github.com/walferry/walferry/config"
	"github.com/walferry/walferry/internal/pgtest"
	"github.com/walferry/walferry/monitor"
)

// Two walferries run with one configuration and a NATS server: the second one
// stands by, says so, and takes over.
func TestTwoWithOneConfiguration(t *testing.T) {
	t.Parallel()
	for _, same := range []bool{true, false} {
		t.Run(fmt.Sprintf("same data_dir=%v", same), func(t *testing.T) {
			t.Parallel()
			s := newSite(t, queued)
			cfg := parse(t, s.text())
			first := run(t, cfg, agent.RoleAll, "first")
			s.commit(2)
			s.equal("live", "behind")
			second := *cfg
			if !same {
				second.DataDir = t.TempDir()
			}
			b, state := runWatched(t, &second, "second")
			pgtest.Eventually(t, patience, func() error {
				d := state.Document()
				for _, p := range d.Publishers {
					if p.State != monitor.Standby {
						return fmt.Errorf("the second reader is in state %s", p.State)
					}
				}
				for _, x := range d.Subscriptions {
					if x.State != monitor.Waiting {
						return fmt.Errorf("the second applier of %s is in state %s", x.Name, x.State)
					}
				}
				if len(d.Publishers) != 1 || len(d.Subscriptions) != 2 {
					return errors.New("it has not begun")
				}
				return nil
			})
			s.commit(5)
			s.equal("live", "behind")
			first.stop()
			s.commit(5)
			s.equal("live", "behind")
			b.stop()
		})
	}
}

// runWatched runs everything and gives its own view of itself, as the status of
// a shared data_dir shows the one that works.
func runWatched(t *testing.T, cfg *config.Config, name string) (*agents, *monitor.State) {
	state := monitor.NewState("test")
	return runWith(t, cfg, agent.RoleAll, name, state), state
}

// With the embedded queue the store belongs to one process, and the second one
// ends with an error that names it.
func TestTwoWithOneEmbeddedQueue(t *testing.T) {
	t.Parallel()
	s := newSite(t, queued)
	s.embedded = true
	cfg := parse(t, s.text())
	first := run(t, cfg, agent.RoleAll, "first")
	s.commit(2)
	s.equal("live", "behind")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err := agent.Run(ctx, cfg, agent.Options{Roles: agent.RoleAll, Logger: slog.New(slog.DiscardHandler), State: monitor.NewState("test")})
	if err := holds(fmt.Sprint(err), []string{"is in use by process", "stop it, or give this walferry its own data_dir"}); err != nil {
		t.Error(err)
	}
	// With a data_dir of its own, and so a queue of its own, it must not read
	// the slot either: what it read would be missing in the other queue.
	other := *cfg
	other.DataDir = t.TempDir()
	b, state := runWatched(t, &other, "second")
	pgtest.Eventually(t, patience, func() error {
		if d := state.Document(); len(d.Publishers) != 1 || d.Publishers[0].State != monitor.Standby {
			return fmt.Errorf("the second reader does not stand by: %+v", d.Publishers)
		}
		return nil
	})
	s.commit(3)
	s.equal("live", "behind")
	b.stop()
	s.commit(2)
	s.equal("live", "behind")
	first.stop()
}
