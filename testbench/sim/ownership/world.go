package ownership

import (
	"container/heap"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/router"
	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/testbench/sim/register"
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

// at is one thing that happens at a time.
type at struct {
	t   time.Duration
	n   uint64 // order of equal times
	run func()
}

type queue []at

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	return q[i].t < q[j].t || q[i].t == q[j].t && q[i].n < q[j].n
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

// Push implements heap.Interface.
func (q *queue) Push(x any) { *q = append(*q, x.(at)) }

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	old := *q
	x := old[len(old)-1]
	*q = old[:len(old)-1]
	return x
}

// sim is one history.
// fence is a fence of a region that an instance was asked for.
type fence struct{ region, by string }

type sim struct {
	seed     uint64
	rnd      *rand.Rand
	now      time.Duration
	n        uint64
	queue    queue
	trace    *strings.Builder
	steps    int
	counts   map[string]int
	broken   []world.Violation
	topology *router.Topology

	reg    *register.Stream
	procs  []*proc
	logs   map[string]*unitLog
	calmed bool
	fast   bool // what is not lost is quick: the wait is tight
	refs   uint64
	asked  map[uint64]bool
	kinds  map[string]string // kind of the cut, by unit and the fence's epoch
	fences map[uint64]fence  // region of each fence of a region that was asked for
	firm   map[string]string // by region: the newest fence that was answered as done
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
	s.build()
	s.schedule()
	s.play(turmoil + calm)
	if len(s.broken) == 0 {
		s.checkEnd()
	}
	res := world.Result{Seed: seed, Violations: s.broken, Steps: s.steps, Time: s.now, Counts: s.counts}
	if s.trace != nil {
		res.Trace = s.trace.String()
	}
	return res
}

func newSim(seed uint64, o Options) *sim {
	s := &sim{
		seed: seed, rnd: rand.New(rand.NewPCG(seed, 0x6f776e)), counts: make(map[string]int),
		logs: make(map[string]*unitLog), asked: make(map[uint64]bool), kinds: make(map[string]string),
		fences: make(map[uint64]fence), firm: make(map[string]string),
	}
	if o.Trace {
		s.trace = &strings.Builder{}
	}
	s.reg = register.NewStream(s, ownership.DefaultLease())
	s.reg.Beside = s.fenceBeside
	s.reg.NoCasts, s.fast = s.chance(0.2) || o.NoCasts, s.chance(0.5)
	return s
}

// play does what is due until a time, or until something is broken.
func (s *sim) play(until time.Duration) {
	for len(s.queue) > 0 && s.queue[0].t < until && len(s.broken) == 0 {
		x := heap.Pop(&s.queue).(at)
		s.now = x.t
		s.steps++
		x.run()
	}
}

// Now implements register.Host.
func (s *sim) Now() time.Duration { return s.now }

// Rand implements register.Host.
func (s *sim) Rand() *rand.Rand { return s.rnd }

// After implements register.Host.
func (s *sim) After(d time.Duration, run func()) {
	s.n++
	heap.Push(&s.queue, at{s.now + max(d, 0), s.n, run})
}

// Calm implements register.Host.
func (s *sim) Calm() bool { return s.calmed }

// Logf implements register.Host.
func (s *sim) Logf(format string, args ...any) {
	if s.trace != nil {
		fmt.Fprintf(s.trace, "%10.3f ", s.now.Seconds())
		fmt.Fprintf(s.trace, format+"\n", args...)
	}
}

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
	if s.fast {
		return s.between(100*time.Microsecond, 3*time.Millisecond)
	}
	return s.between(time.Millisecond, 60*time.Millisecond)
}

func (s *sim) chance(p float64) bool { return s.rnd.Float64() < p }

// between is a random time.
func (s *sim) between(a, b time.Duration) time.Duration {
	return a + time.Duration(s.rnd.Int64N(int64(b-a)+1))
}

