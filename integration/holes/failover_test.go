package holes

import (
	"errors"
	"testing"

	"github.com/walferry/walferry/internal/pgtest"
)

// failover ends the primary and promotes the standby. lost says how many
// transactions the standby never receives.
func (s *site) failover(primary, standby *pgtest.Cluster, lost int) {
	s.t.Helper()
	end := pgtest.QueryString(s.t, s.pub, "SELECT pg_current_wal_flush_lsn()")
	pgtest.Eventually(s.t, patience, func() error {
		if got := pgtest.QueryString(s.t, standby.URL("postgres"), "SELECT pg_last_wal_replay_lsn() >= '"+end+"'"); got != "t" {
			return errors.New("the standby is behind")
		}
		return nil
	})
	if lost > 0 {
		if err := standby.Stop("fast"); err != nil {
			s.t.Fatal(err)
		}
		kept := s.h.len()
		s.commit(lost)
		s.equal("live", "behind")
		s.settled()
		s.h.fork(kept)
	}
	db := pgtest.QueryString(s.t, s.pub, "SELECT current_database()")
	primary.Kill(s.t)
	if lost > 0 {
		standby.Start(s.t)
	}
	standby.Promote(s.t)
	s.stop("behind", "live", "")
	s.pub = standby.URL(db)
	s.startAll()
}

// Before 17 a standby has no logical slots.
func TestStandbyPromotedWithoutSlot(t *testing.T) {
	t.Parallel()
	primary := pgtest.New(t)
	s := newSiteOf(t, queued, primary, pgtest.Shared(t))
	standby := primary.Standby(t, nil)
	s.begin()
	s.failover(primary, standby, 0)
	s.commit(2)
	remedy := s.readerSays("the replication slot is lost", s.slot)
	s.untouched("live", "behind")
	s.follow(remedy)
	s.equal("live", "behind")
	s.commit(2)
	s.equal("live", "behind")
}

func TestStandbyPromotedThatLacksTransactions(t *testing.T) {
	bothModes(t, func(t *testing.T, confirm string) {
		primary := pgtest.New(t)
		s := newSiteOf(t, confirm, primary, pgtest.Shared(t))
		standby := primary.Standby(t, nil)
		s.begin()
		s.failover(primary, standby, 2)
		s.commit(3)
		remedy := s.readerSays("the publisher's history forked before the end of the queue", "lacks what was committed from", "synchronized_standby_slots")
		s.follow(remedy)
		s.equal("live", "behind")
		s.commit(2)
		s.equal("live", "behind")
	})
}

// From 17 on the slot is synchronised to the standby.
func TestStandbyPromotedWithFailoverSlot(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]int{"nothing lost": 0, "transactions lost": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			primary := pgtest.New(t, pgtest.WithVersion(17))
			s := newSiteOf(t, queued, primary, pgtest.Shared(t))
			pgtest.Exec(t, s.pub, "SELECT pg_create_physical_replication_slot('standby', true)")
			standby := primary.Standby(t, map[string]string{"primary_slot_name": "standby", "hot_standby_feedback": "on"})
			s.begin()
			s.settled()
			s.syncSlot(standby)
			s.commit(1)
			s.equal("live", "behind")
			s.settled()
			s.syncSlot(standby)
			s.failover(primary, standby, lost)
			s.commit(2)
			if lost > 0 {
				s.follow(s.readerSays("the publisher's history forked before the end of the queue", "lacks what was committed from"))
			}
			s.equal("live", "behind")
			s.commit(2)
			s.equal("live", "behind")
		})
	}
}

// syncSlot brings the slot of the standby up to date.
func (s *site) syncSlot(standby *pgtest.Cluster) {
	s.t.Helper()
	pgtest.Eventually(s.t, patience, func() error {
		pgtest.Exec(s.t, s.pub, "SELECT pg_log_standby_snapshot()")
		pgtest.Exec(s.t, standby.URL("postgres"), "SELECT pg_sync_replication_slots()")
		if got := pgtest.QueryString(s.t, standby.URL("postgres"), "SELECT synced AND NOT temporary FROM pg_replication_slots WHERE slot_name = '"+s.slot+"'"); got != "t" {
			return errors.New("the slot is not synchronised: " + got)
		}
		return nil
	})
}
