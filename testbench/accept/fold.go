//go:build unix

package main

import (
	"cmp"
	"slices"
	"strings"

	"github.com/geogate/geogate/internal/event"
)

// The fold by definition, over all events of one entity at once. The product
// folds one event after the other, in whatever order they arrive, and keeps
// only what it needs; this keeps everything and looks at all pairs. That both
// give the same is the point.
//
// A run is far shorter than the idempotency window, so that all copies of a key
// belong together.

// standing is an event that takes effect, with every valid copy of it.
type standing struct {
	event.Event
	copies []event.Dot // its own dot among them
}

// stand groups valid events by idempotency key: of the copies of one key the
// smallest in the total order stands. dead are the others, each with the one
// that stands in its place. Events without a key stand for themselves.
func stand(valid []event.Event) (stands []*standing, dead map[event.Dot]event.Dot) {
	sorted := slices.Clone(valid)
	slices.SortFunc(sorted, func(a, b event.Event) int {
		switch {
		case event.Less(&a, &b):
			return -1
		case event.Less(&b, &a):
			return 1
		}
		return 0
	})
	byKey := make(map[event.IdempotencyKey]*standing)
	dead = make(map[event.Dot]event.Dot)
	for _, e := range sorted {
		if !e.Envelope.Key.IsZero() {
			if s := byKey[e.Envelope.Key]; s != nil {
				s.copies = append(s.copies, e.At)
				dead[e.At] = s.At
				continue
			}
		}
		s := &standing{Event: e, copies: []event.Dot{e.At}}
		stands = append(stands, s)
		if !e.Envelope.Key.IsZero() {
			byKey[e.Envelope.Key] = s
		}
	}
	return stands, dead
}

// sees tells whether a's context, its own log included, reaches a copy of b.
func sees(a, b *standing) bool {
	ctx := a.FullContext()
	return slices.ContainsFunc(b.copies, ctx.Covers)
}

// fold returns the live events of an entity, greatest first: those of which the
// cover, the join of the contexts of all standing events, reaches no copy. Under
// lww the first is the winner.
func fold(valid []event.Event) []*standing {
	stands, _ := stand(valid)
	var cover event.Vector
	for _, s := range stands {
		ctx := s.FullContext()
		cover.Join(&ctx)
	}
	var live []*standing
	for _, s := range stands {
		if !slices.ContainsFunc(s.copies, cover.Covers) {
			live = append(live, s)
		}
	}
	slices.Reverse(live) // stands is in the total order
	return live
}

// versionOf is the version of an entity: the live dots, region ids descending,
// joined by plus signs.
func versionOf(live []*standing, names event.RegionNames) string {
	byRegion := slices.Clone(live)
	slices.SortFunc(byRegion, func(a, b *standing) int { return cmp.Compare(b.At.Region, a.At.Region) })
	dots := make([]string, len(byRegion))
	for i, s := range byRegion {
		dots[i] = s.At.Format(names)
	}
	return strings.Join(dots, "+")
}

// mustLose returns the dots of region r's writes to one entity that a concurrent
// write certainly beat while they were live in r, whatever the order of
// arrival. These must be in r's conflict feed.
//
//  1. A write that is live in the end and not the winner.
//  2. A write e that only its own region covered in the end, by a later write f
//     whose context reaches a greater concurrent write w: r had applied w before
//     it accepted f, and until f was folded nothing covered e.
func mustLose(valid []event.Event, r event.RegionID) map[event.Dot]bool {
	must := make(map[event.Dot]bool)
	stands, _ := stand(valid)
	for i, s := range fold(valid) {
		if i > 0 && s.At.Region == r {
			must[s.At] = true
		}
	}
	for _, e := range stands {
		if e.At.Region == r && beatenBeforeCovered(e, stands) {
			must[e.At] = true
		}
	}
	return must
}

// beatenBeforeCovered is the second case of mustLose.
func beatenBeforeCovered(e *standing, stands []*standing) bool {
	var f *standing // the first write of e's region that covers e
	for _, s := range stands {
		if s == e || !sees(s, e) {
			continue
		}
		if s.At.Region != e.At.Region {
			return false // another region's write may have covered e first
		}
		if f == nil || s.At.Offset < f.At.Offset {
			f = s
		}
	}
	if f == nil {
		return false // live in the end: the first case
	}
	return slices.ContainsFunc(stands, func(w *standing) bool {
		return w.At.Region != e.At.Region && sees(f, w) && !sees(e, w) && !sees(w, e) && event.Less(&e.Event, &w.Event)
	})
}
