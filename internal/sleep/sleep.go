// Package sleep waits for a time unless there is no reason to wait any more, once or again
// and again.
package sleep

import (
	"context"
	"time"
)

// For returns nil after d, or the context's error as soon as it has one.
func For(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// Every calls do each time d has passed, first after d, until the context has ended; it
// returns then. After a call that took longer than d the next one follows at once, and others
// that were due meanwhile are left out.
func Every(ctx context.Context, d time.Duration, do func()) {
	tick := time.NewTicker(d)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if ctx.Err() != nil {
			return
		}
		do()
	}
}
