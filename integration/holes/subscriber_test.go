package holes

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/walferry/walferry/internal/pgtest"
)

// A subscriber that was restored from an older backup has an older position,
// and catches up by itself from what the queue still holds. From what it does
// not hold any more, it needs a copy.
func TestSubscriberRestored(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		trimmed bool
	}{{"queue holds it", false}, {"queue begins later", true}} {
		t.Run(c.name, func(t *testing.T) {
			bothModes(t, func(t *testing.T, confirm string) {
				sub := pgtest.New(t)
				s := newSiteOf(t, confirm, pgtest.Shared(t), sub)
				s.begin()
				b := sub.Save(t)
				s.commit(3)
				s.equal("live", "behind")
				s.settled()
				if c.trimmed {
					if err := s.stream().Purge(t.Context(), jetstream.WithPurgeSequence(s.last())); err != nil {
						t.Fatal(err)
					}
				}
				sub.Restore(t, b)
				s.commit(2)
				if c.trimmed {
					for _, name := range []string{"live", "behind"} {
						s.follow(s.applierSays(name, "the subscription needs transactions from", "the queue begins at", "raise queue.retention"))
					}
				}
				s.equal("live", "behind")
				s.commit(1)
				s.equal("live", "behind")
			})
		})
	}
}
