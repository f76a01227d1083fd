package replicate

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/offsets"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/residency"
	"github.com/geogate/geogate/router"
)

const origin event.RegionID = 1

// span is an interval of the test's log; until event.NoCut while it runs.
type span struct{ from, until int64 }

// owned is what a register says that has given the log's region these intervals.
func owned(revision uint64, spans ...span) *event.ValidityTable {
	a := &event.ValidityTable{Revision: revision}
	log := &a.Logs[origin]
	for i, s := range spans {
		x := event.Tenure{Epoch: event.Epoch(16*(i+1)) + event.Epoch(origin), Start: []event.Point{{Next: s.from}}}
		if s.until != event.NoCut {
			x.Ended, x.Cut = true, []event.Point{{Next: s.until}}
		}
		log.List = append(log.List, x)
		log.Known = x.Epoch
	}
	return a
}

func known(a *event.ValidityTable) IntervalsChanged {
	return IntervalsChanged{map[Part]*event.ValidityTable{part: a}}
}

// newOwnedHand steps a core whose streams have a register.
func newOwnedHand(t *testing.T) *hand {
	return &hand{
		t: t, now: start,
		core: NewCore(CoreConfig{Generation: gen1, Positions: "pos", Runs: "runs", Origin: origin, HasRegister: true}),
	}
}

// commits steps through a transaction whose batches get these offsets.
func (h *hand) commits(bases []int64, then ...any) {
	h.t.Helper()
	h.step(Produced{Produced: at(bases...), Epochs: map[Part]int32{part: 0}}, End{})
	h.step(Ended{}, then...)
}

// sources are the source offsets that runs lead to.
func sources(runs []offsets.Run) (out []int64) {
	for _, r := range runs {
		for i := range r.Count {
			out = append(out, r.Source+i)
		}
	}
	return out
}

func (h *hand) status() streamView {
	h.t.Helper()
	views, _ := h.core.view()
	return views[0]
}

// At a cut the stream stops, inside a batch too; behind it nothing is fetched. Once
// the next interval's start is known it goes on there, and covers what lies between
// with its barriers.
func TestCoreStopsAtACutAndGoesOnFromAStart(t *testing.T) {
	h := newOwnedHand(t)
	h.step(known(owned(1, span{0, 5})))
	h.ready(nil, fresh())
	out := h.step(h.fetched(data(t, 0, 3), Item{ItemBarrier, 3, 4, nil, -1}, data(t, 4, 4), data(t, 8, 1)), Produce{})
	pos, runs := described(t, out[0].(Produce))
	if !slices.Equal(sources(runs), []int64{0, 1, 2, 4}) || pos.SourceCovered != 5 || pos.Barrier != 3 {
		t.Fatalf("position %+v, runs %+v", pos, runs)
	}
	h.commits([]int64{0, 3}, Leave{})
	h.step(h.fetched(data(t, 9, 1))) // was on its way
	if len(h.core.streams[part].pending) > 0 {
		t.Fatal("something past the cut is kept")
	}
	if v := h.status(); v.stopped != cutOff || v.end(100) != 5 {
		t.Fatalf("%+v", v)
	}
	// It is looked at like a quiet stream, and not read.
	h.now = h.core.Wake()
	if !h.now.Equal(start.Add(defaultSweep)) {
		t.Fatalf("wakes %v after", h.now.Sub(start))
	}
	h.step(Tick{}, List{})
	l := fresh()
	l.TargetEnd = 5
	h.step(Listed{Listings: map[Part]Listing{part: l}})

	// A new interval begins inside a batch.
	h.step(known(owned(2, span{0, 5}, span{10, event.NoCut})))
	h.step(Tick{}, List{})
	read := h.step(Listed{Listings: map[Part]Listing{part: l}}, Read{})[0].(Read)
	if read.From[part].Offset != 5 {
		t.Fatalf("reads from %+v", read.From)
	}
	out = h.step(h.fetched(data(t, 4, 4), Item{ItemBarrier, 8, 9, nil, -1}, data(t, 9, 3), Item{ItemBarrier, 12, 13, nil, -1}), Produce{})
	pos, runs = described(t, out[0].(Produce))
	if !slices.Equal(sources(runs), []int64{10, 11}) || pos.SourceCovered != 13 || pos.Barrier != 12 {
		t.Fatalf("position %+v, runs %+v", pos, runs)
	}
	if !slices.Equal(runs[0].Barriers, []int64{8}) || runs[0].Barrier != 8 {
		t.Fatalf("runs %+v", runs)
	}
	h.commits([]int64{5})
	if _, c := h.core.view(); c.Orphans != 3+1 || c.Copied != 6 {
		t.Fatalf("%+v", c)
	}
	if v := h.status(); v.stopped != notStopped || v.end(100) != 100 {
		t.Fatalf("%+v", v)
	}
}

