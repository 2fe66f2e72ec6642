package pgoutput_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/walferry/walferry/source/pgoutput"
	b "github.com/walferry/walferry/source/pgoutput/pgoutputtest"
)

// In whatever parts a message arrives, the room told is that of the message at the
// end, never more before it but for the old row of an update, and covers a long
// value as soon as its length has come.
func TestExtent_MakesRoomForLongValuesEarly(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	for name, msg := range map[string][]byte{
		"insert":          b.Insert(7, b.Row{"1", nil, b.Unchanged, []byte{0, 1}, "", long, "end"}),
		"update with key": b.Update(7, 'K', b.Row{"1", nil}, b.Row{"2", long}),
		"update with row": b.Update(7, 'O', b.Row{"1", long}, b.Row{"2", long}),
		"update":          b.Update(7, 0, nil, b.Row{"2", long}),
		"delete":          b.Delete(7, 'O', b.Row{long, nil}),
		"no columns":      b.Insert(7, b.Row{}),
		"other":           b.Logical(true, 1, "p", []byte(long)),
	} {
		for _, part := range []int{1, 2, 3, 7, 1000, len(msg)} {
			var e pgoutput.Extent
			told := 0
			for off := 0; off < len(msg); off += part {
				end := min(off+part, len(msg))
				told = e.Feed(msg[off:end])
				most := len(msg)
				if name == "update with row" {
					most *= 2
				}
				if told > most || told < end {
					t.Fatalf("%s in parts of %d: at %d of %d bytes the length told is %d", name, part, end, len(msg), told)
				}
			}
			if told != len(msg) {
				t.Errorf("%s in parts of %d: %d bytes at the end, want %d", name, part, told, len(msg))
			}
		}
	}
	var e pgoutput.Extent
	msg := b.Insert(7, b.Row{"1", long, "end"})
	if told := e.Feed(msg[:100]); told < 100_000 {
		t.Errorf("the first 100 bytes of an insert of %d tell %d", len(msg), told)
	}
	e.Reset()
	both := b.Update(7, 'O', b.Row{"1", long}, b.Row{"2", long})
	if told := e.Feed(both[:100]); told < len(both)-100 {
		t.Errorf("the first 100 bytes of an update of %d tell %d", len(both), told)
	}
	e.Reset()
	if told := e.Feed(msg[:3]); told < 3 || told > len(msg) {
		t.Errorf("after Reset: %d", told)
	}
}

func TestExtent_SurvivesDamage(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	for range 2000 {
		msg := b.Update(7, 'O', b.Row{"1", "abc"}, b.Row{"2", nil})
		msg[r.IntN(len(msg))] = byte(r.Uint32())
		var e pgoutput.Extent
		for _, c := range msg {
			if told := e.Feed([]byte{c}); told < 0 || told > 1<<32 {
				t.Fatalf("seed %d: length %d", seed, told)
			}
		}
	}
}
