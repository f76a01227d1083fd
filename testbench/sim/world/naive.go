package world

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/testbench/sim/kafka"
)

// told is an event with the verdict that follows from the whole log, found with
// what only the model knows: which markers are barriers.
type told struct {
	event.Event
	void   bool
	broken bool
	orphan bool // by what the register says in the end
}

// readLog judges one origin partition's log from its start to its end.
func readLog(r *region, tp kafka.TP) []told {
	log, aborted := r.kafka.Log(tp)
	barrier := int64(-1)
	var out []told
	for _, rec := range log {
		if isBarrier(&rec) {
			barrier = rec.Offset
		}
		if rec.Kind != kafka.Data || aborted(&rec) {
			continue
		}
		at := event.Dot{Region: r.id, Partition: tp.Partition, Offset: rec.Offset}
		ev, err := event.FromRecord(at, rec.Timestamp, rec.Key, rec.Value, rec.Headers)
		t := told{Event: ev, broken: err != nil}
		if err == nil && ev.Stamped {
			t.void = ev.Incarnation != 0 || ev.Barrier >= rec.Offset || barrier > ev.Barrier
		}
		out = append(out, t)
	}
	return out
}

func less(a, b *event.Event) int {
	return cmp.Or(cmp.Compare(a.Stamp, b.Stamp), cmp.Compare(a.At.Region, b.At.Region),
		strings.Compare(string(a.ID[:]), string(b.ID[:])), cmp.Compare(a.At.Offset, b.At.Offset))
}

// effect is one write that stands, with all copies of it.
type effect struct {
	stands *event.Event
	copies []*event.Event // itself among them
}

// effects says which of a set of valid events stand: of each key the smallest,
// with all copies within one window of it, then the next smallest, and so on.
func effects(events []*event.Event, window time.Duration) []effect {
	sorted := slices.Clone(events)
	slices.SortFunc(sorted, less)
	var out []effect
	taken := map[event.Dot]bool{}
	for i, e := range sorted {
		if taken[e.At] {
			continue
		}
		eff := effect{stands: e, copies: []*event.Event{e}}
		for _, f := range sorted[i+1:] {
			if !e.Envelope.Key.IsZero() && f.Envelope.Key == e.Envelope.Key && f.Stamp <= e.Stamp.Add(window) && !taken[f.At] {
				taken[f.At] = true
				eff.copies = append(eff.copies, f)
			}
		}
		out = append(out, eff)
	}
	return out
}

// saw tells whether a write had been accepted with d in sight.
func saw(e *event.Event, d event.Dot) bool {
	if d.Region == e.At.Region {
		return d.Offset < e.At.Offset
	}
	return e.Context[d.Region].Next > d.Offset
}

// live says which effects of one entity nobody has seen: it compares all with
// all.
func live(effs []effect) []effect {
	var out []effect
	for _, a := range effs {
		seen := false
		for _, b := range effs {
			for _, c := range a.copies {
				if b.stands != a.stands && saw(b.stands, c.At) {
					seen = true
				}
			}
		}
		if !seen {
			out = append(out, a)
		}
	}
	return out
}

// naiveEntities folds a set of valid events of one partition: per entity key the
// live effects, the greatest first.
func naiveEntities(events []*event.Event, window time.Duration) map[string][]effect {
	by := map[string][]effect{}
	for _, e := range effects(events, window) {
		by[string(e.stands.Key)] = append(by[string(e.stands.Key)], e)
	}
	for k, effs := range by {
		l := live(effs)
		slices.SortFunc(l, func(a, b effect) int { return less(b.stands, a.stands) })
		by[k] = l
	}
	return by
}

// below is the events that a vector has reached.
func below(events []*event.Event, v *event.Vector) []*event.Event {
	var out []*event.Event
	for _, e := range events {
		if v.Covers(e.At) {
			out = append(out, e)
		}
	}
	return out
}
