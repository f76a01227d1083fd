package view_test

import (
	"bytes"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/judged"
)

// TestLargeStepIsRefusedInTheMiddle: of thousands of items that wait, one has a value that the
// merged topic refuses. It alone is replaced, all are written in order, and finding it does
// not take a transaction for every few of the others.
func TestLargeStepIsRefusedInTheMiddle(t *testing.T) {
	t.Parallel()
	for _, cfg := range []conflict.Config{entities, eventsTopic} {
		t.Run(cfg.Kind.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, cfg)
			w.limit(merged, 100_000)
			w.opts = func(c *viewConfig) { c.Place = place }
			const large = 2345
			var items []judged.Item
			for i := range int64(4000) {
				value := fmt.Append(nil, "value ", i)
				if i == large {
					value = noise(150_000, 1)
				}
				items = append(items, w.put(1, i, fmt.Sprint("key", i%700), value, event.Vector{}))
			}
			v := w.start(store(t))
			hold := w.fake.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.EndTxn}, Err: kerr.CoordinatorLoadInProgress, TopLevel: true, Count: -1})
			v.feed(items) // the first of them are in hand, the others wait
			hold.Remove()
			v.wait(items)
			records := w.read(merged, partition)
			if len(records) != len(items) {
				t.Fatalf("merged topic has %d records, want %d", len(records), len(items))
			}
			for i, r := range records {
				env, _ := w.mergedEvent(r)
				if *env.Dot != items[i].Event.At || (env.Replaced != nil) != (i == large) || i != large && !bytes.Equal(r.Value, items[i].Event.Value) {
					t.Fatalf("merged record %d is of %v, %d bytes, %+v", i, *env.Dot, len(r.Value), env.Replaced)
				}
			}
			if st := v.Status(); st.Replaced[merged].Count != 1 || st.Restarts != 0 || st.Steps > 100 || st.Queued != 0 {
				t.Errorf("status %+v", st)
			}
		})
	}
}

// TestNoFetchedBatchIsKept: what is folded shares memory with the batch that it was fetched in.
// Once it is committed, nothing of the view keeps the batch, neither for the entities that it
// remembers nor for keys.
func TestNoFetchedBatchIsKept(t *testing.T) {
	t.Parallel()
	for _, cfg := range []conflict.Config{entities, eventsTopic} {
		t.Run(cfg.Kind.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, cfg)
			v := w.start(store(t))
			var gone atomic.Int32
			const batches = 20
			var last judged.Item
			for n := range int64(batches) {
				batch := make([]byte, 100_000)
				runtime.AddCleanup(&batch[0], func(struct{}) { gone.Add(1) }, struct{}{})
				var items []judged.Item
				for i := range int64(10) {
					it := w.put(1, 10*n+i, "", nil, event.Vector{}, event.Header{Key: "h", Value: batch[2000+i : 2010+i]})
					it.Event.Op, it.Event.Key, it.Event.Value = event.Put, batch[10*i:10*i+8], batch[1000*i:1000*i+1000]
					copy(it.Event.Key, fmt.Sprintf("k%07d", 10*n+i))
					it.Event.Envelope.Key = event.IdempotencyKey{1, byte(n), byte(i)}
					items = append(items, it)
				}
				w.mu.Lock()
				clear(w.events) // the test keeps none either
				w.mu.Unlock()
				v.feed(items)
				last = judged.Item{Origin: 1, Next: items[9].Next}
			}
			v.wait([]judged.Item{last})
			for end := time.Now().Add(20 * time.Second); gone.Load() < batches && time.Now().Before(end); {
				runtime.GC()
				runtime.Gosched()
			}
			if n := gone.Load(); n < batches {
				t.Errorf("%d of %d batches are kept", batches-n, batches)
			}
			runtime.KeepAlive(v)
		})
	}
}
