package apply

import (
	"fmt"
	"strconv"
	"time"

	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/change"
)

// controls are the statements around the rows.
type controls struct {
	begin, commit, place, mark, lsn, clearSkip *sqlw.Stmt
	savepoint, release, record                 *sqlw.Stmt

	name []byte
	a, b []byte // scratch for parameters
	c    []byte
	foot [4][]byte
}

const (
	typeInt8 = 20
	typeText = 25
	typeLSN  = 3220
	typeTime = 1184
)

// Step.Op of control steps.
const opPlace = 'P'

func newControls(subscription string) controls {
	return controls{
		name:   []byte(subscription),
		begin:  &sqlw.Stmt{SQL: "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE", Want: -1},
		commit: &sqlw.Stmt{SQL: "COMMIT", Want: -1},
		// A position that is not the expected one divides by zero, so that the
		// commit can be sent without waiting for the answer.
		place: &sqlw.Stmt{
			SQL: "WITH u AS (UPDATE walferry.subscription SET position = $2, system_id = $4, last_commit = $5, last_xid = $6, last_time = $7, updated_at = now() " +
				"WHERE name = $1 AND position = $3 RETURNING 1) SELECT 1 / count(*) FROM u",
			Types: []change.OID{typeText, typeLSN, typeLSN, typeText, typeLSN, typeInt8, typeTime}, Want: 1,
		},
		mark: &sqlw.Stmt{SQL: "SELECT pg_replication_origin_xact_setup($1, $2)", Types: []change.OID{typeLSN, typeTime}, Want: 1},
		lsn:  &sqlw.Stmt{SQL: "SELECT pg_current_wal_insert_lsn(), pg_current_wal_flush_lsn()", Want: 1},
		clearSkip: &sqlw.Stmt{
			SQL:   "UPDATE walferry.subscription_state SET skip_lsn = NULL WHERE name = $1 AND skip_lsn = $2",
			Types: []change.OID{typeText, typeLSN}, Want: -1,
		},
		savepoint: &sqlw.Stmt{SQL: "SAVEPOINT walferry", Want: -1},
		release:   &sqlw.Stmt{SQL: "RELEASE SAVEPOINT walferry", Want: -1},
		record:    recordStmt(),
	}
}

func appendLSN(dst []byte, l change.LSN) []byte {
	dst = strconv.AppendUint(dst, uint64(l>>32), 16)
	dst = append(dst, '/')
	return strconv.AppendUint(dst, uint64(l&0xFFFFFFFF), 16)
}

func appendTime(dst []byte, t time.Time) []byte {
	return t.UTC().AppendFormat(dst, "2006-01-02 15:04:05.000000+00")
}

// footing gives the parameters of a footing; nil is NULL.
func (c *controls) footing(f *footing) (v [4][]byte) {
	if f.system != 0 {
		c.foot[0] = strconv.AppendUint(c.foot[0][:0], f.system, 10)
		v[0] = c.foot[0]
	}
	if f.commit == 0 {
		return v
	}
	c.foot[1] = appendLSN(c.foot[1][:0], f.commit)
	c.foot[2] = strconv.AppendUint(c.foot[2][:0], uint64(f.xid), 10)
	c.foot[3] = appendTime(c.foot[3][:0], f.time)
	copy(v[1:], c.foot[1:])
	return v
}

// savePosition commits a position that moved without rows.
func (e *engine) savePosition() error {
	if err := e.open(); err != nil {
		return err
	}
	return e.commitGroup()
}

