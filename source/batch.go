package source

import (
	"context"
	"fmt"
	"time"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/source/pgoutput"
)

// batcher packs messages into batches and cuts transactions that do not fit.
// It does no I/O but through sink and shows, keeps no clock, and is used by one
// goroutine.
//
// A batch under construction is: complete transactions in body[:txStart], then
// the transaction that is being received. Its Begin is written with its first
// change, so that a transaction without changes leaves nothing. A message is
// described for the reader of the queue by Relation and Type messages from the
// cache, written before their first use in each batch: a cache entry knows the
// generation of the last batch that has it.
type batcher struct {
	sink  func(ctx context.Context, h *change.BatchHeader, body []byte) error
	shows func(h *change.BatchHeader, body []byte)
	limit int // bytes of a body

	system   uint64
	timeline uint32
	prev     change.LSN // End of the batch before

	body    []byte
	spare   []byte // for repack
	cache   catalog
	txStart int

	// The complete transactions in body.
	txns, rows  int
	first, last change.LSN
	end         change.LSN
	commitTime  time.Time
	xid         change.XID
	shown       int // of them

	tx     transaction
	inTx   bool
	resume *resumePoint // the open chunk that the queue ends with
	seam   *seam        // what the server has to send first; nil: verified, or there is nothing

	duplicates int64 // transactions that were in the queue already
	stray      int64 // changes left out
}

// transaction is the one that is being received.
type transaction struct {
	begin   []byte // Begin, and Origin if there is one
	origin  int    // length of Begin in begin
	commit  change.LSN
	time    time.Time
	xid     change.XID
	skip    bool // a duplicate
	strange bool // one that the queue does not have
	written bool // Begin is in the queue or in body
	rows    int  // in body
	chunked bool
	chunk   int // number of the chunk under construction
	msgs    uint64
	crc     uint32
	resume  *resumePoint // not nil: changes are compared instead of written
}

// resumePoint says how much of an unfinished transaction is stored.
type resumePoint struct {
	commit   change.LSN
	xid      change.XID
	timeline uint32
	chunk    int
	msgs     uint64 // 0: unknown, it must be begun anew
	crc      uint32
}

// resumeAfter gives the resume point of a queue's last batch. exact is false
// if the transaction must be begun anew: the chunk completes no row, so it may
// end inside of a message.
func resumeAfter(h *change.BatchHeader) (p *resumePoint, exact bool) {
	if !h.Chunked || !h.Open {
		return nil, true
	}
	return &resumePoint{commit: h.First, xid: h.XID, chunk: h.Chunk, msgs: h.TxMsgs, crc: h.TxCRC}, h.Rows > 0
}

func (b *batcher) begin(m *pgoutput.Message, raw []byte) error {
	if b.inTx {
		return protocolError("transaction %v begins inside of %v", m.LSN, b.tx.commit)
	}
	t := &b.tx
	*t = transaction{begin: append(t.begin[:0], raw...), origin: len(raw), commit: m.LSN, time: m.Time, xid: m.XID}
	b.inTx, b.txStart = true, len(b.body)
	last := b.prev
	if b.txns > 0 {
		last = b.end
	}
	if m.LSN < last {
		if b.txns > 0 {
			return protocolError("transaction %v comes after one that ends at %v", m.LSN, last)
		}
		t.skip = true
		b.duplicates++
		var err error
		t.strange, err = b.seam.duplicate(m.LSN, m.XID, m.Time)
		return err
	}
	if err := b.seam.closed(m.LSN); err != nil {
		return err
	}
	b.seam = nil
	if r := b.resume; r != nil && r.commit == m.LSN && r.xid == m.XID && r.msgs > 0 {
		t.resume = r
	}
	return nil
}

// setOrigin keeps an Origin message of the transaction.
func (b *batcher) setOrigin(raw []byte) {
	t := &b.tx
	if b.inTx && !t.written {
		t.begin = append(t.begin[:t.origin], raw...)
	}
}

// relation takes a Relation message.
func (b *batcher) relation(ctx context.Context, m *pgoutput.Message, raw []byte) error {
	if b.cache.changes(m.RelationOID, raw) {
		if err := b.separate(ctx); err != nil {
			return err
		}
		b.cache.setRelation(m, raw)
	}
	return nil
}

