//go:build unix

package view_test

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/judged"
	"github.com/geogate/geogate/testbench/apache"
)

// BenchmarkFold folds through a broker: journal, steps, transactions, state. Of keyed writes
// of two regions one in ten is concurrent with another region's, one in two hundred a retry
// there; native events came without a gateway. Beside the broker in process, cpu-ns/event has
// the broker's share too; with GEOGATE_TEST_KAFKA=1 it is Apache Kafka, and has not.
func BenchmarkFold(b *testing.B) {
	native := eventsTopic
	native.Unstamped = true
	for name, c := range map[string]struct {
		fold  conflict.Config
		items func(n int) []judged.Item
	}{
		"entities": {entities, load},
		"events":   {eventsTopic, load},
		"native":   {native, loadNative},
	} {
		b.Run(name, func(b *testing.B) {
			w := benchWorld(b, c.fold)
			w.cfg.Window = 0
			items := c.items(b.N)
			for i := range items {
				if it := &items[i]; it.Event.Envelope.Key != (event.IdempotencyKey{}) {
					w.events[it.Event.At] = it.Event
				}
			}
			v := w.start(store(b))
			b.ReportAllocs()
			b.ResetTimer()
			before := cpuTime(b)
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
			b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/event")
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
			st := v.Status()
			b.ReportMetric(float64(st.Counts.Folded)/float64(st.Steps), "events/step")
		})
	}
}

func benchWorld(b *testing.B, cfg conflict.Config) *world {
	if !apache.Wanted(b) {
		return newWorld(b, cfg)
	}
	broker, err := apache.Start(b.Context(), apache.Config{Version: apache.Default, Dir: b.TempDir(), HeapMB: 512, Measured: true})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = broker.Stop() })
	return newWorldAt(b, cfg, broker.Seeds())
}

// cpuTime is what this process has used.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// loadNative are events of 1 kB of two regions that came without a gateway.
func loadNative(n int) []judged.Item {
	items := make([]judged.Item, n)
	var next [3]int64
	for i := range items {
		r := event.RegionID(1 + i%2)
		ev := event.Event{
			At: event.Dot{Region: r, Partition: partition, Offset: next[r]}, Timestamp: int64(i),
			Key: fmt.Appendf(nil, "entity-%d", i%300), Value: fmt.Appendf(nil, `{"n":%d,"text":"%0980d"}`, i, i),
			Envelope: event.Envelope{Region: r, Stamp: hlc.FromMillis(int64(i)), Op: event.Put},
		}
		next[r]++
		items[i] = judged.Item{Origin: r, Event: ev, Verdict: judged.Valid, Next: event.Point{Next: next[r]}, Barrier: -1}
	}
	return items
}

func load(n int) []judged.Item {
	items := make([]judged.Item, n)
	rng := rand.NewChaCha8([32]byte{1})
	var next [3]int64
	for i := range items {
		r := event.RegionID(1 + i%2)
		var key event.IdempotencyKey // as a hash is
		_, _ = rng.Read(key[:])
		ev := event.Event{
			At: event.Dot{Region: r, Partition: partition, Offset: next[r]}, Stamped: true, Timestamp: int64(i),
			Key: fmt.Appendf(nil, "entity-%d", i%300), Value: fmt.Appendf(nil, `{"n":%d,"text":"%0180d"}`, i, i),
			Envelope: event.Envelope{
				ID: event.ID{1, byte(i), byte(i >> 8), byte(i >> 16)}, Region: r, Epoch: event.FirstEpoch(r), Op: event.Put, Stamp: hlc.FromMillis(int64(i)),
				Key: key, Fingerprint: event.Fingerprint{1},
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
