package holes

import (
	"testing"
	"time"

	"github.com/walferry/walferry/internal/pgtest"
)

// The stream is deleted while walferry runs. Who has everything goes on with the
// new stream; who was away needs what the old one held.
func TestStreamDeletedWhileRunning(t *testing.T) {
	bothModes(t, func(t *testing.T, confirm string) {
		s := newSite(t, confirm)
		s.begin()
		s.stop("behind")
		s.commit(3)
		s.equal("live")
		s.settled()
		s.caughtUp()
		if err := s.jetstream().DeleteStream(t.Context(), stream); err != nil {
			t.Fatal(err)
		}
		s.commit(3)
		s.equal("live")
		s.recoverBehind("the subscription needs transactions from")
	})
}

func TestStreamDeletedWhileStopped(t *testing.T) {
	bothModes(t, func(t *testing.T, confirm string) {
		s := newSite(t, confirm)
		s.begin()
		s.stop("behind")
		s.commit(3)
		s.equal("live")
		s.settled()
		s.stop("")
		s.caughtUp()
		s.stop("live")
		s.commit(2)
		if err := s.jetstream().DeleteStream(t.Context(), stream); err != nil {
			t.Fatal(err)
		}
		s.start("", "live")
		s.commit(2)
		s.equal("live")
		s.recoverBehind("the subscription needs transactions from")
	})
}

// recoverBehind starts the subscription that was away. With confirm: applied the
// publisher's log has kept what it needs; else it stops with an error whose
// remedy mends it, and subscription live notices nothing of either.
func (s *site) recoverBehind(texts ...string) {
	s.t.Helper()
	s.start("behind")
	if s.confirm == queued {
		remedy := s.applierSays("behind", texts...)
		s.untouched("live")
		s.commit(1)
		s.equal("live")
		s.follow(remedy)
	}
	s.commit(1)
	s.equal("live", "behind")
}

// settled waits until the slot has everything confirmed that it can.
func (s *site) settled() { s.t.Helper(); time.Sleep(1500 * time.Millisecond) }

// caughtUp waits until subscriber live has the positions of log without transactions
// too that the slot has confirmed. The log reader goes on bringing such while it runs.
func (s *site) caughtUp() {
	s.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		confirmed := pgtest.QueryString(s.t, s.pub, "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '"+s.slot+"'")
		if pgtest.QueryString(s.t, s.subs["live"], "SELECT position >= '"+confirmed+"' FROM walferry.subscription") == "t" {
			return
		}
		if time.Now().After(end) {
			s.explain("live")
			s.t.Fatalf("subscriber live does not reach %s, which the slot has confirmed", confirmed)
		}
	}
}

// A batch in the middle is deleted before the applier that needs it gets there.
func TestBatchDeletedFromTheMiddle(t *testing.T) {
	bothModes(t, func(t *testing.T, confirm string) {
		s := newSite(t, confirm)
		s.begin()
		s.stop("behind")
		s.commit(2)
		s.equal("live")
		gone := s.last()
		s.commit(2)
		s.equal("live")
		s.settled()
		if err := s.stream().DeleteMsg(t.Context(), gone); err != nil {
			t.Fatal(err)
		}
		s.recoverBehind("sequence", "was deleted or lost")
	})
}

// The same while the applier has begun to read: what it has received is good,
// and it goes on.
func TestBatchDeletedWhileItsApplierIsHeldUp(t *testing.T) {
	bothModes(t, func(t *testing.T, confirm string) {
		s := newSite(t, confirm)
		s.begin()
		release := s.hold("behind")
		s.commit(2)
		s.equal("live")
		gone := s.last()
		s.commit(2)
		s.equal("live")
		if err := s.stream().DeleteMsg(t.Context(), gone); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second) // of which the log reader takes notice
		release()
		s.commit(1)
		s.equal("live", "behind")
	})
}

func TestLastBatchDeleted(t *testing.T) {
	bothModes(t, func(t *testing.T, confirm string) {
		s := newSite(t, confirm)
		s.begin()
		s.settled()
		s.stop("behind", "")
		if err := s.stream().DeleteMsg(t.Context(), s.last()); err != nil {
			t.Fatal(err)
		}
		s.start("")
		if confirm == queued {
			s.follow(s.readerSays("last batch", "was deleted"))
		}
		s.commit(2)
		s.start("behind")
		s.equal("live", "behind")
	})
}

// walferry keeps no consumer: those that it makes to read may go at any time.
func TestConsumersDeletedWhileRunning(t *testing.T) {
	t.Parallel()
	s := newSite(t, queued)
	s.begin()
	for range 3 {
		st := s.stream()
		n := 0
		for name := range st.ConsumerNames(t.Context()).Name() {
			n++
			if err := st.DeleteConsumer(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
		if n == 0 {
			t.Error("nobody reads the stream")
		}
		s.commit(2)
		s.equal("live", "behind")
		s.untouched("live", "behind")
	}
}

// The registry of subscriptions only holds back removal. Without it nothing may
// be removed, and it comes back.
func TestRegistryDeletedWhileRunning(t *testing.T) {
	bothModes(t, func(t *testing.T, confirm string) {
		s := newSite(t, confirm)
		s.begin()
		if err := s.jetstream().DeleteKeyValue(t.Context(), "walferry_main"); err != nil {
			t.Fatal(err)
		}
		s.commit(2)
		s.equal("live", "behind")
		s.registered("live", "behind")
		s.untouched("live", "behind")
	})
}
