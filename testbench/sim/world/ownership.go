package world

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/residency"
	"github.com/geogate/geogate/router"
	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/testbench/sim/kafka"
	"github.com/geogate/geogate/testbench/sim/register"
)

// lease has the times of the default one in tenths, so that a history of some
// seconds sees units change hands a few times.
var lease = ownership.LeaseConfig{Duration: 2 * time.Second, Margin: 200 * time.Millisecond, Renew: 300 * time.Millisecond, Timeout: 200 * time.Millisecond}

// registerModel is what a history with an ownership register has besides.
type registerModel struct {
	stream   *register.Stream
	topology *router.Topology
	refs     uint64
	kinds    map[string]string // kind of a fence's cut, by unit and epoch
	fenced   string            // a unit that stays fenced at the end, "" for none
}

// Calm implements register.Host.
func (w *World) Calm() bool { return w.calm }

// Quick implements register.Host.
func (w *World) Quick() time.Duration { return w.Between(200*time.Microsecond, 8*time.Millisecond) }

// Violate implements register.Host.
func (w *World) Violate(rule, format string, args ...any) { w.fail(rule, format, args...) }

// Count implements register.Host.
func (w *World) Count(what string) { w.counts[what]++ }

// owner is the one region that may write a topic, nil where each may.
func (w *World) owner(topic string) *region {
	if w.cfg.single && topic == eventsTopic {
		return w.regions[0]
	}
	return nil
}

// unit is what has to be owned for a write of a topic in a region.
func (w *World) unit(topic string, r *region) string {
	if w.owner(topic) != nil {
		return topic
	}
	return topic + "/" + r.name
}

// home are the units that a region claims.
func (w *World) home(r *region) (units []string) {
	for _, topic := range []string{entityTopic, eventsTopic} {
		if o := w.owner(topic); o == nil || o == r {
			units = append(units, w.unit(topic, r))
		}
	}
	return units
}

// units are all units with the region that owns each.
func (w *World) units() map[string]*region {
	out := map[string]*region{}
	for _, r := range w.regions {
		for _, u := range w.home(r) {
			out[u] = r
		}
	}
	return out
}

func (w *World) unitNames() (names []string) {
	for u := range w.units() {
		names = append(names, u)
	}
	slices.Sort(names)
	return names
}

// buildRegister gives the processes an ownership register to live with.
func (w *World) buildRegister() {
	if !w.cfg.register {
		return
	}
	var regions []router.Region
	for _, r := range w.regions {
		regions = append(regions, router.Region{Name: r.name, ID: r.id})
	}
	w.own = &registerModel{stream: register.NewStream(w, lease), kinds: map[string]string{}}
	w.own.topology, _ = router.NewTopology(regions...)
	w.own.stream.NoCasts = w.Chance(0.2)
	w.own.stream.Join = w.cfg.join
	if w.cfg.outside {
		w.own.stream.Inline = -1 // starts and cuts stand outside of units' records
		w.own.stream.Kept = 1
	}
	if names := w.unitNames(); w.Chance(0.25) {
		w.own.fenced = pick(w.Rand(), names...)
	}
	for _, r := range w.regions {
		for _, p := range r.procs {
			p.inst = w.own.stream.Add(register.Config{
				Region: r.name, Name: p.name, Home: w.home(r), Topology: w.own.topology,
				Rate: pick(w.Rand(), 0.99, 1, 1.01), Offset: w.Between(0, time.Hour), Logs: p,
				Changed: p.ownershipMoved, Answered: w.answeredCommand, Died: p.instanceDied,
			})
		}
	}
}

// answeredCommand remembers what a fence promised about its cut.
func (w *World) answeredCommand(a ownership.Answer) {
	if a.Result.Code != ownership.ResultDone && a.Result.Code != ownership.ResultLoss {
		return
	}
	for _, u := range a.Result.Units {
		key := fmt.Sprintf("%s %d", u.Unit, u.Epoch)
		if w.own.kinds[key] == "" || u.Cut == ownership.CutEnd {
			w.own.kinds[key] = u.Cut
		}
	}
}

// instanceDied: a trap of the register has killed the process.
func (p *proc) instanceDied() {
	if p.alive {
		p.kill()
		p.w.After(p.w.Between(50*time.Millisecond, 4*time.Second), p.start)
	}
}

