package source

import (
	"context"
	"errors"
	"fmt"

	"github.com/walferry/walferry/queue"
)

// With Options.ConfirmApplied the slot stands where every subscription has
// applied everything, and the server still has all that comes after. A queue
// that has lost batches is worth nothing then: it is thrown away, and a new one
// is filled from the slot. Nothing has to be believed for that: a subscription
// begins by its own position, and if that is before the slot's, it says so.

// mayRenew reports whether a queue with losses can be replaced.
func (s *session) mayRenew(slot slotState) bool {
	return s.o.ConfirmApplied != nil && slot.exists && !slot.active && slot.lost == "" && slot.plugin == "pgoutput" && slot.database == s.server.database
}

// renew replaces the queue because of what reason says.
func (s *session) renew(ctx context.Context, slot slotState, reason error) error {
	s.o.Logger.Warn("the queue lost batches: it is made anew and filled from the publisher's log, which has all that a subscription has not applied",
		"error", reason, "slot", s.o.Slot, "position", slot.confirmed.String())
	if err := s.o.Queue.Renew(ctx, s.server.system); err != nil {
		return fmt.Errorf("make the queue anew: %w", err)
	}
	return nil
}

// tail reads the end of the queue. A queue with losses is replaced where that
// is possible; where it is not, what is missing behind the end is for those
// to report who need it.
func (s *session) tail(ctx context.Context, slot slotState) (queue.Tail, error) {
	t, err := s.o.Queue.Tail(ctx)
	if err == nil && s.mayRenew(slot) {
		var info queue.Info
		if info, err = s.o.Queue.Info(ctx); err == nil && info.Deleted > 0 {
			err = &queue.Error{Kind: queue.ErrHole, Detail: fmt.Sprintf("%d batches between sequence %d and %d were deleted", info.Deleted, info.FirstSeq, info.LastSeq)}
		}
	}
	if s.mayRenew(slot) && (errors.Is(err, queue.ErrHole) || errors.Is(err, queue.ErrCorrupt)) {
		if err = s.renew(ctx, slot, err); err == nil {
			t, err = s.o.Queue.Tail(ctx)
		}
	}
	if err != nil {
		return t, fmt.Errorf("read end of queue: %w", err)
	}
	return t, nil
}
