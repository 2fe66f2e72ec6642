package source

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/internal/pgtest"
	"github.com/walferry/walferry/queue"
)

func TestDecide(t *testing.T) {
	pub := server{system: 7, timeline: 2, flushed: 1000}
	slot := slotState{exists: true, plugin: "pgoutput", confirmed: 400}
	tail := func(f func(h *change.BatchHeader)) queue.Tail {
		h := change.BatchHeader{System: 7, Timeline: 2, Prev: 400, First: 450, Last: 450, End: 500, Txns: 1, Rows: 1}
		if f != nil {
			f(&h)
		}
		return queue.Tail{Seq: 9, Header: h}
	}
	open := func(rows int) func(h *change.BatchHeader) {
		return func(h *change.BatchHeader) {
			h.End, h.Chunked, h.Open, h.Chunk, h.TxMsgs, h.Rows, h.Txns = 400, true, true, 3, 70, rows, 0
		}
	}
	for _, tt := range []struct {
		name string
		s    situation
		at   change.LSN
		ok   func(start) bool
		kind error
	}{
		{"first start", situation{server: pub, tail: queue.Tail{Empty: true}}, 0, func(s start) bool { return s.create && !s.found }, nil},
		{"queue wiped", situation{server: pub, slot: slot, tail: queue.Tail{Empty: true}}, 400, func(s start) bool { return !s.create && s.found }, nil},
		{"usual", situation{server: pub, slot: slot, tail: tail(nil)}, 500, func(s start) bool { return s.resume == nil }, nil},
		{"open chunk", situation{server: pub, slot: slot, tail: tail(open(5))}, 400, func(s start) bool { return s.resume.msgs == 70 && s.resume.chunk == 3 }, nil},
		{"open chunk that may end in a message", situation{server: pub, slot: slot, tail: tail(open(0))}, 400, func(s start) bool { return s.resume.msgs == 0 && s.restart }, nil},
		{"foreign", situation{server: pub, slot: slot, tail: tail(func(h *change.BatchHeader) { h.System = 8 })}, 0, nil, ErrForeignPublisher},
		{"restored", situation{server: pub, slot: slot, tail: tail(func(h *change.BatchHeader) { h.End = 1001 })}, 0, nil, ErrPublisherBehind},
		{"slot gone", situation{server: pub, tail: tail(nil)}, 0, nil, ErrSlotLost},
		{"slot ahead", situation{server: pub, slot: slotState{exists: true, confirmed: 501}, tail: tail(nil)}, 0, nil, ErrQueueBehind},
		{"old primary", situation{server: server{system: 7, timeline: 1, flushed: 1000}, slot: slot, tail: tail(nil)}, 0, nil, ErrTimelineFork},
		{"promotion", situation{server: server{system: 7, timeline: 3, flushed: 1000}, slot: slot, tail: tail(nil), related: true, forked: 500}, 500, func(s start) bool { return true }, nil},
		{"promotion that lost transactions", situation{server: server{system: 7, timeline: 3, flushed: 1000}, slot: slot, tail: tail(nil), related: true, forked: 499}, 0, nil, ErrTimelineFork},
		{"unrelated timeline", situation{server: server{system: 7, timeline: 3, flushed: 1000}, slot: slot, tail: tail(nil)}, 0, nil, ErrTimelineFork},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := decide("s", tt.s)
			if tt.kind != nil {
				var e *Error
				if !errors.Is(err, tt.kind) || !errors.As(err, &e) || e.Hint == "" {
					t.Fatalf("decide = %+v, %v; want %v with a hint", got, err, tt.kind)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.at != tt.at || !tt.ok(got) {
				t.Errorf("decide = %+v", got)
			}
		})
	}
}

