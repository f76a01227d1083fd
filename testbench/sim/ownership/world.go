package ownership

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/router"
	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/testbench/sim/register"
	"github.com/geogate/geogate/testbench/sim/sched"
	"github.com/geogate/geogate/testbench/sim/world"
)

// Options of a history.
type Options struct {
	Trace bool
	// NoCasts loses every broadcast, whatever the seed says.
	NoCasts bool
}

// drift is how wrong a clock's rate is at most: the protocol's assumption.
const drift = 0.01

// The length of a history: faults until turmoil, then a calm in which everything
// has to come right.
const (
	turmoil = 220 * time.Second
	calm    = 190 * time.Second
	// held is when, after the unfences of the calm, every unit has an owner again.
	held = 60 * time.Second
)

// fence is a fence of a region that an instance was asked for.
type fence struct{ region, by string }

// sim is one history.
type sim struct {
	*sched.Scheduler
	counts   map[string]int
	broken   []world.Violation
	topology *router.Topology

	reg     *register.Stream
	procs   []*proc
	logs    map[string]*unitLog
	calmed  bool
	noCasts bool // every broadcast is lost, whatever the seed says
	equal   bool // all instances of a region have one name
	fast    bool // what is not lost is quick: the wait is tight
	refs    uint64
	asked   map[uint64]bool
	kinds   map[string]string // kind of the cut, by unit and the fence's epoch
	fences  map[uint64]fence  // region of each fence of a region that was asked for
	firm    map[string]string // by region: the newest fence that was answered as done
	repairs map[uint64]string // region of each repair that was asked for in the calm
	whole   map[string]bool   // by region: the register has all that it has seen
	// even is how long every request and answer takes; 0: that varies.
	even time.Duration
	// lateWrites is how many of the writes come to the log after seconds.
	lateWrites float64
	late       bool // a fence was answered in the calm
}

// unitLog is the log of a unit in its region: one partition.
type unitLog struct {
	region  string
	records []*record
	highest event.Epoch // that was ever effectively held
	applied int64       // the most that another region has applied
}

// record is a write that has reached a log.
type record struct {
	epoch event.Epoch
	acked bool
}

// topic is the one that every unit's log belongs to.
const topic = "t"

// Run plays the history of a seed.
func Run(seed uint64, o Options) world.Result {
	s := newSim(seed, o)
	s.equal = drawEqualNames(seed) || drawReplaced(seed)
	if seed%2 == 0 {
		s.reg.Inline = -1 // starts and cuts stand outside of units' records
		s.reg.Kept = 1 + int(seed/2%3)
	}
	if drawOften(seed) {
		s.reg.Join = 1 + int(seed%3)
	}
	s.build()
	switch {
	case drawTight(seed):
		s.tighten()
	case drawUndone(seed):
		s.undo()
	case drawForgetful(seed):
		s.forgetFences()
	case drawReplaced(seed):
		s.replace()
	case drawRetired(seed):
		s.retire()
	case drawOften(seed):
		s.often()
	default:
		s.schedule()
	}
	s.play(turmoil + calm)
	if len(s.broken) == 0 {
		s.checkEnd()
	}
	return world.Result{Seed: seed, Violations: s.broken, Steps: s.Steps(), Time: s.Now(), Counts: s.counts, Trace: s.Trace()}
}

func newSim(seed uint64, o Options) *sim {
	s := &sim{
		Scheduler: sched.New(seed, 0x6f776e, o.Trace), counts: make(map[string]int),
		noCasts: o.NoCasts, logs: make(map[string]*unitLog), asked: make(map[uint64]bool), kinds: make(map[string]string),
		fences: make(map[uint64]fence), firm: make(map[string]string), repairs: make(map[uint64]string), whole: make(map[string]bool),
	}
	s.lateWrites = 0.02
	s.reg = register.NewStream(s, ownership.DefaultLease())
	s.reg.Beside = s.fenceBeside
	s.reg.NoCasts, s.fast = s.Chance(0.2) || o.NoCasts, s.Chance(0.5)
	return s
}

// play does what is due until a time, or until something is broken.
func (s *sim) play(until time.Duration) { s.Run(until, func() bool { return len(s.broken) > 0 }) }

// Calm implements register.Host.
func (s *sim) Calm() bool { return s.calmed }

// Violate implements register.Host.
func (s *sim) Violate(rule, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	s.Logf("VIOLATION %s: %s", rule, text)
	s.broken = append(s.broken, world.Violation{Rule: rule, Text: text})
}