// policyFile puts each topic into a domain of its name.
const policyFile = `version: 1
kind: OwnershipPolicy
domains:
  - {name: ent, match: ["ent"], kind: entity, mode: multi_writer}
  - {name: evt, match: ["evt"], kind: events, mode: %s}
`

// policy says which units there are.
func (w *World) policy() *ownership.Policy {
	mode := "multi_writer"
	if o := w.owner(eventsTopic); o != nil {
		mode = "single_region, owner: " + o.name
	}
	p, err := ownership.ParsePolicy("ownership.yaml", fmt.Appendf(nil, policyFile, mode))
	if err != nil {
		panic(fmt.Sprintf("world: an ownership policy that we wrote: %v", err))
	}
	return p
}

// tableOf is what a process knows of a partition's logs.
func (p *proc) tableOf(tp kafka.TP) *event.ValidityTable {
	t := p.inst.Tokens()
	if t == nil {
		return &event.ValidityTable{}
	}
	return p.intervals.From(t, tp.Topic, tp.Partition)
}

// ownershipMoved tells everything in the process that what is known of ownership may
// be more than it was, each part after a while of its own.
func (p *proc) ownershipMoved() {
	if !p.alive {
		return
	}
	late := func() time.Duration {
		if p.w.calm || p.w.Chance(0.7) {
			return p.w.Between(0, 5*time.Millisecond)
		}
		return p.w.Between(0, time.Second)
	}
	moved := false
	for _, tp := range p.w.seats {
		table := p.tableOf(tp)
		if table.Revision == p.told[tp] {
			continue
		}
		moved, p.told[tp] = true, table.Revision
		if s := p.seats[tp]; s != nil {
			p.after(max(late(), p.lateTable()), s.learnTable)
		}
	}
	if !moved {
		return
	}
	for _, to := range p.w.regions {
		if l := p.links[to]; l != nil {
			for _, s := range l.shards {
				p.after(late()+p.w.slowly(), s.applyIntervals)
			}
		}
	}
}

// seatPermit implements seat.WritePermit for one partition, as the product does.
type seatPermit struct {
	p  *proc
	tp kafka.TP
}

func (a seatPermit) unit() string { return a.p.w.unit(a.tp.Topic, a.p.region) }

// Grant implements seat.WritePermit.
func (a seatPermit) Grant() (seat.Grant, error) {
	g, err := a.p.inst.Grant(a.unit())
	if err != nil {
		return seat.Grant{}, err
	}
	t := a.p.inst.Tokens()
	if t.Outdates(a.Intervals(), a.unit()) {
		return seat.Grant{}, seat.ErrNotReady
	}
	a.p.w.held(a.p, a.unit(), g.Epoch)
	u := t.Units[a.unit()].Record
	reach := a.p.intervals.Reach(&u, a.tp.Topic, a.tp.Partition)
	return seat.Grant{Epoch: g.Epoch, Live: g.Live, Reach: &reach}, nil
}

// Holds implements seat.WritePermit.
func (a seatPermit) Holds(g seat.Grant) bool {
	if !a.p.inst.Holds(a.unit(), ownership.Grant{Epoch: g.Epoch, Live: g.Live}) {
		return false
	}
	a.p.w.held(a.p, a.unit(), g.Epoch)
	return true
}

// Intervals implements seat.WritePermit.
func (a seatPermit) Intervals() *event.ValidityTable { return a.p.tableOf(a.tp) }

// Changed implements seat.WritePermit; nobody waits for it here.
func (a seatPermit) Changed() <-chan struct{} { return nil }

// held (I10): nobody else acts as owner in another epoch now, nor has anybody in a
// later one.
func (w *World) held(p *proc, unit string, epoch event.Epoch) {
	if epoch < w.highest[unit] {
		w.fail("I10", "%s acts on %s in epoch %d after epoch %d was held", p.name, unit, epoch, w.highest[unit])
	}
	w.highest[unit] = epoch
	for _, q := range w.own.stream.Instances {
		if q == p.inst || !q.Alive() {
			continue
		}
		if g, err := q.Tokens().Grant(q.Clock(), unit); err == nil && g.Epoch != epoch {
			w.fail("I10", "%s acts on %s in epoch %d while %s holds epoch %d", p.name, unit, epoch, q.Name, g.Epoch)
		}
	}
}

// partitionsOf are the seats of a unit's topic.
func (w *World) partitionsOf(unit string) (out []kafka.TP) {
	for _, tp := range w.seats {
		if unit == tp.Topic || len(unit) > len(tp.Topic) && unit[:len(tp.Topic)+1] == tp.Topic+"/" {
			out = append(out, tp)
		}
	}
	return out
}

