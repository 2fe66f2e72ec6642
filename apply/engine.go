package apply

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/queue"
	"github.com/walferry/walferry/source/pgoutput"
)

const (
	// idleWait is how often an idle applier looks at what is left to do:
	// positions that moved without rows, commits that are not flushed.
	idleWait = 100 * time.Millisecond
	// lazyPosition is how long a position that moved without rows may stay
	// unsaved while batches keep coming.
	lazyPosition = time.Second
	// carefulRows and carefulBytes bound what is sent without a look at the
	// answers when the row that fails must be known.
	carefulRows  = 64
	carefulBytes = 1 << 20
	// hugeMessage in bytes is one that must not stay in memory while the next
	// one arrives.
	hugeMessage = 1 << 20
)

// engine applies batches over one session. It is made anew for each
// connection.
type engine struct {
	ctx  context.Context
	o    *Options
	plan *plan
	sess *sqlw.Session
	note *notes

	reader Reader
	seq    uint64 // of the batch that is being applied

	dec    pgoutput.Decoder
	msgs   change.Messages
	body   []byte
	off    int // end of the current message's records in body
	noCopy int // inserts that are known not to be worth a COPY
	copyTo *sqlw.Target

	rels    map[change.OID]*relation
	tables  map[tableName]*tableRow
	targets int

	replica bool
	marks   bool // commits are marked with a replication origin

	pos   change.LSN // in walferry.subscription
	foot  footing    // what it stands on
	began change.LSN // pos when the reader was opened
	back  bool       // the reader was opened before pos and has not passed it
	seen  bool       // the last transaction before it has come
	saved time.Time  // when pos was written
	skip  change.LSN // commit LSN of the transaction to skip

	tx    transaction
	grp   group
	flush flushes
	ctl   controls
	idle  bool
	moved bool // something was committed in this attempt

	journal journal
	late    lateChecks
	swaps   map[*sqlw.Target]*sqlw.Swap
}

// transaction is the publisher's transaction that is being read.
type transaction struct {
	open    bool
	old     bool // applied already
	skipped bool // left out by order of the operator
	commit  change.LSN
	end     change.LSN
	xid     change.XID
	time    time.Time
	ordinal uint64
}

// group is the subscriber's transaction.
type group struct {
	began   bool
	end     change.LSN // position after it
	foot    footing    // what that stands on
	counted bool       // row counts must be known before the commit
	txns    int
	rows    int
	bytes   int
	start   time.Time
	time    time.Time // commit time of the last transaction
	ops     [4]int64  // inserts, updates, deletes, truncates
	seq     uint64
	number  uint64
}

// loop applies batches until an error.
func (e *engine) loop() error {
	for {
		d, err := e.next()
		if err != nil {
			if again, err := e.ahead(err); !again {
				return err
			}
			continue
		}
		if d == nil {
			if err := e.rest(); err != nil {
				return err
			}
			continue
		}
		if err := e.deliver(d); err != nil {
			return err
		}
	}
}

// next returns the next batch, or nil when there is other work and none came.
func (e *engine) next() (*queue.Delivery, error) {
	if e.reader.Ready() {
		return e.reader.Next(e.ctx)
	}
	e.idle = true
	if !e.tx.open {
		if err := e.commitGroup(); err != nil {
			return nil, err
		}
	}
	if e.flush.empty() && (e.tx.open || e.grp.end <= e.pos) {
		return e.reader.Next(e.ctx)
	}
	ctx, cancel := context.WithTimeout(e.ctx, idleWait)
	defer cancel()
	d, err := e.reader.Next(ctx)
	if err != nil && e.ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return nil, nil
	}
	return d, err
}

// rest does what an idle applier has to do.
func (e *engine) rest() error {
	if e.tx.open {
		return nil
	}
	if e.grp.end > e.pos {
		if err := e.savePosition(); err != nil {
			return err
		}
	}
	return e.lookFlushed()
}

