package txn

import (
	"context"
	"sync"
	"time"

	"github.com/geogate/geogate/internal/sleep"
)

// WithGrace returns a context that outlives ctx by a while, so that what is under way
// when ctx ends may still come to its own end. It has no deadline while ctx lives.
// release must be called; when it returns the context has ended and nothing of it runs
// any more.
func WithGrace(ctx context.Context, grace time.Duration) (longer context.Context, release func()) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-longer.Done():
			return
		case <-ctx.Done():
		}
		if sleep.For(longer, grace) == nil {
			cancel()
		}
	})
	return longer, func() { cancel(); wg.Wait() }
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
	return sleep.For(ctx, d) == nil
}
