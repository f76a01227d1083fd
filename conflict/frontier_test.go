package conflict_test

import (
	"iter"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
)

// drawSight draws what one of three regions sees, with offsets below 8.
func drawSight(t *rapid.T) conflict.Sight {
	point := rapid.Custom(func(t *rapid.T) event.Point { return event.Point{Next: rapid.Int64Range(0, 8).Draw(t, "next")} })
	vector := func(name string) (v event.Vector) {
		for r := 1; r <= 3; r++ {
			v[r] = point.Draw(t, name)
		}
		return v
	}
	s := conflict.Sight{Own: 1, Regions: []event.RegionID{1, 2, 3}, Vector: vector("vector"), Ownership: 2, Table: drawTable(t)}
	var told [4][]conflict.Told
	for r := 1; r <= 3; r++ {
		for range rapid.IntRange(0, 3).Draw(t, "told") {
			told[r] = append(told[r], conflict.Told{
				End: point.Draw(t, "end"), Promised: vector("promised"), Floor: point.Draw(t, "floor"),
				Ownership: rapid.Uint64Range(0, 3).Draw(t, "ownership"), Incarnations: rapid.Uint64Range(0, 1).Draw(t, "incarnations"),
			})
		}
	}
	s.Told = func(r event.RegionID) iter.Seq[conflict.Told] { return newestFirst(told[r]...) }
	s.Before = vector("before")
	for r := range s.Before {
		if s.Vector[r].Compare(s.Before[r]) < 0 {
			s.Before[r] = s.Vector[r]
		}
	}
	s.Lacking = rapid.IntRange(0, 9).Draw(t, "lacking") == 0
	twin := rapid.Custom(func(t *rapid.T) conflict.Copy {
		r := event.RegionID(rapid.IntRange(1, 3).Draw(t, "region"))
		return conflict.Copy{At: event.Dot{Region: r, Offset: rapid.Int64Range(0, 7).Draw(t, "offset")}, Epoch: event.FirstEpoch(r)}
	})
	s.Twins = slices.Values(rapid.SliceOfN(rapid.SliceOfN(twin, 2, 3), 0, 4).Draw(t, "twins"))
	return s
}

// drawTable draws a table in which each region has one epoch, perhaps over, perhaps cut.
func drawTable(t *rapid.T) *event.ValidityTable {
	if rapid.Bool().Draw(t, "no register") {
		return nil
	}
	table := &event.ValidityTable{Revision: 2}
	for r := 1; r <= 3; r++ {
		first := event.FirstEpoch(event.RegionID(r))
		log := event.Tenures{Known: first, List: []event.Tenure{{Epoch: first}}}
		switch rapid.IntRange(0, 3).Draw(t, "state") {
		case 0:
			log.Known += 16
		case 1:
			log.Known += 16
			log.List[0].Ended, log.List[0].Cut = true, []event.Point{{Next: rapid.Int64Range(0, 8).Draw(t, "cut")}}
		}
		table.Logs[r] = log
		if rapid.IntRange(0, 3).Draw(t, "retired") == 0 {
			table.Retired |= 1 << r
		}
	}
	return table
}

// settledAt is what a frontier promises, said without the rule that computes it: everybody
// whose word can be used has promised each point that is not settled already, nobody who may
// not know of a cut counts past it, and no key's copies that count are parted.
func settledAt(s *conflict.Sight, v *event.Vector) bool {
	for _, r := range s.Regions {
		if v[r].Compare(s.Before[r]) < 0 || s.Vector[r].Compare(v[r]) < 0 {
			return false
		}
		if v[r] == s.Before[r] {
			continue
		}
		if s.Lacking {
			return false
		}
		cut, _ := s.Table.Cut(r, 0, 0)
		for _, q := range s.Regions {
			if cut, _ := s.Table.Cut(q, 0, 0); q != s.Own && s.Table != nil && s.Table.Retired>>q&1 == 1 && s.Vector[q].Next >= cut {
				continue // retired, and folded to its cut
			}
			u := usableOf(s, q)
			if u == nil || u.Promised[r].Compare(v[r]) < 0 || u.Ownership < s.Ownership && v[r].Next > cut || q == r && u.Floor.Compare(v[r]) < 0 {
				return false
			}
		}
	}
	for twins := range s.Twins {
		below, above := false, false
		for _, c := range twins {
			if s.Table.Judge(c.At, c.Epoch) != event.Orphan {
				below = below || v.Covers(c.At) && !s.Before.Covers(c.At)
				above = above || !v.Covers(c.At)
			}
		}
		if below && above {
			return false
		}
	}
	return true
}

