package source

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/internal/pgtest"
)

// A server that has read a transaction from disk does not say of a large
// subtransaction of it that it was rolled back after it was streamed.
func TestStreamed_RolledBackSubtransactionWithoutAnAbortIsLeftOut(t *testing.T) {
	for _, version := range []int{15, 17, 18} {
		t.Run(fmt.Sprint(version), func(t *testing.T) {
			db := pgtest.Shared(t, pgtest.WithVersion(version)).DB(t)
			q := newMemQueue()
			o := streaming(t, db, q)
			r := run(t, o)
			awaitStreaming(t, r)
			c := connect(t, db)
			c.exec(t, `BEGIN; INSERT INTO t VALUES (1); SAVEPOINT outside; SAVEPOINT gone`)
			c.exec(t, `INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(10, 10000) g`)
			c.exec(t, `RELEASE gone; SAVEPOINT gone_too; INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(10001, 20000) g`)
			pgtest.Exec(t, db, `INSERT INTO t VALUES (2)`)
			awaitRows(t, q, 1)
			end := q.end()
			pgtest.Eventually(t, 20*time.Second, func() error {
				if at := confirmed(t, db, o.Slot); at < end {
					return fmt.Errorf("confirmed %v, want %v", at, end)
				}
				return nil
			})
			r.stop(t)
			// The server begins in front of the transaction that is open, and must not stream
			// before it comes to what it has not sent yet.
			r = run(t, o)
			awaitStreaming(t, r)
			c.exec(t, `INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(20001, 21000) g`)
			c.exec(t, `ROLLBACK TO outside; SAVEPOINT kept; INSERT INTO t VALUES (3); RELEASE kept; COMMIT`)
			awaitRows(t, q, 3)
			pgtest.Exec(t, db, `INSERT INTO t VALUES (4)`)
			pgtest.Eventually(t, 20*time.Second, func() error {
				if rows := inserted(t, q); len(rows) < 3 {
					return errors.New("the last transaction has not come")
				}
				return nil
			})
			rows := awaitRows(t, q, 4)
			r.stop(t)
			var got []string
			for _, row := range rows[:min(len(rows), 8)] {
				got = append(got, strings.TrimSpace(row))
			}
			if want := "I 2, I 1, I 3, I 4"; strings.Join(got, ", ") != want {
				t.Errorf("%d rows, the first: %s; want %s", len(rows), strings.Join(got, ", "), want)
			}
		})
	}
}

func TestXIDSet_WithoutGivesTheDifferenceInPieces(t *testing.T) {
	s, other := xidSet{}, xidSet{}
	var want []change.XID
	for x := change.XID(1); x < 2000; x += 1 + x%7 {
		s.add(x)
		if x%3 == 0 {
			other.add(x)
		} else {
			want = append(want, x)
		}
	}
	last := change.XID(1<<32 - 1)
	s.add(last)
	want = append(want, last)
	var got []change.XID
	pieces := 0
	if err := s.without(other, 100, func(x []change.XID) error {
		pieces++
		got = append(got, x...)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) || pieces < 2 {
		t.Errorf("%d pieces: %v, want %v", pieces, got, want)
	}
	if s.has(last-1) || !s.has(last) || other.has(1) {
		t.Error("has is wrong")
	}
}
