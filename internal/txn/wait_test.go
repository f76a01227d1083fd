package txn_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/geogate/geogate/internal/sleep"
	"github.com/geogate/geogate/internal/txn"
)

// What WithGrace returns ends a while after its parent, and leaves nothing that runs:
// a bubble fails whose goroutines outlive it.
func TestWithGrace(t *testing.T) {
	const grace = 2 * time.Second
	for name, before := range map[string]bool{"ends while it is used": false, "had ended before": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				if before {
					stop()
				}
				longer, release := txn.WithGrace(ctx, grace)
				defer release()
				if !before {
					if sleep.For(longer, time.Hour) != nil {
						t.Fatal("it has ended although its parent lives")
					}
					stop()
				}
				began := time.Now()
				<-longer.Done()
				if took := time.Since(began); took != grace || !errors.Is(longer.Err(), context.Canceled) {
					t.Fatalf("it ended after %v with %v, want %v", took, longer.Err(), grace)
				}
			})
		})
	}
	t.Run("release ends it at once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			longer, release := txn.WithGrace(ctx, grace)
			stop()
			synctest.Wait() // its goroutine is in the pause now
			began := time.Now()
			release()
			if longer.Err() == nil || time.Since(began) != 0 {
				t.Fatalf("after release: %v, %v later", longer.Err(), time.Since(began))
			}
		})
	})
}