// A cut that is known before the flight holds, however far the work on the
// transaction was; one that comes later is for the regions that fold.
func TestCutBecomesKnownOnTheWay(t *testing.T) {
	running, ended := owned(1, span{0, event.NoCut}), owned(2, span{0, 2})
	t.Run("while the audit is written", func(t *testing.T) {
		h := newOwnedHand(t)
		h.step(known(running))
		h.step(PolicyChanged{1})
		h.step(Assigned{[]Stream{underPolicy(1)}})
		h.step(Start{}, Init{})
		h.take(nil, fresh(), Read{})
		h.step(h.fetched(data(t, 0, 3)), Audit{})
		h.step(known(ended))
		out := h.step(Audited{}, Audit{})
		want := []residency.Run{{From: 0, Until: 2, Code: residency.Allowed, Rule: "open"}}
		if d := out[0].(Audit).Decided; !slices.Equal(d[0].Runs, want) {
			t.Fatalf("decided %+v", d)
		}
		sent := h.step(Audited{}, Produce{})[0].(Produce)
		if pos, runs := described(t, sent); !slices.Equal(sources(runs), []int64{0, 1}) || pos.SourceCovered != 2 {
			t.Fatalf("position %+v, runs %+v", pos, runs)
		}
	})
	for name, when := range map[string]int{"before the answer": 0, "before the end": 1, "before the commit is known": 2} {
		t.Run(name, func(t *testing.T) {
			h := newOwnedHand(t)
			h.step(known(running))
			h.ready(nil, fresh())
			h.step(h.fetched(data(t, 0, 3)), Produce{})
			tell := func(at int) {
				if at == when {
					h.step(known(ended))
				}
			}
			tell(0)
			h.step(h.fetched(data(t, 3, 2))) // fetched meanwhile
			tell(1)
			h.step(Produced{Produced: at(0), Epochs: map[Part]int32{part: 0}}, End{})
			tell(2)
			h.step(Ended{}, Leave{})
			if s := h.core.streams[part]; s.pos.SourceCovered != 3 || len(s.pending) > 0 {
				t.Fatalf("covered %d, pending %d", s.pos.SourceCovered, len(s.pending))
			}
			if v := h.status(); v.end(100) != 3 {
				t.Fatalf("%+v", v)
			}
			// The next interval may begin below what was copied already.
			h.step(known(owned(3, span{0, 2}, span{2, event.NoCut})))
			h.step(Tick{}, List{})
			l := fresh()
			l.TargetEnd = 4
			if read := h.step(Listed{Listings: map[Part]Listing{part: l}}, Read{})[0].(Read); read.From[part].Offset != 3 {
				t.Fatalf("reads from %+v", read.From)
			}
			_, runs := described(t, h.step(h.fetched(data(t, 3, 2)), Produce{})[0].(Produce))
			if !slices.Equal(sources(runs), []int64{3, 4}) {
				t.Fatalf("runs %+v", runs)
			}
		})
	}
}

