package replicate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/offsets"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/residency"
)

var (
	gen1  = Generation{Number: 1, Shards: 1, Cluster: "us", Fenced: true}
	start = time.UnixMilli(1_700_000_000_000)
	idA   = event.TopicID{1}
	idB   = event.TopicID{2}
	part  = Part{"orders", 0}
	aStr  = Stream{Part: part, Source: idA, Registered: idA, Remote: "us.orders", Target: idB}
)

// hand steps a core by hand.
type hand struct {
	t    *testing.T
	core *Core
	now  time.Time
	read int
}

func newHand(t *testing.T) *hand {
	return &hand{t: t, core: NewCore(CoreConfig{Generation: gen1, Positions: "pos", Runs: "runs"}), now: start}
}

// step gives an event and wants effects of these types; it returns them.
func (h *hand) step(ev any, want ...any) []any {
	h.t.Helper()
	got := h.core.Step(h.now, ev)
	names := func(xs []any) (out []string) {
		for _, x := range xs {
			out = append(out, fmt.Sprintf("%T", x))
		}
		return out
	}
	if !slices.Equal(names(got), names(want)) {
		h.t.Fatalf("%T led to %v, want %v", ev, names(got), names(want))
	}
	for _, x := range got {
		if r, ok := x.(Read); ok {
			h.read = r.Number
		}
	}
	return got
}

// ready takes the core to its idle phase.
func (h *hand) ready(pos *offsets.Position, l Listing) {
	h.t.Helper()
	h.step(Assigned{[]Stream{aStr}})
	h.step(Start{}, Init{})
	h.take(pos, l, Read{})
}

func (h *hand) take(pos *offsets.Position, l Listing, then ...any) {
	h.t.Helper()
	h.step(Inited{}, ReadGeneration{})
	h.step(GenerationRead{Found: Found{gen1, true}}, ReadPositions{})
	var ps []PositionRecord
	if pos != nil {
		ps = append(ps, PositionRecord{Source: idA, Position: *pos})
	}
	h.step(PositionsRead{Positions: ps}, List{})
	h.step(Listed{Listings: map[Part]Listing{part: l}}, then...)
}

func fresh() Listing {
	return Listing{SourceEnd: 100, SourceEpochEnd: -1, Target: idB, TargetEpochEnd: -1}
}

// data is an item with a batch of n records at a source offset.
func data(t *testing.T, base int64, n int) Item {
	t.Helper()
	var b txn.Builder
	for range n {
		b.Add(&txn.Record{Value: make([]byte, 20_000)}) // too large to be joined
	}
	batch, err := b.Batch(0)
	if err != nil {
		t.Fatal(err)
	}
	binary.BigEndian.PutUint64(batch, uint64(base)) // as a log gives it
	return Item{ItemData, base, base + int64(n), batch, -1}
}

func (h *hand) fetched(items ...Item) Fetched {
	return Fetched{h.read, []FetchedPart{{Part: part, Items: items, Stable: 100}}}
}

func at(bases ...int64) (out []txn.Produced) {
	for _, b := range bases {
		out = append(out, txn.Produced{Topic: "us.orders", Base: b})
	}
	return out
}

