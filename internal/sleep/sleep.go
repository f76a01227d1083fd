// Package sleep waits for a time unless there is no reason to wait any more.
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