// What the register does not vouch for, or was not asked about, does not leave.
func TestCoreIsStoppedWithoutAnInterval(t *testing.T) {
	for name, c := range map[string]struct {
		ev   any
		want stopReason
	}{
		"not asked":          {nil, registerUnread},
		"not about this one": {IntervalsChanged{}, registerUnread},
		"not read":           {known(&event.ValidityTable{}), registerUnread},
		"never owned":        {known(&event.ValidityTable{Revision: 3}), neverOwned},
		"cut at once":        {known(owned(3, span{0, 0})), cutOff},
	} {
		t.Run(name, func(t *testing.T) {
			h := newOwnedHand(t)
			if c.ev != nil {
				h.step(c.ev)
			}
			h.step(Assigned{[]Stream{aStr}})
			h.step(Start{}, Init{})
			h.take(nil, fresh(), Read{})
			if v := h.status(); v.stopped != c.want || v.end(100) != 0 {
				t.Fatalf("%+v", v)
			}
			if h.core.streams[part].stopped != true {
				t.Fatal("it is read")
			}
			h.step(h.fetched(data(t, 0, 3)))
			// The region claims the unit.
			h.step(known(owned(4, span{0, event.NoCut})))
			h.step(Tick{}, List{})
			h.step(Listed{Listings: map[Part]Listing{part: fresh()}}, Read{})
			h.step(h.fetched(data(t, 0, 3)), Produce{})
		})
	}
	t.Run("no register", func(t *testing.T) {
		h := newOwnedHand(t)
		h.step(known(nil))
		h.ready(nil, fresh())
		h.step(h.fetched(data(t, 0, 3)), Produce{})
	})
}

// Control records are carried whoever owns what.
func TestCoreCarriesControlWhoeverOwns(t *testing.T) {
	h := newOwnedHand(t)
	s := aStr
	s.Control = true
	h.step(Assigned{[]Stream{s}})
	h.step(Start{}, Init{})
	h.take(nil, fresh(), Read{})
	if v := h.status(); v.stopped != notStopped {
		t.Fatalf("%+v", v)
	}
}

// Whatever the core is waiting for, news of the intervals takes hold when it is
// done.
func TestCutBecomesKnownDuringListing(t *testing.T) {
	pos := offsets.Position{SourceCovered: 6, Barrier: -1, Target: idB, TargetCovered: 5}
	l := fresh()
	l.TargetEnd = 6
	begin := func(t *testing.T, spans ...span) *hand {
		h := newOwnedHand(t)
		h.step(known(owned(1, spans...)))
		h.step(Assigned{[]Stream{aStr}})
		h.step(Start{}, Init{})
		h.step(Inited{}, ReadGeneration{})
		h.step(GenerationRead{Found: Found{gen1, true}}, ReadPositions{})
		h.step(PositionsRead{Positions: []PositionRecord{{Source: idA, Position: pos}}}, List{})
		return h
	}
	t.Run("of a cut", func(t *testing.T) {
		h := begin(t, span{0, event.NoCut})
		h.step(known(owned(2, span{0, 6})))
		if read := h.step(Listed{Listings: map[Part]Listing{part: l}}, Read{})[0].(Read); len(read.From) != 0 {
			t.Fatalf("reads from %+v", read.From)
		}
	})
	t.Run("of a start", func(t *testing.T) {
		h := begin(t, span{0, 6})
		h.step(known(owned(2, span{0, 6}, span{8, event.NoCut})))
		if read := h.step(Listed{Listings: map[Part]Listing{part: l}}, Read{})[0].(Read); read.From[part].Offset != 6 {
			t.Fatalf("reads from %+v", read.From)
		}
	})
	t.Run("of a start while it is swept", func(t *testing.T) {
		h := begin(t, span{0, 6})
		h.step(Listed{Listings: map[Part]Listing{part: l}}, Read{})
		h.now = h.core.Wake()
		h.step(Tick{}, List{})
		h.step(known(owned(2, span{0, 6}, span{8, event.NoCut})))
		h.step(Listed{Listings: map[Part]Listing{part: l}})
		if h.core.Wake().After(h.now) {
			t.Fatalf("wakes %v later", h.core.Wake().Sub(h.now))
		}
		h.step(Tick{}, List{})
		h.step(Listed{Listings: map[Part]Listing{part: l}}, Read{})
	})
	t.Run("of a cut while it is swept", func(t *testing.T) {
		h := begin(t, span{0, event.NoCut})
		h.step(Listed{Listings: map[Part]Listing{part: l}}, Read{})
		h.now = h.core.Wake()
		h.step(Tick{}, List{})
		h.step(h.fetched(data(t, 6, 2)))
		h.step(known(owned(2, span{0, 6})))
		h.step(Listed{Listings: map[Part]Listing{part: l}}, Leave{})
	})
}

