package monitor

// copyState is an initial copy. The nil value is no copy.
type copyState struct {
	total  int
	done   int
	tables map[string]copyTable // in progress or finished
}

type copyTable struct {
	rows, bytes, estimate int64
	done                  bool
}

// CopyStarted begins a copy of so many tables.
func (b *Subscription) CopyStarted(tables int) {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	b.setState(Copying)
	b.copy = &copyState{total: tables, tables: map[string]copyTable{}}
}

// CopyProgress notes how far a table is. estimate is its size in bytes, or
// less than 1 when it is not known.
func (b *Subscription) CopyProgress(table string, rows, bytes, estimate int64) {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	if b.copy == nil {
		return
	}
	b.progress()
	t := b.copy.tables[table]
	b.copy.tables[table] = copyTable{rows: rows, bytes: bytes, estimate: max(estimate, t.estimate), done: t.done}
}

// CopyTableDone notes that a table is complete and committed.
func (b *Subscription) CopyTableDone(table string, rows, bytes int64) {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	if b.copy == nil {
		return
	}
	b.progress()
	if !b.copy.tables[table].done {
		b.copy.done++
	}
	b.copy.tables[table] = copyTable{rows: rows, bytes: bytes, estimate: bytes, done: true}
}

func (c *copyState) status() *CopyStatus {
	if c == nil {
		return nil
	}
	st := &CopyStatus{TablesDone: c.done, TablesTotal: max(c.total, c.done)}
	for _, t := range c.tables {
		st.Rows += t.rows
		st.Bytes += t.bytes
		st.BytesTotal += max(t.estimate, t.bytes)
	}
	return st
}