// described takes positions and runs out of what is to be produced.
func described(t *testing.T, p Produce) (pos offsets.Position, runs []offsets.Run) {
	t.Helper()
	for _, b := range p.Batches {
		err := txn.NewDecoder(txn.Limits{}).Each(b.Batch, func(r txn.Record) (err error) {
			switch b.Topic {
			case "pos":
				if _, incident, _ := ParseIncident(r.Key, r.Value); incident {
					return nil
				}
				pos, err = offsets.ParsePosition(r.Value)
			case "runs":
				_, _, first, _ := offsets.ParseKey(r.Key)
				var rs []offsets.Run
				rs, err = offsets.ParseRuns(first, r.Value)
				runs = append(runs, rs...)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return pos, runs
}

func TestCoreTakesOverInOrder(t *testing.T) {
	h := newHand(t)
	h.ready(nil, fresh())
	out := h.step(h.fetched(data(t, 0, 3), Item{ItemBarrier, 3, 4, nil, -1}, data(t, 4, 2)), Produce{})
	pos, runs := described(t, out[0].(Produce))
	want := []offsets.Run{
		{Target: 0, Source: 0, Count: 3, Barrier: -1},
		{Target: 3, Source: 4, Count: 2, Barrier: 3, Barriers: []int64{3}},
	}
	if !slices.EqualFunc(runs, want, func(a, b offsets.Run) bool { return fmt.Sprint(a) == fmt.Sprint(b) }) {
		t.Fatalf("runs %+v", runs)
	}
	if pos.SourceCovered != 6 || pos.TargetCovered != 5 || pos.Barrier != 3 || pos.Target != idB {
		t.Fatalf("position %+v", pos)
	}
	h.step(Produced{Produced: at(0, 3), Epochs: map[Part]int32{part: 0}}, End{})
	h.step(Ended{})
	// The commit marker takes one offset.
	out = h.step(h.fetched(data(t, 6, 1)), Produce{})
	if _, runs := described(t, out[0].(Produce)); runs[0].Target != 6 || runs[0].Barrier != 3 {
		t.Fatalf("runs %+v", runs)
	}
}

func TestCoreStopsWhenTheGenerationHasChanged(t *testing.T) {
	for _, found := range []Found{
		{Generation{Number: 2, Shards: 1, Cluster: "us", Fenced: true}, true}, {Generation{Number: 1, Shards: 1, Cluster: "us"}, true},
	} {
		h := newHand(t)
		h.step(Start{}, Init{})
		h.step(Inited{}, ReadGeneration{})
		out := h.step(GenerationRead{Found: found}, Stop{})
		if err := out[0].(Stop).Err; !errors.Is(err, ErrGeneration) {
			t.Fatal(err)
		}
		h.step(Tick{})
	}
	h := newHand(t)
	h.step(Start{}, Init{})
	h.step(Inited{}, ReadGeneration{})
	out := h.step(GenerationRead{}, Stop{})
	if err := out[0].(Stop).Err; !errors.Is(err, errGenerationLost) || tookOver(err) {
		t.Fatalf("without a generation record: %v", err)
	}
}

// Whatever is odd leads to the one recovery, and what was fetched before it is
// dropped.
func TestCoreRecovers(t *testing.T) {
	pos := offsets.Position{SourceCovered: 6, Barrier: -1, Target: idB, TargetCovered: 5}
	for name, odd := range map[string]func(h *hand){
		"unclear produce": func(h *hand) { h.step(Produced{Err: txn.ErrUnclear}) },
		"higher base": func(h *hand) {
			h.step(Produced{Produced: at(9), Epochs: map[Part]int32{part: 0}}, Report{})
		},
		"lower base":  func(h *hand) { h.step(Produced{Produced: at(5), Epochs: map[Part]int32{part: 0}}) },
		"other epoch": func(h *hand) { h.step(Produced{Produced: at(6), Epochs: map[Part]int32{part: 1}}) },
		"unclear end": func(h *hand) {
			h.step(Produced{Produced: at(6), Epochs: map[Part]int32{part: 0}}, End{})
			h.step(Ended{Err: txn.ErrUnclear})
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHand(t)
			l := fresh()
			l.TargetEnd = 6
			h.ready(&pos, l)
			old := h.fetched(data(t, 7, 1))
			h.step(h.fetched(data(t, 6, 1)), Produce{})
			odd(h)
			h.now = h.core.Wake()
			h.step(Tick{}, Init{})
			l.TargetEnd = 9
			h.step(Inited{}, ReadGeneration{})
			h.step(GenerationRead{Found: Found{gen1, true}}, ReadPositions{})
			h.step(old) // of the reading before
			h.step(PositionsRead{Positions: []PositionRecord{{Source: idA, Position: pos}}}, List{})
			out := h.core.Step(h.now, Listed{Listings: map[Part]Listing{part: l}})
			from := out[0].(Read).From[part]
			if from.Offset != 6 {
				t.Fatalf("reads from %d", from.Offset)
			}
			if len(h.core.streams[part].pending) > 0 {
				t.Fatal("what was fetched before is still pending")
			}
		})
	}
}

// A remote log that lost records and was refilled by abort markers looks whole by
// its end alone.
func TestCoreFindsTruncationThatWasRefilled(t *testing.T) {
	pos := offsets.Position{SourceCovered: 9, Barrier: -1, Target: idB, TargetCovered: 10, TargetEpoch: 3}
	for name, l := range map[string]Listing{
		"by the end":   {SourceEnd: 100, SourceEpochEnd: -1, Target: idB, TargetEnd: 5, TargetEpoch: 4, TargetEpochEnd: -1},
		"by the epoch": {SourceEnd: 100, SourceEpochEnd: -1, Target: idB, TargetEnd: 12, TargetEpoch: 4, TargetEpochEnd: 5},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHand(t)
			h.step(Assigned{[]Stream{aStr}})
			h.step(Start{}, Init{})
			h.take(&pos, l, Report{}, Leave{}, Read{}, Produce{})
			x := h.core.streams[part].parked
			if x == nil || x.Kind != TargetTruncated || x.From != 5 || x.Until != 10 {
				t.Fatalf("incident %+v", x)
			}
		})
	}
	t.Run("by a base", func(t *testing.T) {
		h := newHand(t)
		l := Listing{SourceEnd: 100, SourceEpochEnd: -1, Target: idB, TargetEnd: 10, TargetEpoch: 3, TargetEpochEnd: 10}
		h.ready(&pos, l)
		h.step(h.fetched(data(t, 9, 1)), Produce{})
		h.step(Produced{Produced: at(5), Epochs: map[Part]int32{part: 3}})
		h.now = h.core.Wake()
		h.step(Tick{}, Init{})
		l.TargetEnd, l.TargetEpochEnd = 12, 12 // markers have refilled it
		h.take(&pos, l, Report{}, Leave{}, Read{}, Produce{})
		if x := h.core.streams[part].parked; x == nil || x.Kind != TargetTruncated || x.From != 5 {
			t.Fatalf("incident %+v", x)
		}
	})
}

func TestCoreFindsTroubleAtTheSource(t *testing.T) {
	pos := offsets.Position{SourceCovered: 9, SourceEpoch: 2, Barrier: -1, Target: idB}
	for kind, l := range map[Kind]Listing{
		SourceTruncated: {SourceEnd: 100, SourceEpochEnd: 7, Target: idB, TargetEpochEnd: -1},
		RetentionGap:    {SourceStart: 12, SourceEnd: 100, SourceEpochEnd: 100, Target: idB, TargetEpochEnd: -1},
		TargetRecreated: {SourceEnd: 100, SourceEpochEnd: 100, Target: idA, TargetEpochEnd: -1},
	} {
		h := newHand(t)
		h.step(Assigned{[]Stream{aStr}})
		h.step(Start{}, Init{})
		h.take(&pos, l, Report{}, Leave{}, Read{}, Produce{})
		if x := h.core.streams[part].parked; x == nil || x.Kind != kind {
			t.Fatalf("%v: incident %+v", kind, x)
		}
	}
}

// TestCoreGoesOnOnceAGapIsAccepted: a gap that grows is told again; once somebody has accepted
// it the stream goes on behind it, without the leader epoch of before, and what was lost past
// that is another gap.
func TestCoreGoesOnOnceAGapIsAccepted(t *testing.T) {
	pos := offsets.Position{SourceCovered: 9, SourceEpoch: 2, Barrier: -1, Target: idB}
	l := Listing{SourceStart: 12, SourceEnd: 100, SourceEpochEnd: 100, Target: idB, TargetEpochEnd: -1}
	h := newHand(t)
	h.step(Assigned{[]Stream{aStr}})
	h.step(Start{}, Init{})
	h.take(&pos, l, Report{}, Leave{}, Read{}, Produce{})
	h.step(Produced{Epochs: map[Part]int32{part: 0}}, End{})
	h.step(Ended{})
	parked := func(from, until int64) {
		t.Helper()
		x := h.core.streams[part].parked
		if x == nil || x.Kind != RetentionGap || x.From != from || x.Until != until {
			t.Fatalf("parked %+v, want from %d until %d", x, from, until)
		}
	}
	parked(9, 12)
	look := func(then ...any) []any {
		t.Helper()
		h.now = h.now.Add(defaultSweep)
		out := h.step(Tick{}, List{})
		if next := out[0].(List).Streams[0].Next; next != 9 {
			t.Fatalf("asks from offset %d", next)
		}
		return h.step(Listed{Listings: map[Part]Listing{part: l}}, then...)
	}
	look()
	l.SourceStart = 14
	look(Report{}, Leave{})
	parked(9, 14)
	l.SourceStart, l.Accepted = 15, 14 // it grew while somebody accepted it
	look(Report{}, Leave{}, Produce{})
	parked(14, 15)
	h.step(Produced{Epochs: map[Part]int32{part: 0}}, End{})
	h.step(Ended{})
	l.Accepted, l.SourceEpochEnd = 15, -1
	out := look(Report{}, Read{})
	if !out[0].(Report).Ended || out[1].(Read).From[part].Offset != 15 || h.core.streams[part].parked != nil {
		t.Fatalf("%+v", out)
	}
	got, _ := described(t, h.step(h.fetched(data(t, 15, 1)), Produce{})[0].(Produce))
	if got.SourceCovered != 16 || got.SourceEpoch == 2 {
		t.Fatalf("position %+v", got)
	}
}

// TestCoreCopiesWhatItHasBeforeAGap: a gap behind what was fetched is looked at once that is
// copied, so that no more is lost than must be.
func TestCoreCopiesWhatItHasBeforeAGap(t *testing.T) {
	pos := offsets.Position{SourceCovered: 9, SourceEpoch: 2, TargetEpoch: 3, Barrier: -1, Target: idB}
	l := Listing{SourceEnd: 100, SourceEpochEnd: 100, Target: idB, TargetEpoch: 3, TargetEpochEnd: -1}
	h := newHand(t)
	h.ready(&pos, l)
	h.step(h.fetched(Item{ItemSkip, 9, 12, nil, 2}))
	h.core.streams[part].revalidate = true
	h.step(Tick{}, List{})
	l.SourceStart = 20
	h.step(Listed{Listings: map[Part]Listing{part: l}}, Read{})
	h.now = h.core.Wake()
	got, _ := described(t, h.step(Tick{}, Produce{})[0].(Produce))
	if got.SourceCovered != 12 || h.core.streams[part].parked != nil {
		t.Fatalf("position %+v, parked %+v", got, h.core.streams[part].parked)
	}
}

// TestCoreFollowsTheSourceIntoItsNextEpoch: a broker that was killed and is back has a
// new leader epoch. That the committed position's epoch ends below what was fetched
// since is no truncation.
func TestCoreFollowsTheSourceIntoItsNextEpoch(t *testing.T) {
	pos := offsets.Position{SourceCovered: 9, SourceEpoch: 2, TargetEpoch: 3, Barrier: -1, Target: idB}
	l := Listing{SourceEnd: 100, SourceEpochEnd: 10, Target: idB, TargetEpoch: 3, TargetEpochEnd: -1}
	h := newHand(t)
	h.ready(&pos, l)
	h.step(h.fetched(Item{ItemSkip, 9, 12, nil, 5})) // of the next epoch, and not committed yet
	h.core.streams[part].revalidate = true
	out := h.step(Tick{}, List{})
	if asked := out[0].(List).Streams[0]; asked.SourceEpoch != 5 {
		t.Fatalf("asks about epoch %d", asked.SourceEpoch)
	}
	l.SourceEpochEnd = 100
	h.step(Listed{Listings: map[Part]Listing{part: l}}, Read{})
	if x := h.core.streams[part].parked; x != nil {
		t.Fatalf("incident %+v", x)
	}
}

// TestCoreLosesNothingThatWasOnlyFetched: a log that ends below what was fetched but not
// below what was committed is read again from the committed position.
func TestCoreLosesNothingThatWasOnlyFetched(t *testing.T) {
	pos := offsets.Position{SourceCovered: 9, SourceEpoch: 2, TargetEpoch: 3, Barrier: -1, Target: idB}
	l := Listing{SourceEnd: 100, SourceEpochEnd: 100, Target: idB, TargetEpoch: 3, TargetEpochEnd: -1}
	h := newHand(t)
	h.ready(&pos, l)
	h.step(h.fetched(Item{ItemSkip, 9, 12, nil, 2}))
	h.core.streams[part].revalidate = true
	h.step(Tick{}, List{})
	l.SourceEnd, l.SourceEpochEnd = 10, 10
	h.step(Listed{Listings: map[Part]Listing{part: l}}, Leave{}, Read{})
	h.now = h.core.Wake()
	h.step(Tick{}, List{})
	h.step(Listed{Listings: map[Part]Listing{part: l}}, Read{})
	if s := h.core.streams[part]; s.parked != nil || s.nextOffset() != 9 {
		t.Fatalf("reads from %d, incident %+v", s.nextOffset(), s.parked)
	}
}

// TestCoreEndsAnIncidentThatWasNone: the next look that proves that nothing was lost
// ends it; one that proves nothing does not.
func TestCoreEndsAnIncidentThatWasNone(t *testing.T) {
	pos := offsets.Position{SourceCovered: 9, SourceEpoch: 2, TargetEpoch: 3, Barrier: -1, Target: idB}
	l := Listing{SourceEnd: 7, SourceEpochEnd: -1, Target: idB, TargetEpoch: 3, TargetEpochEnd: -1}
	h := newHand(t)
	h.step(Assigned{[]Stream{aStr}})
	h.step(Start{}, Init{})
	h.take(&pos, l, Report{}, Leave{}, Read{}, Produce{})
	h.step(Produced{}, End{})
	h.step(Ended{})
	look := func(l Listing, want ...any) {
		t.Helper()
		h.now = h.core.Wake()
		h.step(Tick{}, List{})
		h.step(Listed{Listings: map[Part]Listing{part: l}}, want...)
	}
	l.SourceEnd = 100 // refilled, perhaps
	look(l)
	l.SourceEpochEnd = 8
	look(l)
	if x := h.core.streams[part].parked; x == nil || x.Kind != SourceTruncated {
		t.Fatalf("incident %+v", x)
	}
	l.SourceEpochEnd = 100
	look(l, Report{}, Read{})
	if x := h.core.streams[part].parked; x != nil {
		t.Fatalf("incident %+v", x)
	}
}

func TestCoreTellsALostIDFromATimeOut(t *testing.T) {
	for _, late := range []bool{false, true} {
		h := newHand(t)
		h.ready(nil, fresh())
		h.step(h.fetched(data(t, 0, 1)), Produce{})
		if !late {
			out := h.step(Produced{Err: txn.ErrFenced}, Stop{})
			if err := out[0].(Stop).Err; !errors.Is(err, ErrTakenOver) {
				t.Fatal(err)
			}
			continue
		}
		h.now = h.now.Add(time.Minute) // suspended meanwhile: the cluster gave up on us
		h.step(Produced{Err: txn.ErrFenced})
		h.now = h.core.Wake()
		h.step(Tick{}, Init{})
	}
}

func TestCoreAdvancesIdlePositions(t *testing.T) {
	h := newHand(t)
	h.ready(nil, fresh())
	h.step(h.fetched(Item{ItemSkip, 0, 1, nil, -1}, Item{ItemBarrier, 1, 2, nil, -1}))
	h.now = h.core.Wake()
	if !h.now.Equal(start.Add(defaultIdleAdvance)) {
		t.Fatalf("wakes %v after", h.now.Sub(start))
	}
	out := h.step(Tick{}, Produce{})
	pos, runs := described(t, out[0].(Produce))
	if pos.SourceCovered != 2 || pos.Barrier != 1 || len(runs) > 0 {
		t.Fatalf("position %+v, runs %+v", pos, runs)
	}
}

func TestCoreHoldsAPartitionWithoutLeader(t *testing.T) {
	h := newHand(t)
	h.ready(nil, fresh())
	h.step(h.fetched(data(t, 0, 1)), Produce{})
	h.step(Produced{Err: &txn.NotWritableError{Topic: "us.orders", Err: kerr.LeaderNotAvailable}}, Leave{})
	h.now = h.core.Wake()
	h.step(Tick{}, Init{})
	h.step(Inited{}, ReadGeneration{})
	h.step(GenerationRead{Found: Found{gen1, true}}, ReadPositions{})
	h.step(PositionsRead{}) // nothing to list yet
	h.now = h.core.Wake()
	h.step(Tick{}, List{})
	h.step(Listed{Listings: map[Part]Listing{part: fresh()}}, Read{})
}

// Runs are folded into blocks that say the same.
func TestCoreFoldsRuns(t *testing.T) {
	h := newHand(t)
	h.ready(nil, fresh())
	target := int64(0)
	kept := map[string][]byte{} // the compacted runs topic
	for i := range int64(3*foldAfter + 7) {
		item := data(t, 2*i, 1)
		item.Batch = item.Batch[:len(item.Batch):len(item.Batch)]
		out := h.step(h.fetched(item, Item{ItemSkip, 2*i + 1, 2*i + 2, nil, -1}), Produce{})
		for _, b := range out[0].(Produce).Batches {
			if b.Topic != "runs" {
				continue
			}
			_ = txn.NewDecoder(txn.Limits{}).Each(b.Batch, func(r txn.Record) error {
				if r.Value == nil {
					delete(kept, string(r.Key))
				} else {
					kept[string(r.Key)] = r.Value
				}
				return nil
			})
		}
		h.step(Produced{Produced: at(target), Epochs: map[Part]int32{part: 0}}, End{})
		h.step(Ended{})
		target += 2
	}
	if len(kept) > foldAfter+4 {
		t.Fatalf("%d records of runs are kept", len(kept))
	}
	var m offsets.Map
	for key, value := range kept {
		_, _, first, _ := offsets.ParseKey([]byte(key))
		runs, err := offsets.ParseRuns(first, value)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Add(runs...); err != nil {
			t.Fatal(err)
		}
	}
	for i := range int64(3*foldAfter + 7) {
		if inc, source, ok := m.Source(2 * i); !ok || source != 2*i || inc != 0 {
			t.Fatalf("target %d is source %d, %v", 2*i, source, ok)
		}
	}
}

func TestAgreement(t *testing.T) {
	type step struct {
		found *Found
		want  any
	}
	old := Generation{Number: 4, Shards: 2, Previous: 3, PreviousShards: 8, Cluster: "us", Fenced: true}
	unfinished := old
	unfinished.Fenced = false
	moved := Generation{Number: 5, Shards: 6, Previous: 4, PreviousShards: 2, Cluster: "us"}
	movedDone := moved
	movedDone.Fenced = true
	first := Generation{Number: 1, Shards: DefaultShards, Cluster: "us"}
	firstDone := first
	firstDone.Fenced = true
	for name, c := range map[string]struct {
		shards int
		steps  []step
	}{
		"first":  {0, []step{{&Found{}, WriteGeneration{first}}, {nil, FenceShards{}}, {nil, WriteGeneration{firstDone}}, {nil, Agreed{firstDone}}}},
		"same":   {2, []step{{&Found{old, true}, Agreed{old}}}},
		"any":    {0, []step{{&Found{old, true}, Agreed{old}}}},
		"finish": {6, []step{{&Found{unfinished, true}, FenceShards{3, 8}}, {nil, WriteGeneration{old}}, {nil, Agreed{old}}}},
		"move":   {6, []step{{&Found{old, true}, WriteGeneration{moved}}, {nil, FenceShards{4, 2}}, {nil, WriteGeneration{movedDone}}, {nil, Agreed{movedDone}}}},
	} {
		a := NewAgreement(c.shards, "us")
		for i, s := range append([]step{{nil, PeekGeneration{}}, {&Found{}, InitGeneration{}}, {nil, FindGeneration{}}}, c.steps...) {
			if got, err := a.Step(s.found); err != nil || got != s.want {
				t.Fatalf("%s, step %d: %+v, %v; want %+v", name, i, got, err, s.want)
			}
		}
	}
	for _, shards := range []int{0, 2} { // nothing to change: no producer is needed
		a := NewAgreement(shards, "us")
		_, _ = a.Step(nil)
		if got, err := a.Step(&Found{old, true}); err != nil || got != (Agreed{old}) {
			t.Fatalf("a record as wanted by %d shards: %+v, %v", shards, got, err)
		}
	}
	for name, found := range map[string]Found{"unfinished": {unfinished, true}, "of another number of shards": {moved, true}} {
		a := NewAgreement(2, "us")
		_, _ = a.Step(nil)
		if got, err := a.Step(&found); err != nil || got != (InitGeneration{}) {
			t.Fatalf("a record that is %s: %+v, %v", name, got, err)
		}
	}
	a := NewAgreement(0, "other")
	_, _ = a.Step(nil)
	_, _ = a.Step(&Found{old, true})
	_, _ = a.Step(nil)
	if _, err := a.Step(&Found{old, true}); !errors.Is(err, ErrSettings) {
		t.Fatalf("another source: %v", err)
	}
}

// underPolicy is the stream of the tests under a ruling of a version.
func underPolicy(version uint64) Stream {
	s := aStr
	s.Ruling = &residency.Ruling{Topic: s.Topic, Effect: residency.Allow, Rule: "open", Version: version}
	return s
}

// What is decided is written down before it is sent, and nothing is sent under a
// ruling that the policy in force did not give.
func TestCoreUnderAPolicy(t *testing.T) {
	h := newHand(t)
	h.step(PolicyChanged{1})
	h.step(Assigned{[]Stream{underPolicy(1)}})
	h.step(Start{}, Init{})
	h.take(nil, fresh(), Read{})
	out := h.step(h.fetched(data(t, 0, 3), Item{ItemSkip, 3, 4, nil, -1}), Audit{})
	want := []residency.Run{{From: 0, Until: 3, Code: residency.Allowed, Rule: "open"}, {From: 3, Until: 4, Code: residency.NoRecord}}
	if d := out[0].(Audit).Decided; len(d) != 1 || !slices.Equal(d[0].Runs, want) {
		t.Fatalf("decided %+v, want %+v", d, want)
	}
	// The policy changes while the audit is written: nothing of it goes out.
	h.step(PolicyChanged{2})
	h.step(Audited{}, Leave{})
	h.step(h.fetched(data(t, 4, 2)))
	h.now = h.now.Add(time.Minute)
	h.step(Tick{})
	if !h.core.Wake().IsZero() {
		t.Fatalf("wakes at %v for a stream that has stopped", h.core.Wake())
	}
	// The new ruling begins where the committed position is.
	h.step(Assigned{[]Stream{underPolicy(2)}}, Leave{}, List{})
	read := h.step(Listed{Listings: map[Part]Listing{part: fresh()}}, Read{})[0].(Read)
	if read.From[part].Offset != 0 {
		t.Fatalf("reads from %+v", read.From)
	}
	h.step(h.fetched(data(t, 0, 3)), Audit{})
	sent := h.step(Audited{}, Produce{})[0].(Produce)
	if len(sent.Batches) != 3 { // data, position, runs
		t.Fatalf("%d batches", len(sent.Batches))
	}
	h.step(Produced{Produced: at(0)}, End{})
	// A change while the transaction is under way counts from the next one on.
	h.step(PolicyChanged{3})
	h.step(Ended{}, Leave{})
	if n := h.core.rules[RuleKey{"open", residency.Allowed}]; n != 3 {
		t.Fatalf("%d records counted", n)
	}
}

// Without an audit nothing is sent.
func TestCoreNeedsTheAudit(t *testing.T) {
	h := newHand(t)
	h.step(PolicyChanged{1})
	h.step(Assigned{[]Stream{underPolicy(1)}})
	h.step(Start{}, Init{})
	h.take(nil, fresh(), Read{})
	h.step(h.fetched(data(t, 0, 3)), Audit{})
	h.step(Audited{Err: errors.New("the source is away")})
	h.now = h.core.Wake()
	h.step(Tick{}, Init{})
}

// TestCoreSweepsTogether has streams that were assigned one after the other: from then on
// they are looked at together, once a sweep, since each question costs as much as all.
func TestCoreSweepsTogether(t *testing.T) {
	h := newHand(t)
	h.ready(nil, fresh())
	lists, swept := 0, map[int32]time.Time{0: h.now}
	step := func(ev any) {
		for todo := h.core.Step(h.now, ev); len(todo) > 0; {
			var answer any
			switch effect := todo[0].(type) {
			case List:
				lists++
				listings := map[Part]Listing{}
				for _, s := range effect.Streams {
					listings[s.Part], swept[s.Number] = fresh(), h.now
				}
				answer = Listed{Listings: listings}
			case Produce: // of positions that say where copying has begun
				epochs := map[Part]int32{}
				for _, s := range effect.Check {
					epochs[s.Part] = 0
				}
				answer = Produced{Epochs: epochs}
			case End:
				answer = Ended{}
			}
			todo = todo[1:]
			if answer != nil {
				todo = append(todo, h.core.Step(h.now, answer)...)
			}
		}
	}
	const n = 12
	all := []Stream{aStr}
	for i := int32(1); i < n; i++ {
		h.now = h.now.Add(defaultSweep / n)
		next := aStr
		next.Number = i
		all = append(all, next)
		step(Assigned{slices.Clone(all)})
	}
	if len(swept) != n {
		t.Fatalf("%d of %d streams were listed", len(swept), n)
	}
	const sweeps = 10
	lists = 0
	for until := h.now.Add(sweeps * defaultSweep); h.now.Before(until); {
		h.now = h.core.Wake()
		step(Tick{})
		for number, last := range swept {
			if h.now.Sub(last) > defaultSweep {
				t.Fatalf("stream %d was not looked at for %v", number, h.now.Sub(last))
			}
		}
	}
	// Streams that are looked at before their time keep a sweep between them.
	if lists > 2*sweeps+2 {
		t.Errorf("%d questions in %d sweeps", lists, sweeps)
	}
}
