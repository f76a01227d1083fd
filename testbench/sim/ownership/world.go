package ownership

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/router"
	"github.com/geogate/geogate/testbench/sim/world"
)

// Options of a history.
type Options struct {
	Trace bool
}

// drift is how wrong a clock's rate is at most: the protocol's assumption.
const drift = 0.01

// The length of a history: faults until turmoil, then a calm in which everything
// has to come right.
const (
	turmoil = 220 * time.Second
	calm    = 190 * time.Second
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
	lease    router.LeaseConfig

	reg     register
	procs   []*proc
	logs    map[string]*unitLog
	calmed  bool
	noCasts bool // every broadcast is lost
	fast    bool // what is not lost is quick: the wait is tight
	refs    uint64
	asked   map[uint64]bool
	kinds   map[string]string // kind of the cut, by unit and the fence's epoch
	half    map[string]bool   // units whose next fencer dies as soon as the unit is FENCED
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
	at    time.Duration // of the acknowledgement
}

// topic is the one that every unit's log belongs to.
const topic = "t"

// Run plays the history of a seed.
func Run(seed uint64, o Options) world.Result {
	s := &sim{
		seed: seed, rnd: rand.New(rand.NewPCG(seed, 0x6f776e)), counts: make(map[string]int),
		logs: make(map[string]*unitLog), asked: make(map[uint64]bool), kinds: make(map[string]string), half: make(map[string]bool),
		lease: router.DefaultLease(),
	}
	if o.Trace {
		s.trace = &strings.Builder{}
	}
	s.build()
	s.schedule()
	for len(s.queue) > 0 && s.now < turmoil+calm && len(s.broken) == 0 {
		x := heap.Pop(&s.queue).(at)
		s.now = x.t
		s.steps++
		x.run()
	}
	if len(s.broken) == 0 {
		s.checkEnd()
	}
	res := world.Result{Seed: seed, Violations: s.broken, Steps: s.steps, Time: s.now, Counts: s.counts}
	if s.trace != nil {
		res.Trace = s.trace.String()
	}
	return res
}

// after has something happen later.
func (s *sim) after(d time.Duration, run func()) {
	s.n++
	heap.Push(&s.queue, at{s.now + d, s.n, run})
}

func (s *sim) log(format string, args ...any) {
	if s.trace != nil {
		fmt.Fprintf(s.trace, "%10.3f ", s.now.Seconds())
		fmt.Fprintf(s.trace, format+"\n", args...)
	}
}

func (s *sim) violate(rule, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	s.log("VIOLATION %s: %s", rule, text)
	s.broken = append(s.broken, world.Violation{Rule: rule, Text: text})
}

func (s *sim) chance(p float64) bool { return s.rnd.Float64() < p }

// between is a random time.
func (s *sim) between(a, b time.Duration) time.Duration {
	return a + time.Duration(s.rnd.Int64N(int64(b-a)+1))
}

// build makes two or three regions with one or two instances each.
func (s *sim) build() {
	names := []string{"r0", "r1", "r2"}[:2+s.rnd.IntN(2)]
	var regions []router.Region
	for i, name := range names {
		regions = append(regions, router.Region{Name: name, ID: event.RegionID(i + 1)})
		s.logs["a/"+name] = &unitLog{region: name}
	}
	s.logs["single"] = &unitLog{region: names[0]}
	s.topology, _ = router.NewTopology(regions...)
	s.noCasts, s.fast = s.chance(0.2), s.chance(0.5)
	s.reg.init(s)
	for _, name := range names {
		for i := range 1 + s.rnd.IntN(2) {
			home := []string{"a/" + name}
			if name == names[0] {
				home = append(home, "single")
			}
			p := &proc{
				s: s, region: name, name: fmt.Sprintf("%s-%d", name, i), home: home,
				rate: 1 + drift*(2*s.rnd.Float64()-1), offset: s.between(0, time.Hour),
			}
			if s.chance(0.8) { // the extremes are where the wait is tight
				p.rate = 1 + drift*[]float64{-1, 1}[s.rnd.IntN(2)]
			}
			s.procs = append(s.procs, p)
			s.after(s.between(0, time.Second), p.boot)
		}
	}
}

