package world

import (
	"bytes"
	"fmt"
	"maps"
	"slices"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/judged"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/testbench/sim/kafka"
)

// truth is what the origin logs say, read naively after the end.
type truth struct {
	logs  map[event.RegionID][]told // by origin, in log order
	byDot map[event.Dot]*told
	sound []*event.Event // of all origins: neither void nor broken, admitted
	valid []*event.Event // of these, the ones that the register makes count
}

// under is the sound events that a region's position has reached and that count
// under its table. What lies past a cut that a link knew never came there.
func (w *World) under(t *truth, r *region, tp kafka.TP, at *conflict.Position) []*event.Event {
	var out []*event.Event
	for _, e := range below(t.sound, &at.Vector) {
		if (w.border != nil || t.byDot[e.At].orphan) && !w.met(r, tp, e.At) {
			continue
		}
		if at.Validity == nil || verdictUnder(at.Validity, e.At, e.Epoch) != orphaned {
			// What only a later start can tell about counts where it was folded
			// before its cut was known; nobody folds it after.
			out = append(out, e)
		}
	}
	return out
}

func (w *World) truth(tp kafka.TP) *truth {
	t := &truth{logs: map[event.RegionID][]told{}, byDot: map[event.Dot]*told{}}
	for _, r := range w.regions {
		log := readLog(r, tp)
		t.logs[r.id] = log
		for i := range log {
			e := &log[i]
			t.byDot[e.At] = e
			if !e.void && !e.broken && (e.Stamped || tp.Topic == eventsTopic) {
				t.sound = append(t.sound, &e.Event)
				switch w.judge(r, tp, e.At.Offset, e.Epoch) {
				case authoritative:
					t.valid = append(t.valid, &e.Event)
				case orphaned:
					e.orphan = true
				}
			}
		}
	}
	return t
}

func (w *World) check() {
	for _, tp := range w.seats {
		t := w.truth(tp)
		w.checkReplays(tp, t)
		w.checkOwners(tp, t)
		if tp.Topic == entityTopic {
			w.checkContexts(tp, t)
		}
		w.checkVerdicts(tp, t)
		w.checkClock(tp, t)
		w.checkAnswers(tp, t)
		w.checkEffects(tp, t)
		w.checkIndexes(tp, t)
		for _, r := range w.regions {
			steps := w.committed(r, tp)
			w.checkSteps(r, tp, steps)
			w.checkClaims(r, tp, t, steps)
			w.checkFrontier(r, tp, t, steps)
			if w.own != nil && w.parkedAny(r, tp) {
				continue // what was folded and then lost with the remote log's tail cannot be read again to be revoked
			}
			if tp.Topic == entityTopic {
				w.checkEntities(r, tp, t, steps)
				w.checkFeed(r, tp, t, steps)
			} else {
				w.checkMerged(r, tp, t, steps)
			}
			w.checkTwinFeed(r, tp, t, steps)
		}
		if tp.Topic == eventsTopic && !w.anyParked(tp) && w.border == nil {
			w.checkCursors(tp, t)
		}
		w.checkRemote(tp, t)
	}
}

// judged compares verdicts while the world runs: two readers of one place must
// agree; the end compares with the truth.
func (w *World) judged(p *proc, topic, how string, it judged.Item) {
	k := verdictKey{p.region.name, topic, how, it.Event.At}
	old, known := w.verdicts[k]
	if known && (old.Verdict != it.Verdict || old.Barrier != it.Barrier) {
		w.fail("void", "%s judges %v %v (barrier %d), a reader before it %v (barrier %d)", p.name, it.Event.At, it.Verdict, it.Barrier, old.Verdict, old.Barrier)
	}
	w.verdicts[k] = it
}

// checkVerdicts: every reader's verdict is the truth, and so is that of a reader
// which starts at any offset with the checkpoint that a live reader had there.
func (w *World) checkVerdicts(tp kafka.TP, t *truth) {
	want := func(e *told) judged.Verdict {
		switch {
		case e.broken:
			return judged.Quarantined
		case e.void:
			return judged.Void
		}
		return judged.Valid
	}
	for _, r := range w.regions {
		log := t.logs[r.id]
		for i := range log {
			e := &log[i]
			if e.void {
				w.counts["void"]++
			}
			for _, by := range w.regions {
				how := "remote"
				if by == r {
					how = "local"
				}
				it, ok := w.verdicts[verdictKey{by.name, tp.Topic, how, e.At}]
				if at := w.position(by, tp).Vector; !ok && w.parkedAny(by, tp) && !at.Covers(e.At) {
					continue // held back, with a recorded reason, or passed on only when that is there
				}
				if !ok && by != r && (w.lapsed(r, tp, e.At.Offset) || !w.left(by, r, tp, e.At)) {
					continue // past a cut that the link knew, or kept in its region
				}
				if !ok || it.Verdict != want(e) {
					w.fail("void", "%s judged %v of %v %v (seen %v), it is %v: barrier %d", by.name, e.At, tp, it.Verdict, ok, want(e), e.Barrier)
				}
			}
		}
		w.checkStarts(r, tp, log, want)
	}
}

