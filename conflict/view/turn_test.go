package view_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/geogate/geogate/internal/event"
)

// TestTransactionsInTurn: a partition commits nothing while others have all of the
// transactions that an instance may have, folds everything once one of them is free, and
// gives its own back whatever became of it.
func TestTransactionsInTurn(t *testing.T) {
	t.Parallel()
	turns := semaphore.NewWeighted(1)
	w := newWorld(t, eventsTopic)
	w.opts = func(c *viewConfig) { c.Transactions = turns }
	w.lost.Store(3) // answers that fail, so that it begins again
	v := w.start(store(t))
	if err := turns.Acquire(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	items := w.history(1, 60)
	v.feed(items)
	var want event.Vector
	for _, it := range items {
		if want[it.Origin].Compare(it.Next) < 0 {
			want[it.Origin] = it.Next
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := v.Wait(ctx, want); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("it does not wait for its turn: %v", err)
	}
	turns.Release(1)
	v.wait(items)
	w.check(v, items)
	if err := v.stop(); err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if !turns.TryAcquire(1) {
		t.Fatal("a turn was not given back")
	}
}
