package world

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/replicate"
	"github.com/geogate/geogate/residency"
	"github.com/geogate/geogate/testbench/sim/kafka"
)

// border is what a history with a residency policy has besides: the file that lies
// before every process, and its newest revision.
type border struct {
	file     *residency.Policy
	revision int
}

// rulesOf is a kind of rules about a topic: whatever comes behind the last says that
// all of it may leave.
type rulesOf int

const (
	oneKeyLeaves rulesOf = iota
	oneKeyStays
	stays
	mayLeave
)

var auditTP = kafka.TP{Topic: control.TopicAudit}

// drawBorder draws whether the history has a policy, apart from all else.
func (c *config) drawBorder(seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0x626f72))
	c.border = r.IntN(3) == 0
}

// buildBorder puts the first policy in force.
func (w *World) buildBorder() {
	if !w.cfg.border || len(w.regions) < 2 {
		return
	}
	w.border = &border{}
	for _, r := range w.regions {
		r.kafka.Create(auditTP.Topic, 1, false)
	}
	w.writePolicy()
}

// writePolicy writes a policy of another revision: each topic may leave, may not, or
// may for some keys alone; sometimes only from or to one region.
func (w *World) writePolicy() {
	w.border.revision++
	var b strings.Builder
	fmt.Fprintf(&b, "version: 1\nkind: ResidencyPolicy\nname: sim\nrevision: %d\ndefault: deny\nrules:\n", w.border.revision)
	everybody := func() string {
		if w.cfg.regime != liftedRules && w.Chance(0.3) {
			return `["` + pick(w.Rand(), w.regions...).name + `"]`
		}
		return `["*"]`
	}
	for _, topic := range []string{entityTopic, eventsTopic} {
		from, to := everybody(), everybody()
		rule := func(id, effect, from, to, when string) {
			fmt.Fprintf(&b, "  - {id: %s-%s, effect: %s, topics: [%q], from: %s, to: %s%s}\n", topic, id, effect, topic, from, to, when)
		}
		key := fmt.Sprintf("p0-e%d", w.Rand().IntN(w.cfg.entities))
		switch w.kindOfRule() {
		case oneKeyLeaves:
			rule("some", "allow", from, to, fmt.Sprintf(`, when: 'key == "%s"'`, key))
			continue
		case oneKeyStays:
			rule("not", "deny", from, to, fmt.Sprintf(`, when: 'key == "%s"'`, key))
		case stays:
			rule("never", "deny", from, to, "")
		}
		rule("all", "allow", `["*"]`, `["*"]`, "")
	}
	var names []string
	for _, r := range w.regions {
		names = append(names, r.name)
	}
	p, err := residency.Parse("policy.yaml", []byte(b.String()), names)
	if err != nil {
		panic(fmt.Sprintf("world: a policy that we wrote: %v", err))
	}
	w.border.file = p
	w.counts["policies"]++
	w.Logf("policy:\n%s", b.String())
}

// reload is the change of the file; each process notices it in its time.
func (w *World) reload() {
	if w.border == nil {
		return
	}
	w.writePolicy()
	for _, r := range w.regions {
		for _, p := range r.procs {
			p.after(w.Between(0, time.Second), p.reload)
		}
	}
}

func (p *proc) reload() {
	if p.guard.Loaded(p.w.border.file) {
		p.rebordered()
	}
}

// rebordered has links look at their topics again under the policy in force.
func (p *proc) rebordered() {
	for _, to := range p.w.regions {
		if l := p.links[to]; l != nil {
			p.after(p.w.Between(0, 300*time.Millisecond), l.reassign)
		}
	}
}

// reassign gives the shards their streams again.
func (l *linkRun) reassign() {
	if l.closed {
		return
	}
	waiting := false
	for _, s := range l.shards {
		streams, waits := l.carried(replicate.Generation{Shards: len(l.shards)}, s.n)
		waiting = waiting || waits
		s.applyIntervals()
		s.step(replicate.Assigned{Streams: streams})
	}
	if waiting {
		l.p.after(200*time.Millisecond, l.reassign)
	}
}

// carried are a shard's streams under the policy in force; waits tells that some
// wait until the target knows that records may be missing.
func (l *linkRun) carried(g replicate.Generation, shard int) (out []replicate.Stream, waits bool) {
	p := l.p
	for _, st := range l.streams(g, shard) {
		if p.w.border == nil || st.Control {
			out = append(out, st)
			continue
		}
		ruling := p.guard.Rule(st.Topic, p.region.name, l.to.name)
		switch {
		case ruling.Effect == residency.Deny, p.w.blocks(ruling):
			continue
		case ruling.Effect == residency.PerRecord && !l.announced(st.Topic):
			waits = true
			continue
		}
		st.Ruling = ruling
		out = append(out, st)
	}
	return out, waits
}

// blocks tells whether a topic is not carried under rules that look at records.
func (w *World) blocks(r *residency.Ruling) bool {
	return r.Effect == residency.PerRecord && r.Topic == entityTopic && !conflict.PolicyOf(w.cfg.rule).Restrictable
}

