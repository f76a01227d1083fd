package conflict_test

import (
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
)

// site is one region of a world in which region 1 may keep single events from
// region 2.
type site struct {
	id      event.RegionID
	log     []event.Event
	vector  event.Vector
	states  map[string]*conflict.State
	applied map[string][]event.Event
}

func (s *site) apply(ev event.Event) {
	key := string(ev.Key)
	if s.states[key] == nil {
		s.states[key] = &conflict.State{}
	}
	s.states[key].Apply(&ev, nil)
	s.applied[key] = append(s.applied[key], ev)
}

// write accepts a write with what the site has seen, as a seat does.
func (s *site) write(key string, stamp int64, restricted uint16) event.Event {
	state := s.states[key]
	if state == nil {
		state = &conflict.State{}
	}
	seen := state.Context(s.vector, restricted)
	ev := event.Event{
		At: event.Dot{Region: s.id, Offset: int64(len(s.log))}, Stamped: true, Key: []byte(key), Timestamp: stamp,
		Envelope: event.Envelope{ID: event.ID{byte(s.id), byte(len(s.log))}, Region: s.id, Stamp: hlc.FromMillis(stamp), Op: event.Put},
	}
	ev.Context = seen.Without(s.id)
	s.log = append(s.log, ev)
	s.apply(ev)
	s.vector.Advance(ev.At)
	return ev
}

// A write in a region from which single events are kept never covers one that it
// was not shown, also after the restriction was lifted; entities of which
// everything was shown come to the same state in both regions.
func TestRestrictedOrigin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		home := &site{id: 1, states: map[string]*conflict.State{}, applied: map[string][]event.Event{}}
		away := &site{id: 2, states: map[string]*conflict.State{}, applied: map[string][]event.Event{}}
		denied := map[event.Dot]bool{}
		var restricted uint16
		kept := map[string]bool{}
		deliver := func(from, to *site, deny bool) {
			next := to.vector[from.id].Next
			if next >= int64(len(from.log)) {
				return
			}
			ev := from.log[next]
			if deny {
				denied[ev.At], kept[string(ev.Key)] = true, true
				restricted |= 1 << from.id
			} else {
				to.apply(ev)
			}
			to.vector.Advance(ev.At)
		}
		for i := range rapid.IntRange(5, 40).Draw(t, "steps") {
			key := rapid.SampledFrom([]string{"x", "y"}).Draw(t, "key")
			stamp := int64(1000+i) + rapid.Int64Range(-5, 5).Draw(t, "skew")
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			case 0:
				home.write(key, stamp, 0)
			case 1:
				ev := away.write(key, stamp, restricted)
				for _, other := range home.log {
					if denied[other.At] && string(other.Key) == key && ev.Context.Covers(other.At) && !shownThrough(away, key, other.At) {
						t.Fatalf("%v covers %v, which it was never shown", ev.At, other.At)
					}
				}
			case 2:
				// A lifted restriction delivers again; the mask stays.
				deliver(home, away, rapid.IntRange(0, 3).Draw(t, "deny") == 0)
			default:
				deliver(away, home, false)
			}
		}
		for home.vector[2].Next < int64(len(away.log)) {
			deliver(away, home, false)
		}
		for away.vector[1].Next < int64(len(home.log)) {
			deliver(home, away, false)
		}
		for _, key := range []string{"x", "y"} {
			a, b := home.states[key], away.states[key]
			if a == nil || b == nil || kept[key] {
				continue
			}
			a.Trim(&home.vector)
			b.Trim(&away.vector)
			if !reflect.DeepEqual(dots(a.Live), dots(b.Live)) {
				t.Fatalf("entity %s: home has %v, away %v", key, dots(a.Live), dots(b.Live))
			}
		}
	})
}

// shownThrough tells whether the region was shown an event of the origin's own log
// that comes after another: who has seen that has seen what it replaced.
func shownThrough(s *site, key string, at event.Dot) bool {
	for _, ev := range s.applied[key] {
		if ev.At.Region == at.Region && ev.At.Offset > at.Offset {
			return true
		}
	}
	return false
}

func TestContextOfRestrictedOrigin(t *testing.T) {
	live := func(r event.RegionID, offset int64, seen event.Vector) conflict.Live {
		return conflict.Live{Event: event.Event{At: event.Dot{Region: r, Offset: offset}, Envelope: event.Envelope{Context: seen}}}
	}
	vector := event.Vector{1: {Next: 100}, 2: {Next: 50}, 3: {Next: 7}}
	for _, c := range []struct {
		name       string
		state      conflict.State
		restricted uint16
		want       event.Vector
	}{
		{"no restriction", conflict.State{}, 0, vector},
		{"nothing live", conflict.State{}, 1 << 1, event.Vector{2: {Next: 50}, 3: {Next: 7}}},
		{"its own value", conflict.State{Live: []conflict.Live{live(1, 41, event.Vector{})}}, 1 << 1, event.Vector{1: {Next: 42}, 2: {Next: 50}, 3: {Next: 7}}},
		{"what a value has seen", conflict.State{Live: []conflict.Live{live(3, 6, event.Vector{1: {Next: 12}})}}, 1<<1 | 1<<2, event.Vector{1: {Next: 12}, 3: {Next: 7}}},
	} {
		if got := c.state.Context(vector, c.restricted); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
