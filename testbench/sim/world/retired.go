package world

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/testbench/sim/kafka"
)

// drawRetires draws whether regions are retired in a history in which frontiers follow
// closely, from randomness of its own.
func (c *config) drawRetires(seed uint64) {
	c.retires = rand.New(rand.NewPCG(seed, 0x726574697265)).IntN(3) == 0
}

func (w *World) isRetired(r *region) bool {
	rec, ok := w.own.stream.Region(r.name)
	return ok && rec.State == ownership.RegionRetired
}

// retireRegion has a region fence another one, and then hear of nothing: it is fenced and
// retired meanwhile, what it writes comes late or never, and the frontiers of the others go
// on without it. Then it is returned.
func (w *World) retireRegion() {
	victim := pick(w.Rand(), w.regions...)
	var others []*proc
	for _, r := range w.regions {
		if r == victim {
			continue
		}
		others = append(others, r.procs...)
		if w.Chance(0.5) {
			way := [2]event.RegionID{victim.id, r.id}
			w.oneWay[way]++
			w.After(w.Between(time.Second, 12*time.Second), func() { w.oneWay[way] = max(0, w.oneWay[way]-1) })
		}
	}
	if w.calm || len(others) == 0 {
		return
	}
	ask := func(at time.Duration, verb ownership.Verb, region string) {
		w.After(at, func() {
			if !w.calm {
				w.ask(pick(w.Rand(), others...), ownership.Command{Verb: verb, Reason: "gone", Region: region})
			}
		})
	}
	other := pick(w.Rand(), others...).region
	w.ask(pick(w.Rand(), victim.procs...), ownership.Command{Verb: ownership.VerbFence, Reason: "half", Region: other.name})
	for _, p := range victim.procs {
		d := w.Between(4*time.Second, 12*time.Second)
		w.After(w.Between(0, 200*time.Millisecond), func() { p.inst.ReadNoRegions(d) })
	}
	at := w.Between(0, 500*time.Millisecond)
	ask(at, ownership.VerbFence, victim.name)
	ask(at+w.Between(0, time.Second), ownership.VerbFence, victim.name)
	for _, r := range w.regions { // so that the others write again
		if r != victim {
			ask(at+w.Between(2*time.Second, 4*time.Second), ownership.VerbUnfence, r.name)
		}
	}
	for range 2 {
		ask(at+w.Between(3*time.Second, 6*time.Second), ownership.VerbRetire, victim.name)
	}
	ask(at+w.Between(7*time.Second, 14*time.Second), ownership.VerbReturn, victim.name)
	for range 3 {
		ask(at+w.Between(10*time.Second, 20*time.Second), ownership.VerbUnfence, victim.name)
	}
	for range 10 {
		w.After(w.Between(0, 2*time.Second), func() { w.writeAt(victim) })
		w.After(w.Between(5*time.Second, 12*time.Second), func() { w.writeAt(other) })
	}
}

// CaughtUp implements register.Logs, by the rule of the product.
func (p *proc) CaughtUp(done func(string)) {
	p.after(p.w.Quick(), func() {
		lacking := p.lacks()
		if lacking == "" {
			p.w.own.stream.CaughtUp(p.region.name)
		}
		done(lacking)
	})
}

// lacks says what the region has not caught up with since it was returned.
func (p *proc) lacks() string {
	w := p.w
	var others []event.RegionID
	fenced := map[event.RegionID]bool{}
	for _, r := range w.regions {
		rec, _ := w.own.stream.Region(r.name)
		if r == p.region || rec.State == ownership.RegionRetired || rec.State == ownership.RegionReturned {
			continue
		}
		others, fenced[r.id] = append(others, r.id), rec.State == ownership.RegionFenced
	}
	for _, tp := range w.seats {
		table, steps := p.tableOf(tp), w.committed(p.region, tp)
		if len(steps) == 0 || table.Revision == 0 || table.IsRetired(p.region.id) {
			return fmt.Sprintf("%v: nothing is known", tp)
		}
		c := conflict.CatchUpWith(others, func(r event.RegionID) bool { return fenced[r] }, table.Revision, func(r event.RegionID) []conflict.Told { return w.toldBy(r, tp) })
		if c.Unheard != 0 {
			return fmt.Sprintf("%v: region %d has said nothing", tp, c.Unheard)
		}
		if origin, lacks := c.Lacks(steps[len(steps)-1].position.Vector, table); lacks {
			return fmt.Sprintf("%v: some of region %d", tp, origin)
		}
	}
	return ""
}

// toldBy is what a region has told of a partition.
func (w *World) toldBy(r event.RegionID, tp kafka.TP) (all []conflict.Told) {
	for _, s := range w.committed(w.regions[r-1], tp) {
		all = append(all, s.told)
	}
	return all
}
