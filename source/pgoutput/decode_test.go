package pgoutput_test

import (
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/source/pgoutput"
	b "github.com/walferry/walferry/source/pgoutput/pgoutputtest"
)

var at = time.Date(2026, 2, 3, 4, 5, 6, 789000, time.UTC)

func text(s string) change.Value { return change.Value{Kind: change.Text, Data: []byte(s)} }

var orders = &change.Relation{
	OID: 16385, Schema: "public", Name: "orders", Identity: change.IdentityDefault,
	Columns: []change.Column{{Name: "id", Type: 23, TypeMod: -1, Key: true}, {Name: "v", Type: 1043, TypeMod: 24}},
}

func TestDecode_EveryKindOfEveryProtocol(t *testing.T) {
	raw := func(s string) []byte {
		v, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	lsn1, lsn2 := change.LSN(0x100000002), change.LSN(0x100000050)
	prep := "0000000100000002 0000000100000050 0000000000000000 0000002a 6700"
	epoch := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		name     string
		protocol int
		in       []byte
		want     pgoutput.Message
	}{
		{"begin", 1, b.Begin(lsn1, at, 42), pgoutput.Message{Kind: 'B', LSN: lsn1, Time: at, XID: 42}},
		{"commit", 1, b.Commit(lsn1, lsn2, at), pgoutput.Message{Kind: 'C', LSN: lsn1, EndLSN: lsn2, Time: at}},
		{"origin", 1, b.Origin(lsn1, "o"), pgoutput.Message{Kind: 'O', LSN: lsn1, OriginName: []byte("o")}},
		{"relation", 1, b.Relation(orders), pgoutput.Message{Kind: 'R', RelationOID: 16385, Relation: orders}},
		{"type", 1, b.Type(600, "app", "mood"), pgoutput.Message{Kind: 'Y', TypeOID: 600, TypeSchema: "app", TypeName: "mood"}},
		{"pg_catalog is sent as empty", 1, b.Type(600, "", "int4"), pgoutput.Message{Kind: 'Y', TypeOID: 600, TypeSchema: "pg_catalog", TypeName: "int4"}},
		{
			"insert", 1, b.Insert(7, b.Row{"1", nil, b.Unchanged, []byte{0, 1}, ""}),
			pgoutput.Message{Kind: 'I', RelationOID: 7, New: []change.Value{text("1"), {Kind: 'n'}, {Kind: 'u'}, {Kind: 'b', Data: []byte{0, 1}}, {Kind: 't', Data: []byte{}}}},
		},
		{"update", 1, b.Update(7, 0, nil, b.Row{"2"}), pgoutput.Message{Kind: 'U', RelationOID: 7, New: []change.Value{text("2")}}},
		{"update of the key", 1, b.Update(7, 'K', b.Row{"1"}, b.Row{"2"}), pgoutput.Message{Kind: 'U', RelationOID: 7, OldKind: 'K', Old: []change.Value{text("1")}, New: []change.Value{text("2")}}},
		{"update with full row", 1, b.Update(7, 'O', b.Row{"1"}, b.Row{"2"}), pgoutput.Message{Kind: 'U', RelationOID: 7, OldKind: 'O', Old: []change.Value{text("1")}, New: []change.Value{text("2")}}},
		{"delete", 1, b.Delete(7, 'K', b.Row{"1"}), pgoutput.Message{Kind: 'D', RelationOID: 7, OldKind: 'K', Old: []change.Value{text("1")}}},
		{"truncate", 1, b.Truncate(true, true, 7, 8), pgoutput.Message{Kind: 'T', Relations: []change.OID{7, 8}, Cascade: true, RestartIdentity: true}},
		{"message", 1, b.Logical(true, lsn1, "p", []byte("c\x00d")), pgoutput.Message{Kind: 'M', Transactional: true, LSN: lsn1, Prefix: []byte("p"), Content: []byte("c\x00d")}},
		{"stream start", 2, b.StreamStart(42, true), pgoutput.Message{Kind: 'S', XID: 42, FirstSegment: true}},
		{"stream commit", 2, b.StreamCommit(42, lsn1, lsn2, at), pgoutput.Message{Kind: 'c', XID: 42, LSN: lsn1, EndLSN: lsn2, Time: at}},
		{"stream abort", 2, b.StreamAbort(42, 43), pgoutput.Message{Kind: 'A', XID: 42, SubXID: 43}},
		{"stream abort, parallel", 4, raw("41 0000002a 0000002b 0000000100000002 0000000000000000"), pgoutput.Message{Kind: 'A', XID: 42, SubXID: 43, AbortInfo: true, LSN: lsn1, Time: epoch}},
		{"begin prepare", 3, raw("62" + prep), pgoutput.Message{Kind: 'b', LSN: lsn1, EndLSN: lsn2, Time: epoch, XID: 42, GID: "g"}},
		{"prepare", 3, raw("50 00" + prep), pgoutput.Message{Kind: 'P', LSN: lsn1, EndLSN: lsn2, Time: epoch, XID: 42, GID: "g"}},
		{"commit prepared", 3, raw("4b 00" + prep), pgoutput.Message{Kind: 'K', LSN: lsn1, EndLSN: lsn2, Time: epoch, XID: 42, GID: "g"}},
		{"stream prepare", 3, raw("70 00" + prep), pgoutput.Message{Kind: 'p', LSN: lsn1, EndLSN: lsn2, Time: epoch, XID: 42, GID: "g"}},
		{
			"rollback prepared", 3, raw("72 00 0000000100000002 0000000100000050 0000000000000000 00000000000f4240 0000002a 6700"),
			pgoutput.Message{Kind: 'r', LSN: lsn1, EndLSN: lsn2, Time: epoch, RollbackTime: epoch.Add(time.Second), XID: 42, GID: "g"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := pgoutput.Decoder{Protocol: tt.protocol}
			got, err := d.Decode(tt.in)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&tt.want, got); diff != "" {
				t.Error(diff)
			}
			// Strict: neither less nor more.
			if _, err := (&pgoutput.Decoder{Protocol: tt.protocol}).Decode(append(tt.in[:len(tt.in):len(tt.in)], 0)); err == nil {
				t.Error("a byte left over is accepted")
			}
			for n := range len(tt.in) {
				if tt.in[0] == 'A' && n == 9 {
					continue // a complete abort without position
				}
				if _, err := (&pgoutput.Decoder{Protocol: tt.protocol}).Decode(tt.in[:n]); err == nil {
					t.Errorf("accepted when cut to %d of %d bytes", n, len(tt.in))
				}
			}
		})
	}
}

