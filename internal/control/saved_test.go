package control_test

import (
	"testing"
	"time"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/offsets"
)

// saved is a SavedRuns in memory that counts what is put.
type saved struct {
	control.RunStore
	places map[int32]control.Place
	under  map[int32]control.Place
	puts   int
	resets int
}

func newSaved() *saved {
	return &saved{RunStore: control.NewMemoryRuns(), places: map[int32]control.Place{}, under: map[int32]control.Place{}}
}

func (s *saved) Of(c control.Copy) offsets.Store { return &countedStore{s.RunStore.Of(c), s} }

func (s *saved) Place(slot int32) (control.Place, bool) { p, ok := s.places[slot]; return p, ok }

func (s *saved) Under(slot int32, topic event.TopicID, epoch int32) {
	s.under[slot] = control.Place{Topic: topic, Epoch: epoch}
}

func (s *saved) ReadTo(slot int32, next int64) {
	p := s.under[slot]
	p.Next = next
	s.places[slot] = p
}

func (s *saved) Reset() {
	s.RunStore, s.resets = control.NewMemoryRuns(), s.resets+1
	clear(s.places)
}

type countedStore struct {
	offsets.Store
	of *saved
}

func (c *countedStore) Put(first int64, value []byte) { c.of.puts++; c.Store.Put(first, value) }

// TestRunsAreReadOnce: a start reads on in the topics of runs, but for some offsets, and
// reads everything again if the topic is another one, or has lost its end.
func TestRunsAreReadOnce(t *testing.T) {
	b := newBroker(t)
	b.createAll()
	const runs = 2500
	write := func(from, until int64) {
		for i := from; i < until; i++ {
			k, v := runsRecord(offsets.Run{Target: 2 * i, Source: i, Count: 1, Barrier: -1})
			b.produce(control.RunsFrom("eu"), slot, k, v)
		}
	}
	write(0, runs)
	k, v := positionRecord(offsets.Position{SourceCovered: runs, TargetCovered: 2 * runs, Barrier: -1, Target: topicA, SourceEpoch: -1})
	b.produce(control.PositionsFrom("eu"), slot, k, v)
	s := newSaved()
	start := func() {
		t.Helper()
		s.puts = 0
		f, stop := b.followOver(func(event.RegionID) control.SavedRuns { return s })
		defer stop()
		select {
		case <-f.Ready():
		case <-time.After(time.Minute):
			t.Fatal("not ready")
		}
		for i := range int64(runs) {
			if loc := f.Locate(2, topicA, 3, 2*i, -1); loc.State != control.Mapped || loc.Source != i {
				t.Fatalf("Locate(%d) = %+v", 2*i, loc)
			}
		}
	}
	start()
	if s.puts < runs {
		t.Fatalf("%d records were put at the first start", s.puts)
	}
	resets := s.resets
	write(runs, runs+10)
	start()
	if s.puts != 10 || s.resets != resets {
		t.Fatalf("%d records were put at the second start, after %d resets", s.puts, s.resets-resets)
	}
	for what, forge := range map[string]func(*control.Place){
		"another topic": func(p *control.Place) { p.Topic = topicB },
		"a lost end":    func(p *control.Place) { p.Next = runs + 1000 },
	} {
		p := s.places[slot]
		forge(&p)
		s.places[slot] = p
		resets := s.resets
		if start(); s.resets != resets+1 || s.puts != runs+10 {
			t.Fatalf("%s: %d records were put, after %d resets", what, s.puts, s.resets-resets)
		}
	}
}

func TestSavedPlace(t *testing.T) {
	for name, c := range map[string]struct {
		p                    control.Place
		first, end, epochEnd int64
		next                 int64
		ok                   bool
	}{
		"as it was":               {control.Place{Topic: topicA, Next: 5000}, 0, 5000, 5000, 4000, true},
		"grown":                   {control.Place{Topic: topicA, Next: 5000}, 0, 9000, 9000, 4000, true},
		"just begun":              {control.Place{Topic: topicA, Next: 10}, 0, 10, 10, 0, true},
		"its beginning was lost":  {control.Place{Topic: topicA, Next: 5000}, 4500, 9000, 9000, 4500, true},
		"another topic":           {control.Place{Topic: topicB, Next: 5000}, 0, 9000, 9000, 0, false},
		"its end was lost":        {control.Place{Topic: topicA, Next: 5000}, 0, 4999, 4999, 0, false},
		"of an unknown epoch":     {control.Place{Topic: topicA, Next: 5000}, 0, 9000, -1, 0, false},
		"lost, and written again": {control.Place{Topic: topicA, Next: 5000}, 0, 9000, 4990, 0, false},
	} {
		if next, ok := control.SavedPlace(c.p, topicA, c.first, c.end, c.epochEnd); next != c.next || ok != c.ok {
			t.Errorf("%s: %d, %v; want %d, %v", name, next, ok, c.next, c.ok)
		}
	}
}