// newestFirst gives what was told, the oldest first, the other way round.
func newestFirst(told ...conflict.Told) iter.Seq[conflict.Told] {
	return func(yield func(conflict.Told) bool) {
		for _, t := range slices.Backward(told) {
			if !yield(t) {
				return
			}
		}
	}
}

func usableOf(s *conflict.Sight, q event.RegionID) *conflict.Told {
	all := slices.Collect(s.Told(q))
	for i := range all {
		end := all[i].End
		if cut, _ := s.Table.Cut(q, 0, 0); end.Next > cut && s.Vector[q].Next >= cut {
			end.Next = s.Vector[q].Next // nothing that counts lies between
		}
		if all[i].Ownership <= s.Ownership && all[i].Incarnations <= s.Incarnations && end.Compare(s.Vector[q]) <= 0 {
			return &all[i]
		}
	}
	return nil
}

// The frontier is the greatest vector that is settled: it is settled, and every settled
// vector lies below it.
func TestFrontierIsTheGreatestThatIsSettled(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSight(t)
		f := s.Frontier()
		if !settledAt(&s, &f.At) {
			t.Fatalf("%v is not settled, seen from %v, before %v, twins %v", f.At, s.Vector, s.Before, slices.Collect(s.Twins))
		}
		for a := range int64(9) {
			for b := range int64(9) {
				for c := range int64(9) {
					v := event.Vector{1: {Next: a}, 2: {Next: b}, 3: {Next: c}}
					if settledAt(&s, &v) && !f.At.CoversAll(&v) {
						t.Fatalf("%v is settled, and the frontier is %v", v, f.At)
					}
				}
			}
		}
	})
}

// What holds an entry is named for each that lies below what is folded.
func TestFrontierNamesWhatHoldsIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSight(t)
		f := s.Frontier()
		for _, r := range s.Regions {
			if held := f.Holds[r].Why != conflict.NotHeld; held != (f.At[r] != s.Vector[r]) && f.At[r] != s.Before[r] {
				t.Fatalf("region %d: held %v at %v of %v", r, f.Holds[r], f.At[r], s.Vector[r])
			}
		}
		if origin, h, ok := f.Hindmost(&s.Vector); ok != (f.Above(&s.Vector) > 0) || ok && (h.Why == conflict.NotHeld || f.At[origin] == s.Vector[origin]) {
			t.Fatalf("%v holds region %d of %v at %v", h, origin, s.Vector, f.At)
		}
	})
}

// A is cut at 0 by B, and C does not know it: what B tells then speaks of another log.
func TestFrontierIgnoresWhatANewerRevisionSays(t *testing.T) {
	v := event.Vector{1: {Next: 4}, 2: {Next: 4}}
	told := conflict.Told{Promised: v, Floor: event.Point{Next: 4}, Ownership: 7}
	s := conflict.Sight{Own: 1, Regions: []event.RegionID{1, 2}, Vector: v, Ownership: 6, Told: func(event.RegionID) iter.Seq[conflict.Told] { return newestFirst(told) }}
	if f := s.Frontier(); !f.At.IsZero() || f.Holds[2] != (conflict.Hold{Why: conflict.HeldByUnheard, By: 1}) {
		t.Errorf("frontier %v, held by %v", f.At, f.Holds[2])
	}
	s.Ownership = 7
	if f := s.Frontier(); f.At != v {
		t.Errorf("frontier %v, want all of it", f.At)
	}
}