// Ends implements register.Logs: the high watermarks of the region's own logs.
func (p *proc) Ends(unit string, done func([]ownership.Extent, bool)) {
	tps := p.w.partitionsOf(unit)
	out := []ownership.Extent{{Topic: tps[0].Topic, Offsets: make([]int64, len(tps))}}
	left := len(tps)
	for i, tp := range tps {
		p.list(p.dial(p.region), tp, false, func(end int64) {
			out[0].Offsets[i] = end
			if left--; left == 0 {
				done(out, true)
			}
		})
	}
}

// Applied implements register.Logs: the most of what this process has folded or
// covered of the origin's logs, and of what each region has published, as far as
// that has come here.
//
// What a seat of this process promises stands still from when the process knows of the
// fence (seat.Core.Claims), and lies in what is listed. Of a partition that another process
// of the region may hold, it waits until what that publishes says that it knows of it, too.
func (p *proc) Applied(unit, origin string, done func([]ownership.Extent, bool)) {
	w := p.w
	from := w.regionNamed(origin)
	for _, tp := range w.partitionsOf(unit) {
		if s := p.seats[tp]; s != nil && s.fold.part != nil {
			continue // it has fenced the one before
		}
		steps := w.committed(p.region, tp)
		if n := len(steps); n > 0 && steps[n-1].told.Ownership < p.tableOf(tp).Revision {
			w.counts["cuts that wait for another process"]++
			p.after(w.Between(50*time.Millisecond, 200*time.Millisecond), func() { p.Applied(unit, origin, done) })
			return
		}
	}
	p.after(w.Quick(), func() {
		tps := w.partitionsOf(unit)
		out := []ownership.Extent{{Topic: tps[0].Topic, Offsets: make([]int64, len(tps))}}
		for i, tp := range tps {
			if !p.given(tp, from) {
				out[0].Offsets[i] = -1
				w.counts["cuts that leave a partition out"]++
				continue
			}
			at := int64(0)
			if s := p.seats[tp]; s != nil && s.fold.part != nil {
				at = s.fold.part.Position().Vector[from.id].Next
			} else if p.region != from {
				if c, ok := p.ctl.links[from].Covered(p.region.kafka.TopicID(remoteTP(from, tp).Topic), tp.Partition); ok {
					at = c.Source.Next
				}
			}
			for _, r := range w.regions {
				steps := w.committed(r, tp)
				if r != p.region && len(steps) > 0 && !w.calm {
					steps = steps[:w.Rand().IntN(len(steps)+1)] // what has come here so far
				}
				if n := len(steps); r != from && n > 0 {
					at = max(at, steps[n-1].claims.Promised[from.id].Next)
				}
			}
			out[0].Offsets[i] = at
		}
		done(out, true)
	})
}

// Judged implements register.Logs: what the committed steps of the region's folds show.
func (p *proc) Judged(unit string, done func([]ownership.JudgedLog)) {
	w := p.w
	p.after(w.Quick(), func() {
		var out []ownership.JudgedLog
		for _, tp := range w.partitionsOf(unit) {
			l := ownership.JudgedLog{Topic: tp.Topic, Partition: tp.Partition}
			if steps := w.committed(p.region, tp); len(steps) > 0 {
				at := &steps[len(steps)-1].position
				l.To = at.Validity.Decided(p.region.id, at.Vector[p.region.id])
				for d := range orphansOf(steps) {
					if next := (event.Point{Incarnation: d.Incarnation, Next: d.Offset + 1}); d.Region == p.region.id && next.Compare(l.To) <= 0 && l.From.Compare(next) < 0 {
						l.From = next
					}
				}
			}
			out = append(out, l)
		}
		done(out)
	})
}

// given tells whether any region is given records of an origin's topic, as far as this
// process knows: of one of which none is, that nobody has applied it says nothing.
func (p *proc) given(tp kafka.TP, origin *region) bool {
	for _, r := range p.w.regions {
		switch {
		case r == origin || p.guard != nil && p.guard.Rule(tp.Topic, origin.name, r.name).Effect == residency.Deny:
		case r == p.region:
			return true // it has the remote topic
		default:
			if steps := p.w.committed(r, tp); len(steps) > 0 && steps[len(steps)-1].claims.Promised[origin.id] != (event.Point{}) {
				return true
			}
		}
	}
	return false
}

