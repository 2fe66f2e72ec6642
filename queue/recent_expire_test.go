package queue

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/walferry/walferry/change"
)

func TestRecent_IsEmptySomeTimeAfterTheLastAcknowledgement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recent
		a := new(Appender)
		created := time.Now()
		r.begin(a, created, 7)
		for seq := uint64(8); seq <= 10; seq++ {
			r.add(a, seq, &change.BatchHeader{}, make([]byte, 100), false)
		}
		want := func(seq uint64, want whereabouts, bytes int64) {
			t.Helper()
			synctest.Wait()
			_, have := r.find(place{seq: seq, created: created}, false)
			r.mu.Lock()
			defer r.mu.Unlock()
			if have != want || r.bytes != bytes {
				t.Errorf("sequence %d is at %v with %d bytes kept, want %v and %d", seq, have, r.bytes, want, bytes)
			}
		}
		want(8, coming, 300)
		r.acknowledge(a, 9, time.Now())
		want(8, here, 300)
		time.Sleep(2 * recentTime) // one is on its way
		want(9, here, 300)
		r.acknowledge(a, 10, time.Now())
		time.Sleep(recentTime / 2)
		want(10, here, 300)
		time.Sleep(recentTime)
		want(10, elsewhere, 0)
		want(11, coming, 0)
		r.add(a, 11, &change.BatchHeader{}, make([]byte, 50), false)
		r.acknowledge(a, 11, time.Now())
		want(11, here, 50)
		r.end(a)
		want(11, elsewhere, 0)
		want(12, elsewhere, 0)
	})
}
