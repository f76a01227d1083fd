//go:build unix

package seat

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/txn"
)

// BenchmarkReadback opens batches of a gateway's records of 1 kB, judges each, and hands it
// over to the inputs: what a record costs from the fetch answer to index, core, journal and
// fold, without these.
func BenchmarkReadback(b *testing.B) {
	for _, each := range []int{1, 200} {
		b.Run(fmt.Sprint(each), func(b *testing.B) { benchReadback(b, each) })
	}
}

func benchReadback(b *testing.B, each int) {
	batch := gatewayBatch(b, each)
	clock := hlc.NewClock(time.Now, hlc.Bounds{})
	box := &inbox{feed: &feed{decoder: txn.NewDecoder(txn.Limits{}), limit: 1 << 30, waiting: &waitingBytes{limit: 1 << 30, held: map[*inbox]struct{}{}}}, poke: func() {}}
	unread := txn.Fetched{Batches: []txn.Unread{{Batch: batch}}}
	var back *Readback
	b.ReportAllocs()
	before := processorTime()
	for n := 0; b.Loop(); n++ {
		if n%each != 0 {
			continue
		}
		// From the start: the same offsets again would be a log that lost its tail.
		back = NewReadback(InputsConfig{Region: 1}, clock, 0, NoBarrier)
		box.push(unread)
		got := 0
		in := NewInputs(InputsConfig{Region: 1}, InputsSurroundings{
			Clock: clock, Indexed: func() event.Point { return event.Point{Next: int64(each)} }, LastBarrier: func(int64) int64 { return NoBarrier },
		}, InputsStart{Barriers: NoBarriers()})
		for es := box.pop(); es != nil; es = box.pop() {
			for _, e := range back.Step(Fetched{Origin: 1, Entries: es}) {
				if e, ok := e.(HandOver); ok {
					got += len(e.Places)
					in.Step(time.Time{}, Judged{e.Places})
				}
			}
		}
		if got != each {
			b.Fatalf("%d of %d records were judged", got, each)
		}
	}
	b.ReportMetric(float64(processorTime()-before)/float64(b.N), "cpu-ns/op")
}

// processorTime is what the process has used, in nanoseconds.
func processorTime() int64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return u.Utime.Nano() + u.Stime.Nano()
}

func gatewayBatch(b *testing.B, n int) txn.Batch {
	b.Helper()
	var build txn.Builder
	for i := range n {
		env := event.Envelope{
			ID: event.ID{1, byte(i), byte(i >> 8)}, Region: 1, Epoch: event.FirstEpoch(1), Stamp: hlc.FromMillis(int64(1000 + i)), Op: event.Put,
			Key: event.IdempotencyKey{1, byte(i), byte(i >> 8)}, Fingerprint: event.Fingerprint{1}, Context: event.Vector{2: {Next: int64(i)}},
		}
		r := txn.Record{
			Key: fmt.Appendf(nil, "entity-%d", i), Value: fmt.Appendf(nil, `{"n":%d,"text":"%0900d"}`, i, i), Timestamp: int64(i),
			Headers: env.Append([]event.Header{{Key: "content-type", Value: []byte("application/json")}}),
		}
		build.Add(&r)
	}
	out, err := build.Batch(txn.Codec)
	if err != nil {
		b.Fatal(err)
	}
	return out
}
