package gateway

import (
	"context"
	"time"
)

// pause waits for d, or less if wake is closed meanwhile; nil never is. It returns
// ctx's error if that is done first.
func pause(ctx context.Context, d time.Duration, wake <-chan struct{}) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-wake:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}
