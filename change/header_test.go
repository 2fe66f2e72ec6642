package change

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// stored collects the headers of a batch.
func stored(h *BatchHeader, body []byte) map[string]string {
	m := map[string]string{}
	h.Fields(body, func(k, v string) { m[k] = v })
	return m
}

func getter(m map[string]string) func(string) string {
	return func(k string) string { return m[k] }
}

var (
	packedHeader = BatchHeader{
		Version: 1, System: 7301234567890123456, Timeline: 3, Prev: 0x16_B374D848, First: 0x16_B374D900, Last: 0x16_B374DA00, End: 0x16_B374DA30,
		Txns: 2, Rows: 5, Total: 12, CommitTime: time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC), XID: 4294967295,
	}
	markHeader  = BatchHeader{Version: 1, System: 1, Timeline: 1, Prev: 0x10, End: 0x20, Total: 12}
	chunkHeader = BatchHeader{
		Version: 1, System: 1, Timeline: 1, Prev: 0x10, First: 0x20, Last: 0x20, End: 0x10, Rows: 3, XID: 9, Total: 12,
		CommitTime: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), Chunked: true, Chunk: 7, Open: true, TxMsgs: 1 << 40, TxCRC: 0xDEADBEEF,
	}
)

func TestHeader_ComesBackUnchanged(t *testing.T) {
	for name, h := range map[string]BatchHeader{"packed": packedHeader, "mark": markHeader, "chunk": chunkHeader} {
		body := []byte("body of " + name)
		got, err := ParseHeader(getter(stored(&h, body)), body)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(h, got); diff != "" {
			t.Errorf("%s (-stored +read):\n%s", name, diff)
		}
	}
	if packedHeader.IsMark() || chunkHeader.IsMark() || !markHeader.IsMark() {
		t.Error("IsMark is wrong")
	}
}

// docs/queue-format.md, "Headers".
func TestHeader_TextForms(t *testing.T) {
	got := stored(&packedHeader, nil)
	delete(got, HeaderChecksum)
	want := map[string]string{
		HeaderVersion: "1", HeaderSystem: "7301234567890123456", HeaderTimeline: "3", HeaderPrev: "16/B374D848",
		HeaderFirst: "16/B374D900", HeaderLast: "16/B374DA00", HeaderEnd: "16/B374DA30", HeaderTxns: "2", HeaderRows: "5", HeaderTotal: "12",
		HeaderCommitTime: "2026-03-01T12:00:00.123456Z", HeaderXID: "4294967295",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("packed (-want +got):\n%s", diff)
	}
	got = stored(&chunkHeader, nil)
	if got[HeaderChunk] != "7 open" || got[HeaderTxMsgs] != "1099511627776" || got[HeaderTxCRC] != "deadbeef" {
		t.Errorf("chunk: %v", got)
	}
	got = stored(&markHeader, nil)
	if got[HeaderFirst] != "0/0" || got[HeaderCommitTime] != "" || got[HeaderXID] != "0" {
		t.Errorf("mark: %v", got)
	}
}

// The checksum is CRC-32C over "name:value\n" of every header before it, in
// the order of the table in docs/queue-format.md, and the body.
func TestHeader_ChecksumOfAKnownBatch(t *testing.T) {
	h := BatchHeader{Version: 1, System: 1, Timeline: 1, Prev: 0x10, End: 0x20}
	var text []byte
	var sum string
	h.Fields([]byte("xyz"), func(k, v string) {
		if k == HeaderChecksum {
			sum = v
			return
		}
		text = append(text, k+":"+v+"\n"...)
	})
	want := "Walferry-Version:1\nWalferry-System:1\nWalferry-Timeline:1\nWalferry-Prev:0/10\nWalferry-First:0/0\nWalferry-Last:0/0\nWalferry-End:0/20\n" +
		"Walferry-Txns:0\nWalferry-Rows:0\nWalferry-Total:0\nWalferry-Commit-Time:\nWalferry-Xid:0\n"
	if diff := cmp.Diff(want, string(text)); diff != "" {
		t.Errorf("text under the checksum (-want +got):\n%s", diff)
	}
	if got := crcText(append(text, "xyz"...)); got != sum {
		t.Errorf("checksum %s, want %s", sum, got)
	}
}

