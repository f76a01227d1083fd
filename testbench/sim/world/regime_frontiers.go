package world

import (
	"slices"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/testbench/sim/kafka"
)

// publishAtRest has the seat's fold commit what the seat claims, and the frontier, twice a
// second, in the regime in which frontiers follow closely.
func (s *seatRun) publishAtRest() {
	if s.p.w.cfg.regime == frontiers && s.ticks%3 == 0 && s.fold.ready && s.fold.asked == nil {
		s.fold.confirm(func() {})
	}
}

// lateTable is how late a seat at least hears of a table that its process knows.
func (p *proc) lateTable() time.Duration { return max(p.tablesFrom-p.w.Now(), 0) }

// scheduleFrontiers has cuts, twins and lost indexes meet frontiers that have just moved.
func (w *World) scheduleFrontiers(often func(int, func())) {
	if w.own != nil {
		often(1, func() { w.fenceUnheard(8, 2*time.Second) })
		often(4, w.copyPastCut)
		if w.cfg.retires {
			often(6, w.retireRegion)
		}
	} else {
		often(25, w.waitingTwin)
		often(6, w.twinAfterLoss)
	}
	often(4, func() {
		if a, b := pick(w.Rand(), w.regions...), pick(w.Rand(), w.regions...); a != b {
			w.slowRead(a, remoteTP(b, kafka.TP{Topic: entityTopic}), 3*time.Second)
			w.twin(a, b)
		}
	})
}

// copyPastCut fences a region that hears nothing of it. What it wrote meanwhile comes to the
// others just when they have set the cut, and their seats hear of that late.
func (w *World) copyPastCut() {
	victim := pick(w.Rand(), w.regions...)
	others := []*proc{}
	d := w.Between(1900*time.Millisecond, 2500*time.Millisecond) // a lease is over by then
	for _, r := range w.regions {
		if r == victim {
			continue
		}
		for _, p := range r.procs {
			p.tablesFrom = w.Now() + w.Between(3*time.Second, 8*time.Second)
			others = append(others, p)
		}
		way := [2]event.RegionID{victim.id, r.id}
		w.oneWay[way]++
		w.After(d, func() { w.oneWay[way] = max(0, w.oneWay[way]-1) })
	}
	if w.calm || len(others) == 0 {
		return
	}
	for _, p := range victim.procs {
		p.inst.Cut(8 * time.Second)
	}
	cmd := ownership.Command{Verb: ownership.VerbFence, Reason: "deaf", Region: victim.name}
	w.After(w.Between(0, 100*time.Millisecond), func() { w.ask(pick(w.Rand(), others...), cmd) })
	undo := cmd
	undo.Verb = ownership.VerbUnfence
	w.After(w.Between(8*time.Second, 9*time.Second), func() { w.ask(pick(w.Rand(), others...), undo) })
	for range 8 {
		w.After(w.Between(0, 1500*time.Millisecond), func() { w.writeAt(victim) })
	}
}

// slowRead makes readers of a partition in a region slow for a while.
func (w *World) slowRead(r *region, tp kafka.TP, most time.Duration) {
	w.slow[slowKey{r, tp}] = max(w.slow[slowKey{r, tp}], w.Now()+w.Between(most/4, most))
}

// waitingTwin has two lines of one record key come to a seat that is slow to read back what
// it writes: the second waits for the first, and what it writes comes from elsewhere
// meanwhile.
func (w *World) waitingTwin() {
	a, b := pick(w.Rand(), w.regions...), pick(w.Rand(), w.regions...)
	tp := kafka.TP{Topic: entityTopic}
	p := a.procs[a.assigned[tp]]
	if a == b || w.calm || !p.alive || w.slowUntil(a, tp) > w.Now() {
		return
	}
	if s := p.seats[tp]; s == nil || s.core == nil || s.core.Term() == seat.NoBarrier {
		w.attempt(w.newWrite(tp), a) // it begins a term, for the next time
		return
	}
	first, second := w.newWrite(tp), w.newWrite(tp)
	second.req.Key = first.req.Key
	second.req.Fingerprint = second.req.Request.Fingerprint()
	order := seat.NewOrder()
	give := func(o *op) {
		w.open++
		closed := false
		finish := func() {
			if !closed {
				closed = true
				w.open--
			}
		}
		p.after(0, func() {
			p.submit(tp, o.req, order, func(ans seat.Answer, err error) {
				if err == nil {
					w.counts["answered"]++
					o.answers = append(o.answers, answered{a, p.name, w.Now(), ans})
					w.checkReplayNow(o, &o.answers[len(o.answers)-1], ans.Epoch)
				}
				finish()
			})
		})
		w.After(8*time.Second, finish)
	}
	give(first)
	w.After(w.Between(time.Millisecond, 10*time.Millisecond), func() {
		w.slow[slowKey{a, tp}] = w.Now() + w.Between(600*time.Millisecond, 1500*time.Millisecond)
		// And again when the second comes: the seat tells others what it has meanwhile.
		w.After(w.slowUntil(a, tp)-w.Now(), func() {
			a.kafka.Watch(tp, func() { w.slow[slowKey{a, tp}] = w.Now() + w.Between(time.Second, 3*time.Second) })
		})
	})
	w.After(w.Between(25*time.Millisecond, 60*time.Millisecond), func() { give(second) })
	w.After(w.Between(40*time.Millisecond, 200*time.Millisecond), func() { w.attempt(second, b) })
}

// twinAfterLoss restarts the process that has a seat without its store, slow to read what
// other regions wrote, and sends it a key of theirs again.
func (w *World) twinAfterLoss() {
	a, tp := pick(w.Rand(), w.regions...), kafka.TP{Topic: entityTopic}
	p := a.procs[a.assigned[tp]]
	elsewhere := func(o *op) bool {
		return o.tp == tp && !o.req.Idempotency.IsZero() && slices.ContainsFunc(o.answers, func(x answered) bool { return x.region != a }) &&
			!slices.ContainsFunc(o.answers, func(x answered) bool { return x.region == a })
	}
	var of []*op
	for _, o := range w.ops {
		if elsewhere(o) {
			of = append(of, o)
		}
	}
	if len(of) == 0 || w.calm || !p.alive {
		return
	}
	o := pick(w.Rand(), of...)
	p.kill()
	p.store = newStore()
	p.logf("store deleted")
	for _, b := range w.regions {
		if b != a {
			w.slowRead(a, remoteTP(b, tp), 6*time.Second)
		}
	}
	w.After(w.Between(20*time.Millisecond, 200*time.Millisecond), p.start)
	for range 6 {
		w.After(w.Between(300*time.Millisecond, 5*time.Second), func() {
			if !w.calm {
				w.attemptAt(o, a, p)
			}
		})
	}
}
