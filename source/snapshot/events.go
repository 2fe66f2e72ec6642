package snapshot

import (
	"time"

	"github.com/walferry/walferry/change"
)

// Events are optional callbacks. They must return quickly. Waiting may be
// called at the same time as another one, the others are called in turn.
type Events struct {
	ConsistentPoint func(change.LSN)
	// Waiting reports that nothing has moved for some seconds and why.
	Waiting       func(Wait)
	SchemaCreated func(tables []TableMap)
	TableStarted  func(Progress)
	TableProgress func(Progress) // a few times a second
	TableDone     func(TableResult, error)
	Building      func(Build)
}

// Build is what is being made when the rows are there: an index, a constraint.
type Build struct {
	Object      string
	Done, Total int // objects of the run
}

// Progress is how far the copy of one table is.
type Progress struct {
	Table   TableMap
	Started time.Time
	Rows    int64 // sent by the publisher so far
	Bytes   int64 // of COPY data so far
	// Estimates of the planner's statistics, not of the row filter; -1: unknown.
	EstimatedRows  int64 // pg_class.reltuples
	EstimatedBytes int64 // pg_table_size, on disk: COPY data may be smaller or larger
}

// Wait is something that the copy waits for.
type Wait struct {
	Side   string // "publisher" or "subscriber"
	Reason string // names pid, user, application and age where there are
	Since  time.Time
}

func (e *Events) consistentPoint(l change.LSN) {
	if e.ConsistentPoint != nil {
		e.ConsistentPoint(l)
	}
}

func (e *Events) schemaCreated(t []TableMap) {
	if e.SchemaCreated != nil {
		e.SchemaCreated(t)
	}
}

func (e *Events) tableStarted(p Progress) {
	if e.TableStarted != nil {
		e.TableStarted(p)
	}
}

func (e *Events) tableProgress(p Progress) {
	if e.TableProgress != nil {
		e.TableProgress(p)
	}
}

func (e *Events) tableDone(r TableResult, err error) {
	if e.TableDone != nil {
		e.TableDone(r, err)
	}
}

func (e *Events) building(b Build) {
	if e.Building != nil {
		e.Building(b)
	}
}