// typ takes a Type message.
func (b *batcher) typ(ctx context.Context, m *pgoutput.Message, raw []byte) error {
	if b.cache.changesType(m.TypeOID, raw) {
		if err := b.separate(ctx); err != nil {
			return err
		}
		b.cache.setType(m, raw)
	}
	return nil
}

// separate sends the complete transactions in front of the current one, before
// a relation is described anew: what the current one has written so far is
// described by the old cache, and repacking it later would use the new one.
func (b *batcher) separate(ctx context.Context) error {
	if b.inTx && b.tx.written && b.txStart > 0 {
		return b.cut(ctx)
	}
	return nil
}

// change takes an Insert, Update or Delete of protocol version 1.
func (b *batcher) change(ctx context.Context, raw []byte, oid change.OID) error {
	if !b.inTx {
		return protocolError("change outside of a transaction")
	}
	if b.tx.skip && !b.tx.strange {
		return nil
	}
	rel := b.cache.find(oid)
	if rel == nil {
		return protocolError("change of relation %d, which was not described", oid)
	}
	if rel.ignored {
		b.stray++
		return nil
	}
	if b.tx.strange {
		return b.seam.foreign(b.tx.commit, b.tx.xid)
	}
	if b.tx.resume != nil {
		return b.compare(raw)
	}
	// The usual case: described in this batch, and there is room.
	if rel.gen == b.cache.gen && b.tx.written && len(b.body)+change.RecordOverhead+len(raw) <= b.limit {
		b.body = change.AppendRecord(b.body, raw)
	} else if err := b.write(ctx, raw, rel); err != nil {
		return err
	}
	b.count(raw)
	b.tx.rows++
	return nil
}

// truncate takes a Truncate message.
func (b *batcher) truncate(ctx context.Context, m *pgoutput.Message, raw []byte) error {
	if !b.inTx {
		return protocolError("truncate outside of a transaction")
	}
	if b.tx.skip && !b.tx.strange {
		return nil
	}
	rels := make([]*relation, 0, len(m.Relations))
	ignored := 0
	for _, oid := range m.Relations {
		r := b.cache.find(oid)
		if r == nil {
			return protocolError("truncate of relation %d, which was not described", oid)
		}
		if r.ignored {
			ignored++
		}
		rels = append(rels, r)
	}
	if ignored == len(rels) {
		b.stray++
		return nil
	}
	if b.tx.strange {
		return b.seam.foreign(b.tx.commit, b.tx.xid)
	}
	if b.tx.resume != nil {
		return b.compare(raw)
	}
	if err := b.write(ctx, raw, rels...); err != nil {
		return err
	}
	b.count(raw)
	b.tx.rows++
	return nil
}

// logical takes a logical message.
func (b *batcher) logical(ctx context.Context, m *pgoutput.Message, raw []byte) error {
	if !m.Transactional {
		b.stray++
		return nil
	}
	if !b.inTx {
		return protocolError("transactional message outside of a transaction")
	}
	if b.tx.strange {
		return b.seam.foreign(b.tx.commit, b.tx.xid)
	}
	if b.tx.skip {
		return nil
	}
	if b.tx.resume != nil {
		return b.compare(raw)
	}
	if err := b.write(ctx, raw); err != nil {
		return err
	}
	b.count(raw)
	return nil
}

func (b *batcher) count(raw []byte) {
	b.tx.msgs++
	b.tx.crc = change.UpdateCRC(b.tx.crc, raw)
}

// compare passes over a change that is stored already.
func (b *batcher) compare(raw []byte) error {
	b.count(raw)
	t := &b.tx
	if t.msgs < t.resume.msgs {
		return nil
	}
	if t.crc != t.resume.crc {
		return errRestart
	}
	t.written, t.chunked, t.chunk = true, true, t.resume.chunk+1
	t.resume, b.resume = nil, nil
	return nil
}