// schedule lets things go wrong until the calm.
func (s *sim) schedule() {
	every := func(a, b time.Duration, run func()) {
		var again func()
		again = func() {
			if s.calmed {
				return
			}
			run()
			s.after(s.between(a, b), again)
		}
		s.after(s.between(a, b), again)
	}
	pick := func() *proc { return s.procs[s.rnd.IntN(len(s.procs))] }
	every(2*time.Second, 40*time.Second, s.operate)
	every(8*time.Second, 40*time.Second, s.ambush)
	every(3*time.Second, 30*time.Second, func() { pick().pause(s.between(100*time.Millisecond, 45*time.Second)) })
	every(5*time.Second, 60*time.Second, func() { pick().cut(s.between(time.Second, 40*time.Second)) })
	every(20*time.Second, 120*time.Second, func() { pick().kill() })
	every(20*time.Second, 90*time.Second, func() { pick().blind(s.between(5*time.Second, 30*time.Second)) })
	for _, p := range s.procs {
		every(20*time.Millisecond, 300*time.Millisecond, p.clientWrite)
	}
	s.after(turmoil, s.calm)
}

// ambush makes an instance deaf, or cuts it off, and has its region or one of its
// units fenced and unfenced around it by others, some of which stop half-way: the
// histories in which a nearly right protocol fails.
func (s *sim) ambush() {
	victim := s.procs[s.rnd.IntN(len(s.procs))]
	var others []*proc
	for _, p := range s.procs {
		// Instances of the victim's own region know most, and may claim.
		if p != victim && (p.region == victim.region || s.chance(0.4)) {
			others = append(others, p)
		}
	}
	if len(others) == 0 {
		return
	}
	other := func() *proc { return others[s.rnd.IntN(len(others))] }
	switch d := s.between(15*time.Second, 60*time.Second); s.rnd.IntN(3) {
	case 0:
		victim.cut(d)
	default:
		victim.blind(d)
	}
	fence := router.Command{Verb: router.VerbFence, Reason: "ambush", Region: victim.region}
	unit := victim.home[s.rnd.IntN(len(victim.home))]
	if s.chance(0.5) {
		fence.Region, fence.Unit = "", unit
	}
	fencer, at := other(), s.between(0, 3*time.Second)
	s.after(at, func() { fencer.ask(fence) })
	if fence.Unit != "" && s.chance(0.6) {
		s.half[unit] = true
		victim.prey = s.chance(0.7)
	} else if s.chance(0.5) {
		d, dies := s.between(0, 30*time.Second), s.chance(0.3)
		s.after(at+s.between(5*time.Millisecond, 200*time.Millisecond), func() {
			if dies {
				fencer.kill()
			} else {
				fencer.pause(d)
			}
		})
	}
	// A region's unfence bumps its record, which would wake the victim.
	both := fence.Unit == "" || s.chance(0.3)
	undo := func(after time.Duration) {
		if both {
			s.after(after, func() { other().ask(router.Command{Verb: router.VerbUnfence, Region: victim.region}) })
		}
		s.after(after+s.between(0, 100*time.Millisecond), func() { other().ask(router.Command{Verb: router.VerbUnfence, Unit: unit}) })
	}
	undo(at + s.between(50*time.Millisecond, 500*time.Millisecond))
	if s.chance(0.5) {
		undo(at + s.between(time.Second, 25*time.Second))
	}
}

// operate asks some instance for a fence or an unfence.
func (s *sim) operate() {
	p := s.procs[s.rnd.IntN(len(s.procs))]
	target := s.procs[s.rnd.IntN(len(s.procs))]
	cmd := router.Command{Verb: router.VerbFence, Reason: "test"}
	if s.chance(0.5) {
		cmd.Verb = router.VerbUnfence
	}
	switch {
	case s.chance(0.5):
		cmd.Region = target.region
	default:
		cmd.Unit = target.home[s.rnd.IntN(len(target.home))]
	}
	p.ask(cmd)
}

// calm ends all faults and has everything unfenced.
func (s *sim) calm() {
	s.calmed = true
	s.log("calm")
	for _, p := range s.procs {
		p.heal()
	}
	for _, r := range s.topology.Regions() {
		s.after(85*time.Second, func() { s.procs[0].ask(router.Command{Verb: router.VerbUnfence, Region: r.Name}) })
	}
	for _, unit := range s.units() {
		s.after(90*time.Second, func() { s.procs[0].ask(router.Command{Verb: router.VerbUnfence, Unit: unit}) })
	}
}

// quick is how long a request or an answer takes when nothing is wrong.
func (s *sim) quick() time.Duration {
	if s.fast {
		return s.between(100*time.Microsecond, 3*time.Millisecond)
	}
	return s.between(time.Millisecond, 60*time.Millisecond)
}

func (s *sim) units() []string {
	var out []string
	for u := range s.logs {
		out = append(out, u)
	}
	slices.Sort(out)
	return out
}
