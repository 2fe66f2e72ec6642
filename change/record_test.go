package change

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"
)

// messages reads all whole messages of bodies.
func messages(t testing.TB, bodies ...[]byte) [][]byte {
	t.Helper()
	var m Messages
	var out [][]byte
	for _, b := range bodies {
		m.Reset(b)
		for {
			msg, err := m.Next()
			if err != nil {
				t.Fatal(err)
			}
			if msg == nil {
				break
			}
			out = append(out, bytes.Clone(msg))
		}
	}
	if m.Partial() {
		t.Fatal("a message is unfinished")
	}
	return out
}

// docs/queue-format.md, "Records".
func TestRecord_WordIsMoreContAndLength(t *testing.T) {
	tests := []struct {
		name string
		got  []byte
		want []byte
	}{
		{"whole", AppendRecord(nil, []byte("ab")), []byte{0, 0, 0, 2, 'a', 'b'}},
		{"first part", AppendPart(nil, []byte("ab"), true, false), []byte{0x80, 0, 0, 2, 'a', 'b'}},
		{"middle part", AppendPart(nil, []byte("ab"), false, false), []byte{0xC0, 0, 0, 2, 'a', 'b'}},
		{"last part", AppendPart(nil, []byte("ab"), false, true), []byte{0x40, 0, 0, 2, 'a', 'b'}},
	}
	for _, tt := range tests {
		if !bytes.Equal(tt.got, tt.want) {
			t.Errorf("%s: % x, want % x", tt.name, tt.got, tt.want)
		}
	}
}

func TestMessages_PartsAreJoinedAcrossBodies(t *testing.T) {
	b1 := AppendRecord(nil, []byte("one"))
	b1 = AppendPart(b1, []byte("tw"), true, false)
	b2 := AppendPart(nil, []byte("o and "), false, false)
	b3 := AppendPart(nil, []byte("a half"), false, true)
	b3 = AppendRecord(b3, []byte("three"))
	// The body is borrowed: whoever owns it may overwrite it after the walk.
	b1c, b2c, b3c := bytes.Clone(b1), bytes.Clone(b2), bytes.Clone(b3)
	var m Messages
	var got []string
	for _, b := range [][]byte{b1c, b2c, b3c} {
		m.Reset(b)
		for {
			msg, err := m.Next()
			if err != nil {
				t.Fatal(err)
			}
			if msg == nil {
				break
			}
			got = append(got, string(msg))
		}
		clear(b)
	}
	if want := []string{"one", "two and a half", "three"}; !slices.Equal(got, want) {
		t.Errorf("messages %q, want %q", got, want)
	}
}

func TestMessages_DiscardForgetsAnUnfinishedMessage(t *testing.T) {
	var m Messages
	m.Reset(AppendPart(nil, []byte("lost"), true, false))
	if msg, err := m.Next(); msg != nil || err != nil || !m.Partial() {
		t.Fatalf("%q, %v", msg, err)
	}
	m.Discard()
	m.Reset(AppendRecord(nil, []byte("new")))
	if msg, err := m.Next(); string(msg) != "new" || err != nil || m.Partial() {
		t.Errorf("after Discard: %q, %v", msg, err)
	}
}

// fixed is a Measure that knows the length at once.
type fixed int

func (fixed) Reset()            {}
func (f fixed) Feed([]byte) int { return int(f) }

func TestMessages_HoldAMessageInPartsOnce(t *testing.T) {
	const part, parts = 1 << 20, 64
	p := make([]byte, part)
	m := Messages{Measure: fixed(part * parts)}
	grown := testing.Benchmark(func(b *testing.B) {
		for b.Loop() {
			for i := range parts {
				m.Reset(AppendPart(make([]byte, 0, part+RecordOverhead), p, i == 0, i == parts-1))
				if msg, err := m.Next(); err != nil || (msg != nil) != (i == parts-1) {
					b.Fatal(len(msg), err)
				}
			}
		}
	}).AllocedBytesPerOp()
	// The bodies themselves, and one buffer for all of it.
	if limit := int64(2*part*parts + part*parts/8); grown > limit {
		t.Errorf("%d bytes allocated for a message of %d, want at most %d", grown, part*parts, limit)
	}
}

func TestMessages_CorruptBodiesAreErrors(t *testing.T) {
	whole := AppendRecord(nil, []byte("abc"))
	for name, body := range map[string][]byte{
		"cut word":              whole[:3],
		"cut payload":           whole[:5],
		"empty record":          {0, 0, 0, 0},
		"continuation first":    AppendPart(nil, []byte("x"), false, true),
		"whole inside of parts": AppendRecord(AppendPart(nil, []byte("x"), true, false), []byte("y")),
		"first twice":           AppendPart(AppendPart(nil, []byte("x"), true, false), []byte("y"), true, false),
		"length beyond the end": {0x3F, 0xFF, 0xFF, 0xFF, 1},
	} {
		var m Messages
		m.Reset(body)
		var err error
		for msg := []byte{0}; msg != nil && err == nil; {
			msg, err = m.Next()
		}
		if ce, ok := errors.AsType[*CorruptError](err); !ok || ce.Field != "body" {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func FuzzMessages(f *testing.F) {
	f.Add(AppendRecord(nil, []byte("abc")), 0)
	f.Add(AppendPart(AppendPart(nil, []byte("x"), true, false), []byte("y"), false, true), 5)
	f.Fuzz(func(t *testing.T, body []byte, cut int) {
		cut = max(0, min(cut, len(body)))
		var m Messages
		for _, b := range [][]byte{body[:cut], body[cut:]} {
			m.Reset(b)
			for {
				msg, err := m.Next()
				if err != nil || msg == nil {
					break
				}
				if len(msg) > len(body) {
					t.Fatalf("message of %d bytes from %d", len(msg), len(body))
				}
			}
		}
	})
}

func FuzzRecordRoundTrip(f *testing.F) {
	f.Add([]byte("hello world"), uint16(3))
	f.Fuzz(func(t *testing.T, msg []byte, part uint16) {
		if len(msg) == 0 || part == 0 {
			t.Skip()
		}
		var bodies [][]byte
		for off := 0; off < len(msg); {
			n := min(int(part), len(msg)-off)
			bodies = append(bodies, AppendPart(nil, msg[off:off+n], off == 0, off+n == len(msg)))
			off += n
		}
		bodies = append(bodies, AppendRecord(nil, msg))
		got := messages(t, bodies...)
		if len(got) != 2 || !bytes.Equal(got[0], msg) || !bytes.Equal(got[1], msg) {
			t.Fatalf("%d messages of %d bytes in parts of %d", len(got), len(msg), part)
		}
	})
}

func TestMessages_WholeMessagesAreNotCopied(t *testing.T) {
	var body []byte
	for range 100 {
		body = AppendRecord(body, []byte("some message"))
	}
	var m Messages
	if n := testing.AllocsPerRun(100, func() {
		m.Reset(body)
		for {
			msg, err := m.Next()
			if err != nil {
				t.Fatal(err)
			}
			if msg == nil {
				return
			}
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if w := binary.BigEndian.Uint32(body); w != 12 {
		t.Errorf("first word %d", w)
	}
}
