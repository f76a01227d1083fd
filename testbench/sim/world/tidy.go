package world

import (
	"maps"
	"slices"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/testbench/sim/kafka"
)

// mark says that from a place of an origin's log on the last barrier is another one.
type mark struct {
	origin  event.RegionID
	at      event.Point
	barrier int64
}

// begin has a journal that lacks what lies below a vector go on from there.
func (j *journal) begin(at *conflict.Position) {
	j.mem.Begin(at.Needed)
	for r, p := range at.Needed {
		if j.applied[r].Compare(p) < 0 {
			j.applied[r], j.barriers[r] = p, at.NeededBarriers[r]
		}
	}
}

// barriersAt are the last barriers at or below a vector.
func (j *journal) barriersAt(v *event.Vector, began seat.Barriers) seat.Barriers {
	for _, m := range j.marks {
		if m.at.Compare(v[m.origin]) <= 0 {
			began[m.origin] = m.barrier
		}
	}
	return began
}

// drop takes out what is not needed after a step that was committed.
func (j *journal) drop(out *conflict.Output) {
	j.mem.Drop(out)
	needed := &out.Position.Needed
	maps.DeleteFunc(j.copies, func(_ event.IdempotencyKey, cs []conflict.Copy) bool {
		return !slices.ContainsFunc(cs, func(c conflict.Copy) bool { return !needed.Covers(c.At) })
	})
}

// tidyDue tells whether the fold looks at what lies below its frontier after a step: after
// every second one, where frontiers follow closely.
func (f *foldRun) tidyDue() bool {
	f.commits++
	return f.s.p.w.cfg.tidies && f.commits%2 == 0
}

// tidy drops what nobody needs below the frontier: of half of the entities, or of all, and
// then the logs are not needed below it either.
func (f *foldRun) tidy(done func()) {
	w := f.s.p.w
	f.part.Raise(f.last.frontier)
	keys, all := f.s.journal.mem.Keys(), f.commits%4 == 0
	for k := range f.store.entities { // a deletion may have no meta any more
		if !slices.ContainsFunc(keys, func(x []byte) bool { return string(x) == k }) {
			keys = append(keys, []byte(k))
		}
	}
	slices.SortFunc(keys, slices.Compare)
	if !all {
		keys = keys[len(keys)/2:]
	}
	out, err := f.part.Tidy(conflict.Tidying{Keys: keys, All: all})
	if err != nil {
		w.fail("fold", "%s %v: tidy: %v", f.s.p.name, f.s.tp, err)
		return
	}
	if out.Unmoved != nil {
		w.fail("bases", "%s %v: a value that is needed is gone: %v", f.s.p.name, f.s.tp, out.Unmoved)
		return
	}
	w.counts["bases moved"] += out.Counts.BasesMoved
	w.counts["deletions gone"] += out.Counts.Gone
	f.sendTidied(out, func() {
		if !all {
			done()
			return
		}
		at := f.part.Position()
		last := f.s.journal.barriersAt(&out.Position.Frontier, at.NeededBarriers)
		raise, err := f.part.Tidy(conflict.Tidying{Needed: out.Position.Frontier, Barriers: last})
		if err != nil {
			w.fail("fold", "%s %v: raise: %v", f.s.p.name, f.s.tp, err)
			return
		}
		if raise.Position.Needed != at.Needed {
			w.counts["needed raised"]++
		}
		f.sendTidied(raise, done)
	})
}

func (f *foldRun) sendTidied(out *conflict.Output, done func()) {
	if f.s.closed {
		return
	}
	recs, parts := f.records(out), []kafka.TP{stateTP(f.s.tp), stepsTP(f.s.tp), controlTP}
	next := f.next
	f.prod.add(parts, func(err error) {
		if err != nil {
			f.failed(err)
			return
		}
		f.send(parts, recs, func() {
			f.prod.end(true, func(err error) {
				if err != nil {
					f.failed(err)
					return
				}
				f.committed(out, next)
				done()
			})
		})
	})
}

// committed takes over a step that was committed.
func (f *foldRun) committed(out *conflict.Output, next settled) {
	f.store.commit(out)
	f.part.Commit(out)
	f.s.journal.drop(out)
	f.last = next
}
