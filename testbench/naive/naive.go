// Package naive is a second fold, written to be obviously right and slow: from
// the whole set of valid events at once, by comparing each with each. Checkers
// hold package conflict and running regions against it. It shares no code with
// conflict and takes only the words of internal/event.
package naive

import (
	"bytes"
	"sort"
	"time"

	"github.com/geogate/geogate/internal/event"
)

// Write is a write that stands, with the records that mean the same.
type Write struct {
	Event  event.Event
	Voided []event.Event // later copies of it, within the window
}

// Entity is what a set of events makes of one entity.
type Entity struct {
	Live   []event.Event // region ids ascending
	Winner event.Event   // greatest live value; zero if nothing is live
}

// before is the total order: stamp, region, event id, and place for records that
// have no id.
func before(a, b event.Event) bool {
	if a.Stamp != b.Stamp {
		return a.Stamp < b.Stamp
	}
	if a.At.Region != b.At.Region {
		return a.At.Region < b.At.Region
	}
	if c := bytes.Compare(a.ID[:], b.ID[:]); c != 0 {
		return c < 0
	}
	if a.At.Incarnation != b.At.Incarnation {
		return a.At.Incarnation < b.At.Incarnation
	}
	return a.At.Offset < b.At.Offset
}

// Writes says which of the valid events of one partition stand. Going through
// them from the smallest, an event is void iff some earlier event of the same
// idempotency key stands and began at most one window before.
func Writes(events []event.Event, window time.Duration) []Write {
	sorted := append([]event.Event(nil), events...)
	sort.SliceStable(sorted, func(i, j int) bool { return before(sorted[i], sorted[j]) })
	var writes []Write
next:
	for _, e := range sorted {
		if !e.Envelope.Key.IsZero() {
			for i := range writes {
				w := &writes[i]
				if w.Event.Envelope.Key == e.Envelope.Key && e.Stamp <= w.Event.Stamp.Add(window) {
					w.Voided = append(w.Voided, e)
					continue next
				}
			}
		}
		writes = append(writes, Write{Event: e})
	}
	return writes
}

// saw tells whether the writer of a had applied what lies at d.
func saw(a event.Event, d event.Dot) bool {
	if a.At.Region == d.Region {
		return d.Incarnation < a.At.Incarnation || d.Incarnation == a.At.Incarnation && d.Offset < a.At.Offset
	}
	p := a.Context[d.Region]
	return d.Incarnation < p.Incarnation || d.Incarnation == p.Incarnation && d.Offset < p.Next
}

// sawWrite tells whether a's writer had applied any record of w under w's entity.
func sawWrite(a event.Event, w Write) bool {
	if saw(a, w.Event.At) {
		return true
	}
	for _, v := range w.Voided {
		if string(v.Key) == string(w.Event.Key) && saw(a, v.At) {
			return true
		}
	}
	return false
}

// Fold gives every entity of a partition that the valid events make, by key. An
// entity of which every event is void is left out.
func Fold(events []event.Event, window time.Duration) map[string]Entity {
	writes := Writes(events, window)
	out := map[string]Entity{}
	for _, w := range writes {
		key := string(w.Event.Key)
		e := out[key]
		if live(w, writes) {
			e.Live = append(e.Live, w.Event)
			if e.Winner.At == (event.Dot{}) || before(e.Winner, w.Event) {
				e.Winner = w.Event
			}
		}
		out[key] = e
	}
	for _, e := range out {
		sort.Slice(e.Live, func(i, j int) bool { return e.Live[i].At.Region < e.Live[j].At.Region })
	}
	return out
}

// live: no write that stands on the same entity saw it.
func live(w Write, writes []Write) bool {
	for _, other := range writes {
		if string(other.Event.Key) == string(w.Event.Key) && sawWrite(other.Event, w) {
			return false
		}
	}
	return true
}