// build makes two or three regions with one or two instances each.
func (s *sim) build() {
	names := []string{"r0", "r1", "r2"}[:2+s.rnd.IntN(2)]
	s.regions(names...)
	for _, name := range names {
		for i := range 1 + s.rnd.IntN(2) {
			p := s.instance(name, i)
			p.SetRate(1 + drift*(2*s.rnd.Float64()-1))
			if s.chance(0.8) { // the extremes are where the wait is tight
				p.SetRate(1 + drift*[]float64{-1, 1}[s.rnd.IntN(2)])
			}
			s.After(s.between(0, time.Second), p.Boot)
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
	p.Instance = s.reg.Add(register.Config{
		Region: region, Name: fmt.Sprintf("%s-%d", region, i), Home: home, Topology: s.topology,
		Rate: 1, Offset: s.between(0, time.Hour), Logs: p, Answered: s.answered, Died: p.died,
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
		s.After(s.between(a, b), again)
	}
	s.After(s.between(a, b), again)
}

func (s *sim) pick() *proc { return s.procs[s.rnd.IntN(len(s.procs))] }

// schedule lets things go wrong until the calm.
func (s *sim) schedule() {
	s.every(2*time.Second, 40*time.Second, s.operate)
	s.every(8*time.Second, 40*time.Second, s.ambush)
	s.every(3*time.Second, 30*time.Second, func() { s.pick().Pause(s.between(100*time.Millisecond, 45*time.Second)) })
	s.every(5*time.Second, 60*time.Second, func() { s.pick().Cut(s.between(time.Second, 40*time.Second)) })
	s.every(20*time.Second, 120*time.Second, func() { s.pick().Die() })
	s.every(20*time.Second, 90*time.Second, func() { s.pick().Blind(s.between(5*time.Second, 30*time.Second)) })
	s.every(10*time.Second, 90*time.Second, func() { s.pick().SetRate(1 + drift*[]float64{-1, 0, 1}[s.rnd.IntN(3)]) })
	s.every(30*time.Second, 150*time.Second, func() { s.reg.Elect(s.between(200*time.Millisecond, 24*time.Second)) })
	for _, p := range s.procs {
		s.every(20*time.Millisecond, 300*time.Millisecond, p.clientWrite)
	}
	if s.chance(0.12) {
		s.After(s.between(30*time.Second, turmoil), s.forget)
	}
	s.After(turmoil, s.calm)
}

// forget restores the register's disks from an old copy, and those of some
// instances with it.
func (s *sim) forget() {
	n := 1 + s.rnd.IntN(60)
	if s.chance(0.2) {
		n = 1 << 20
	}
	for _, p := range s.procs {
		if s.chance(0.3) {
			p.Die()
			if s.chance(0.5) {
				p.RollBack()
			}
		}
	}
	s.reg.Rollback(n)
}

// ambush makes an instance deaf, or cuts it off, and has its region or one of its
// units fenced and unfenced around it by others, some of which stop half-way: the
// histories in which a nearly right protocol fails.
func (s *sim) ambush() {
	victim := s.pick()
	var others []*proc
	for _, p := range s.procs {
		// Instances of the victim's own region know most, and may claim.
		if p != victim && (p.Region == victim.Region || s.chance(0.4)) {
			others = append(others, p)
		}
	}
	if len(others) == 0 {
		return
	}
	other := func() *proc { return others[s.rnd.IntN(len(others))] }
	if s.chance(0.25) {
		// Its renewal is stored and not answered; it is fenced; the retry is
		// answered as a repetition.
		victim.LateRetry(func() { s.surround(victim, other, s.between(0, 1500*time.Millisecond)) })
		return
	}
	switch d := s.between(15*time.Second, 60*time.Second); s.rnd.IntN(3) {
	case 0:
		victim.Cut(d)
	default:
		victim.Blind(d)
	}
	s.surround(victim, other, s.between(0, 3*time.Second))
}

// surround has the victim's region, or one of its units, fenced and unfenced.
func (s *sim) surround(victim *proc, other func() *proc, at time.Duration) {
	fence := ownership.Command{Verb: ownership.VerbFence, Reason: "ambush", Region: victim.Region}
	unit := victim.Home[s.rnd.IntN(len(victim.Home))]
	if s.chance(0.5) {
		fence.Region, fence.Unit = "", unit
	}
	fencer := other()
	s.After(at, func() { s.ask(fencer, fence) })
	if fence.Unit != "" && s.chance(0.15) {
		s.reg.SlowFence(unit)
	} else if fence.Unit != "" && s.chance(0.6) {
		s.reg.HalfFence(unit)
		if s.chance(0.7) {
			victim.Prey()
		}
	} else if s.chance(0.5) {
		d, dies := s.between(0, 30*time.Second), s.chance(0.3)
		s.After(at+s.between(5*time.Millisecond, 200*time.Millisecond), func() {
			if dies {
				fencer.Die()
			} else {
				fencer.Pause(d)
			}
		})
	}
	// A region's unfence bumps its record, which would wake the victim.
	both := fence.Unit == "" || s.chance(0.3)
	undo := func(after time.Duration) {
		if both {
			s.After(after, func() { s.ask(other(), ownership.Command{Verb: ownership.VerbUnfence, Region: victim.Region}) })
		}
		s.After(after+s.between(0, 100*time.Millisecond), func() { s.ask(other(), ownership.Command{Verb: ownership.VerbUnfence, Unit: unit}) })
	}
	undo(at + s.between(50*time.Millisecond, 500*time.Millisecond))
	if s.chance(0.5) {
		undo(at + s.between(time.Second, 25*time.Second))
	}
}

// fenceBeside has some instance of another region fence a region.
func (s *sim) fenceBeside(region string) {
	for _, i := range s.rnd.Perm(len(s.procs)) {
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
	if s.chance(0.5) {
		cmd.Verb = ownership.VerbUnfence
	}
	if s.chance(0.5) {
		cmd.Region = target.Region
	} else {
		cmd.Unit = target.Home[s.rnd.IntN(len(target.Home))]
	}
	s.ask(p, cmd)
}

// ask puts an operator's command to an instance.
func (s *sim) ask(p *proc, cmd ownership.Command) uint64 {
	s.refs++
	if p.Alive() {
		s.asked[s.refs] = true
	}
	if cmd.Verb == ownership.VerbFence && cmd.Region != "" {
		s.fences[s.refs] = fence{cmd.Region, p.Name}
	}
	p.Ask(s.refs, cmd)
	return s.refs
}

func (s *sim) answered(a ownership.Answer) {
	delete(s.asked, a.Ref)
	done := a.Result.Code == ownership.ResultDone || a.Result.Code == ownership.ResultLoss
	if f, ok := s.fences[a.Ref]; ok && done {
		// It may be answered long after it was undone, while another one is on its way.
		r, known := s.reg.Region(f.region)
		if known && r.State == ownership.RegionFenced && strings.HasPrefix(r.Plan, f.by+"/") {
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
	for _, r := range s.topology.Regions() {
		s.After(85*time.Second, func() { s.ask(s.procs[0], ownership.Command{Verb: ownership.VerbUnfence, Region: r.Name}) })
	}
	for _, unit := range s.units() {
		s.After(90*time.Second, func() { s.ask(s.procs[0], ownership.Command{Verb: ownership.VerbUnfence, Unit: unit}) })
	}
	s.repeat(90*time.Second+held, 5*time.Second, func() {
		for _, unit := range s.units() {
			s.checkHeld(unit)
		}
	})
}

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
