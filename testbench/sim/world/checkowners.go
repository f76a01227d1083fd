package world

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/testbench/sim/kafka"
)

// What the register says of a place, found without the product's own judgement.

type verdictOf uint8

const (
	authoritative verdictOf = iota
	orphaned
	unknown // only a later record of the register can tell
)

// interval is where an epoch's events count in one log.
type interval struct {
	first      event.Epoch // of those that are joined
	epoch      event.Epoch // the last
	start, cut int64
}

// intervals are those of a region's log by the newest record of its unit.
func (w *World) intervals(r *region, tp kafka.TP) (known event.Epoch, out []interval) {
	u, _ := w.own.stream.Unit(w.unit(tp.Topic, r))
	for i, t := range u.Epochs {
		if t.Owner != r.name {
			continue
		}
		x := interval{first: cmp.Or(t.First, t.Epoch), epoch: t.Epoch, cut: math.MaxInt64}
		x.start, _ = ownership.Offset(t.Start, tp.Topic, 0, tp.Partition)
		if cut, listed := ownership.Offset(t.Cut, tp.Topic, 0, tp.Partition); t.Ended && listed {
			x.cut = cut
		} else if t.Ended && i+1 < len(u.Epochs) { // the region's next epoch ends what the cut leaves out
			x.cut, _ = ownership.Offset(u.Epochs[i+1].Start, tp.Topic, 0, tp.Partition)
		}
		out = append(out, x)
	}
	return u.Epoch, out
}

func judge(known event.Epoch, of []interval, offset int64, epoch event.Epoch) verdictOf {
	if epoch > known {
		return unknown
	}
	for _, x := range of {
		if x.start <= offset && offset < x.cut && (epoch == 0 || x.first <= epoch && epoch <= x.epoch) {
			return authoritative
		}
	}
	if epoch == 0 && (len(of) == 0 || offset >= max(of[len(of)-1].start, of[len(of)-1].cut)) {
		return unknown // a later interval may begin at or below it
	}
	return orphaned
}

// judge says whether a record counts by what the register says now.
func (w *World) judge(r *region, tp kafka.TP, offset int64, epoch event.Epoch) verdictOf {
	if w.own == nil {
		return authoritative
	}
	known, of := w.intervals(r, tp)
	return judge(known, of, offset, epoch)
}

// verdictUnder judges by a table that a fold has had in force.
func verdictUnder(a *event.ValidityTable, at event.Dot, epoch event.Epoch) verdictOf {
	return judge(a.Logs[at.Region].Known, intervalsIn(a, at.Region), at.Offset, epoch)
}

func intervalsIn(a *event.ValidityTable, origin event.RegionID) (of []interval) {
	for _, t := range a.Logs[origin].List {
		x := interval{first: cmp.Or(t.First, t.Epoch), epoch: t.Epoch, cut: math.MaxInt64}
		for _, p := range t.Start {
			x.start = p.Next
		}
		if t.Ended {
			x.cut = 0
			for _, p := range t.Cut {
				x.cut = p.Next
			}
		}
		of = append(of, x)
	}
	return of
}

// covers tells whether an offset lies in one of the intervals.
func covers(of []interval, offset int64) bool {
	return slices.ContainsFunc(of, func(x interval) bool { return x.start <= offset && offset < x.cut })
}

// lapsed tells whether no epoch's interval has an offset: links that know it do not
// send what lies there.
func (w *World) lapsed(r *region, tp kafka.TP, offset int64) bool {
	if w.own == nil {
		return false
	}
	_, of := w.intervals(r, tp)
	return !covers(of, offset)
}

// needs is how far a region can have applied an origin's log in the end: links stop
// at a cut behind which no interval begins, and a fold waits there before what came
// without a gateway.
func (w *World) needs(r, from *region, tp kafka.TP) int64 {
	end := from.kafka.List(tp, false)
	switch {
	case !w.carriedInTheEnd(r, from, tp):
		return 0
	case w.own == nil:
		return end
	}
	_, of := w.intervals(from, tp)
	open, last := int64(0), int64(0)
	for _, x := range of {
		last = max(last, x.start, x.cut)
		if x.start < x.cut {
			open = x.cut
		}
	}
	switch {
	case r != from:
		return min(open, end)
	case last >= end:
		return end
	}
	log, aborted := from.kafka.Log(tp)
	reach := int64(0) // behind the last entry that a committed reader sees
	for i := range log {
		rec := &log[i]
		if aborted(rec) {
			continue
		}
		before := reach
		reach = rec.Offset + 1
		if rec.Kind != kafka.Data || rec.Offset < last {
			continue
		}
		at := event.Dot{Region: from.id, Partition: tp.Partition, Offset: rec.Offset}
		if ev, err := event.FromRecord(at, rec.Timestamp, rec.Key, rec.Value, rec.Headers); err == nil && !ev.Stamped {
			return before
		}
	}
	return end
}

// sent leaves out of an origin's records those that lie past a cut and did not
// cross: links had known it in time.
func (w *World) sent(from *region, tp kafka.TP, all, have []kafka.Record) []kafka.Record {
	if w.own == nil {
		return all
	}
	var out []kafka.Record
	for i := range all {
		next := len(out)
		if w.lapsed(from, tp, all[i].Offset) && !(next < len(have) && sameRecord(&all[i], &have[next])) {
			continue
		}
		out = append(out, all[i])
	}
	return out
}

// met tells whether a region has judged a record.
func (w *World) met(r *region, tp kafka.TP, at event.Dot) bool {
	how := "remote"
	if at.Region == r.id {
		how = "local"
	}
	_, ok := w.verdicts[verdictKey{r.name, tp.Topic, how, at}]
	return ok
}

