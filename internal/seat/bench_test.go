package seat_test

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/geogate/geogate/dedupe"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/judged"
	"github.com/geogate/geogate/internal/seat"
)

// freeIndex knows no key: what the index costs is measured in package dedupe.
type freeIndex struct{ found []*event.Copy }

func (x *freeIndex) FindAll(keys []event.IdempotencyKey, _ event.Stamp, _ *event.ValidityTable) ([]*event.Copy, error) {
	if len(x.found) < len(keys) {
		x.found = make([]*event.Copy, len(keys))
	}
	return x.found[:len(keys)], nil
}

// writes makes requests of a kilobyte with idempotency keys.
func writes(n int) []seat.Write {
	value := make([]byte, 1000)
	out := make([]seat.Write, n)
	for i := range out {
		q := &seat.Request{Request: event.Request{Topic: "t", Key: fmt.Appendf(nil, "entity-%d", i), Op: event.Put, Value: value, Partition: -1}}
		out[i] = seat.Write{Request: q}
	}
	return out
}

// BenchmarkCore: what a write costs in the core, from acceptance to its answer.
func BenchmarkCore(b *testing.B) {
	for _, n := range []int{1, 16, 256} {
		for _, ordered := range []bool{false, true} {
			b.Run(fmt.Sprintf("of %d, ordered %v", n, ordered), func(b *testing.B) { benchCore(b, n, ordered) })
		}
	}
}

func benchCore(b *testing.B, n int, ordered bool) {
	core := seat.NewCore(seat.CoreConfig{Region: 1, Epoch: 17}, seat.Surroundings{
		Index: &freeIndex{}, Clock: hlc.NewClock(time.Now, hlc.Bounds{}), NewID: event.NewID,
		Committed: func() event.Vector { return event.Vector{2: {Next: 77}} }, Closed: func() event.Stamp { return 0 },
		Indexed: func() event.Vector { return event.Vector{} },
	}, 0)
	now := time.Now()
	core.Step(now, seat.Ready{})
	ws := writes(n)
	if ordered {
		o := seat.NewOrder()
		for i := range ws {
			ws[i].Order = o
		}
	}
	var ref uint64
	var offset int64
	answered := 0
	places := make([]seat.Read, 0, n)
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i += n {
		for j := range ws {
			ref++
			ws[j].Ref, ws[j].Deadline = ref, now.Add(time.Second)
			binary.BigEndian.PutUint64(ws[j].Request.Idempotency[:], ref)
		}
		places = places[:0]
		confirm := false
		take := func(es []seat.Effect) {
			for _, e := range es {
				switch e := e.(type) {
				case seat.OpenTerm:
					core.Step(now, seat.Opened{Attempt: e.Attempt, Producer: 1, Epochs: []int16{0}})
				case seat.ConfirmTerm:
					confirm = true
				case seat.Produce:
					for k := range e.Records {
						offset++
						r := &e.Records[k].Record
						b.StopTimer()
						ev, err := event.FromRecord(event.Dot{Region: 1, Offset: offset}, r.Timestamp, r.Key, r.Value, r.Headers)
						b.StartTimer()
						if err != nil {
							b.Fatal(err)
						}
						places = append(places, seat.Read{Item: judged.Item{Origin: 1, Event: ev, Verdict: judged.Valid, Next: event.Point{Next: offset + 1}}})
					}
				case seat.Replies:
					answered += len(e.List)
				}
			}
		}
		take(core.Step(now, seat.Accept{Writes: ws}))
		if i == 0 {
			take(core.Step(now, seat.ReadBack{Places: []seat.Read{{Barrier: &seat.Mark{Producer: 1}, Item: judged.Item{Next: event.Point{Next: 1}}}}}))
			if confirm {
				take(core.Step(now, seat.TermConfirmed{}))
			}
		}
		take(core.Step(now, seat.ReadBack{Places: places}))
	}
	b.StopTimer()
	if answered < b.N {
		b.Fatalf("%d of %d writes are answered", answered, b.N)
	}
}

// BenchmarkSeat: what a write costs from Submit to its answer, a few hundred at a time, in
// all: the broker and the fold's reader of the log run in this process, too.
func BenchmarkSeat(b *testing.B) {
	for _, n := range []int{1, 64, 1024} {
		b.Run(fmt.Sprintf("of %d", n), func(b *testing.B) {
			in := fakeCluster(b).start("us-0", dedupe.NewMemory(), newFolder()).ready()
			ws := writes(n)
			qs := make([]*seat.Request, n)
			ref := uint64(0)
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; i < b.N; i += n {
				for j := range qs {
					ref++
					q := *ws[j].Request
					qs[j] = &q
					binary.BigEndian.PutUint64(q.Idempotency[:], ref)
				}
				for _, r := range submit(in.seat, nil, qs...) {
					if r.Err != nil {
						b.Fatal(r.Err)
					}
				}
			}
		})
	}
}