func TestDecode_StreamBlockPrefixesTheTransaction(t *testing.T) {
	d := pgoutput.Decoder{Protocol: 2}
	decode := func(in []byte) *pgoutput.Message {
		t.Helper()
		m, err := d.Decode(in)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	decode(b.StreamStart(9, true))
	for _, plain := range [][]byte{
		b.Insert(7, b.Row{"1"}), b.Update(7, 0, nil, b.Row{"1"}), b.Delete(7, 'K', b.Row{"1"}), b.Truncate(false, false, 7),
		b.Relation(orders), b.Type(5, "a", "b"), b.Logical(true, 1, "p", []byte("x")),
	} {
		streamed := b.InStream(11, plain)
		m := decode(streamed)
		if !m.Streamed || m.XID != 11 {
			t.Errorf("%s: streamed %v, xid %d", m.Kind, m.Streamed, m.XID)
		}
		xid, stripped := pgoutput.StripXID(streamed)
		if xid != 11 {
			t.Errorf("StripXID of %s: xid %d", m.Kind, xid)
		}
		if diff := cmp.Diff(plain, stripped); diff != "" {
			t.Errorf("StripXID of %s:\n%s", m.Kind, diff)
		}
	}
	if m := decode(b.Origin(5, "o")); m.Streamed {
		t.Error("an Origin carries no transaction")
	}
	if _, err := d.Decode(b.StreamStart(9, false)); err == nil {
		t.Error("stream block in a stream block accepted")
	}
	decode(b.StreamStop())
	if _, err := d.Decode(b.StreamStop()); err == nil {
		t.Error("end of a stream block that is not open accepted")
	}
	if m := decode(b.Insert(7, b.Row{"1"})); m.Streamed {
		t.Error("message after the block is taken as streamed")
	}
}

func TestCB018_StreamAbortWithoutStreamingIsCountedAndDecoded(t *testing.T) {
	d := pgoutput.Decoder{Protocol: 1}
	m, err := d.Decode(b.StreamAbort(1, 2))
	if err != nil {
		t.Fatal(err)
	}
	if m.Kind != pgoutput.StreamAbort || d.StrayAborts != 1 {
		t.Errorf("kind %s, stray aborts %d", m.Kind, d.StrayAborts)
	}
}

func TestCB018_UnknownBytesStopWithHex(t *testing.T) {
	for _, in := range [][]byte{{'Z', 1, 2, 0xab}, {0, 1}, b.StreamStart(1, true)} {
		_, err := (&pgoutput.Decoder{}).Decode(in)
		var de *pgoutput.DecodeError
		if !errors.As(err, &de) {
			t.Fatalf("Decode(% x) = %v", in, err)
		}
		if !strings.Contains(err.Error(), strings.TrimSpace(hex.EncodeToString(in[1:2]))) {
			t.Errorf("no hex in %q", err)
		}
	}
	if _, err := (&pgoutput.Decoder{}).Decode(nil); err == nil {
		t.Error("empty message accepted")
	}
}

func TestCB049_MalformedTupleIsAnErrorNeverAValue(t *testing.T) {
	for name, in := range map[string][]byte{
		"unknown kind of column":  {'I', 0, 0, 0, 1, 'N', 0, 1, 'x'},
		"length past the end":     {'I', 0, 0, 0, 1, 'N', 0, 1, 't', 0, 0, 0, 9, 'a'},
		"length of 4 GiB":         {'I', 0, 0, 0, 1, 'N', 0, 1, 't', 0xff, 0xff, 0xff, 0xff, 'a'},
		"fewer columns than said": {'I', 0, 0, 0, 1, 'N', 0, 2, 'n'},
		"more columns than said":  {'I', 0, 0, 0, 1, 'N', 0, 1, 'n', 'n'},
		"65535 columns":           {'I', 0, 0, 0, 1, 'N', 0xff, 0xff, 'n', 'n'},
		"old row in an insert":    {'I', 0, 0, 0, 1, 'O', 0, 1, 'n'},
		"new row in a delete":     {'D', 0, 0, 0, 1, 'N', 0, 1, 'n'},
		"truncate of 2^32 tables": {'T', 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 1},
		"relation of 2^16 columns": append(b.Relation(&change.Relation{Identity: 'd'})[:9],
			0xff, 0xff),
	} {
		if m, err := (&pgoutput.Decoder{}).Decode(in); err == nil {
			t.Errorf("%s: decoded to %+v", name, m)
		}
	}
}

func TestRelationOID(t *testing.T) {
	for _, in := range [][]byte{b.Insert(16385, b.Row{"1"}), b.Relation(orders), b.Delete(16385, 'K', b.Row{"1"}), b.Update(16385, 0, nil, b.Row{"1"})} {
		if oid, ok := pgoutput.RelationOID(in); !ok || oid != 16385 {
			t.Errorf("RelationOID(%c) = %d, %v", in[0], oid, ok)
		}
	}
	for _, in := range [][]byte{nil, {'I', 0}, b.Begin(1, at, 1)} {
		if _, ok := pgoutput.RelationOID(in); ok {
			t.Errorf("RelationOID(% x) found one", in)
		}
	}
}

// rows is a mix of what a stream is made of.
var rows = [][]byte{
	b.Begin(1, at, 1), b.Insert(7, b.Row{"1", "some text of usual length", nil, "2026-01-01 00:00:00"}),
	b.Update(7, 'O', b.Row{"1", "a", nil, "x"}, b.Row{"1", "b", b.Unchanged, "y"}), b.Delete(7, 'K', b.Row{"1", nil, nil, nil}), b.Commit(1, 2, at),
}

func TestDecode_RowsAllocateNothing(t *testing.T) {
	var d pgoutput.Decoder
	n := testing.AllocsPerRun(100, func() {
		for _, r := range rows {
			if _, err := d.Decode(r); err != nil {
				t.Fatal(err)
			}
		}
	})
	if n != 0 {
		t.Errorf("%v allocations for %d messages", n, len(rows))
	}
}

func BenchmarkDecode(bm *testing.B) {
	for _, r := range rows {
		bm.Run(pgoutput.Kind(r[0]).String(), func(bm *testing.B) {
			var d pgoutput.Decoder
			bm.ReportAllocs()
			bm.SetBytes(int64(len(r)))
			for bm.Loop() {
				if _, err := d.Decode(r); err != nil {
					bm.Fatal(err)
				}
			}
		})
	}
}
