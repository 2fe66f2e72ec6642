package holes

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// saveStore copies the store of the NATS server while that is stopped.
func (s *site) saveStore() (dir string) {
	s.t.Helper()
	s.nats.Stop()
	dir = filepath.Join(s.t.TempDir(), "store")
	copyTree(s.t, s.nats.StoreDir(), dir)
	s.nats.Start()
	return dir
}

// rollBack kills the server and gives it the store as it was: what it has
// acknowledged since is lost.
func (s *site) rollBack(saved string) {
	s.t.Helper()
	s.nats.Kill()
	if err := os.RemoveAll(s.nats.StoreDir()); err != nil {
		s.t.Fatal(err)
	}
	copyTree(s.t, saved, s.nats.StoreDir())
	s.nats.Start()
}

func copyTree(t *testing.T, from, to string) {
	t.Helper()
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		t.Fatalf("copy store: %v: %s", err, out)
	}
}

// NATS is killed and comes back with less than it has acknowledged, while
// everything runs.
func TestStoreRolledBackWhileRunning(t *testing.T) {
	bothModes(t, func(t *testing.T, confirm string) {
		s := newSite(t, confirm)
		s.begin()
		saved := s.saveStore()
		s.commit(1)
		s.equal("live", "behind")
		s.stop("behind")
		s.commit(3)
		s.equal("live")
		s.settled()
		s.caughtUp()
		s.rollBack(saved)
		s.commit(2)
		s.lostBatches()
	})
}

// The store is restored from an older copy while walferry is stopped.
func TestStoreRestoredWhileStopped(t *testing.T) {
	bothModes(t, func(t *testing.T, confirm string) {
		s := newSite(t, confirm)
		s.begin()
		saved := s.saveStore()
		s.commit(1)
		s.equal("live", "behind")
		s.stop("behind")
		s.commit(3)
		s.equal("live")
		s.settled()
		s.stop("")
		s.caughtUp()
		s.stop("live")
		s.commit(1)
		s.rollBack(saved)
		s.start("", "live")
		s.commit(1)
		s.lostBatches()
	})
}

// lostBatches expects that the log reader refuses a queue that lost what the
// publisher may have forgotten. After the remedy the subscription that had
// everything goes on, and only the other one needs a copy.
func (s *site) lostBatches() {
	s.t.Helper()
	if s.confirm == queued {
		remedy := s.readerSays(s.slot, "the queue lost batches that it had acknowledged", "the slot was confirmed up to", "the queue ends at")
		s.untouched("live")
		s.follow(remedy)
	}
	s.equal("live")
	s.recoverBehind("the subscription needs transactions from")
}

// Nothing was stored since the copy was made.
func TestStoreRestoredWithoutALoss(t *testing.T) {
	bothModes(t, func(t *testing.T, confirm string) {
		s := newSite(t, confirm)
		s.begin()
		s.settled()
		s.stop("", "behind")
		saved := s.saveStore()
		s.commit(2)
		s.rollBack(saved)
		s.start("", "behind")
		s.equal("live", "behind")
		s.untouched("live", "behind")
	})
}