// announced says in control that records of a topic may be missing at the target,
// and tells whether the target's copy of control has it.
func (l *linkRun) announced(topic string) bool {
	p := l.p
	x := control.Restriction{Origin: p.region.id, To: l.to.id, Topic: topic}
	has := func(r *region, tp kafka.TP) bool {
		got, err := r.kafka.Fetch(tp, 0, true, 1<<30)
		return err == nil && slices.ContainsFunc(got.Records, func(rec kafka.Record) bool {
			return rec.Kind == kafka.Data && string(rec.Key) == string(x.AppendKey(nil))
		})
	}
	copied := has(l.to, kafka.TP{Topic: control.ControlFrom(p.region.name)})
	// An earlier run of the link may have left out what it had not announced itself.
	if told := l.told[topic]; !told || !has(p.region, controlTP) {
		l.told[topic] = true
		l.facts.Announced(topic)
		if copied {
			return true
		}
		p.appendControl(seat.Record{Key: x.AppendKey(nil), Value: x.AppendValue(nil), Timestamp: p.wall().UnixMilli()}, func(err error) {
			if err != nil {
				delete(l.told, topic)
			}
		})
		return false
	}
	return copied
}

// applyPolicyVersion tells the core of a change of the policy, before anything that follows it.
func (s *shardRun) applyPolicyVersion() []any {
	if s.l.p.w.border == nil {
		return nil
	}
	v := s.l.p.guard.Version()
	if v == s.version {
		return nil
	}
	s.version = v
	return s.core.Step(s.l.p.wall(), replicate.PolicyChanged{Version: v})
}

// audit writes down what was decided.
func (s *shardRun) audit(e replicate.Audit) {
	p, left, failed := s.l.p, len(e.Decided), error(nil)
	gen, deposed := s.l.agreed.Number, s.l.depose(e.Decided)
	for _, d := range e.Decided {
		r := d.Stream.Ruling
		a := residency.Audit{
			To: s.l.to.id, ID: d.Stream.Source, Topic: d.Stream.Topic, Partition: d.Stream.Number, Incarnation: d.Stream.Incarnation,
			Revision: r.Revision, Digest: r.Digest, Runs: d.Runs, Generation: gen, ProducerID: s.prod.num, ProducerEpoch: s.prod.epoch,
		}
		if s.auditor == nil {
			s.auditor = &appender{p: p, tp: auditTP, c: p.dial(p.region)}
		}
		s.auditor.late = max(p.w.lateAudit(), deposed)
		s.auditor.add(seat.Record{Key: a.AppendKey(nil), Value: a.AppendValue(nil), Timestamp: p.wall().UnixMilli()}, func(err error) {
			if err != nil {
				failed = err
			}
			if left--; left == 0 {
				p.after(p.w.slowly(), func() { s.step(replicate.Audited{Err: failed}) })
			}
		})
	}
}

// restrictions are read from what other regions' control says of this one.
func (f *follower) restrictions(from *region) {
	f.p.read(reader{c: f.p.dial(f.p.region), tp: kafka.TP{Topic: control.ControlFrom(from.name)}, committed: true, take: func(got kafka.Fetched, more func()) {
		for i := range got.Records {
			r := &got.Records[i]
			if typ, ok := control.TypeOf(r.Key); r.Kind != kafka.Data || !ok || typ != control.TypeRestriction {
				continue
			}
			if x, err := control.ParseRestriction(r.Key, r.Value); err == nil && x.To == f.p.region.id {
				f.restricted[x.Topic] |= 1 << x.Origin
			}
		}
		f.p.after(f.p.w.Between(0, 10*time.Millisecond), more)
	}})
}

// context is what a write under a key has seen: of origins that are restricted here
// only what the entity's own live values say.
func (s *seatRun) context(key []byte) (event.Vector, uint16, error) {
	at := s.fold.part.Position()
	restricted := at.RestrictedOrigins(s.p.ctl.restricted[s.tp.Topic], s.p.region.id)
	if restricted == 0 {
		return at.Vector, 0, nil
	}
	e := s.fold.store.entities[string(key)]
	if s.tp.Topic != entityTopic || key == nil {
		e = s.fold.store.entities[""]
	}
	return e.Context(at.Vector, restricted), restricted, nil
}

// The checkers of G6.

// checkBorder: what is sent is what the policy in force in the process lets out.
func (s *shardRun) checkBorder(e *replicate.Produce) {
	w := s.l.p.w
	if w.border == nil {
		return
	}
	for _, b := range e.Batches {
		topic, ok := strings.CutPrefix(b.Topic, s.l.p.region.name+".")
		if !ok {
			continue // positions, runs, control
		}
		ruling := s.l.p.guard.Rule(topic, s.l.p.region.name, s.l.to.name)
		for _, rec := range unpack(b.Batch) {
			if v := ruling.Decide(&residency.Record{Key: rec.Key, Headers: rec.Headers}); !v.Allow {
				w.fail("G6", "%s sends %q of %s to %s, which rule %q keeps here", s.l.p.name, rec.Key, topic, s.l.to.name, v.Rule)
			}
		}
	}
}

