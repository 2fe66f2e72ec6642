package holes

import (
	"testing"

	"github.com/walferry/walferry/internal/pgtest"
)

// The publisher's files are put back to an earlier state, slot included, and
// it goes another way: also when its log has become longer than before, and
// every position of the queue exists again.
func TestPublisherRestored(t *testing.T) {
	bothModes(t, func(t *testing.T, confirm string) {
		pub := pgtest.New(t)
		s := newSiteOf(t, confirm, pub, pgtest.Shared(t))
		s.begin()
		s.settled()
		kept := s.h.len()
		b := pub.Save(t)
		s.commit(3)
		s.equal("live", "behind")
		s.settled()
		s.stop("behind")
		end := pgtest.QueryString(t, s.pub, "SELECT pg_current_wal_insert_lsn()")
		pub.Restore(t, b)
		s.h.fork(kept)
		s.readerSays("the publisher has lost transactions that are in the queue", s.slot)
		s.start("behind")
		s.commit(3)
		pgtest.Exec(t, s.pub, "CREATE TABLE filler (v text)",
			"INSERT INTO filler SELECT repeat(md5(g::text), 20) FROM generate_series(1, 2000) g", "DROP TABLE filler")
		s.commit(1)
		if past := pgtest.QueryString(t, s.pub, "SELECT pg_current_wal_flush_lsn() > '"+end+"'"); past != "t" {
			t.Fatal("the log is not longer than before")
		}
		remedy := s.readerSays("the publisher has lost transactions that are in the queue", "was put back to an earlier state and has gone another way since")
		s.follow(remedy)
		s.equal("live", "behind")
		s.commit(2)
		s.equal("live", "behind")
	})
}

// Publisher and queue are on one machine, which is put back to an earlier state
// as a whole. Nothing is wrong between the two; only the subscribers know.
func TestPublisherAndQueueRestoredTogether(t *testing.T) {
	bothModes(t, func(t *testing.T, confirm string) {
		pub := pgtest.New(t)
		s := newSiteOf(t, confirm, pub, pgtest.Shared(t))
		s.begin()
		s.settled()
		s.stop("")
		kept := s.h.len()
		b, store := pub.Save(t), s.saveStore()
		s.start("")
		s.commit(3)
		s.equal("live", "behind")
		s.settled()
		s.stop("", "behind")
		pub.Restore(t, b)
		s.rollBack(store)
		s.h.fork(kept)
		s.start("")
		s.commit(4)
		for range 3 {
			pgtest.Exec(t, s.pub, "CREATE TABLE filler (v text)", "INSERT INTO filler SELECT repeat(md5(g::text), 20) FROM generate_series(1, 500) g", "DROP TABLE filler")
		}
		s.commit(1)
		s.start("behind")
		for _, name := range []string{"live", "behind"} {
			s.follow(s.applierSays(name, "the queue does not continue what the subscription has applied", "the last transaction applied is"))
		}
		s.equal("live", "behind")
		s.commit(2)
		s.equal("live", "behind")
	})
}
