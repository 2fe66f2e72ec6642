package snapshot

import (
	"context"

	"golang.org/x/time/rate"
)

// throttle bounds what all workers read.
type throttle struct{ limit *rate.Limiter } // nil: no bound

// leastBurst is what may be read at once, however low the bound.
const leastBurst = 64 << 10

func newThrottle(bytesPerSecond int64) throttle {
	if bytesPerSecond <= 0 {
		return throttle{}
	}
	return throttle{rate.NewLimiter(rate.Limit(bytesPerSecond), int(max(bytesPerSecond/20, leastBurst)))}
}

// wait returns when n more bytes may be read, or with the error of ctx.
func (t throttle) wait(ctx context.Context, n int) error {
	if t.limit == nil {
		return nil
	}
	for n > 0 {
		k := min(n, t.limit.Burst())
		if err := t.limit.WaitN(ctx, k); err != nil {
			return err
		}
		n -= k
	}
	return nil
}