// commitGroup ends the subscriber's transaction. Without one it does nothing.
func (e *engine) commitGroup() error {
	if !e.grp.began {
		return nil
	}
	if err := e.checkDeferred(); err != nil {
		return err
	}
	s, c := e.sess, &e.ctl
	control := sqlw.Step{Kind: sqlw.KindControl}
	if e.tx.skipped && e.skip != 0 {
		c.a = appendLSN(c.a[:0], e.skip)
		if err := s.Control(c.clearSkip, control, c.name, c.a); err != nil {
			return err
		}
	}
	c.a, c.b = appendLSN(c.a[:0], e.grp.end), appendLSN(c.b[:0], e.pos)
	f := c.footing(&e.grp.foot)
	if err := s.Control(c.place, sqlw.Step{Kind: sqlw.KindControl, Op: opPlace}, c.name, c.a, c.b, f[0], f[1], f[2], f[3]); err != nil {
		return err
	}
	if e.marks {
		c.c = c.c[:0]
		t := e.grp.time
		if t.IsZero() {
			t = time.Now()
		}
		c.c = appendTime(c.c, t)
		if err := s.Control(c.mark, control, c.a, c.c); err != nil {
			return err
		}
	}
	if e.grp.counted {
		if err := s.Drain(); err != nil {
			return err
		}
	}
	if err := s.Control(c.commit, sqlw.Step{Kind: sqlw.KindCommit}); err != nil {
		return err
	}
	if err := s.Control(c.lsn, control); err != nil {
		return err
	}
	if err := s.Sync(); err != nil {
		return err
	}
	e.committed()
	return nil
}

// committed takes note of a commit.
func (e *engine) committed() {
	g := &e.grp
	e.pos, e.foot, e.saved, e.moved = g.end, g.foot, time.Now(), true
	if e.tx.skipped {
		e.skip = 0
	}
	e.flush.add(g.end, g.seq)
	e.reportFlushed()
	if f := e.o.Events.OnCommit; f != nil {
		f(Commit{
			Position: g.end, Sequence: g.seq, Txns: g.txns, Inserts: g.ops[0], Updates: g.ops[1], Deletes: g.ops[2], Truncates: g.ops[3],
			Bytes: int64(g.bytes), CommitTime: g.time, Took: time.Since(g.start),
		})
	}
	e.journal.reset()
	e.swaps, e.idle = nil, false
	e.plan.passed(e.pos)
	*g = group{end: e.pos, foot: e.foot, number: g.number + 1, seq: g.seq}
	e.note.progress(e.pos)
}

// flushes are commits that may not be on the subscriber's disk yet: the session
// commits with synchronous_commit off.
type flushes struct {
	pending         []flushPoint
	insert, flushed change.LSN // the subscriber's WAL, as of the last look
	done            flushPoint
}

type flushPoint struct {
	end change.LSN // position
	seq uint64
	wal change.LSN // of the subscriber, behind the commit
}

// maxFlushPoints bounds the list; older points are merged into younger ones.
const maxFlushPoints = 256

func (f *flushes) add(end change.LSN, seq uint64) {
	p := flushPoint{end: end, seq: seq, wal: f.insert}
	if n := len(f.pending); n >= maxFlushPoints {
		f.pending[n-1] = p
		return
	}
	f.pending = append(f.pending, p)
}

func (f *flushes) empty() bool { return len(f.pending) == 0 }

// take removes what is flushed and returns whether that is news.
func (f *flushes) take() bool {
	n := 0
	for n < len(f.pending) && f.pending[n].wal <= f.flushed {
		f.done = f.pending[n]
		n++
	}
	f.pending = append(f.pending[:0], f.pending[n:]...)
	return n > 0
}

// rows receives what the statement lsn returns.
func (f *flushes) rows(v [][]byte) {
	if len(v) != 2 {
		return
	}
	insert, err1 := change.ParseLSN(string(v[0]))
	flushed, err2 := change.ParseLSN(string(v[1]))
	if err1 == nil && err2 == nil {
		f.insert, f.flushed = insert, flushed
	}
}

// lookFlushed asks the subscriber how far it has flushed.
func (e *engine) lookFlushed() error {
	if e.flush.empty() {
		return nil
	}
	if err := e.sess.Control(e.ctl.lsn, sqlw.Step{Kind: sqlw.KindControl}); err != nil {
		return err
	}
	if err := e.sess.Sync(); err != nil {
		return fmt.Errorf("read flush position of the subscriber: %w", err)
	}
	e.reportFlushed()
	return nil
}

func (e *engine) reportFlushed() {
	if !e.flush.take() {
		return
	}
	p := e.flush.done
	if f := e.o.Events.OnFlushed; f != nil {
		f(p.end)
	}
	e.note.flushed(p.end, p.seq)
}
