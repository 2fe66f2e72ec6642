package sqlw

// Kind says what the server's answer to a step looks like.
type Kind byte

// The kinds of steps.
const (
	KindRow     Kind = iota // one row change
	KindCopy                // a run of inserts as COPY
	KindControl             // begin, position and the like
	KindCommit              // the commit itself
	KindCheck               // a check before the commit; it fails by its row count
	kindSync                // answered by ReadyForQuery
)

// A Step is a statement that was sent and not yet answered.
type Step struct {
	Kind    Kind
	Op      byte    // 'I', 'U', 'D', 'T' of a row change
	Want    int64   // rows that the command must report; negative: any number
	Txn     uint32  // the caller's number of the transaction
	Ordinal uint64  // the caller's number of the change
	Target  *Target // of a row change
	Stmt    *Stmt
}

// ring is a queue of steps that grows as needed and never shrinks.
type ring struct {
	buf        []Step
	head, size int
}

func (r *ring) push(s Step) {
	if r.size == len(r.buf) {
		r.grow()
	}
	r.buf[(r.head+r.size)&(len(r.buf)-1)] = s
	r.size++
}

func (r *ring) grow() {
	n := max(64, 2*len(r.buf))
	b := make([]Step, n)
	for i := range r.size {
		b[i] = r.buf[(r.head+i)&(len(r.buf)-1)]
	}
	r.buf, r.head = b, 0
}

// front returns the oldest step, or nil.
func (r *ring) front() *Step {
	if r.size == 0 {
		return nil
	}
	return &r.buf[r.head]
}

// back returns the youngest step, or nil.
func (r *ring) back() *Step {
	if r.size == 0 {
		return nil
	}
	return &r.buf[(r.head+r.size-1)&(len(r.buf)-1)]
}

func (r *ring) pop() {
	r.buf[r.head] = Step{}
	r.head = (r.head + 1) & (len(r.buf) - 1)
	r.size--
}
