package view_test

import (
	"fmt"
	"testing"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/judged"
)

// BenchmarkFold folds keyed writes of two regions through a broker in process:
// journal, steps, transactions, state. One in ten is concurrent with another
// region's, one in two hundred a retry there.
func BenchmarkFold(b *testing.B) {
	w := newWorld(b, entities)
	w.cfg.Window = 0
	items := load(b.N)
	for _, it := range items {
		w.events[it.Event.At] = it.Event
	}
	v := w.start(store(b))
	b.ResetTimer()
	for from := 0; from < len(items); from += 512 {
		part := items[from:min(from+512, len(items))]
		if err := v.Journal().Add(part); err != nil {
			b.Fatal(err)
		}
		if err := v.Fold(b.Context(), part); err != nil {
			b.Fatal(err)
		}
	}
	v.wait(items)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
	st := v.Status()
	b.ReportMetric(float64(st.Counts.Folded)/float64(st.Steps), "events/step")
}

func load(n int) []judged.Item {
	items := make([]judged.Item, n)
	var next [3]int64
	for i := range items {
		r := event.RegionID(1 + i%2)
		ev := event.Event{
			At: event.Dot{Region: r, Partition: partition, Offset: next[r]}, Stamped: true, Timestamp: int64(i),
			Key: fmt.Appendf(nil, "entity-%d", i%300), Value: fmt.Appendf(nil, `{"n":%d,"text":"%0180d"}`, i, i),
			Envelope: event.Envelope{
				ID: event.ID{1, byte(i), byte(i >> 8), byte(i >> 16)}, Region: r, Epoch: event.FirstEpoch(r), Op: event.Put, Stamp: hlc.FromMillis(int64(i)),
				Key: event.IdempotencyKey{1, byte(i), byte(i >> 8), byte(i >> 16)}, Fingerprint: event.Fingerprint{1},
			},
		}
		o := 3 - r
		if ev.Context[o] = (event.Point{Next: next[o]}); i%10 == 0 {
			ev.Context[o] = event.Point{Next: max(0, next[o]-400)}
		}
		if i%200 == 199 {
			ev.Envelope.Key, ev.Key = items[i-1].Event.Envelope.Key, items[i-1].Event.Key
		}
		next[r]++
		items[i] = judged.Item{Origin: r, Event: ev, Verdict: judged.Valid, Next: event.Point{Next: next[r]}, Barrier: 0}
	}
	return items
}
