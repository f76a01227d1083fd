package view_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/geogate/geogate/conflict/view"
	"github.com/geogate/geogate/internal/judged"
)

// TestRoomIsShared: while one partition keeps all the room of an instance, another goes on with
// the little that each always has, and blocks beyond, until the first has committed, or stops.
func TestRoomIsShared(t *testing.T) {
	t.Parallel()
	for name, release := range map[string]func(first *running, hold *kfake.FaultHandle){
		"committed": func(_ *running, hold *kfake.FaultHandle) { hold.Remove() },
		"stopped":   func(first *running, _ *kfake.FaultHandle) { _ = first.stop() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			room := view.NewRoom(600_000)
			start := func() (*world, *running, *kfake.FaultHandle) {
				w := newWorld(t, eventsTopic)
				w.opts = func(c *viewConfig) { c.Room = room }
				v := w.start(store(t))
				return w, v, w.fake.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.EndTxn}, Err: kerr.CoordinatorLoadInProgress, TopLevel: true, Count: -1})
			}
			fold := func(ctx context.Context, v *running, items []judged.Item) error {
				if err := v.Journal().Add(items); err != nil {
					t.Fatal(err)
				}
				return v.Fold(ctx, items)
			}
			a, first, hold := start()
			if err := fold(t.Context(), first, a.history(1, 1200)); err != nil {
				t.Fatal(err)
			}
			b, second, stuck := start()
			items := b.history(2, 1000)
			if err := fold(t.Context(), second, items[:500]); err != nil { // more than each always has
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			if err := fold(ctx, second, items[500:]); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("fold does not block: %v", err)
			}
			release(first, hold)
			if err := fold(t.Context(), second, items[500:]); err != nil {
				t.Fatal(err)
			}
			if st := second.Status(); st.Steps != 0 {
				t.Fatalf("it has committed itself: %+v", st)
			}
			stuck.Remove()
			second.wait(items)
			b.check(second, items)
		})
	}
}
