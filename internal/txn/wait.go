package txn

import (
	"context"
	"time"
)

// Pause waits for a time, or until ctx ends, and tells whether ctx is still alive.
func Pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// retryWait waits between two tries, twice as long each time up to a quarter of a
// second, or as long as step says.
type retryWait struct {
	step time.Duration
	last time.Duration
}

// next waits and tells whether ctx is still alive.
func (w *retryWait) next(ctx context.Context) bool {
	d := w.step
	if d == 0 {
		w.last = min(max(2*w.last, 5*time.Millisecond), 250*time.Millisecond)
		d = w.last
	}
	w.step = 0
	return Pause(ctx, d)
}