// Count implements register.Host.
func (s *sim) Count(what string) { s.counts[what]++ }

// Quick implements register.Host.
func (s *sim) Quick() time.Duration {
	if s.even > 0 {
		return s.even
	}
	if s.fast {
		return s.Between(100*time.Microsecond, 3*time.Millisecond)
	}
	return s.Between(time.Millisecond, 60*time.Millisecond)
}

// build makes two or three regions with one or two instances each.
func (s *sim) build() {
	names := []string{"r0", "r1", "r2"}[:2+s.Rand().IntN(2)]
	s.regions(names...)
	for _, name := range names {
		for i := range 1 + s.Rand().IntN(2) {
			p := s.instance(name, i)
			p.SetRate(1 + drift*(2*s.Rand().Float64()-1))
			if s.Chance(0.8) { // the extremes are where the wait is tight
				p.SetRate(1 + drift*[]float64{-1, 1}[s.Rand().IntN(2)])
			}
			s.After(s.Between(0, time.Second), p.Boot)
		}
	}
}

func (s *sim) regions(names ...string) {
	var regions []router.Region
	for i, name := range names {
		regions = append(regions, router.Region{Name: name, ID: event.RegionID(i + 1)})
		s.logs["a/"+name] = &unitLog{region: name}
	}
	s.logs["single"] = &unitLog{region: names[0]}
	s.topology, _ = router.NewTopology(regions...)
}

func (s *sim) instance(region string, i int) *proc {
	home := []string{"a/" + region}
	if region == s.logs["single"].region {
		home = append(home, "single")
	}
	p := &proc{sim: s}
	as := ""
	if s.equal {
		as = region + "-0"
	}
	p.Instance = s.reg.Add(register.Config{
		Region: region, Name: fmt.Sprintf("%s-%d", region, i), As: as, Home: home, Topology: s.topology,
		Rate: 1, Offset: s.Between(0, time.Hour), Logs: p, Answered: s.answered, Died: p.died, Exited: p.exited,
	})
	s.procs = append(s.procs, p)
	return p
}

// every lets something go wrong again and again until the calm.
func (s *sim) every(a, b time.Duration, run func()) {
	var again func()
	again = func() {
		if s.calmed {
			return
		}
		run()
		s.After(s.Between(a, b), again)
	}
	s.After(s.Between(a, b), again)
}

// running is an instance that has a process, the first if none has.
func (s *sim) running() *proc {
	for _, p := range s.procs {
		if p.Alive() {
			return p
		}
	}
	return s.procs[0]
}

func (s *sim) pick() *proc { return s.procs[s.Rand().IntN(len(s.procs))] }

// schedule lets things go wrong until the calm.
func (s *sim) schedule() {
	s.every(2*time.Second, 40*time.Second, s.operate)
	s.every(8*time.Second, 40*time.Second, s.faultTrap)
	s.every(3*time.Second, 30*time.Second, func() { s.pick().Pause(s.Between(100*time.Millisecond, 45*time.Second)) })
	s.every(5*time.Second, 60*time.Second, func() { s.pick().Cut(s.Between(time.Second, 40*time.Second)) })
	s.every(20*time.Second, 120*time.Second, func() { s.pick().Die() })
	s.every(30*time.Second, 150*time.Second, func() { s.pick().Stop() })
	s.every(20*time.Second, 90*time.Second, func() { s.pick().Blind(s.Between(5*time.Second, 30*time.Second)) })
	s.every(10*time.Second, 90*time.Second, func() { s.pick().SetRate(1 + drift*[]float64{-1, 0, 1}[s.Rand().IntN(3)]) })
	s.every(30*time.Second, 150*time.Second, func() { s.reg.Elect(s.Between(200*time.Millisecond, 24*time.Second)) })
	for _, p := range s.procs {
		s.every(20*time.Millisecond, 300*time.Millisecond, p.clientWrite)
	}
	if s.Chance(0.25) {
		s.every(5*time.Second, 60*time.Second, s.reg.Lie)
	}
	if s.equal {
		s.every(10*time.Second, 40*time.Second, s.succeed)
	}
	if s.Chance(0.12) {
		at := s.Between(30*time.Second, turmoil)
		if s.Chance(0.5) {
			s.After(at-s.Between(5*time.Second, 20*time.Second), func() { s.pick().Blind(25 * time.Second) })
		}
		s.After(at, s.forget)
		if s.Chance(0.4) {
			s.onlyMark(at)
		}
	}
	s.After(turmoil, s.calm)
}

