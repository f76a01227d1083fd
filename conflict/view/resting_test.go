package view_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/judged"
	"github.com/geogate/geogate/internal/sleep"
)

// TestRestingViewRests: a view that has nothing to do does nothing, whether it has done all
// that its frontier lets it do, or finds everything done when it starts.
func TestRestingViewRests(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]conflict.Config{"entities": entities, "events": eventsTopic} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, cfg)
			var looks atomic.Int64 // at the clock
			w.opts = func(c *viewConfig) {
				c.TidyEvery, c.NeededEvery = time.Millisecond, 3*time.Millisecond
				c.Wall = func() time.Time { looks.Add(1); return time.Now() }
			}
			items := w.history(21, 20)
			db := store(t)
			v := w.start(db)
			rests := func(when string) {
				t.Helper()
				v.until("it rests", func() bool {
					before := looks.Load()
					if err := sleep.For(t.Context(), 200*time.Millisecond); err != nil {
						t.Fatal(err)
					}
					n := looks.Load() - before
					if n > 1000 {
						t.Fatalf("%s it looks at the clock %d times in 200 ms", when, n)
					}
					return n < 100
				})
			}
			first := table(1, nil)
			fed := append([]judged.Item{cutsItem(first)}, items...)
			v.feed(fed)
			v.inForce(first)
			v.wait(items)
			rests("before there is a frontier")
			f := settled(items, len(items), first)
			v.SetFrontier(f)
			v.until("nothing is needed below the frontier", func() bool { _, now := v.Frontier(); return now == f })
			rests("once all is done")
			if err := v.stop(); err != nil {
				t.Fatal(err)
			}
			v = w.start(db)
			v.feed(fed)
			v.wait(items)
			rests("after a start")
			if err := v.stop(); err != nil {
				t.Fatal(err)
			}
			v = w.start(store(t))
			v.until("it knows what was committed", func() bool { at, _ := v.Committed(); return at == f })
			v.SetFrontier(f)
			rests("while its journal is empty")
			if f.IsZero() {
				t.Error("there was no frontier")
			}
		})
	}
}