func crcText(b []byte) string {
	const digits = "0123456789abcdef"
	c := UpdateCRC(0, b)
	out := make([]byte, 8)
	for i := range out {
		out[i] = digits[c>>(28-4*i)&15]
	}
	return string(out)
}

func TestHeader_EveryChangedFieldIsNoticed(t *testing.T) {
	body := []byte("some body")
	for name, h := range map[string]BatchHeader{"packed": packedHeader, "mark": markHeader, "chunk": chunkHeader} {
		good := stored(&h, body)
		for k, v := range good {
			for _, bad := range []string{"", v + "7", "x" + v, "1"} {
				if bad == v {
					continue
				}
				m := map[string]string{}
				for kk, vv := range good {
					m[kk] = vv
				}
				m[k] = bad
				if _, err := ParseHeader(getter(m), body); err == nil {
					t.Errorf("%s: %s changed from %q to %q unnoticed", name, k, v, bad)
				}
			}
		}
		for i := range body {
			b := bytes.Clone(body)
			b[i] ^= 0x40
			_, err := ParseHeader(getter(good), b)
			if _, ok := errors.AsType[*CorruptError](err); !ok {
				t.Errorf("%s: body byte %d changed: %v", name, i, err)
			}
		}
	}
}

func TestHeader_NewerVersionIsNamed(t *testing.T) {
	h := packedHeader
	h.Version = 2
	_, err := ParseHeader(getter(stored(&h, nil)), nil)
	if ve, ok := errors.AsType[*VersionError](err); !ok || ve.Got != 2 {
		t.Errorf("error %v", err)
	}
}

func FuzzParseHeader(f *testing.F) {
	for _, h := range []BatchHeader{packedHeader, markHeader, chunkHeader} {
		m := stored(&h, []byte("b"))
		f.Add(m[HeaderVersion], m[HeaderPrev], m[HeaderEnd], m[HeaderCommitTime], m[HeaderChunk], m[HeaderChecksum], []byte("b"))
	}
	base := stored(&packedHeader, []byte("b"))
	f.Fuzz(func(t *testing.T, version, prev, end, when, chunk, sum string, body []byte) {
		m := map[string]string{}
		for k, v := range base {
			m[k] = v
		}
		m[HeaderVersion], m[HeaderPrev], m[HeaderEnd], m[HeaderCommitTime], m[HeaderChunk], m[HeaderChecksum] = version, prev, end, when, chunk, sum
		h, err := ParseHeader(getter(m), body)
		if err != nil {
			return
		}
		again, err := ParseHeader(getter(stored(&h, body)), body)
		if err != nil || again != h {
			t.Fatalf("read %+v, then %+v, %v", h, again, err)
		}
	})
}

func FuzzHeaderRoundTrip(f *testing.F) {
	f.Add(uint64(1), uint32(1), uint64(1), uint64(2), 3, int64(1700000000123456), true, uint64(9), []byte("x"))
	f.Fuzz(func(t *testing.T, system uint64, timeline uint32, prev, end uint64, rows int, micros int64, chunked bool, msgs uint64, body []byte) {
		if rows < 0 || rows > 1<<31-1 || micros < -62135596800000000 || micros > 253402300799999999 {
			t.Skip() // years 1 to 9999
		}
		h := BatchHeader{Version: FormatVersion, System: system, Timeline: timeline, Prev: LSN(prev), End: LSN(end), Rows: rows, CommitTime: time.UnixMicro(micros).UTC(), Chunked: chunked}
		if h.CommitTime.IsZero() {
			h.CommitTime = time.Time{}
		}
		if chunked {
			h.Chunk, h.Open, h.TxMsgs, h.TxCRC = rows, msgs%2 == 0, msgs, timeline
		}
		got, err := ParseHeader(getter(stored(&h, body)), body)
		if err != nil || got != h {
			t.Fatalf("stored %+v, read %+v, %v", h, got, err)
		}
	})
}
