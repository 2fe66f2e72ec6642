package holes

import (
	"fmt"
	"testing"
	"time"

	"github.com/walferry/walferry/internal/pgtest"
)

// dropSlot takes the slot away, from under a reader too.
func (s *site) dropSlot() {
	s.t.Helper()
	pgtest.Eventually(s.t, patience, func() error {
		got := pgtest.QueryString(s.t, s.pub, fmt.Sprintf(`SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '%s' AND active_pid IS NOT NULL`, s.slot))
		if got != "" {
			time.Sleep(20 * time.Millisecond)
		}
		pgtest.QueryString(s.t, s.pub, fmt.Sprintf(`SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '%s' AND active_pid IS NULL`, s.slot))
		if n := pgtest.QueryString(s.t, s.pub, fmt.Sprintf(`SELECT count(*) FROM pg_replication_slots WHERE slot_name = '%s'`, s.slot)); n != "0" {
			return fmt.Errorf("the slot is in use")
		}
		return nil
	})
}

func (s *site) createSlot() {
	s.t.Helper()
	pgtest.Exec(s.t, s.pub, fmt.Sprintf(`SELECT pg_create_logical_replication_slot('%s', 'pgoutput')`, s.slot))
}

func TestSlotDropped(t *testing.T) {
	t.Parallel()
	for _, running := range []bool{true, false} {
		t.Run(fmt.Sprintf("running=%v", running), func(t *testing.T) {
			t.Parallel()
			s := newSite(t, queued)
			s.begin()
			if !running {
				s.stop("")
			}
			s.dropSlot()
			s.commit(2)
			if !running {
				s.start("")
			}
			remedy := s.readerSays("the replication slot is lost", s.slot, "what was committed since cannot be read")
			s.untouched("live", "behind")
			s.follow(remedy)
			s.equal("live", "behind")
			s.commit(2)
			s.equal("live", "behind")
		})
	}
}

// The slot is made again by hand: what was committed in between is not in it.
func TestSlotRecreated(t *testing.T) {
	bothModes(t, func(t *testing.T, confirm string) {
		s := newSite(t, confirm)
		s.begin()
		s.settled()
		s.stop("")
		s.dropSlot()
		s.commit(2)
		s.createSlot()
		s.commit(1)
		s.start("")
		if confirm == queued {
			s.follow(s.readerSays(s.slot, "or the slot was dropped and made again"))
		}
		for _, name := range []string{"live", "behind"} {
			s.follow(s.applierSays(name, "the subscription needs transactions from"))
		}
		s.commit(1)
		s.equal("live", "behind")
	})
}

// A slot that stands at an earlier moment sends what the queue has already.
func TestSlotRecreatedAtAnEarlierMoment(t *testing.T) {
	bothModes(t, func(t *testing.T, confirm string) {
		s := newSite(t, confirm)
		s.begin()
		early := s.slot + "_early"
		pgtest.Exec(t, s.pub, fmt.Sprintf(`SELECT pg_create_logical_replication_slot('%s', 'pgoutput')`, early))
		s.commit(3)
		s.equal("live", "behind")
		s.settled()
		s.stop("")
		s.dropSlot()
		pgtest.Exec(t, s.pub, fmt.Sprintf(`SELECT pg_copy_logical_replication_slot('%s', '%s')`, early, s.slot),
			fmt.Sprintf(`SELECT pg_drop_replication_slot('%s')`, early))
		s.commit(2)
		s.start("")
		s.equal("live", "behind")
		s.untouched("live", "behind")
	})
}
