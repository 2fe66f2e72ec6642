package source

import (
	"fmt"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/queue"
)

// situation is all that decides how a session begins.
type situation struct {
	server  server
	slot    slotState
	absent  bool // the stream did not exist before
	tail    queue.Tail
	forked  change.LSN         // where the publisher left the timeline of the tail
	related bool               // the publisher's history contains that timeline
	last    change.BatchHeader // of the last whole transaction, or of marks after it; read if the slot is behind the tail
}

// start is how it begins.
type start struct {
	at      change.LSN // End of the queue
	from    change.LSN // START_REPLICATION here: before at where the seam can be verified
	seam    *seam      // nil: the server sends nothing that the queue has
	create  bool       // the slot must be created
	found   bool       // the queue is empty, but the slot existed: the queue was lost or never written
	restart bool       // the queue ends with an open chunk that cannot be continued
	resume  *resumePoint
}

// decide compares publisher, slot and queue.
func decide(slot string, s situation) (start, error) {
	if s.tail.Empty {
		return start{at: s.slot.confirmed, from: s.slot.confirmed, create: !s.slot.exists, found: s.slot.exists}, nil
	}
	h := &s.tail.Header
	end := h.End
	e := &Error{Slot: slot, Queue: end, Hint: hintCopyAll}
	fail := func(kind error, at change.LSN, f string, v ...any) (start, error) {
		e.Kind, e.Server, e.Detail = kind, at, fmt.Sprintf(f, v...)
		return start{}, e
	}
	switch {
	case h.System != s.server.system:
		e.Hint = "connect to the publisher that the queue was read from, or use another publisher name (a queue of its own) for this one"
		return fail(ErrForeignPublisher, 0, "the queue is of system %d, the publisher is system %d", h.System, s.server.system)
	case h.Timeline > s.server.timeline:
		e.Hint = "connect to the promoted server; if this one was restored on purpose, " + hintCopyAll
		return fail(ErrTimelineFork, s.server.flushed, "the queue is on timeline %d, the publisher on timeline %d", h.Timeline, s.server.timeline)
	case h.Timeline < s.server.timeline && !s.related:
		return fail(ErrTimelineFork, s.server.flushed, "the publisher is on timeline %d, which does not descend from timeline %d of the queue", s.server.timeline, h.Timeline)
	case h.Timeline < s.server.timeline && s.forked < end:
		e.Hint = fmt.Sprintf("the promoted server lacks what was committed from %v to %v, which subscribers may have applied: compare them, then %s; list the publisher's standbys in synchronized_standby_slots so that it does not happen again", s.forked, end, hintCopyAll)
		return fail(ErrTimelineFork, s.forked, "the publisher left timeline %d at %v, the queue ends at %v", h.Timeline, s.forked, end)
	case s.server.flushed < end:
		e.Hint = "the publisher was restored from a backup or lost its disk cache: compare it with the subscribers, then " + hintCopyAll
		return fail(ErrPublisherBehind, s.server.flushed, "its log ends at %v, the queue at %v", s.server.flushed, end)
	case !s.slot.exists:
		return fail(ErrSlotLost, 0, "it does not exist, but the queue was filled from it up to %v; what was committed since cannot be read", end)
	case s.slot.confirmed > end:
		e.Hint = "restore the queue's store if you can; otherwise " + hintRenew
		return fail(ErrQueueBehind, s.slot.confirmed, "the slot was confirmed up to %v, the queue ends at %v; or the slot was dropped and made again", s.slot.confirmed, end)
	}
	p, exact := resumeAfter(h)
	if p != nil && !exact {
		p.msgs = 0 // begin anew
	}
	if p != nil {
		p.timeline = h.Timeline
	}
	st := start{at: end, from: end, resume: p, restart: !exact}
	if s.slot.confirmed < end {
		st.from, st.seam = overlap(s.slot.confirmed, end, &s.last)
	}
	return st, nil
}