func (w *World) regionNamed(name string) *region {
	for _, r := range w.regions {
		if r.name == name {
			return r
		}
	}
	panic("world: no region " + name)
}

// What goes wrong with ownership.

// scheduleOwnership lets operators fence and unfence, and the register, its watches
// and its clocks fail.
func (w *World) scheduleOwnership() {
	if w.own == nil {
		return
	}
	w.some(10, w.operate)
	w.some(6, w.ambush)
	w.some(8, func() { w.anyone().inst.Pause(w.Between(10*time.Millisecond, 4*time.Second)) })
	w.some(4, func() { w.anyone().inst.Cut(w.Between(200*time.Millisecond, 4*time.Second)) })
	w.some(4, func() { w.anyone().inst.Blind(w.Between(500*time.Millisecond, 4*time.Second)) })
	w.some(3, func() { w.own.stream.Elect(w.Between(20*time.Millisecond, 2400*time.Millisecond)) })
	w.some(4, func() { w.anyone().inst.SetRate(pick(w.Rand(), 0.99, 1, 1.01)) })
	w.some(3, func() {
		p := w.anyone()
		p.skew = w.Between(-2*time.Second, 2*time.Second)
		p.logf("wall clock jumps to %v off", p.skew)
	})
}

func (w *World) anyone() *proc { return pick(w.Rand(), pick(w.Rand(), w.regions...).procs...) }

// ask puts an operator's command to a process.
func (w *World) ask(p *proc, cmd ownership.Command) {
	w.own.refs++
	p.inst.Ask(w.own.refs, cmd)
}

func (w *World) operate() {
	target := w.anyone()
	cmd := ownership.Command{Verb: pick(w.Rand(), ownership.VerbFence, ownership.VerbUnfence), Reason: "test"}
	if w.Chance(0.5) {
		cmd.Region = target.region.name
	} else {
		cmd.Unit = pick(w.Rand(), w.home(target.region)...)
	}
	w.ask(w.anyone(), cmd)
	if w.Chance(0.7) { // mostly it is undone
		undo := cmd
		undo.Verb = ownership.VerbUnfence
		w.After(w.Between(10*time.Millisecond, 5*time.Second), func() { w.ask(w.anyone(), undo) })
	}
}

// ambush keeps a process from hearing, or from running, while it is fenced by
// somebody else; often its region's links are cut besides, so that what it goes on
// to write is past the cut.
func (w *World) ambush() {
	victim := w.anyone()
	other := func() *proc {
		for {
			if p := w.anyone(); p != victim {
				return p
			}
		}
	}
	cmd := ownership.Command{Verb: ownership.VerbFence, Reason: "ambush", Region: victim.region.name}
	if w.Chance(0.5) {
		cmd.Region, cmd.Unit = "", pick(w.Rand(), w.home(victim.region)...)
	}
	fence := func() {
		at := w.Between(0, 300*time.Millisecond)
		w.After(at, func() { w.ask(other(), cmd) })
		undo := cmd
		undo.Verb = ownership.VerbUnfence
		w.After(at+w.Between(10*time.Millisecond, 4*time.Second), func() { w.ask(other(), undo) })
	}
	switch d := w.Between(time.Second, 5*time.Second); w.Rand().IntN(7) {
	case 5, 6:
		w.deafen(victim.region, d)
	case 0:
		victim.inst.LateRetry(fence)
		return
	case 1:
		victim.inst.Cut(d)
	case 2:
		victim.inst.Pause(d)
	default:
		for _, p := range victim.region.procs {
			p.inst.Cut(d)
		}
		for _, r := range w.regions {
			if r != victim.region && w.Chance(0.7) {
				w.cuts[cutKey(victim.region, r)]++
				w.After(w.Between(d/2, 2*d), func() { w.cuts[cutKey(victim.region, r)] = max(0, w.cuts[cutKey(victim.region, r)]-1) })
			}
		}
	}
	if cmd.Unit != "" && w.Chance(0.4) {
		w.own.stream.HalfFence(cmd.Unit)
		victim.inst.Target()
	}
	fence()
}

// deafen keeps a region from hearing the register and loses what it writes there, while
// it still receives records: so a write of its own and a twin from elsewhere meet there
// before it hears that its own does not count.
func (w *World) deafen(r *region, d time.Duration) {
	for _, p := range r.procs {
		p.inst.Cut(d)
	}
	for _, to := range w.regions {
		if to == r {
			continue
		}
		way := [2]event.RegionID{r.id, to.id}
		w.oneWay[way]++
		w.After(d, func() { w.oneWay[way] = max(0, w.oneWay[way]-1) })
		w.After(w.Between(0, 500*time.Millisecond), func() { w.twin(r, to) })
	}
}