// deliver applies one batch.
func (e *engine) deliver(d *queue.Delivery) error {
	h := &d.Header
	e.seq = d.Seq
	if err := e.recognize(h); err != nil {
		return err
	}
	if d.Restart && e.tx.open {
		if err := e.discard(); err != nil {
			return err
		}
	}
	if h.Chunked && h.Chunk > 0 && !e.tx.open && h.First < e.grp.end {
		return nil // the rest of a transaction that is applied; its beginning is gone from the queue
	}
	if h.Chunked && h.Chunk == 0 && !e.tx.open {
		if err := e.commitGroup(); err != nil {
			return err
		}
	}
	e.body, e.off, e.noCopy = d.Body, 0, 0
	e.msgs.Reset(d.Body)
	for {
		e.off = recordsEnd(e.body, e.off)
		msg, err := e.msgs.Next()
		if err != nil {
			return fmt.Errorf("batch %d: %w", d.Seq, err)
		}
		if msg == nil {
			break
		}
		if err := e.message(msg); err != nil {
			return err
		}
		if len(msg) > hugeMessage {
			e.dec = pgoutput.Decoder{} // it keeps the values of the last message alive
		}
	}
	if e.tx.open || h.Open {
		return nil
	}
	if h.End > e.grp.end {
		e.grp.end = h.End
	}
	if e.grp.seq = d.Seq; d.Part {
		e.grp.seq--
	}
	if e.grp.began {
		return e.maybeCommit()
	}
	if e.grp.end > e.pos && time.Since(e.saved) > lazyPosition {
		return e.savePosition()
	}
	return nil
}

// discard gives up the transaction that the reader has begun anew.
func (e *engine) discard() error {
	e.o.Logger.Info("transaction is begun again by the log reader", "commit_lsn", e.tx.commit)
	e.msgs.Discard()
	if err := e.rollback(); err != nil {
		return err
	}
	e.tx = transaction{}
	return nil
}

// rollback gives up what is not committed; the session stays usable.
func (e *engine) rollback() error {
	began := e.grp.began
	e.grp = group{end: e.pos, foot: e.foot, number: e.grp.number + 1}
	e.journal.reset()
	e.late.reset()
	e.swaps = nil
	if began {
		return e.sess.Rollback()
	}
	return nil
}

// message applies one message of the log.
func (e *engine) message(msg []byte) error {
	switch k := pgoutput.Kind(msg[0]); k {
	case pgoutput.Relation:
		return e.relation(msg)
	case pgoutput.Type, pgoutput.Origin, pgoutput.Logical:
		return nil
	default:
		if k.IsChange() && e.tx.old {
			return nil
		}
	}
	m, err := e.dec.Decode(msg)
	if err != nil {
		return fmt.Errorf("decode change of the log: %w", err)
	}
	switch m.Kind {
	case pgoutput.Begin:
		return e.begin(m)
	case pgoutput.Commit:
		return e.commit(m)
	case pgoutput.Insert, pgoutput.Update, pgoutput.Delete, pgoutput.Truncate:
		e.tx.ordinal++
		if e.grp.bytes += len(msg); m.Kind == pgoutput.Truncate {
			return e.truncate(m)
		}
		return e.row(m, msg)
	}
	return fmt.Errorf("unexpected %v in a batch", m.Kind)
}

// begin starts a transaction of the publisher.
func (e *engine) begin(m *pgoutput.Message) error {
	if err := e.prove(m); err != nil {
		return err
	}
	tx := transaction{open: true, commit: m.LSN, xid: m.XID, time: m.Time, old: m.LSN < e.grp.end}
	tx.skipped = !tx.old && e.skip != 0 && m.LSN == e.skip
	if !tx.old && (e.plan.alone(m.LSN) || tx.skipped) {
		if err := e.commitGroup(); err != nil { // what came before
			return err
		}
	}
	e.tx = tx
	return nil
}

// commit ends a transaction of the publisher.
func (e *engine) commit(m *pgoutput.Message) error {
	tx := &e.tx
	tx.open, tx.end = false, m.EndLSN
	if tx.old {
		return nil
	}
	if err := e.finishSwaps(); err != nil {
		return err
	}
	e.grp.end, e.grp.time = m.EndLSN, tx.time
	e.grp.foot.commit, e.grp.foot.xid, e.grp.foot.time = tx.commit, tx.xid, tx.time
	e.grp.txns++
	if tx.skipped || e.plan.alone(tx.commit) {
		return e.commitGroup()
	}
	if e.grp.began {
		return e.maybeCommit()
	}
	return nil
}

// maybeCommit commits the group when a bound is reached.
func (e *engine) maybeCommit() error {
	g := &e.o.Group
	if e.grp.rows < g.Rows && e.grp.bytes < g.Bytes && time.Since(e.grp.start) < g.Time {
		return nil
	}
	return e.commitGroup()
}

// open begins the subscriber's transaction.
func (e *engine) open() error {
	if e.grp.began {
		return nil
	}
	e.grp.began, e.grp.start = true, time.Now()
	return e.sess.Control(e.ctl.begin, sqlw.Step{Kind: sqlw.KindControl})
}