// Histories that break rules which are nearly right. Regions 1, 2 and 3 are A, B and C.
func TestFrontierTraps(t *testing.T) {
	cut := func(revision uint64, cuts map[event.RegionID]int64) *event.ValidityTable {
		table := &event.ValidityTable{Revision: revision}
		for r := event.RegionID(1); r <= 3; r++ {
			first := event.FirstEpoch(r)
			table.Logs[r] = event.Tenures{Known: first, List: []event.Tenure{{Epoch: first}}}
			if at, ended := cuts[r]; ended {
				table.Logs[r].Known, table.Logs[r].List[0].Ended, table.Logs[r].List[0].Cut = first+16, true, []event.Point{{Next: at}}
			}
		}
		return table
	}
	upTo := func(a, b, c int64) event.Vector { return event.Vector{1: {Next: a}, 2: {Next: b}, 3: {Next: c}} }
	told := func(all map[event.RegionID]conflict.Told) func(event.RegionID) iter.Seq[conflict.Told] {
		return func(r event.RegionID) iter.Seq[conflict.Told] { return newestFirst(all[r]) }
	}
	copyAt := func(r event.RegionID, offset int64) conflict.Copy {
		return conflict.Copy{At: event.Dot{Region: r, Offset: offset}, Epoch: event.FirstEpoch(r)}
	}
	all := []event.RegionID{1, 2, 3}
	for _, c := range []struct {
		name string
		s    conflict.Sight
		want event.Vector
	}{
		// A fences C at cut 0. C does not know it and logs C0. A reads C0 as an orphan, and its
		// vector passes it; B applies C0, and sees that everyone has.
		{"too early, the cut is not known", conflict.Sight{Own: 2, Regions: all, Vector: upTo(0, 0, 1), Ownership: 1, Table: cut(1, nil), Told: told(map[event.RegionID]conflict.Told{
			1: {Promised: upTo(0, 0, 1), Ownership: 2}, 2: {Promised: upTo(0, 0, 1), Ownership: 1},
			3: {Promised: upTo(0, 0, 1), Ownership: 1, Floor: event.Point{Next: 1}, End: event.Point{Next: 1}},
		})}, upTo(0, 0, 0)},
		// C comes back in no other epoch, and B, too, has taken C0 out: nothing is left to happen to it.
		{"too early, the cut is folded everywhere", conflict.Sight{Own: 2, Regions: all, Vector: upTo(0, 0, 1), Ownership: 2, Table: cut(2, map[event.RegionID]int64{3: 0}), Told: told(map[event.RegionID]conflict.Told{
			1: {Promised: upTo(0, 0, 1), Ownership: 2}, 2: {Promised: upTo(0, 0, 1), Ownership: 2},
			3: {Promised: upTo(0, 0, 1), Ownership: 2, Floor: event.Point{Next: 1}, End: event.Point{Next: 1}},
		})}, upTo(0, 0, 1)},
		// C is the one that does not know of it: what it has told before does not count past the cut.
		{"too early, the origin does not know", conflict.Sight{Own: 2, Regions: all, Vector: upTo(0, 0, 1), Ownership: 2, Table: cut(2, map[event.RegionID]int64{3: 0}), Told: told(map[event.RegionID]conflict.Told{
			1: {Promised: upTo(0, 0, 1), Ownership: 2}, 2: {Promised: upTo(0, 0, 1), Ownership: 2},
			3: {Promised: upTo(0, 0, 1), Ownership: 1, Floor: event.Point{Next: 1}, End: event.Point{Next: 1}},
		})}, upTo(0, 0, 0)},
		// C0 and B0 share a key. B0 would lie below A's frontier and C0 above; if C were cut at 0,
		// A would show nothing, and the others B0.
		{"twins parted", conflict.Sight{Own: 1, Regions: all, Vector: upTo(0, 1, 1), Told: told(map[event.RegionID]conflict.Told{
			1: {Promised: upTo(0, 1, 1)}, 2: {Promised: upTo(0, 1, 0), Floor: event.Point{Next: 1}}, 3: {Promised: upTo(0, 1, 1), Floor: event.Point{Next: 1}},
		}), Twins: slices.Values([][]conflict.Copy{{copyAt(3, 0), copyAt(2, 0)}})}, upTo(0, 0, 0)},
		// A1 is applied everywhere, and A does not know that: if it lost the end of its log it
		// would record an end below A1.
		{"lost tail", conflict.Sight{Own: 3, Regions: all, Vector: upTo(2, 0, 0), Told: told(map[event.RegionID]conflict.Told{
			1: {Promised: upTo(2, 0, 0), Floor: event.Point{Next: 1}}, 2: {Promised: upTo(2, 0, 0)}, 3: {Promised: upTo(2, 0, 0)},
		})}, upTo(1, 0, 0)},
		// B has accepted a write before it saw C0, and that is not in the log yet: it promises no
		// C0, and so C0, which seems to be seen by all, is not settled.
		{"a write in flight", conflict.Sight{Own: 1, Regions: all, Vector: upTo(0, 0, 1), Told: told(map[event.RegionID]conflict.Told{
			1: {Promised: upTo(0, 0, 1)}, 2: {Promised: upTo(0, 0, 0)}, 3: {Promised: upTo(0, 0, 1), Floor: event.Point{Next: 1}, End: event.Point{Next: 1}},
		})}, upTo(0, 0, 0)},
		// What C has told lies beyond what this region has of its log: a twin may be in between.
		{"an end that is not reached", conflict.Sight{Own: 1, Regions: all, Vector: upTo(1, 0, 0), Told: told(map[event.RegionID]conflict.Told{
			1: {Promised: upTo(1, 0, 0), Floor: event.Point{Next: 1}}, 2: {Promised: upTo(1, 0, 0)}, 3: {Promised: upTo(1, 0, 0), End: event.Point{Next: 4}},
		})}, upTo(0, 0, 0)},
	} {
		if f := c.s.Frontier(); f.At != c.want {
			t.Errorf("%s: frontier %v, want %v", c.name, f.At, c.want)
		}
	}
}