// orphansOf is what steps say of orphans, the last word of each.
func orphansOf(steps []*step) map[event.Dot]conflict.Orphaned {
	out := map[event.Dot]conflict.Orphaned{}
	for _, s := range steps {
		for _, o := range s.out.Orphans {
			out[o.At] = o
		}
	}
	return out
}

// standsFor is the event that a record of the merged topic stands for to a reader that
// has a table; ok is false where it stands for nothing.
func standsFor(m *conflict.Merged, table *event.ValidityTable, orphans map[event.Dot]conflict.Orphaned) (d event.Dot, ok bool) {
	switch {
	case m.Corrects:
		return d, false
	case table == nil || verdictUnder(table, m.Event.At, m.Event.Epoch) != orphaned:
		return m.Event.At, true
	}
	d = orphans[m.Event.At].Instead
	return d, d != event.Dot{}
}

// mayStandFor tells whether an orphan's record may stay in the merged view: it stands for a
// copy of the same write that counts.
func (w *World) mayStandFor(t *truth, instead event.Dot, key string) bool {
	e := t.byDot[instead]
	return e != nil && !e.orphan && !e.void && !e.broken && effectKey(&e.Event) == key
}

// checkOwners (G7, I5, I6): along each log the records that count follow each other
// by epoch; an answered write counts, or is an orphan that every region which has
// met it lists, and whose fence did not say that there are none; nothing else is
// listed.
func (w *World) checkOwners(tp kafka.TP, t *truth) {
	if w.own == nil {
		return
	}
	lists := map[*region]map[event.Dot]conflict.Orphaned{}
	for _, r := range w.regions {
		steps := w.committed(r, tp)
		lists[r] = orphansOf(steps)
		w.checkHeldBack(r, tp, t, steps)
		for _, d := range slices.SortedFunc(maps.Keys(lists[r]), compareDots) {
			if e := t.byDot[d]; e == nil || e.void || e.broken || !e.orphan {
				w.fail("G7", "%s lists %v of %v as an orphan, which it is not", r.name, d, tp)
			}
		}
		last := event.Epoch(0)
		for i := range t.logs[r.id] {
			e := &t.logs[r.id][i]
			if e.void || e.broken || e.orphan || !e.Stamped {
				continue
			}
			if e.Epoch < last {
				w.fail("I5", "%v of %v counts in epoch %d, behind one of epoch %d", e.At, tp, e.Epoch, last)
			}
			last = e.Epoch
		}
	}
	for _, e := range t.sound {
		if !t.byDot[e.At].orphan {
			continue
		}
		w.counts["orphans"]++
		for _, r := range w.regions {
			at := w.position(r, tp).Vector
			if w.parkedAny(r, tp) {
				continue // lost with a remote log's tail, or not read again for it, with a recorded reason
			}
			if _, listed := lists[r][e.At]; !listed && w.met(r, tp, e.At) && at.Covers(e.At) {
				w.fail("G7", "%s has met the orphan %v of %v and does not list it", r.name, e.At, tp)
			}
		}
	}
	for _, o := range w.ops {
		for _, a := range o.answers {
			if e := t.byDot[a.At]; o.tp == tp && e != nil && e.orphan && !a.Replayed {
				w.counts["answered orphans"]++
				w.checkPromise(o, &a, e)
			}
		}
	}
}

// checkHeldBack (G7): a fold takes no event about which only a later record of the
// register can tell, not to mention one before it has any table.
func (w *World) checkHeldBack(r *region, tp kafka.TP, t *truth, steps []*step) {
	var before conflict.Position
	for n, s := range steps {
		for _, e := range t.sound {
			if before.Vector.Covers(e.At) || !s.position.Vector.Covers(e.At) || !w.met(r, tp, e.At) {
				continue
			}
			open := func(a *event.ValidityTable) bool { return a == nil || verdictUnder(a, e.At, e.Epoch) == unknown }
			if open(before.Validity) && open(s.position.Validity) {
				w.fail("G7", "%s %v: step %d by %s folds %v of epoch %d, of which its table cannot tell", r.name, tp, n, s.by, e.At, e.Epoch)
				return
			}
		}
		before = s.position
	}
}

// checkPromise (I6): no fence that took the unit from the epoch of an answered
// orphan has said that its cut lies behind all that was answered.
func (w *World) checkPromise(o *op, a *answered, e *told) {
	unit := w.unit(o.tp.Topic, a.region)
	u, _ := w.own.stream.Unit(unit)
	next, joined := u.Epoch, false
	for _, t := range u.Epochs {
		if t.Epoch > e.Epoch {
			next, joined = cmp.Or(t.First, t.Epoch), t.Has(e.Epoch)
			if joined {
				next = t.Epoch
			}
			break
		}
	}
	for f := e.Epoch + 1; f <= next; f++ {
		kind := w.own.kinds[fmt.Sprintf("%s %d", unit, f)]
		if joined && kind == ownership.CutApplied {
			break // those that follow ended later epochs of the same interval
		}
		if kind == ownership.CutEnd {
			w.fail("I6", "write %d answered by %s as %v in epoch %d is an orphan, and the fence in epoch %d said that there are none", o.n, a.by, a.At, e.Epoch, f)
		}
	}
}

// checkReplayNow (G2): whoever may write a unit does not answer a retry with a
// record of its own region that the register has made an orphan.
func (w *World) checkReplayNow(o *op, a *answered, epoch event.Epoch) {
	if w.own != nil && a.Replayed && a.At.Region == a.region.id && w.judge(a.region, o.tp, a.At.Offset, epoch) == orphaned {
		w.fail("G2", "write %d: %s answers a retry with %v, which is an orphan", o.n, a.by, a.At)
	}
}