// healOwnership ends the faults of the register and gives every unit back to its
// region, but for one that stays fenced in some histories.
func (w *World) healOwnership() {
	if w.own == nil {
		return
	}
	for _, q := range w.own.stream.Instances {
		q.Heal()
	}
	var again func()
	again = func() {
		w.settleOwnership()
		w.After(3*time.Second, again)
	}
	w.After(time.Second, again)
}

// settleOwnership asks for what the end of a history needs and does not have.
func (w *World) settleOwnership() {
	p := w.regions[0].procs[0]
	for _, unit := range w.unitNames() {
		r := w.units()[unit]
		u, ok := w.own.stream.Unit(unit)
		switch {
		case unit == w.own.fenced && !(ok && isFenced(&u)):
			w.ask(p, ownership.Command{Verb: ownership.VerbFence, Unit: unit, Reason: "to stay"})
		case unit == w.own.fenced:
		case u.State == ownership.UnitActive && w.anyHolds(r, unit):
		case w.isRetired(r):
			w.ask(p, ownership.Command{Verb: ownership.VerbReturn, Region: r.name})
		default:
			w.ask(p, ownership.Command{Verb: ownership.VerbUnfence, Region: r.name})
			w.After(200*time.Millisecond, func() { w.ask(p, ownership.Command{Verb: ownership.VerbUnfence, Unit: unit}) })
		}
	}
}

func isFenced(u *ownership.UnitRecord) bool {
	n := len(u.Epochs)
	return u.State == ownership.UnitFenced && u.Scope == ownership.ScopeUnit && n > 0 && u.Epochs[n-1].Ended
}

func (w *World) anyHolds(r *region, unit string) bool {
	for _, p := range r.procs {
		if p.inst.Alive() {
			if _, err := p.inst.Grant(unit); err == nil {
				return true
			}
		}
	}
	return false
}

// unsettled says what of ownership the end of a history still waits for.
func (w *World) unsettled() string {
	if w.own == nil {
		return ""
	}
	for _, unit := range w.unitNames() {
		u, _ := w.own.stream.Unit(unit)
		if unit == w.own.fenced && !isFenced(&u) || unit != w.own.fenced && !w.anyHolds(w.units()[unit], unit) {
			return fmt.Sprintf("unit %s is %s in epoch %d", unit, u.State, u.Epoch)
		}
	}
	for _, r := range w.regions {
		for _, tp := range w.seats {
			if w.parkedAny(r, tp) {
				continue // a fold without its journal takes no table
			}
			newest := r.procs[r.assigned[tp]].tableOf(tp)
			at := w.position(r, tp)
			if newest.Revision < w.own.stream.Revision(w.unitsOf(tp)...) {
				return fmt.Sprintf("%s knows %v up to revision %d", r.name, tp, newest.Revision)
			}
			if at.Validity == nil || at.Validity.Revision < newest.Revision {
				return fmt.Sprintf("%s has not folded revision %d of the register for %v: %s", r.name, newest.Revision, tp, r.procs[r.assigned[tp]].seatState(tp))
			}
		}
	}
	return ""
}

// seatState says how far a seat has come.
func (p *proc) seatState(tp kafka.TP) string {
	s := p.seats[tp]
	if s == nil || s.fold.part == nil {
		return "no seat"
	}
	at := s.fold.part.Position()
	text := fmt.Sprintf("%v; fold busy %v queue %d", s.inputs, s.fold.busy, len(s.fold.queue))
	for _, r := range p.w.regions {
		text += fmt.Sprintf("; %s folded %d, journal %d", r.name, at.Vector[r.id].Next, s.journal.applied[r.id].Next)
	}
	return text
}

func (w *World) unitsOf(tp kafka.TP) (units []string) {
	for _, r := range w.regions {
		units = append(units, w.unit(tp.Topic, r))
	}
	return units
}

// drawRegister draws whether the history has an ownership register, from randomness of
// its own: a history without one stays what it was.
func (c *config) drawRegister(seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0x726567))
	c.register = r.IntN(2) == 0
	c.single = r.IntN(3) == 0
	c.outside = r.IntN(2) == 0
}
