package world

import (
	"fmt"
	"slices"
	"time"

	"github.com/geogate/geogate/dedupe"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/testbench/sim/kafka"
)

// index is a seat's key index over a store that outlives the process.
type index struct {
	*dedupe.Index
	own event.RegionID
}

func openIndex(own event.RegionID, window time.Duration, over dedupe.Store) *index {
	x, err := dedupe.New(dedupe.Config{Region: own, Window: window}, over)
	if err != nil {
		panic(fmt.Sprintf("world: open index: %v", err))
	}
	return &index{x, own}
}

// closed is what a seat may take for the lowest closed stamp of all regions: of each what
// it has published, once the seat's index has reached the end that was published with it. A
// region whose log is over is left out.
func (w *World) closed(s *seatRun) event.Stamp {
	applied, lowest, table := s.index.Applied(), ^event.Stamp(0), s.newest()
	for _, r := range w.regions {
		if r != s.p.region && table.Over(r.id, applied[r.id]) {
			w.counts["regions that are over and close nothing"]++
			continue
		}
		var of event.Stamp
		for _, st := range w.committed(r, s.tp) {
			if st.claims.End.Compare(applied[r.id]) <= 0 {
				of = max(of, st.claims.Closed)
			}
		}
		lowest = min(lowest, of)
	}
	return lowest
}

// checkIndexes: an index that is rebuilt from the logs, in another order,
// equals the one that grew with them, and answers like it.
func (w *World) checkIndexes(tp kafka.TP, t *truth) {
	for _, r := range w.regions {
		s := r.procs[r.assigned[tp]].seats[tp]
		if s == nil {
			continue
		}
		fresh := openIndex(r.id, w.cfg.window, dedupe.NewMemory())
		keys := w.rebuild(fresh, tp, t, s.index.Applied())
		s.sweep()
		if _, err := fresh.Sweep(s.p.store.swept[tp], s.newest()); err != nil {
			w.fail("index", "sweep: %v", err)
		}
		for _, k := range keys {
			w.compareIndexes(s, fresh, k)
		}
	}
}

// compareIndexes compares what two indexes have of a key. Of a window that has
// expired everywhere the live one may still have some: after a restart it reads
// again what it had swept, perhaps without the copy that began the window. Such
// a copy can only answer a retry longer than it must. And what counts is the highest
// closed stamp by which it was ever swept: a place that was not stored before a restart,
// and that the remote topic has lost since, is not read again.
func (w *World) compareIndexes(s *seatRun, fresh *index, k event.IdempotencyKey) {
	live, err1 := s.index.Lookup(k)
	rebuilt, err2 := fresh.Lookup(k)
	if err1 != nil || err2 != nil {
		w.fail("index", "look up: %v, %v", err1, err2)
		return
	}
	expired := func(c event.Copy) bool {
		return c.Stamp <= s.p.store.swept[s.tp] && !slices.ContainsFunc(rebuilt, func(a event.Copy) bool { return a.At == c.At })
	}
	if rest := slices.DeleteFunc(slices.Clone(live), expired); !slices.EqualFunc(rest, rebuilt, func(a, b event.Copy) bool { return a.At == b.At && a.Void == b.Void }) {
		w.fail("index", "%s %v key %x: live %v, rebuilt %v", s.p.name, s.tp, k[:4], places(live), places(rebuilt))
	}
	a, _, _ := s.index.Find(k, 0, s.newest())
	b, ok, _ := fresh.Find(k, 0, s.newest())
	if ok && a.At != b.At {
		w.fail("index", "%s %v key %x: a retry is answered with %v, after a rebuild with %v", s.p.name, s.tp, k[:4], a.At, b.At)
	}
}

func (w *World) rebuild(x *index, tp kafka.TP, t *truth, upTo event.Vector) (keys []event.IdempotencyKey) {
	for _, i := range w.Rand().Perm(len(w.regions)) {
		for _, e := range t.logs[w.regions[i].id] {
			k := e.Envelope.Key
			if !upTo.Covers(e.At) || k.IsZero() || e.broken {
				continue
			}
			if r := w.regions[e.At.Region-1]; (w.border != nil || w.lapsed(r, tp, e.At.Offset)) && !w.met(w.regions[x.own-1], tp, e.At) {
				continue // past a cut that the link knew
			}
			if err := x.Apply([]event.Copy{event.CopyOf(&e.Event, e.void)}, nil, event.Vector{}); err != nil {
				w.fail("index", "rebuild: %v", err)
			}
			if !slices.Contains(keys, k) {
				keys = append(keys, k)
			}
		}
	}
	return keys
}

func places(cs []event.Copy) (out []string) {
	for _, c := range cs {
		out = append(out, fmt.Sprintf("%d/%d void %v", c.At.Region, c.At.Offset, c.Void))
	}
	return out
}