// TestRunsTakeBoundedMemory: whatever was copied, and wherever readers look, a link's runs
// take what the budget allows and what one copy needs.
func TestRunsTakeBoundedMemory(t *testing.T) {
	const (
		copies = 12
		each   = 3000
		budget = 256 << 10
		// one is what a single copy may hold: its newest runs twice, and a block.
		one = (2*1024 + 2*foldedEvery + 1024) * 80
	)
	l := control.NewLinkIndex()
	l.RunBudget(budget)
	for p := range int32(copies) {
		copied(t, l, p, each, 3)
		if held := l.RunBudget(budget); held > budget+one {
			t.Fatalf("the runs of %d copies take %d bytes", p+1, held)
		}
	}
	for i := range int64(each) {
		for p := range int32(copies) {
			source := (i*7919)%(3*each) + int64(p)%3
			if source >= 3*each {
				continue
			}
			want := source/3*4 + source%3
			if target, ok := l.TargetOffset(topicA, p, 0, source); !ok || target != want {
				t.Fatalf("source %d of copy %d is found at %d (%v), want %d", source, p, target, ok, want)
			}
		}
		if held := l.RunBudget(budget); held > budget+one {
			t.Fatalf("looking up makes the runs take %d bytes", held)
		}
	}
}

// TestNeedlessRuns: runs are forgotten by their tombstones where this instance knows that
// the log begins above them, and nowhere else. What is left still says that places before it
// lay below the start of the log.
func TestNeedlessRuns(t *testing.T) {
	d := linksDesk{t, control.NewLinkIndex()}
	var firsts []int64
	for i := range int64(10) {
		d.runs(offsets.Run{Target: 10 * i, Source: 9 * i, Count: 9, Barrier: -1})
		firsts = append(firsts, 10*i)
	}
	d.position(offsets.Position{SourceCovered: 90, TargetCovered: 100, Barrier: -1})
	d.BeginListing()(map[int32]int64{slot: 10})
	d.RunsReadTo(slot, 10)
	tombstone := func(first int64) {
		t.Helper()
		if err := d.ApplyRuns(offsets.AppendKey(nil, topicA, 3, first), nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, first := range firsts {
		tombstone(first) // somebody's, which proves nothing
	}
	d.want(5, control.Mapped)
	c := control.Copy{Topic: topicA, Partition: 3}
	const start = 55 // of the log: inside the run at 50
	if got := d.Needless(c, start, 3); len(got) != 3 || got[2] != 20 {
		t.Fatalf("Needless = %v", got)
	}
	got := d.Needless(c, start, 100)
	if len(got) != 5 || got[4] != 40 {
		t.Fatalf("Needless = %v", got)
	}
	for _, first := range firsts {
		tombstone(first)
	}
	if left := d.RunRecords(topicA, 3); len(left) != 5 || left[0][0].Target != 50 {
		t.Fatalf("left are %v", left)
	}
	// Whoever fetched it before it was deleted must not take it for a foreign one.
	d.want(5, control.Pending)
	d.want(9, control.Pending)
	d.want(52, control.Mapped)
	d.want(59, control.Foreign)
	for _, source := range []int64{0, 20, 44} {
		if target, ok := d.TargetOffsetFrom(topicA, 3, 0, source); !ok || target >= start {
			t.Errorf("source %d is to be read from %d (%v): the log begins at %d, and nobody would miss anything", source, target, ok, start)
		}
	}
	if target, ok := d.TargetOffsetFrom(topicA, 3, 0, 54); !ok || target != 60 {
		t.Errorf("source 54 is to be read from %d (%v)", target, ok)
	}
	if got := d.Needless(c, 60, 100); len(got) != 0 {
		t.Errorf("Needless = %v: the last record below is needed", got)
	}
}
