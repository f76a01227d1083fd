package sleep_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/geogate/geogate/internal/sleep"
)

func TestFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		if err := sleep.For(t.Context(), time.Hour); err != nil || time.Since(begin) != time.Hour {
			t.Errorf("after %s: %v", time.Since(begin), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begin = time.Now()
		if err := sleep.For(ctx, time.Hour); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != time.Minute {
			t.Errorf("after %s: %v", time.Since(begin), err)
		}
	})
}

func TestEvery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		begin := time.Now()
		var at []time.Duration
		sleep.Every(ctx, time.Minute, func() {
			at = append(at, time.Since(begin))
			switch len(at) {
			case 2:
				_ = sleep.For(ctx, 150*time.Second) // longer than the time between two
			case 4:
				cancel()
			}
		})
		// The one that came due meanwhile follows at once; others are left out.
		want := []time.Duration{time.Minute, 2 * time.Minute, 270 * time.Second, 5 * time.Minute}
		if !slices.Equal(at, want) || time.Since(begin) != 5*time.Minute {
			t.Errorf("called after %v, want %v; returned after %s", at, want, time.Since(begin))
		}
	})
}