// position is how far a region has folded a partition.
func (w *World) position(r *region, tp kafka.TP) conflict.Position {
	if steps := w.committed(r, tp); len(steps) > 0 {
		return steps[len(steps)-1].position
	}
	return conflict.Start()
}

func (w *World) anyParked(tp kafka.TP) bool {
	for _, r := range w.regions {
		for _, from := range w.regions {
			if w.parked(r, from, tp) {
				return true
			}
		}
	}
	return false
}

func (w *World) checkStarts(r *region, tp kafka.TP, log []told, want func(*told) judged.Verdict) {
	raw, _ := r.kafka.Log(tp)
	for i := range log {
		at, ok := w.verdicts[verdictKey{r.name, tp.Topic, "local", log[i].At}]
		if !ok {
			continue
		}
		judge := seat.NewLog(r.id, 0, at.Barrier)
		rest := log[i+1:]
		for j := range raw {
			rec := &raw[j]
			switch {
			case rec.Offset <= log[i].At.Offset:
			case rec.Kind == kafka.Commit:
				judge.Marker(rec.Offset, isBarrier(rec))
			case rec.Kind == kafka.Data && len(rest) > 0 && rest[0].At.Offset == rec.Offset:
				var err error
				if rest[0].broken {
					err = event.ErrMalformed
				}
				if got := judge.Record(&rest[0].Event, err); got != want(&rest[0]) {
					w.fail("void", "a reader that starts behind %v judges %v %v", log[i].At, rest[0].At, got)
				}
				rest = rest[1:]
			}
		}
	}
}

// checkClock: stamps rise in each log, and a write has a later stamp than all it
// has seen.
func (w *World) checkClock(tp kafka.TP, t *truth) {
	for _, a := range t.valid {
		for _, b := range t.valid {
			if a.Stamped && b.Stamped && saw(b, a.At) && a.Stamp >= b.Stamp {
				w.fail("clock", "%v of %v has stamp %v, %v which saw it %v", a.At, tp, a.Stamp, b.At, b.Stamp)
			}
		}
	}
}

// checkAnswers (G1): an answered write lies in the log where the answer says, is
// no void record, and carries the request.
func (w *World) checkAnswers(tp kafka.TP, t *truth) {
	for _, o := range w.ops {
		if o.tp != tp {
			continue
		}
		for _, a := range o.answers {
			e := t.byDot[a.At]
			switch {
			case e == nil:
				w.fail("G1", "write %d answered by %s as %v: nothing lies there", o.n, a.by, a.At)
			case e.void || e.broken:
				w.fail("G1", "write %d answered by %s as %v: void", o.n, a.by, a.At)
			case e.ID != a.ID || e.Stamp != a.Stamp || e.Timestamp != a.Timestamp || !bytes.Equal(e.Value, o.req.Value) || e.Envelope.Key != o.req.Idempotency:
				w.fail("G1", "write %d answered by %s as %v: another record lies there", o.n, a.by, a.At)
			case !a.Replayed && a.At.Region != a.region.id:
				w.fail("G1", "write %d answered by %s as first at %v", o.n, a.by, a.At)
			}
		}
	}
}

// checkReplays (G2): once a region has answered a key with a record of its own, a
// replay there names a record of its own, unless that is an orphan. (Where windows
// end, the newest record may be another region's.)
func (w *World) checkReplays(tp kafka.TP, t *truth) {
	if w.cfg.window < w.Now() {
		return
	}
	for _, o := range w.ops {
		own := map[event.RegionID]bool{}
		for _, a := range o.answers {
			switch r := a.region.id; {
			case o.tp != tp:
			case !a.Replayed:
				e := t.byDot[a.At]
				own[r] = e != nil && !e.orphan
			case own[r] && a.At.Region != r:
				w.fail("G2", "write %d: %s answers a retry with %v after it has answered with a record of its own", o.n, a.by, a.At)
			}
		}
	}
}

