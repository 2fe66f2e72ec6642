package sqlw

import (
	"encoding/binary"
	"hash/maphash"

	"github.com/walferry/walferry/change"
)

// Bounds of a batch: rows of one statement that are sent as one command.
const (
	batchShift = 6 // at most 1<<batchShift rows
	batchRows  = 1 << batchShift
	batchLeast = 2 // shift of the smallest command of several rows
	batchBytes = 32 << 10
	batchRow   = 4 << 10 // a longer row is sent by itself
	// openBatches is how many targets may have one.
	openBatches = 16
)

// batch holds rows of one statement that wait to be sent as few commands. Each
// row finds another row of the table (see Target.batches), so that the order
// within a command makes no difference but for the order in which rows are
// written, which is kept.
//
// Each target has a batch of its own. Rows of a target keep their order; rows of
// different targets may change places within the transaction, which nobody can
// see: nothing on these tables looks at anything but the row. Whatever else is
// sent comes after all open batches.
type batch struct {
	target *Target
	st     *Stmt
	buf    []byte // the rows' parameters as a Bind message has them
	ends   []int  // of each row in buf
	step   Step   // of the first row
	keys   keySet
}

// SetBatching says whether rows may be sent several at a time. An error then
// names the first of them only.
func (s *Session) SetBatching(on bool) { s.batching = on }

// batchOf is the open batch of a target, or nil.
func (s *Session) batchOf(g *Target) *batch {
	for _, b := range s.batches {
		if b.target == g {
			return b
		}
	}
	return nil
}

// openBatch begins a batch.
func (s *Session) openBatch(g *Target) (*batch, error) {
	if len(s.batches) == openBatches {
		if err := s.flushBatches(); err != nil {
			return nil, err
		}
	}
	n := len(s.batches)
	if n < cap(s.batches) {
		s.batches = s.batches[:n+1]
	} else {
		s.batches = append(s.batches, nil)
	}
	if s.batches[n] == nil { // kept from before otherwise
		s.batches[n] = new(batch)
	}
	b := s.batches[n]
	b.reset()
	b.target = g
	return b, nil
}

// addRow puts a row into the batch of its target. ok is false when it must be
// sent by itself; then what it must come after is sent.
func (s *Session) addRow(st *Stmt, old, row []change.Value, step Step) (ok bool, err error) {
	if st.many == nil || !s.batching {
		return false, s.flushBatches()
	}
	b := s.batchOf(step.Target)
	if !batchable(st, old, row) {
		if b == nil {
			return false, nil
		}
		return false, s.flushBatch(b)
	}
	if b == nil {
		if b, err = s.openBatch(step.Target); err != nil {
			return false, err
		}
	}
	h := uint64(0)
	if st.keys != nil {
		h = s.keyHash(st, old, row)
	}
	if len(b.ends) > 0 && (b.st != st || st.keys != nil && b.keys.has(h)) {
		if err := s.flushBatch(b); err != nil {
			return false, err
		}
	}
	if len(b.ends) == 0 {
		b.st, b.step = st, step
	}
	if st.keys != nil {
		b.keys.add(h)
	}
	for i := range st.Params {
		v := value(&st.Params[i], old, row)
		if v.Kind == change.Null {
			b.buf = append(b.buf, 0xff, 0xff, 0xff, 0xff)
			continue
		}
		b.buf = binary.BigEndian.AppendUint32(b.buf, uint32(len(v.Data)))
		b.buf = append(b.buf, v.Data...)
	}
	b.ends = append(b.ends, len(b.buf))
	if len(b.ends) == batchRows || len(b.buf) >= batchBytes {
		return true, s.flushBatch(b)
	}
	return true, nil
}

// batchable reports whether the values allow it.
func batchable(st *Stmt, old, row []change.Value) bool {
	size := 0
	for i := range st.Params {
		v := value(&st.Params[i], old, row)
		if v.Kind == change.Binary {
			return false
		}
		size += len(v.Data)
	}
	if size > batchRow {
		return false
	}
	if old == nil {
		return true
	}
	for _, c := range st.keys { // an update that moves the row needs its turn
		if row != nil && !same(&old[c], &row[c]) {
			return false
		}
	}
	return true
}

func (s *Session) keyHash(st *Stmt, old, row []change.Value) uint64 {
	var h maphash.Hash
	h.SetSeed(s.seed)
	vals := row
	if vals == nil {
		vals = old
	}
	for _, c := range st.keys {
		_ = h.WriteByte(byte(len(vals[c].Data))) // never fails
		_, _ = h.Write(vals[c].Data)             // never fails
	}
	return h.Sum64()
}

// flushBatches sends what all batches hold and closes them.
func (s *Session) flushBatches() error {
	for _, b := range s.batches {
		if err := s.flushBatch(b); err != nil {
			return err
		}
	}
	s.batches = s.batches[:0]
	return nil
}

// dropBatches forgets what the batches hold.
func (s *Session) dropBatches() {
	for _, b := range s.batches {
		b.reset()
	}
	s.batches = s.batches[:0]
}

// flushBatch sends what a batch holds, as commands of 1<<n rows.
func (s *Session) flushBatch(b *batch) error {
	from, start := 0, 0
	for from < len(b.ends) {
		st, n := b.st, 1
		for shift := batchShift; shift >= batchLeast; shift-- {
			if len(b.ends)-from >= 1<<shift {
				st, n = b.st.many.sized(b.st, shift), 1<<shift
				break
			}
		}
		end := b.ends[from+n-1]
		s.prepare(st)
		msg := s.begin('B')
		s.out = append(s.out, 0)
		s.out = append(s.out, st.name...)
		s.out = append(s.out, 0, 0, 0)
		s.out = binary.BigEndian.AppendUint16(s.out, uint16(n*len(b.st.Params)))
		s.out = append(s.out, b.buf[start:end]...)
		s.out = append(s.out, 0, 0)
		s.end(msg)
		s.out = append(s.out, execute...)
		step := b.step
		step.Want, step.Stmt = st.Want, st
		from, start = from+n, end
		if err := s.queued(step); err != nil {
			b.reset()
			return err
		}
	}
	b.reset()
	return nil
}

// reset empties the batch; it stays open.
func (b *batch) reset() {
	b.st, b.buf, b.ends = nil, b.buf[:0], b.ends[:0]
	b.keys.reset()
}

// keySet is a small set of hashes that is emptied in no time.
type keySet struct {
	slots [4 * batchRows]keySlot
	gen   uint32
}

type keySlot struct {
	hash uint64
	gen  uint32
}

func (k *keySet) find(h uint64) *keySlot {
	for i := h; ; i++ {
		s := &k.slots[i%uint64(len(k.slots))]
		if s.gen != k.gen || s.hash == h {
			return s
		}
	}
}

func (k *keySet) has(h uint64) bool { return k.find(h).gen == k.gen }
func (k *keySet) add(h uint64)      { *k.find(h) = keySlot{h, k.gen} }

func (k *keySet) reset() {
	if k.gen++; k.gen == 0 { // wrapped: nothing of old may look new
		*k = keySet{gen: 1}
	}
}
