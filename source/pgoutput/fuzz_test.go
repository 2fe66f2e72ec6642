package pgoutput_test

import (
	"errors"
	"testing"

	"github.com/walferry/walferry/source/pgoutput"
	b "github.com/walferry/walferry/source/pgoutput/pgoutputtest"
)

// FuzzDecode feeds arbitrary bytes to decoders of every version, inside and
// outside a stream block. Whatever comes, the answer is a message or a
// DecodeError; values never reach outside the input.
func FuzzDecode(f *testing.F) {
	for _, r := range rows {
		f.Add(r)
		f.Add(b.InStream(3, r))
	}
	f.Add(b.Relation(orders))
	f.Add(b.Truncate(true, false, 1, 2))
	f.Add(b.Logical(true, 9, "prefix", []byte("content")))
	f.Add(b.StreamAbort(1, 2))
	f.Add(b.Type(1, "", "t"))
	for _, g := range goldenMessages(f) {
		f.Add(g)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		for v := 0; v <= 4; v++ {
			for _, stream := range []bool{false, v >= 2} {
				d := pgoutput.Decoder{Protocol: v}
				if stream {
					if _, err := d.Decode(b.StreamStart(1, true)); err != nil {
						t.Fatal(err)
					}
				}
				m, err := d.Decode(in)
				if err != nil {
					var de *pgoutput.DecodeError
					if !errors.As(err, &de) {
						t.Fatalf("error of type %T", err)
					}
					continue
				}
				total := 0
				for _, v := range m.New {
					total += len(v.Data)
				}
				for _, v := range m.Old {
					total += len(v.Data)
				}
				if total > len(in) {
					t.Fatalf("%d bytes of values from %d bytes", total, len(in))
				}
			}
		}
	})
}