func TestSlotCheck_ForeignSlots(t *testing.T) {
	for _, s := range []slotState{
		{exists: true, plugin: "test_decoding", database: "d"},
		{exists: true, plugin: "none, it is a physical slot"},
		{exists: true, plugin: "pgoutput", database: "other"},
	} {
		if err := s.check("s", "d", 0); !errors.Is(err, ErrSlotForeign) {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

func TestParseHistory(t *testing.T) {
	const h = "1\t0/3000000\tno recovery target specified\n\n# a comment\n2\t1/A0\tbefore 2000-01-01 00:00:00+00\n"
	for tli, want := range map[uint32]change.LSN{1: 0x3000000, 2: 0x1000000A0, 3: 0} {
		if l, ok, err := parseHistory(h, tli); err != nil || l != want || ok != (want != 0) {
			t.Errorf("timeline %d: %v, %v, %v", tli, l, ok, err)
		}
	}
}

// A server that comes back on a new timeline with all that is in the queue is
// a legal promotion; one that was restored to an earlier moment is not.
func TestRun_TimelineRisesAfterRecovery(t *testing.T) {
	c := pgtest.New(t)
	db := c.DB(t)
	q := newMemQueue()
	o := options(t, db, q)
	r := run(t, o)
	awaitStreaming(t, r)
	pgtest.Exec(t, db, `INSERT INTO t VALUES (1)`)
	awaitRows(t, q, 1)
	r.stop(t)
	if err := c.Stop("fast"); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"recovery.signal": "", "postgresql.auto.conf": "restore_command = '/bin/false'\n"} {
		f := filepath.Join(c.DataDir(), name)
		if err := os.WriteFile(f, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if st, err := os.Stat(c.DataDir()); err == nil {
			chownLike(t, f, st)
		}
	}
	c.Start(t)
	pgtest.Eventually(t, 20*time.Second, func() error {
		if pgtest.QueryString(t, db, `SELECT pg_is_in_recovery()`) != "f" {
			return errors.New("in recovery")
		}
		return nil
	})
	pgtest.Exec(t, db, `INSERT INTO t VALUES (2)`)
	r = run(t, o)
	rows := awaitRows(t, q, 2)
	r.stop(t)
	if strings.Join(rows, ",") != "I 1 ,I 2 " {
		t.Errorf("rows %q", rows)
	}
	all := q.all()
	if h := all[len(all)-1].h; h.Timeline != 2 {
		t.Errorf("timeline %d in the queue, want 2", h.Timeline)
	}
	// The queue claims more than the old timeline had at the switch.
	q.mu.Lock()
	last := &q.batches[1].h
	last.Timeline, last.End = 1, last.End+1<<20
	q.batches = q.batches[:2]
	q.mu.Unlock()
	if err := run(t, o).wait(t); !errors.Is(err, ErrTimelineFork) {
		t.Errorf("Run = %v, want ErrTimelineFork", err)
	}
}

func TestEnsureSlot_EveryVersion(t *testing.T) {
	for _, v := range pgtest.Versions() {
		c := pgtest.Shared(t, pgtest.WithVersion(v))
		db := c.DB(t)
		conn := raw(t, db, "replication")
		name := SlotName(dbName(db))
		ctx := context.Background()
		at, created, err := EnsureSlot(ctx, conn, name, true)
		if err != nil || !created || at == 0 {
			t.Fatalf("PostgreSQL %d: EnsureSlot = %v, %v, %v", v, at, created, err)
		}
		if again, created, err := EnsureSlot(ctx, conn, name, true); err != nil || created || again != at {
			t.Errorf("PostgreSQL %d: second EnsureSlot = %v, %v, %v", v, again, created, err)
		}
		if v >= 17 {
			if f := pgtest.QueryString(t, db, `SELECT failover FROM pg_replication_slots WHERE slot_name = '`+name+`'`); f != "t" {
				t.Errorf("PostgreSQL %d: failover is %s", v, f)
			}
		}
		for _, want := range []bool{true, false} {
			if ok, err := DropSlot(ctx, conn, name); ok != want || err != nil {
				t.Errorf("PostgreSQL %d: DropSlot = %v, %v", v, ok, err)
			}
		}
	}
}

func TestRun_EveryVersion(t *testing.T) {
	for _, v := range pgtest.Versions() {
		for _, stream := range []bool{false, true} {
			db := pgtest.Shared(t, pgtest.WithVersion(v)).DB(t)
			q := newMemQueue()
			o := options(t, db, q)
			if stream {
				o = streaming(t, db, q)
			}
			o.Failover, o.Origin = true, "none"
			r := run(t, o)
			awaitStreaming(t, r)
			// CB-018: PostgreSQL 18 sends an abort for the savepoint in any mode.
			pgtest.Exec(t, db, `BEGIN; SAVEPOINT a; INSERT INTO t SELECT generate_series(1, 5000); ROLLBACK TO a; INSERT INTO t VALUES (99999); COMMIT`,
				`UPDATE t SET v = 'x'`)
			rows := awaitRows(t, q, 2)
			r.stop(t)
			if got := strings.Join(rows, ","); got != "I 99999 ,U 99999 x" {
				t.Errorf("PostgreSQL %d, streaming %v: %s", v, stream, got)
			}
		}
	}
}
