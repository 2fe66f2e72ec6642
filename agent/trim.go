package agent

import (
	"context"
	"log/slog"
	"time"

	"github.com/walferry/walferry/queue"
)

// trimInterval is how often delivered batches are looked for.
const trimInterval = 10 * time.Second

// trim is the distribution cleanup job (feature A48, A49): it removes batches that every
// registered subscription has flushed and that are older than the retention.
// It returns when ctx ends.
func trim(ctx context.Context, open func(context.Context) (*queue.Queue, error), retention time.Duration, logger *slog.Logger) {
	for sleep(ctx, trimInterval) == nil {
		q, err := open(ctx)
		if err == nil {
			var ok bool
			if ok, err = q.Exists(ctx); err == nil && !ok {
				continue
			}
		}
		if err != nil {
			logger.Debug("queue cleanup", "error", err)
			continue
		}
		res, err := q.Trim(ctx, retention)
		switch {
		case err != nil && ctx.Err() == nil:
			logger.Warn("queue cleanup", "error", err)
		case res.Purged > 0:
			logger.Debug("queue cleanup", "purged", res.Purged, "left", res.Left, "held_by", res.HeldBy)
		}
	}
}