// onlyMark has an instance fence a unit of its own shortly before the register forgets it,
// while no watch of its region brings anything: only its mark knows, and it starts again.
func (s *sim) onlyMark(at time.Duration) {
	p := s.pick()
	for _, q := range s.procs {
		if q.Region == p.Region {
			s.After(at-4*time.Second, func() { q.Blind(10 * time.Second) })
		}
	}
	s.After(at-3*time.Second, func() {
		s.ask(p, ownership.Command{Verb: ownership.VerbFence, Reason: "only the mark knows", Unit: p.Home[0]})
	})
	s.After(at, p.Die)
}

// forget restores the register's disks from an old copy, and those of some
// instances with it.
func (s *sim) forget() {
	n := 1 + s.Rand().IntN(60)
	if s.Chance(0.2) {
		n = 1 << 20
	}
	for _, p := range s.procs {
		if s.Chance(0.3) {
			p.Die()
			if s.Chance(0.5) {
				p.RollBack()
			}
		}
	}
	s.reg.Rollback(n)
	if s.Chance(0.4) {
		s.every(2*time.Second, 20*time.Second, func() {
			s.ask(s.pick(), ownership.Command{Verb: ownership.VerbRepair, Reason: "test", DryRun: s.Chance(0.2)})
		})
	}
	for range 3 { // which has everybody look at what is true
		s.After(s.Between(time.Second, 20*time.Second), s.reg.Lie)
	}
}

// faultTrap makes an instance deaf, or cuts it off, and has its region or one of its
// units fenced and unfenced around it by others, some of which stop half-way: the
// histories in which a nearly right protocol fails.
func (s *sim) faultTrap() {
	victim := s.pick()
	var others []*proc
	for _, p := range s.procs {
		// Instances of the victim's own region know most, and may claim.
		if p != victim && (p.Region == victim.Region || s.Chance(0.4)) {
			others = append(others, p)
		}
	}
	if len(others) == 0 {
		return
	}
	other := func() *proc { return others[s.Rand().IntN(len(others))] }
	if s.Chance(0.25) {
		// Its renewal is stored and not answered; it is fenced; the retry is
		// answered as a repetition.
		victim.LateRetry(func() { s.surround(victim, other, s.Between(0, 1500*time.Millisecond)) })
		return
	}
	switch d := s.Between(15*time.Second, 60*time.Second); s.Rand().IntN(3) {
	case 0:
		victim.Cut(d)
	default:
		victim.Blind(d)
	}
	s.surround(victim, other, s.Between(0, 3*time.Second))
}

// surround has the victim's region, or one of its units, fenced and unfenced.
func (s *sim) surround(victim *proc, other func() *proc, at time.Duration) {
	fence := ownership.Command{Verb: ownership.VerbFence, Reason: "ambush", Region: victim.Region}
	unit := victim.Home[s.Rand().IntN(len(victim.Home))]
	if s.Chance(0.5) {
		fence.Region, fence.Unit = "", unit
	}
	fencer := other()
	s.After(at, func() { s.ask(fencer, fence) })
	if fence.Unit != "" && s.Chance(0.15) {
		s.reg.SlowFence(unit)
	} else if fence.Unit != "" && s.Chance(0.6) {
		s.reg.HalfFence(unit)
		if s.Chance(0.7) {
			victim.Target()
		}
	} else if s.Chance(0.5) {
		d, dies := s.Between(0, 30*time.Second), s.Chance(0.3)
		s.After(at+s.Between(5*time.Millisecond, 200*time.Millisecond), func() {
			if dies {
				fencer.Die()
			} else {
				fencer.Pause(d)
			}
		})
	}
	// A region's unfence bumps its record, which would wake the victim.
	both := fence.Unit == "" || s.Chance(0.3)
	undo := func(after time.Duration) {
		if both {
			s.After(after, func() { s.ask(other(), ownership.Command{Verb: ownership.VerbUnfence, Region: victim.Region}) })
		}
		s.After(after+s.Between(0, 100*time.Millisecond), func() { s.ask(other(), ownership.Command{Verb: ownership.VerbUnfence, Unit: unit}) })
	}
	undo(at + s.Between(50*time.Millisecond, 500*time.Millisecond))
	if s.Chance(0.5) {
		undo(at + s.Between(time.Second, 25*time.Second))
	}
}

// fenceBeside has some instance of another region fence a region.
func (s *sim) fenceBeside(region string) {
	for _, i := range s.Rand().Perm(len(s.procs)) {
		if p := s.procs[i]; p.Region != region && p.Alive() {
			s.ask(p, ownership.Command{Verb: ownership.VerbFence, Region: region, Reason: "beside"})
			return
		}
	}
}

