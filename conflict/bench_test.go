package conflict_test

import (
	"fmt"
	"testing"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/judged"
)

// BenchmarkFold folds keyed writes of two regions to some hundred entities, a
// tenth of them concurrent, one in a hundred a retry in the other region.
func BenchmarkFold(b *testing.B) {
	for _, cfg := range []conflict.Config{{Kind: conflict.Entities, Rule: event.LWW}, {Kind: conflict.Events}} {
		b.Run(map[conflict.Kind]string{conflict.Entities: "entities", conflict.Events: "events"}[cfg.Kind], func(b *testing.B) {
			items := load(b.N)
			store := conflict.NewMemory(cfg)
			p := conflict.NewPartition(cfg, store, conflict.Start())
			store.Add(items)
			b.ResetTimer()
			b.ReportAllocs()
			foldAll(b, p, store, items)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

// BenchmarkRevoke takes out every second event of some hundred entities: a region's
// log is cut at its beginning after all of it was folded. One op is one orphan.
func BenchmarkRevoke(b *testing.B) {
	for _, cfg := range []conflict.Config{{Kind: conflict.Entities, Rule: event.LWW}, {Kind: conflict.Events}} {
		b.Run(map[conflict.Kind]string{conflict.Entities: "entities", conflict.Events: "events"}[cfg.Kind], func(b *testing.B) {
			items, reg := load(2*b.N), newRegister(2)
			reg.end(2, event.Point{})
			var orphans []judged.Item
			for i := range items {
				items[i].Event.Epoch = event.FirstEpoch(items[i].Origin)
				if it := items[i]; it.Origin == 2 {
					it = orphanItem(it)
					it.Validity = reg.last()
					orphans = append(orphans, it)
				}
			}
			store := conflict.NewMemory(cfg)
			p := conflict.NewPartition(cfg, store, conflict.Start())
			store.Add(items)
			foldAll(b, p, store, []judged.Item{{Verdict: judged.Cuts, Validity: reg.tables[0]}})
			foldAll(b, p, store, items)
			b.ResetTimer()
			b.ReportAllocs()
			foldAll(b, p, store, append(orphans, judged.Item{Verdict: judged.Cuts, Validity: reg.last()}))
			b.ReportMetric(float64(len(orphans))/b.Elapsed().Seconds(), "orphans/s")
		})
	}
}

func load(n int) []judged.Item {
	items := make([]judged.Item, n)
	var next [3]int64
	value := make([]byte, 200)
	for i := range items {
		r := event.RegionID(1 + i%2)
		ev := event.Event{
			At: event.Dot{Region: r, Offset: next[r]}, Stamped: true, Value: value, Key: fmt.Appendf(nil, "entity-%d", i%300),
			Envelope: event.Envelope{
				ID: event.ID{1, byte(i), byte(i >> 8), byte(i >> 16)}, Region: r, Op: event.Put, Stamp: hlc.FromMillis(int64(i)),
				Key: event.IdempotencyKey{1, byte(i), byte(i >> 8), byte(i >> 16)},
			},
		}
		o := 3 - r
		if ev.Context[o] = (event.Point{Next: next[o]}); i%10 == 0 {
			ev.Context[o] = event.Point{Next: max(0, next[o]-400)}
		}
		if i%100 == 99 {
			ev.Envelope.Key = items[i-1].Event.Envelope.Key
			ev.Key = items[i-1].Event.Key
		}
		next[r]++
		items[i] = judged.Item{Origin: r, Event: ev, Verdict: judged.Valid, Next: event.Point{Next: next[r]}, Barrier: -1}
	}
	return items
}

// foldAll folds items in steps of 1,000.
func foldAll(b *testing.B, p *conflict.Partition, store *conflict.Memory, items []judged.Item) {
	for len(items) > 0 {
		n := min(1000, len(items))
		out, err := p.Step(items[:n])
		if err != nil {
			b.Fatal(err)
		}
		store.Commit(out)
		p.Commit(out)
		items = items[n:]
	}
}
