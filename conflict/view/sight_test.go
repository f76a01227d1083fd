package view_test

import (
	"iter"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/judged"
	"github.com/geogate/geogate/internal/seat"
)

// promising has all three regions promise, and know of each other, as much as limit says.
type promising struct{ limit atomic.Pointer[event.Vector] }

func (p *promising) sight(s *conflict.Sight) {
	s.Regions = []event.RegionID{1, 2, 3}
	s.Told = func(r event.RegionID) iter.Seq[conflict.Told] {
		limit := p.limit.Load()
		return slices.Values([]conflict.Told{{Promised: *limit, Floor: limit[r]}})
	}
}

// settled is the frontier under a promise, computed from the items themselves.
func (p *promising) frontier(items []judged.Item, before event.Vector) event.Vector {
	s := conflict.Sight{Own: 1, Before: before}
	by := map[event.IdempotencyKey][]conflict.Copy{}
	for i := range items {
		it := &items[i]
		s.Vector[it.Origin] = it.Next
		if k := it.Event.Envelope.Key; it.Verdict == judged.Valid && !k.IsZero() {
			by[k] = append(by[k], conflict.CopyOf(&it.Event))
		}
	}
	var twins [][]conflict.Copy
	for _, copies := range by {
		twins = append(twins, copies)
	}
	p.sight(&s)
	s.Twins = slices.Values(twins)
	return s.Frontier().At
}

// at is the frontier that is in force.
func at(v *running) event.Vector {
	f, _ := v.Frontier()
	return f
}

// The frontier follows what all regions promise, and parts no copies of a key; it is kept in
// the state topic and never falls, and the floor is told to the others.
func TestFrontierIsKept(t *testing.T) {
	w := newWorld(t, entities)
	items := w.history(5, 120)
	var full event.Vector
	for _, it := range items {
		full[it.Origin] = it.Next
	}
	var p promising
	p.limit.Store(&event.Vector{})
	w.claims = func() (seat.Claims, bool) { return seat.Claims{Promised: full, Counted: true}, true }
	w.opts = func(c *viewConfig) { c.Sight, c.TidyEvery, c.NeededEvery = p.sight, time.Millisecond, time.Millisecond }
	v := w.start(store(t))
	v.feed(items)
	v.wait(items)
	if f := at(v); !f.IsZero() {
		t.Fatalf("frontier %v before anybody has promised anything", f)
	}
	before, parted := event.Vector{}, 0
	for _, share := range []int64{2, 3, 5} {
		limit := full
		for r := range limit {
			limit[r].Next = limit[r].Next * share / 6
		}
		p.limit.Store(&limit)
		want := p.frontier(items, before)
		if want != limit {
			parted++
		}
		v.until("the frontier to move", func() bool { v.Look(); return at(v) == want })
		before = want
		if got := v.Status().Frontier; !got.Known || got.At != want || got.Above(&full) == 0 || got.Since[1].IsZero() {
			t.Errorf("status %+v", got)
		}
		v.until("the floor to be told", func() bool {
			rs := w.read(control.TopicControl, 0)
			told, err := control.ParseProgress(rs[len(rs)-1].Key, rs[len(rs)-1].Value)
			return err == nil && told.Counted && told.Floor == limit[1]
		})
	}
	if parted == 0 {
		t.Error("no twins at any frontier")
	}
	if err := v.stop(); err != nil {
		t.Fatal(err)
	}
	p.limit.Store(&event.Vector{}) // nobody's word can be used any more
	v = w.start(store(t))
	if f := at(v); f != before {
		t.Fatalf("frontier %v after a restart with an empty store, it was %v", f, before)
	}
	v.until("a look at the frontier", func() bool { v.Look(); return v.Status().Frontier.Known })
	if f := at(v); f != before {
		t.Fatalf("the frontier has fallen from %v to %v", before, f)
	}
	// Until the journal is filled again nobody knows which copies there are.
	p.limit.Store(&full)
	v.until("the store to be named", func() bool { v.Look(); return v.Status().Frontier.Holds[1].Why == conflict.HeldByStore })
	v.feed(items)
	v.until("everything to be settled", func() bool { v.Look(); return at(v) == full })
	if got := v.Status().Frontier; got.Above(&full) != 0 {
		t.Errorf("status %+v", got)
	}
}