// finals are the verdicts of the audit about a partition on a way: of each offset
// the last that was not superseded, and whether it was ever allowed to leave.
func (w *World) finals(from, to *region, tp kafka.TP) (final map[int64]residency.Code, ever map[int64]bool) {
	final, ever = map[int64]residency.Code{}, map[int64]bool{}
	by := map[int64]*residency.Audit{}
	log, aborted := from.kafka.Log(auditTP)
	for i := range log {
		if log[i].Kind != kafka.Data || aborted(&log[i]) {
			continue
		}
		a, err := residency.ParseAudit(log[i].Key, log[i].Value)
		if err != nil {
			w.fail("G6", "parse audit: %v", err)
			continue
		}
		if a.To != to.id || a.Topic != tp.Topic || a.Partition != tp.Partition {
			continue
		}
		for _, run := range a.Runs {
			for o := run.From; o < run.Until; o++ {
				ever[o] = ever[o] || run.Code == residency.Allowed
				if by[o] == nil || a.Supersedes(by[o]) {
					final[o], by[o] = run.Code, &a
				}
			}
		}
	}
	return final, ever
}

// checkVerdictsOf (G6): every offset that a link has covered has a final verdict;
// what lies in the target, committed, is what they allow, and what lies there at all
// is what some attempt had allowed.
func (w *World) checkVerdictsOf(r, from *region, tp kafka.TP, covered int64, have []kafka.Record) {
	final, ever := w.finals(from, r, tp)
	for o := range covered {
		if _, ok := final[o]; !ok {
			w.fail("G6", "the link from %s to %s has covered %v/%d without a verdict", from.name, r.name, tp, o)
			return
		}
	}
	source, _ := from.kafka.Log(tp)
	offsetsOf := func(rec *kafka.Record) (at []int64) {
		for i := range source {
			if source[i].Kind == kafka.Data && sameRecord(&source[i], rec) {
				at = append(at, source[i].Offset)
			}
		}
		return at
	}
	for i := range have {
		if !slices.ContainsFunc(offsetsOf(&have[i]), func(o int64) bool { return final[o] == residency.Allowed }) {
			w.fail("G6", "%s has %q of %s's %v, whose final verdict does not allow it", r.name, have[i].Key, from.name, tp)
		}
	}
	all, _ := r.kafka.Log(remoteTP(from, tp))
	for i := range all {
		if all[i].Kind == kafka.Data && !slices.ContainsFunc(offsetsOf(&all[i]), func(o int64) bool { return ever[o] }) {
			w.fail("G6", "%s has bytes of %q of %s's %v, which no attempt had allowed", r.name, all[i].Key, from.name, tp)
		}
	}
}

// left tells whether a record has left its origin for a region: the region has come
// past it, and its final verdict allows it.
func (w *World) left(r, from *region, tp kafka.TP, at event.Dot) bool {
	if w.border == nil {
		return true
	}
	final, _ := w.finals(from, r, tp)
	v := w.position(r, tp).Vector
	return v.Covers(at) && final[at.Offset] == residency.Allowed
}

// carriedInTheEnd tells whether a topic's records leave for a region at all, by the
// policy that is in force when a history ends.
func (w *World) carriedInTheEnd(r, from *region, tp kafka.TP) bool {
	if w.border == nil || r == from {
		return true
	}
	ruling := w.border.file.Compile(tp.Topic, from.name, r.name)
	return ruling.Effect != residency.Deny && !w.blocks(ruling)
}

// restrictedIn are the origins of which records may be missing in a region.
func (w *World) restrictedIn(r *region, tp kafka.TP) (origins []event.RegionID) {
	if w.border == nil {
		return nil
	}
	restricted := w.position(r, tp).Restricted
	for _, p := range r.procs {
		restricted |= p.ctl.restricted[tp.Topic]
	}
	for _, o := range w.regions {
		if restricted>>o.id&1 == 1 {
			origins = append(origins, o.id)
		}
	}
	return origins
}

// checkContexts (G5): a write covers of its own entity what its region was shown, or
// what something that it was shown had seen; never what was kept from it.
func (w *World) checkContexts(tp kafka.TP, t *truth) {
	if w.border == nil {
		return
	}
	for _, e := range t.sound {
		r := w.regions[e.At.Region-1]
		for _, d := range t.sound {
			if !e.Stamped || d.At.Region == e.At.Region || string(d.Key) != string(e.Key) || !saw(e, d.At) || w.met(r, tp, d.At) || t.byDot[d.At].orphan {
				continue
			}
			shown := slices.ContainsFunc(t.sound, func(x *event.Event) bool {
				return x.At != d.At && string(x.Key) == string(d.Key) && w.met(r, tp, x.At) && saw(x, d.At) && saw(e, x.At)
			})
			if !shown {
				w.fail("G5", "%v of %v covers %v, which was kept from its region", e.At, tp, d.At)
				return
			}
		}
	}
}
