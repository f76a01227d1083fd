package conflict_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/judged"
	"github.com/geogate/geogate/testbench/naive"
)

var eventsTopic = conflict.Config{Kind: conflict.Events}

// Each event once, each key as often as its copies make writes: once when they lie
// within one window; and the events of an origin in its order.
func TestEventsOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rep := newReplica(eventsTopic)
		for _, it := range arrival(t, adversary(t, 3, 6)) {
			rep.step(t, []judged.Item{it}, rapid.Bool().Draw(t, "twice"))
		}
		shown, keys := map[event.Dot]int{}, map[event.IdempotencyKey]int{}
		var order event.Vector
		for _, m := range rep.merged {
			shown[m.Event.At]++
			keys[m.Event.Envelope.Key]++
			if m.Rule != 0 {
				t.Fatalf("an event has a rule: %+v", m)
			}
			if order.Covers(m.Event.At) {
				t.Fatalf("%v comes after a later one of its origin", m.Event.At)
			}
			order.Advance(m.Event.At)
		}
		writes := map[event.IdempotencyKey]int{}
		for _, w := range naive.Writes(rep.valid, window) {
			writes[w.Event.Envelope.Key]++
			if w.Event.Envelope.Key.IsZero() && shown[w.Event.At] != 1 {
				t.Fatalf("event %v is shown %d times", w.Event.At, shown[w.Event.At])
			}
		}
		for k, n := range writes {
			if keys[k] != n {
				t.Fatalf("key %v makes %d writes and is shown %d times", k, n, keys[k])
			}
		}
		checkTwinsTold(t, rep)
	})
}

// A reader that moves to another region with the dots that it has read, and skips
// what its vector or an alias covers, sees each write once.
func TestReaderMovesBetweenRegions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory(t, eventsTopic)
		h.run(40, func(r int, items []judged.Item) { h.regions[r].step(t, items, false) })
		from, to := h.regions[0], h.regions[1]
		var cursor event.Vector
		seen := map[event.Dot]bool{}
		read := from.merged[:rapid.IntRange(0, len(from.merged)).Draw(t, "stop")]
		for _, m := range read {
			seen[m.Event.At] = true
			cursor.Advance(m.Event.At)
		}
		for _, m := range to.merged {
			covered := cursor.Covers(m.Event.At)
			if tw, ok, _ := to.store.Twin(m.Event.Envelope.Key); ok {
				covered = covered || slices.ContainsFunc(tw.Aliases(m.Event.At), cursor.Covers)
			}
			if !covered {
				if seen[m.Event.At] {
					t.Fatalf("event %v is read twice", m.Event.At)
				}
				seen[m.Event.At] = true
			}
		}
		for _, w := range naive.Writes(to.valid, window) {
			n := 0
			for _, e := range append([]event.Event{w.Event}, w.Voided...) {
				if seen[e.At] {
					n++
				}
			}
			if n == 0 && !spread(to.valid, w.Event.Envelope.Key) {
				t.Fatalf("write %v with %d copies is never read", w.Event.At, len(w.Voided))
			}
			if n > 1 && !spread(to.valid, w.Event.Envelope.Key) {
				t.Fatalf("write %v with %d copies is read %d times", w.Event.At, len(w.Voided), n)
			}
		}
	})
}

// spread tells whether the copies of a key make more than one write.
func spread(evs []event.Event, k event.IdempotencyKey) bool {
	n := 0
	for _, w := range naive.Writes(evs, window) {
		if w.Event.Envelope.Key == k {
			n++
		}
	}
	return n > 1
}

func TestTwinOfEvent(t *testing.T) {
	rep := newReplica(eventsTopic)
	later, first := keyed(put(b, 4, 15), 1, 1), keyed(put(a, 0, 10), 1, 1)
	rep.step(t, logOf(b, later), false)
	out := rep.step(t, logOf(a, first), false)
	if len(out.Merged) != 0 || len(out.Twins) != 1 {
		t.Fatalf("output %+v", out)
	}
	if got := out.Twins[0].Aliases(later.At); !slices.Equal(got, []event.Dot{first.At}) {
		t.Fatalf("aliases of what was emitted: %v", got)
	}
	// The feed goes by stamp all the same.
	if c := out.Conflicts; len(c) != 1 || c[0].Reason != conflict.Duplicate || c[0].Lost.At != later.At || c[0].Won.At != first.At {
		t.Fatalf("feed %+v", c)
	}
	// A third copy a window after the first is another write.
	out = rep.step(t, logOf(c, keyed(put(c, 0, 21), 1, 1)), false)
	if len(out.Merged) != 1 || len(out.Conflicts) != 0 {
		t.Fatalf("output %+v", out)
	}
}

// Records that came without a gateway are events like others.
func TestUnstampedEvent(t *testing.T) {
	rep := newReplica(eventsTopic)
	ev, err := event.FromRecord(event.Dot{Region: a, Partition: 3, Offset: 5}, 77, nil, []byte("v"), []event.Header{{Key: "h", Value: []byte("1")}})
	if err != nil {
		t.Fatal(err)
	}
	out := rep.step(t, logOf(a, ev), false)
	hs := out.Merged[0].Headers()
	if len(hs) != 2 || hs[0].Key != "h" || hs[1].Key != event.HeaderDot {
		t.Fatalf("headers %v", hs)
	}
	if at := rep.fold.Position(); at.Stamp != 0 {
		t.Errorf("a new term would stamp above %v, which is what a producer without a gateway took for the time", at.Stamp)
	}
}
