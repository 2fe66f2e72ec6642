package apply

import "github.com/walferry/walferry/change"

// plan says how carefully transactions are applied. It outlives sessions.
type plan struct {
	until   change.LSN // transactions up to this commit LSN are committed alone
	careful bool       // the transaction being applied is such a one

	culprit change.LSN         // commit LSN of the transaction that failed
	swap    map[tableName]bool // its targets to which sqlw.Swap is applied
	rows    bool               // each of its rows has a savepoint
	tries   int                // times it was reported
	card    *ErrorCard         // of the attempt without swap
}

// alone reports whether a transaction is committed by itself.
func (p *plan) alone(commit change.LSN) bool {
	p.careful = commit <= p.until
	return p.careful
}

// narrow asks for the transactions up to commit one by one. It reports whether
// that is news.
func (p *plan) narrow(commit change.LSN) bool {
	if commit <= p.until {
		return false
	}
	p.until = commit
	return true
}

// blame names the transaction that failed.
func (p *plan) blame(commit change.LSN) {
	if p.culprit != commit {
		p.culprit, p.tries, p.rows = commit, 0, false
		p.swap, p.card = nil, nil
	}
}

// swapping reports whether target is handled by a swap in this transaction.
func (p *plan) swapping(commit change.LSN, t tableName) bool {
	return p.culprit == commit && p.swap[t]
}

// passed is told the position after each commit.
func (p *plan) passed(pos change.LSN) {
	if p.culprit != 0 && p.culprit < pos {
		*p = plan{until: p.until}
	}
}

// again begins a new round after a report: what helped before is tried anew,
// from the simplest on.
func (p *plan) again() { p.rows, p.swap, p.card = false, nil, nil }
