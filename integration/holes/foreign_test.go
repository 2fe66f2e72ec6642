package holes

import (
	"testing"

	"github.com/walferry/walferry/internal/pgtest"
)

// Reader and applier are pointed at the queue of another cluster, which has a
// publisher of the same name.
func TestQueueOfAnotherCluster(t *testing.T) {
	bothModes(t, func(t *testing.T, confirm string) {
		s := newSite(t, confirm)
		s.begin()
		other := newSiteOf(t, confirm, pgtest.New(t), pgtest.Shared(t))
		other.begin()
		other.commit(2)
		own := s.natsURL
		s.stopAll()
		s.natsURL = other.natsURL
		s.startAll()
		s.commit(2)
		other.commit(2)
		s.readerSays("the publisher is another database cluster", "connect to the publisher that the queue was read from")
		for _, name := range []string{"live", "behind"} {
			s.applierSays(name, "system identifier", "connect reader and applier to the queue and the publisher")
		}
		other.equal("live", "behind")
		other.untouched("live", "behind")
		s.stopAll()
		s.natsURL = own
		s.startAll()
		s.equal("live", "behind")
	})
}

// Two databases of one cluster are published under one name into one queue:
// neither positions nor the system identifier tell them apart.
func TestQueueOfAnotherDatabase(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		ready bool // the second one has a slot that is not behind
	}{{"without a slot", false}, {"with a slot", true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, queued)
			s.begin()
			other := newSite(t, queued)
			own := other.natsURL
			if c.ready {
				other.begin()
				other.stopAll()
			}
			s.commit(1)
			s.equal("live", "behind")
			s.settled()
			other.natsURL = s.natsURL
			other.startAll()
			other.readerSays("the queue belongs to", "give it another name")
			s.commit(2)
			s.equal("live", "behind")
			s.untouched("live", "behind")
			other.stopAll()
			other.natsURL = own
			other.startAll()
			other.commit(2)
			other.equal("live", "behind")
		})
	}
}
