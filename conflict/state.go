package conflict

import (
	"slices"

	"github.com/geogate/geogate/internal/event"
)

// Live is a live value of an entity: none of the standing events applied has
// seen it.
type Live struct {
	Event  event.Event
	Copies []event.Dot // the other copies of the same write under the same entity
}

// State is an entity as a function of the set of events applied: the antichain
// of its live values and the cover. The zero State knows no event.
type State struct {
	// Live holds the live values, region ids ascending.
	// Invariant: at most one for a region.
	Live []Live
	// Cover is the join of the full contexts of all standing events applied. It
	// may leave out entries that the partition's vector has reached (Trim).
	Cover event.Vector
}

// Apply adds a standing event that was not applied before. copies are the other
// copies of the same write under this entity. The order of calls does not matter.
func (s *State) Apply(ev *event.Event, copies []event.Dot) {
	full := ev.FullContext()
	s.Cover.Join(&full)
	s.drop()
	if !reached(&s.Cover, ev.At, copies) {
		s.insert(Live{Event: *ev, Copies: copies})
	}
}

// Context is what a new write of the entity has seen, given the vector applied and
// the restricted origins (bit r: origin r). Having come to an offset of a
// restricted origin does not mean to have been shown what lies before it; so of
// those the context holds only what the live values themselves are and have seen.
func (s *State) Context(vector event.Vector, restricted uint16) event.Vector {
	for r := range vector {
		if restricted>>r&1 == 0 {
			continue
		}
		vector[r] = event.Point{}
		for i := range s.Live {
			ev := &s.Live[i].Event
			seen := ev.Context[r]
			if ev.At.Region == event.RegionID(r) {
				seen = event.Point{Incarnation: ev.At.Incarnation, Next: ev.At.Offset + 1}
			}
			if vector[r].Compare(seen) < 0 {
				vector[r] = seen
			}
		}
	}
	return vector
}

// addCopy tells that a void copy of the live value at standing lies at copied:
// a writer that has seen the copy has seen the write.
func (s *State) addCopy(standing, copied event.Dot) {
	for i := range s.Live {
		l := &s.Live[i]
		if l.Event.At != standing || slices.Contains(l.Copies, copied) {
			continue
		}
		l.Copies = append(slices.Clip(l.Copies), copied)
		slices.SortFunc(l.Copies, event.Dot.Compare)
	}
	s.drop()
}

// drop takes out the live values that the cover reaches.
func (s *State) drop() {
	s.Live = slices.DeleteFunc(s.Live, func(l Live) bool { return reached(&s.Cover, l.Event.At, l.Copies) })
}

func (s *State) insert(l Live) {
	at, _ := slices.BinarySearchFunc(s.Live, l.Event.At, func(x Live, d event.Dot) int { return x.Event.At.Compare(d) })
	s.Live = slices.Insert(s.Live, at, l)
}

// reached is the clause "the cover reaches a copy of it".
func reached(cover *event.Vector, at event.Dot, copies []event.Dot) bool {
	if cover.Covers(at) {
		return true
	}
	for _, c := range copies {
		if cover.Covers(c) {
			return true
		}
	}
	return false
}

// Trim leaves out the cover entries that the partition's vector has reached:
// every event below them is applied, so they can no longer kill a newcomer.
func (s *State) Trim(vector *event.Vector) {
	for r := range s.Cover {
		if s.Cover[r].Compare(vector[r]) <= 0 {
			s.Cover[r] = event.Point{}
		}
	}
}

// Standing is what a refold needs of an event that stands.
type Standing struct {
	At      event.Dot
	Context event.Vector // full: with the own entry
	Copies  []event.Dot  // other copies of the same write under the same entity
}

// Refold folds all standing events of an entity at once and tells which of them
// are live (indices into events, in their order) and the cover. It gives what
// Apply gives in any order.
func Refold(events []Standing) (live []int, cover event.Vector) {
	return refoldOn(event.Vector{}, events)
}

// refoldOn is Refold of events of which those that are not given have a cover.
func refoldOn(cover event.Vector, events []Standing) (live []int, _ event.Vector) {
	for i := range events {
		cover.Join(&events[i].Context)
	}
	for i := range events {
		if !reached(&cover, events[i].At, events[i].Copies) {
			live = append(live, i)
		}
	}
	return live, cover
}
