package world

import (
	"iter"
	"slices"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/testbench/sim/kafka"
)

// frontier is the frontier that a step puts in force, and what its region tells the others.
// What they have told last is here at once: a region that knows sooner moves its frontier
// sooner.
func (f *foldRun) frontier(out *conflict.Output, claims seat.Claims) (conflict.Frontier, conflict.Told) {
	w, tp, own := f.s.p.w, f.s.tp, f.s.p.region
	told := conflict.Told{End: claims.End, Promised: claims.Promised, Ownership: revisionOf(out.Position.Validity)}
	sight := conflict.Sight{
		Own: own.id, Vector: out.Position.Vector, Ownership: revisionOf(out.Position.Validity), Table: out.Position.Validity,
		Told: func(r event.RegionID) iter.Seq[conflict.Told] {
			steps := w.committed(w.regions[r-1], tp)
			return func(yield func(conflict.Told) bool) {
				for _, s := range slices.Backward(steps[max(0, len(steps)-toldKept):]) {
					if !yield(s.told) {
						return
					}
				}
			}
		},
	}
	for _, r := range w.regions {
		sight.Regions = append(sight.Regions, r.id)
	}
	sight.Before, told.Floor = f.last.frontier, f.last.floor
	sight.Lacking = !f.s.journal.applied.CoversAll(&out.Position.Vector)
	var twins [][]conflict.Copy
	for _, k := range sortedKeys(f.s.journal.copies) {
		if dots := f.s.journal.copies[k]; len(dots) > 1 {
			twins = append(twins, dots)
		}
	}
	sight.Twins = slices.Values(twins)
	at := sight.Frontier()
	if told.Floor.Compare(at.Floor) < 0 {
		told.Floor = at.Floor
	}
	return at, told
}

// toldKept is how much is remembered of what a region has told.
const toldKept = 8

// settled is what a committed step has of the partition's frontier.
type settled struct {
	frontier event.Vector
	floor    event.Point
}

func revisionOf(t *event.ValidityTable) uint64 {
	if t == nil {
		return 0
	}
	return t.Revision
}

func sortedKeys(m map[event.IdempotencyKey][]conflict.Copy) (keys []event.IdempotencyKey) {
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b event.IdempotencyKey) int { return slices.Compare(a[:], b[:]) })
	return keys
}

// checkFrontier: a frontier never falls and never passes what is folded; no event below it is
// revoked any more, and no copy of a key that lies below it comes later, within the window.
func (w *World) checkFrontier(r *region, tp kafka.TP, t *truth, steps []*step) {
	known := map[event.Dot]bool{}
	var before event.Vector
	for n, s := range steps {
		for i := range s.out.Orphans {
			if at := s.out.Orphans[i].At; before.Covers(at) && !known[at] {
				w.fail("frontier", "%s %v: step %d by %s revokes %v, which lies below the frontier %v", r.name, tp, n, s.by, at, short(before))
				return
			}
			known[s.out.Orphans[i].At] = true
		}
		if !s.frontier.At.CoversAll(&before) || !s.position.Vector.CoversAll(&s.frontier.At) {
			w.fail("frontier", "%s %v: step %d by %s moves the frontier from %v to %v, at %v", r.name, tp, n, s.by, short(before), short(s.frontier.At), short(s.position.Vector))
			return
		}
		if s.frontier.At != before {
			w.counts["frontier moves"]++
			before = s.frontier.At
			w.checkApart(r, tp, t, n, s)
		}
	}
	if len(steps) > 0 {
		last := steps[len(steps)-1]
		w.counts["offsets above frontiers in the end"] += int(last.frontier.Above(&last.position.Vector))
		if _, h, ok := last.frontier.Hindmost(&last.position.Vector); ok {
			w.counts["frontiers held in the end by "+h.Why.String()]++
		} else {
			w.counts["frontiers at the end"]++
		}
	}
}

// checkApart: the frontier of a step lies between no two copies of one write.
func (w *World) checkApart(r *region, tp kafka.TP, t *truth, n int, s *step) {
	at := s.frontier.At
	for _, eff := range effects(t.sound, w.cfg.window) {
		below, above := []event.Dot{}, []event.Dot{}
		for _, c := range eff.copies {
			if (w.border != nil || t.byDot[c.At].orphan) && !w.met(r, tp, c.At) {
				continue // kept from this region, or past a cut that the link knew: it never comes
			}
			if s.position.Validity.Judge(c.At, c.Epoch) == event.Orphan {
				continue // it never stands for another one
			}
			if at.Covers(c.At) {
				below = append(below, c.At)
			} else {
				above = append(above, c.At)
			}
		}
		if len(below) > 0 && len(above) > 0 {
			w.fail("frontier", "%s %v: the frontier %v of step %d by %s parts copies of a key: %v from %v", r.name, tp, short(at), n, s.by, below, above)
			return
		}
	}
}

// short is what a vector has of the regions.
func short(v event.Vector) (next []int64) {
	for _, p := range v[1:4] {
		next = append(next, p.Next)
	}
	return next
}