// write puts a change into the batch, with what it needs before it, and cuts
// batches as necessary.
func (b *batcher) write(ctx context.Context, raw []byte, rels ...*relation) error {
	need := change.RecordOverhead + len(raw) + b.cache.missing(rels)
	if !b.tx.written {
		need += b.beginSize()
	}
	if len(b.body)+need > b.limit && len(b.body) > 0 {
		if !b.tx.written {
			if err := b.sendPacked(ctx); err != nil {
				return err
			}
		} else if err := b.cut(ctx); err != nil {
			return err
		}
		if len(b.body)+change.RecordOverhead+len(raw)+b.cache.missing(rels) > b.limit && len(b.body) > 0 && b.tx.written {
			if err := b.cut(ctx); err != nil { // the rest of the transaction, after its predecessors
				return err
			}
		}
	}
	if !b.tx.written {
		b.tx.written = true
		b.body = change.AppendRecord(b.body, b.tx.begin[:b.tx.origin])
		if len(b.tx.begin) > b.tx.origin {
			b.body = change.AppendRecord(b.body, b.tx.begin[b.tx.origin:])
		}
	}
	for _, r := range rels {
		if err := b.describe(ctx, r); err != nil {
			return err
		}
	}
	return b.put(ctx, raw)
}

func (b *batcher) beginSize() int {
	n := change.RecordOverhead + len(b.tx.begin)
	if len(b.tx.begin) > b.tx.origin {
		n += change.RecordOverhead
	}
	return n
}

// describe writes a relation and its types unless this batch has them.
func (b *batcher) describe(ctx context.Context, r *relation) error {
	if r.gen == b.cache.gen {
		return nil
	}
	for _, oid := range r.types {
		t := b.cache.types[oid]
		if t == nil || t.gen == b.cache.gen {
			continue
		}
		if err := b.put(ctx, t.raw); err != nil {
			return err
		}
		t.gen = b.cache.gen
	}
	if err := b.put(ctx, r.raw); err != nil {
		return err
	}
	r.gen = b.cache.gen
	return nil
}

// put writes one message. If it does not fit it is written in parts: a batch
// between two parts has no row of its own.
func (b *batcher) put(ctx context.Context, raw []byte) error {
	first := true
	for len(b.body)+change.RecordOverhead+len(raw) > b.limit {
		if room := b.limit - len(b.body) - change.RecordOverhead; room > 0 {
			b.body = change.AppendPart(b.body, raw[:room], first, false)
			raw, first = raw[room:], false
		}
		if err := b.cut(ctx); err != nil {
			return err
		}
	}
	if first {
		b.body = change.AppendRecord(b.body, raw)
	} else {
		b.body = change.AppendPart(b.body, raw, false, true)
	}
	return nil
}

// commit ends the transaction.
func (b *batcher) commit(ctx context.Context, m *pgoutput.Message, raw []byte) error {
	t := &b.tx
	if !b.inTx || m.LSN != t.commit || m.EndLSN <= m.LSN {
		return protocolError("commit of %v, ending at %v, in transaction %v", m.LSN, m.EndLSN, t.commit)
	}
	if t.skip {
		b.inTx = false
		return nil
	}
	if t.resume != nil {
		return errRestart // shorter than what is stored of it
	}
	if !t.written {
		if b.resume == nil || b.resume.commit != t.commit {
			b.inTx = false
			return nil
		}
		if err := b.write(ctx, raw); err != nil { // replaces a transaction that had changes
			return err
		}
	} else {
		if len(b.body)+change.RecordOverhead+len(raw) > b.limit {
			if err := b.cut(ctx); err != nil {
				return err
			}
		}
		b.body = change.AppendRecord(b.body, raw)
	}
	b.inTx, b.resume = false, nil
	if t.chunked {
		return b.sendChunk(ctx, m.EndLSN)
	}
	if b.txns == 0 {
		b.first = t.commit
	}
	b.txns++
	b.rows += t.rows
	b.last, b.end, b.commitTime, b.xid = t.commit, m.EndLSN, t.time, t.xid
	b.txStart = len(b.body)
	if len(b.body) > b.limit-b.limit/8 {
		return b.sendPacked(ctx)
	}
	return nil
}

// pending reports whether complete transactions wait in the batch.
func (b *batcher) pending() bool { return b.txns > 0 }

// flush sends the complete transactions. It must not be called inside of a
// transaction.
func (b *batcher) flush(ctx context.Context) error {
	if b.inTx || b.txns == 0 {
		return nil
	}
	return b.sendPacked(ctx)
}

// show shows the complete transactions, which stay in the batch.
func (b *batcher) show() {
	if b.txns == b.shown {
		return
	}
	h := b.packed()
	b.shows(&h, b.body[:b.txStart])
	b.shown = b.txns
}