// operate asks some instance for a fence or an unfence.
func (s *sim) operate() {
	p, target := s.pick(), s.pick()
	cmd := ownership.Command{Verb: ownership.VerbFence, Reason: "test"}
	if s.Chance(0.5) {
		cmd.Verb = ownership.VerbUnfence
	}
	if s.Chance(0.5) {
		cmd.Region = target.Region
	} else {
		cmd.Unit = target.Home[s.Rand().IntN(len(target.Home))]
	}
	s.ask(p, cmd)
}

// ask puts an operator's command to an instance.
func (s *sim) ask(p *proc, cmd ownership.Command) uint64 {
	s.refs++
	if p.Alive() {
		s.asked[s.refs] = true
	}
	if (cmd.Verb == ownership.VerbFence || cmd.Verb == ownership.VerbRetire) && cmd.Region != "" {
		s.fences[s.refs] = fence{cmd.Region, p.Name}
	}
	p.Ask(s.refs, cmd)
	return s.refs
}

// stillFenced tells whether units are fenced in the epochs that an answer names: the same
// instance may have been asked for another fence since.
func (s *sim) stillFenced(units []ownership.FencedUnit) bool {
	for _, u := range units {
		if rec, ok := s.reg.Unit(u.Unit); !ok || rec.State != ownership.UnitFenced || rec.Epoch != u.Epoch {
			return false
		}
	}
	return true
}

func (s *sim) answered(a ownership.Answer) {
	delete(s.asked, a.Ref)
	done := a.Result.Code == ownership.ResultDone || a.Result.Code == ownership.ResultLoss
	if region, ok := s.repairs[a.Ref]; ok && done {
		s.Count("repairs in the calm")
		s.whole[region] = true
	}
	if _, ok := s.fences[a.Ref]; ok && s.calmed {
		s.late = true
	}
	if f, ok := s.fences[a.Ref]; ok && done {
		// It may be answered long after it was undone, while another one is on its way.
		r, known := s.reg.Region(f.region)
		if known && r.State != ownership.RegionUp && strings.Contains(r.Plan, "-"+f.by+"/") && s.stillFenced(a.Result.Units) {
			s.firm[f.region] = r.Plan
		}
	}
	for _, u := range a.Result.Units {
		if done {
			key := unitEpoch(u.Unit, u.Epoch)
			if s.kinds[key] == "" || u.Cut == ownership.CutEnd {
				s.kinds[key] = u.Cut
			}
		}
	}
}

func unitEpoch(unit string, e event.Epoch) string { return fmt.Sprintf("%s %d", unit, e) }

// calm ends all faults and has everything unfenced.
func (s *sim) calm() {
	s.calmed = true
	s.Logf("calm")
	for _, p := range s.procs {
		p.Heal()
	}
	if s.reg.Forgot() && s.Chance(0.7) {
		for _, r := range s.topology.Regions() { // twice: what one has, the other may lack
			s.After(40*time.Second, func() { s.repair(r.Name) })
			s.After(62*time.Second, func() { s.repair(r.Name) })
		}
	}
	for _, r := range s.topology.Regions() {
		s.After(85*time.Second, func() { s.ask(s.running(), ownership.Command{Verb: ownership.VerbUnfence, Region: r.Name}) })
	}
	for _, unit := range s.units() {
		s.After(90*time.Second, func() { s.ask(s.running(), ownership.Command{Verb: ownership.VerbUnfence, Unit: unit}) })
	}
	s.repeat(90*time.Second+held, 5*time.Second, func() {
		for _, unit := range s.units() {
			s.checkHeld(unit)
		}
	})
}

// repair has a region's part in a repair done.
func (s *sim) repair(region string) {
	for _, p := range s.procs {
		if p.Region == region && p.Alive() {
			delete(s.whole, region)
			ref := s.ask(p, ownership.Command{Verb: ownership.VerbRepair, Reason: "test"})
			s.repairs[ref] = region
			return
		}
	}
}

// repairedAll tells whether the register has all that any region has seen of it.
func (s *sim) repairedAll() bool { return len(s.whole) == len(s.topology.Regions()) }

// repeat does something again and again, from a time on.
func (s *sim) repeat(first, then time.Duration, run func()) {
	var again func()
	again = func() {
		run()
		s.After(then, again)
	}
	s.After(first, again)
}

func (s *sim) units() []string { return slices.Sorted(maps.Keys(s.logs)) }