// checkEffects (G2): within one region a key has one valid record a window; two
// answers of a region within it name the same.
func (w *World) checkEffects(tp kafka.TP, t *truth) {
	for _, eff := range effects(t.valid, w.cfg.window) {
		seen := map[event.RegionID]event.Dot{}
		for _, c := range eff.copies {
			if old, ok := seen[c.At.Region]; ok {
				w.fail("G2", "one key has two valid records in one region: %v and %v of %v", old, c.At, tp)
			}
			seen[c.At.Region] = c.At
		}
		if len(eff.copies) > 1 {
			w.counts["twins"]++
		}
	}
}

// checkSteps: the committed steps of a partition follow each other, none twice.
func (w *World) checkSteps(r *region, tp kafka.TP, steps []*step) {
	for i := 1; i < len(steps); i++ {
		a, b := steps[i-1].position.Vector, steps[i].position.Vector
		if !b.CoversAll(&a) || a == b && w.own == nil && !steps[i].claim {
			w.fail("fold", "%s %v: step %d by %s goes from %v to %v", r.name, tp, i, steps[i].by, a, b)
		}
	}
}

// checkClaims: what a seat publishes holds for every later record of its region: a
// stamp above the closed one, and a context that covers what was promised, whichever
// instance writes it. A seat without a term only repeats what was published before.
func (w *World) checkClaims(r *region, tp kafka.TP, t *truth, steps []*step) {
	var closed event.Stamp
	for n, s := range steps {
		if s.term == seat.NoBarrier && s.claims.Closed > closed {
			w.fail("claims", "%s %v: step %d by %s claims %v again without a term", r.name, tp, n, s.by, s.claims.Closed)
			return
		}
		closed = max(closed, s.claims.Closed)
		for _, e := range t.valid {
			if e.At.Region != r.id || !e.Stamped || e.At.Offset < s.claims.End.Next {
				continue
			}
			promised, has := s.claims.Promised.Without(r.id), e.Context
			for _, o := range w.restrictedIn(r, tp) {
				promised[o] = event.Point{} // of these nothing is promised
			}
			if e.Stamp <= s.claims.Closed || !has.CoversAll(&promised) {
				w.fail("claims", "%s %v: step %d by %s claims %+v, then comes %v with stamp %v and context %v", r.name, tp, n, s.by, s.claims, e.At, e.Stamp, e.Context)
				return
			}
		}
	}
}

// checkEntities (G4): after every step the entities that changed are what the
// naive fold makes of the same set of records, and so are all at the end.
func (w *World) checkEntities(r *region, tp kafka.TP, t *truth, steps []*step) {
	state := map[string]conflict.Entity{}
	merged := map[string]*conflict.Merged{}
	for n, s := range steps {
		for _, c := range s.out.Entities {
			state[string(c.Key)] = c.Entity
		}
		for i := range s.out.Merged {
			merged[string(s.out.Merged[i].Event.Key)] = &s.out.Merged[i]
		}
		if s.position.Revoking != 0 {
			continue // in the middle of a table's orphans
		}
		naive := naiveEntities(w.under(t, r, tp, &s.position), w.cfg.window)
		for k := range state {
			if _, ok := naive[k]; !ok {
				naive[k] = nil // all its events are orphans
			}
		}
		for _, k := range slices.Sorted(maps.Keys(naive)) {
			if isGone(state[k], naive[k], &s.position.Needed) {
				continue
			}
			if text := differs(state[k], merged[k], naive[k]); text != "" {
				w.fail("G4", "%s %v %q after step %d: %s", r.name, tp, k, n, text)
				return
			}
		}
	}
}

// isGone tells whether an entity has no state because nothing but a deletion is left of it
// that nobody needs any more.
func isGone(e conflict.Entity, want []effect, needed *event.Vector) bool {
	return e.IsZero() && len(want) == 1 && want[0].stands.Op == event.Delete && needed.Covers(want[0].stands.At)
}

func differs(e conflict.Entity, m *conflict.Merged, want []effect) string {
	if len(e.Live) != len(want) {
		return fmt.Sprintf("%d live values, should be %d", len(e.Live), len(want))
	}
	for _, eff := range want {
		i := slices.IndexFunc(e.Live, func(l conflict.Live) bool { return l.Event.At == eff.stands.At })
		if i < 0 {
			return fmt.Sprintf("%v is not live", eff.stands.At)
		}
		if !bytes.Equal(e.Live[i].Event.Value, eff.stands.Value) || e.Live[i].Event.Op != eff.stands.Op {
			return fmt.Sprintf("%v has another value", eff.stands.At)
		}
	}
	if len(want) > 0 && (m == nil || m.Event.At != want[0].stands.At || e.Shown != want[0].stands.At) {
		return fmt.Sprintf("merged shows %v, not %v", e.Shown, want[0].stands.At)
	}
	return ""
}

