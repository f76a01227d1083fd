package view_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/seat"
)

// TestConfirm: a view that still holds the partition commits a transaction to confirm it, with
// claims or without; one that another view has replaced returns an error.
func TestConfirm(t *testing.T) { newWorld(t, entities).confirms() }

func (w *world) confirms() {
	t := w.t
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	var told atomic.Bool
	w.claims = func() (seat.Claims, bool) { return seat.Claims{End: event.Point{Next: 7}}, told.Load() }
	w.opts = func(c *viewConfig) { c.ProgressEvery, c.IdleProgressEvery = time.Hour, time.Hour }
	items := w.history(4, 20)
	first := w.start(store(t))
	if err := first.Confirm(ctx); err != nil {
		t.Fatalf("without claims: %v", err)
	}
	told.Store(true)
	before := len(w.read(control.TopicControl, 0))
	for range 2 {
		if err := first.Confirm(ctx); err != nil {
			t.Fatalf("with claims: %v", err)
		}
	}
	if n := len(w.read(control.TopicControl, 0)) - before; n != 2 {
		t.Errorf("%d progress records for two confirmations", n)
	}
	second := w.start(store(t))
	if err := first.Confirm(ctx); !errors.Is(err, seat.ErrSuperseded) {
		t.Errorf("of one that was replaced: %v", err)
	}
	if err := second.Confirm(ctx); err != nil {
		t.Errorf("of the one that replaced it: %v", err)
	}
	second.feed(items)
	second.wait(items)
	w.check(second, items)
}