// What was described of the remote log is written down at a cut too.
func TestCoreDescribesWhileItIsStopped(t *testing.T) {
	h := newOwnedHand(t)
	h.step(known(owned(1, span{0, 6})))
	h.step(Assigned{[]Stream{aStr}})
	h.step(Start{}, Init{})
	l := fresh()
	l.TargetEnd, l.TargetEpoch = 9, 1
	h.take(&offsets.Position{SourceCovered: 6, Barrier: -1, Target: idB, TargetCovered: 5}, l, Read{})
	h.now = h.core.Wake()
	pos, _ := described(t, h.step(Tick{}, Produce{})[0].(Produce))
	if pos.SourceCovered != 6 || pos.TargetCovered != 9 || pos.TargetEpoch != 1 {
		t.Fatalf("position %+v", pos)
	}
	h.step(Produced{}, End{})
	h.step(Ended{})
}

// What the source's retention takes from past a cut is no gap, and none while the
// stream is stopped; what it takes from before one is.
func TestCoreTellsLostOrphansFromAGap(t *testing.T) {
	pos := offsets.Position{SourceCovered: 6, SourceEpoch: -1, Barrier: -1, Target: idB, TargetEpoch: -1}
	begin := func(t *testing.T, l Listing, spans []span, then ...any) *hand {
		h := newOwnedHand(t)
		h.step(known(owned(1, spans...)))
		h.step(Assigned{[]Stream{aStr}})
		h.step(Start{}, Init{})
		h.take(&pos, l, then...)
		return h
	}
	l := fresh()
	l.SourceStart, l.TargetEpoch = 9, -1
	t.Run("stopped", func(t *testing.T) {
		h := begin(t, l, []span{{0, 6}}, Read{})
		if h.core.streams[part].parked != nil {
			t.Fatal("parked")
		}
		h.step(known(owned(2, span{0, 6}, span{12, event.NoCut})))
		h.step(Tick{}, List{})
		out := h.step(Listed{Listings: map[Part]Listing{part: l}}, Report{}, Read{}, Produce{})
		if x := out[0].(Report).Incident; x.Kind != OrphansGone || x.From != 6 || x.Until != 9 || x.Kind.Parks() {
			t.Fatalf("%+v", x)
		}
		if read := out[1].(Read); read.From[part].Offset != 9 {
			t.Fatalf("reads from %+v", read.From)
		}
		if pos, _ := described(t, out[2].(Produce)); pos.SourceCovered != 9 {
			t.Fatalf("position %+v", pos)
		}
	})
	for name, spans := range map[string][]span{"before a cut": {{0, 7}}, "behind a start": {{0, 6}, {8, event.NoCut}}} {
		t.Run(name, func(t *testing.T) {
			h := begin(t, l, spans, Report{}, Leave{}, Read{}, Produce{})
			if x := h.core.streams[part].parked; x == nil || x.Kind != RetentionGap {
				t.Fatalf("%+v", x)
			}
		})
	}
}

// A stream that was stopped from the first begins where the log does when it may
// go on.
func TestCoreRestartsAfterAStop(t *testing.T) {
	h := newOwnedHand(t)
	h.step(known(&event.ValidityTable{Revision: 1}))
	h.step(Assigned{[]Stream{aStr}})
	h.step(Start{}, Init{})
	h.take(nil, fresh(), Read{})
	l := fresh()
	l.SourceStart = 7
	h.now = h.core.Wake()
	h.step(Tick{}, List{})
	h.step(Listed{Listings: map[Part]Listing{part: l}})
	h.step(known(owned(2, span{0, event.NoCut})))
	h.step(Tick{}, List{})
	if read := h.step(Listed{Listings: map[Part]Listing{part: l}}, Read{})[0].(Read); read.From[part].Offset != 7 {
		t.Fatalf("reads from %+v", read.From)
	}
	h.step(h.fetched(data(t, 7, 1)), Produce{})
	h.commits([]int64{0})
}

// A link that is new begins where the source's log does.
func TestCoreBeginsWhereTheLogDoes(t *testing.T) {
	h := newHand(t)
	l := fresh()
	l.SourceStart = 12
	h.step(Assigned{[]Stream{aStr}})
	h.step(Start{}, Init{})
	h.take(nil, l, Read{})
	if s := h.core.streams[part]; s.parked != nil || s.pos.SourceCovered != 12 {
		t.Fatalf("parked %+v at %d", s.parked, s.pos.SourceCovered)
	}
}