// checkFeed (G5): a write of this region that lived here and was not the one
// shown is in the feed as lost, once; and what the feed calls concurrent is.
func (w *World) checkFeed(r *region, tp kafka.TP, t *truth, steps []*step) {
	lost := map[event.Dot]int{}
	for _, s := range steps {
		for _, c := range s.out.Conflicts {
			if c.Reason != conflict.Concurrent {
				continue
			}
			lost[c.Lost.At]++
			a, b := t.byDot[c.Lost.At], t.byDot[c.Won.At]
			if a == nil || b == nil || saw(&b.Event, a.At) || saw(&a.Event, b.At) {
				w.fail("G5", "%s says that %v lost to %v, which are not concurrent", r.name, c.Lost.At, c.Won.At)
			}
		}
	}
	for _, d := range slices.SortedFunc(maps.Keys(lost), compareDots) {
		w.counts["conflicts"]++
		if lost[d] > 1 {
			w.fail("G5", "%s names %v as lost %d times", r.name, d, lost[d])
		}
	}
	if !conflict.PolicyOf(w.cfg.rule).ReportsLosers {
		return
	}
	for _, s := range steps {
		if s.position.Revoking != 0 {
			continue
		}
		for _, effs := range naiveEntities(w.under(t, r, tp, &s.position), w.cfg.window) {
			for _, eff := range effs[min(1, len(effs)):] {
				if d := eff.stands.At; d.Region == r.id && lost[d] == 0 {
					lost[d]++
					w.fail("G5", "%s: %v was live and beaten by %v, and the feed does not say so", r.name, d, effs[0].stands.At)
				}
			}
		}
	}
}

// checkTwinFeed (G5): a copy of this region's own that does not stand is in its
// feed.
func (w *World) checkTwinFeed(r *region, tp kafka.TP, t *truth, steps []*step) {
	told := map[event.Dot]bool{}
	for _, s := range steps {
		for _, c := range s.out.Conflicts {
			if c.Reason == conflict.Duplicate || c.Reason == conflict.KeyReuse {
				told[c.Lost.At] = true
			}
		}
	}
	at := w.position(r, tp)
	for _, eff := range effects(w.under(t, r, tp, &at), w.cfg.window) {
		for _, c := range eff.copies[1:] {
			if c.At.Region == r.id && !told[c.At] {
				w.fail("G5", "%s: %v lost to its twin %v, and the feed does not say so", r.name, c.At, eff.stands.At)
			}
		}
	}
}

// checkMerged (G1, G2): the merged view of an events topic has each effect once.
func (w *World) checkMerged(r *region, tp kafka.TP, t *truth, steps []*step) {
	emitted := map[event.Dot]int{}
	for _, s := range steps {
		for _, m := range s.out.Merged {
			if m.Corrects {
				emitted[m.Event.At]-- // a retraction
				continue
			}
			emitted[m.Event.At]++
			if e := t.byDot[m.Event.At]; e == nil || e.void || e.broken || !bytes.Equal(e.Value, m.Event.Value) {
				w.fail("G2", "%s %v: merged has %v, which is no valid event", r.name, tp, m.Event.At)
			}
		}
	}
	at := w.position(r, tp)
	wants, has := map[string]int{}, map[string]int{}
	for _, eff := range effects(w.under(t, r, tp, &at), w.cfg.window) {
		wants[effectKey(eff.stands)]++
	}
	instead := orphansOf(steps)
	for _, d := range slices.SortedFunc(maps.Keys(emitted), compareDots) {
		e := t.byDot[d]
		if e == nil || emitted[d] == 0 {
			continue
		}
		k := effectKey(&e.Event)
		has[k] += emitted[d]
		wants[k] += 0
		if e.orphan && !w.mayStandFor(t, instead[d].Instead, k) {
			w.fail("G7", "%s %v: merged shows the orphan %v, for %v", r.name, tp, d, instead[d].Instead)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(wants)) {
		if has[k] != wants[k] {
			w.fail("G2", "%s %v: %d effects of %s are %d times in merged", r.name, tp, wants[k], k, has[k])
		}
	}
}

// effectKey tells writes apart. Copies of one key are one write each window;
// which copy stands for it in the merged view is settled by what came first.
func effectKey(e *event.Event) string {
	if k := e.Envelope.Key; !k.IsZero() {
		return fmt.Sprintf("key %x", k[:6])
	}
	return fmt.Sprintf("%d/%d", e.At.Region, e.At.Offset)
}

func compareDots(a, b event.Dot) int {
	if a.Region != b.Region {
		return int(a.Region) - int(b.Region)
	}
	return int(a.Offset - b.Offset)
}