// abandon forgets the transaction that is being received.
func (b *batcher) abandon() {
	if b.inTx {
		b.body = b.body[:b.txStart]
		b.inTx = false
	}
}

// mark sends a batch without transactions that moves End. It must only be
// called when everything before is durable and no transaction is open.
func (b *batcher) mark(ctx context.Context, end change.LSN) error {
	if err := b.seam.closed(end); err != nil {
		return err
	}
	b.seam = nil
	h := b.header()
	h.End = end
	if err := b.sink(ctx, &h, nil); err != nil {
		return err
	}
	b.prev = end
	b.resume = nil
	return nil
}

// canMark reports whether a mark may be written: not between the chunks of a
// transaction that the queue holds the beginning of, unless that transaction
// can have vanished with the timeline it was on.
func (b *batcher) canMark() bool {
	return !b.inTx && b.txns == 0 && (b.resume == nil || b.resume.timeline < b.timeline)
}

// cut makes room inside of a transaction.
func (b *batcher) cut(ctx context.Context) error {
	if b.txStart > 0 {
		return b.repack(ctx)
	}
	return b.sendChunk(ctx, 0)
}

// repack sends the complete transactions and writes the beginning of the
// current one into a new batch, described anew.
func (b *batcher) repack(ctx context.Context) error {
	rest := append(b.spare[:0], b.body[b.txStart:]...)
	b.spare = rest
	rows := b.tx.rows
	b.body = b.body[:b.txStart]
	if err := b.sendPacked(ctx); err != nil {
		return err
	}
	b.tx.rows = rows
	var msgs change.Messages
	msgs.Reset(rest)
	for {
		raw, err := msgs.Next()
		if err != nil {
			return fmt.Errorf("repack batch: %w", err)
		}
		if raw == nil {
			return nil
		}
		switch k := pgoutput.Kind(raw[0]); k {
		case pgoutput.Relation, pgoutput.Type:
			continue // written again by describe
		case pgoutput.Truncate:
			for _, oid := range truncated(raw) {
				if err := b.describe(ctx, b.cache.find(oid)); err != nil {
					return err
				}
			}
		default:
			if oid, ok := pgoutput.RelationOID(raw); ok {
				if err := b.describe(ctx, b.cache.find(oid)); err != nil {
					return err
				}
			}
		}
		b.body = change.AppendRecord(b.body, raw)
	}
}

func (b *batcher) header() change.BatchHeader {
	return change.BatchHeader{Version: change.FormatVersion, System: b.system, Timeline: b.timeline, Prev: b.prev}
}

// packed describes the complete transactions.
func (b *batcher) packed() change.BatchHeader {
	h := b.header()
	h.First, h.Last, h.End = b.first, b.last, b.end
	h.Txns, h.Rows, h.CommitTime, h.XID = b.txns, b.rows, b.commitTime, b.xid
	return h
}

// sendPacked sends the complete transactions; body must hold nothing else.
func (b *batcher) sendPacked(ctx context.Context) error {
	h := b.packed()
	if err := b.sink(ctx, &h, b.body); err != nil {
		return err
	}
	b.prev = b.end
	b.txns, b.rows, b.shown = 0, 0, 0
	b.reset()
	return nil
}

// sendChunk sends what there is of the current transaction. end is its end
// LSN, or 0 if more follows.
func (b *batcher) sendChunk(ctx context.Context, end change.LSN) error {
	t := &b.tx
	h := b.header()
	h.First, h.Last, h.CommitTime, h.XID = t.commit, t.commit, t.time, t.xid
	h.Rows, h.Chunked, h.Chunk, h.Open = t.rows, true, t.chunk, end == 0
	h.TxMsgs, h.TxCRC = t.msgs, t.crc
	h.End = b.prev
	if end != 0 {
		h.End, h.Txns = end, 1
	}
	if err := b.sink(ctx, &h, b.body); err != nil {
		return err
	}
	t.chunked = true
	t.chunk++
	b.prev = h.End
	b.reset()
	return nil
}

func (b *batcher) reset() {
	b.body = b.body[:0]
	b.txStart = 0
	b.tx.rows = 0
	b.cache.newBatch()
}

func protocolError(f string, v ...any) error {
	return &Error{
		Kind: ErrProtocol, Detail: fmt.Sprintf(f, v...),
		Hint: "this is a defect of walferry or of the server: please report it with the versions of both; nothing was stored",
	}
}