// The audit has one verdict for each offset, and orphans one of their own.
func TestPrepareRulesOrphans(t *testing.T) {
	var b txn.Builder
	for i := range 10 {
		b.Add(&txn.Record{Key: []byte([]string{"pub", "prv"}[i%2])})
	}
	batch, err := b.Batch(0)
	if err != nil {
		t.Fatal(err)
	}
	items := []Item{{Kind: ItemData, Base: 0, Next: 10, Batch: batch, LeaderEpoch: -1}, {Kind: ItemBarrier, Base: 10, Next: 11, LeaderEpoch: -1}}
	perKey := compiled(t, `{id: k, effect: allow, topics: [orders], from: [us], to: [eu], when: 'key == "pub"'}`)
	open := compiled(t, `{id: o, effect: allow, topics: [orders], from: [us], to: [eu]}`)
	for name, c := range map[string]struct {
		ruling *residency.Ruling
		lapses []lapse
		want   string
		count  [3]int64 // copied, denied, orphans
	}{
		"by topic":      {open, []lapse{{2, 4}, {6, 20}}, "0-2 allow o, 2-4 orphan , 4-6 allow o, 6-10 orphan , 10-11 none ", [3]int64{4, 0, 6}},
		"to a cut":      {open, []lapse{{2, event.NoCut}}, "0-2 allow o", [3]int64{2, 0, 0}},
		"all of it":     {perKey, []lapse{{0, 10}}, "0-10 orphan , 10-11 none ", [3]int64{0, 0, 10}},
		"by key":        {perKey, []lapse{{1, 3}}, "0-1 allow k, 1-3 orphan , 3-4 deny default, 4-5 allow k, 5-6 deny default, 6-7 allow k, 7-8 deny default, 8-9 allow k, 9-10 deny default, 10-11 none ", [3]int64{4, 4, 2}},
		"by key, a cut": {perKey, []lapse{{1, 2}, {3, event.NoCut}}, "0-1 allow k, 1-2 orphan , 2-3 allow k", [3]int64{2, 0, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			s := aStr
			s.Ruling = c.ruling
			p, err := prepare(txn.NewDecoder(txn.Limits{}), &s, prepared{barrier: -1}, 0, c.lapses, items)
			if err != nil {
				t.Fatal(err)
			}
			var said []string
			for _, r := range p.verdicts {
				said = append(said, fmt.Sprintf("%d-%d %v %s", r.From, r.Until, r.Code, r.Rule))
			}
			if got := strings.Join(said, ", "); got != c.want {
				t.Errorf("verdicts %s, want %s", got, c.want)
			}
			if got := [3]int64{p.copied, p.denied, p.orphans}; got != c.count {
				t.Errorf("counts %v, want %v", got, c.count)
			}
		})
	}
}

func compiled(t testing.TB, rule string) *residency.Ruling {
	t.Helper()
	p, err := residency.Parse("p", []byte("version: 1\nkind: ResidencyPolicy\nname: a\nrevision: 1\ndefault: deny\nrules: ["+rule+"]\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	return p.Compile("orders", "us", "eu")
}

// Why a partition is stopped is reported with its topic.
func TestStoppedPartitionsAreReported(t *testing.T) {
	l := &Link{cfg: Config{From: router.Region{Name: "us", ID: 1}, Unit: func(topic string) string { return "air/" + topic }}}
	part := func(topic string, n int32) Part { return Part{topic, n} }
	stopped := l.stoppedEntries([]streamView{
		{part: part("a", 0), covered: 5, stopped: cutOff},
		{part: part("a", 1)},
		{part: part("a", 2), covered: 7, stopped: cutOff},
		{part: part("b", 0), stopped: neverOwned},
		{part: part("c", 0), covered: 3, stopped: registerUnread},
	})
	rulings := []TopicRuling{{Topic: "a", Reason: "a"}, {Topic: "b", Reason: "b"}, {Topic: "c", Reason: "c"}, {Topic: "d", Reason: "d"}}
	addStopReasons(rulings, stopped)
	for i, want := range []string{
		"a; stopped at the cut of air/a (partition 0 at 5, 2 at 7)",
		"b; stopped: us has not owned air/b yet (partition 0 at 0)",
		"c; stopped: the ownership register has not been read yet (partition 0 at 3)",
		"d",
	} {
		if rulings[i].Reason != want {
			t.Errorf("%q, want %q", rulings[i].Reason, want)
		}
	}
}
