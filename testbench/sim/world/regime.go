package world

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/judged"
	"github.com/geogate/geogate/replicate"
	"github.com/geogate/geogate/residency"
	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/testbench/sim/kafka"
)

// regime is what a history is about. Faults that strike anywhere rarely meet in the
// few milliseconds in which a nearly right protocol fails; half of the histories
// belong to a regime, which makes the faults of one kind frequent and has them meet.
type regime uint8

const (
	// ordinary: everything goes wrong now and then.
	ordinary regime = iota
	// linkFights: instances take a link from each other all the time, and are paused
	// between the steps of taking it.
	linkFights
	// elections: remote partitions change leaders between records and their markers.
	elections
	// lostTails: remote logs lose aborted transactions that readers have passed, while
	// the readers are slow to notice.
	lostTails
	// seatFights: another instance takes a seat while a produce of it is on its way.
	seatFights
	// cutsInAudit: a cut becomes known while a link writes down what it has decided.
	cutsInAudit
	// deposedLinks: a link's decision is written down when another instance has taken
	// the link and decided under another policy.
	deposedLinks
	// restartsAtCuts: an instance restarts between what its indexes and what its fold
	// have of a cut, and does not know the cut then.
	restartsAtCuts
	// liftedRules: rules that keep single records from every region are put in force and
	// lifted again, while few other records say what a region has not seen.
	liftedRules
	// overlappingSeats: an instance that is slow to begin its term still writes after
	// another has taken the seat, started a term of its own, and published.
	overlappingSeats
	// manyEpochs: regions fence and claim their own units all the time, so that epochs are
	// joined while others read them.
	manyEpochs
	// frontiers: seats tell what they have three times a second, so that frontiers follow closely,
	// and what lies just above or below one is cut off, or written again elsewhere.
	frontiers

	regimes // how many there are
)

// String is the regime's name on the command line.
func (r regime) String() string {
	return [...]string{"ordinary", "link-fights", "elections", "lost-tails", "seat-fights", "cuts-in-audit", "deposed-links", "restarts-at-cuts", "lifted-rules", "overlapping-seats", "many-epochs", "frontiers"}[r]
}

// Regime is the name of what a seed's history is about.
func Regime(seed uint64) string {
	var c config
	c.drawRegime(seed)
	return c.regime.String()
}

// drawRegime draws the history's regime, from randomness of its own.
func (c *config) drawRegime(seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0x726567696d65))
	if r.IntN(2) == 0 {
		c.drawRareRegime(seed)
		return
	}
	c.regime = 1 + regime(r.IntN(int(cutsInAudit)))
	switch c.regime {
	case linkFights:
		c.register, c.border = false, r.IntN(2) == 0
	case cutsInAudit:
		c.register, c.border = true, true
	case ordinary, elections, lostTails, seatFights, deposedLinks, restartsAtCuts, liftedRules, overlappingSeats, manyEpochs, regimes:
		c.register, c.border = false, false
	}
}

// drawRareRegime takes some of the ordinary histories for regimes that need few, from
// randomness of its own: all other histories stay what they were. The stream is one that
// leaves the seeds of the mutants' table alone.
func (c *config) drawRareRegime(seed uint64) {
	switch r := rand.New(rand.NewPCG(seed, 8)); r.IntN(8) {
	case 0:
		c.regime, c.register, c.border = deposedLinks, false, true
	case 1:
		c.regime, c.register, c.border = restartsAtCuts, true, false
	case 2:
		c.regime, c.register, c.border = liftedRules, false, true
	case 3:
		if r.IntN(3) == 0 {
			c.regime, c.register, c.border = overlappingSeats, false, false
		}
	case 4, 5, 6:
		c.regime, c.register, c.border = frontiers, r.IntN(2) == 0, false
		c.tidies = rand.New(rand.NewPCG(seed, 75)).IntN(3) < 2 // it leaves the seeds of the mutants' table alone
	}
	if c.regime == ordinary && rand.New(rand.NewPCG(seed, 67)).IntN(12) == 0 {
		c.regime, c.register, c.border = manyEpochs, true, false
	}
}

// tune changes what was drawn to what the regime needs.
func (w *World) tune() {
	c, r := &w.cfg, w.Rand()
	c.linkPause, c.lateMost, c.electWithin = 0.15, 4*time.Second, 150*time.Millisecond
	if c.regime == ordinary {
		return
	}
	c.regions = max(c.regions, 2)
	c.writes += 20
	switch c.regime {
	case linkFights:
		c.linkPause, c.pause = 0.3, pick(r, 300*time.Millisecond, time.Second)
		c.faults, c.truncate, c.elections = pick(r, 0, 0.01), false, false
		c.regions, c.length = 2, w.Between(15*time.Second, 25*time.Second)
	case elections:
		c.elections, c.contested, c.truncate = true, true, false
		c.late, c.lateMost, c.electWithin = 0.5, 400*time.Millisecond, 500*time.Millisecond
		c.faults = pick(r, 0, 0.01, 0.04)
	case lostTails:
		c.truncate, c.faults = true, pick(r, 0.04, 0.12)
	case seatFights:
		c.contested, c.faults, c.late = true, pick(r, 0.01, 0.04, 0.12), 0.3
		c.lateMost = time.Second
	case cutsInAudit:
		c.truncate, c.elections, c.faults = false, false, pick(r, 0, 0.01)
		c.partitions = 1
	case deposedLinks, restartsAtCuts:
		c.truncate, c.elections, c.contested = false, false, false
		c.faults, c.partitions = pick(r, 0, 0.01), 1
	case liftedRules:
		c.truncate, c.elections, c.contested = false, false, false
		c.faults, c.partitions, c.entities = pick(r, 0, 0.01), 1, pick(r, 3, 6)
		c.rule = event.LWW // an entity topic under keep is not carried by such rules
	case overlappingSeats:
		c.truncate, c.elections, c.contested, c.foreign = false, false, false, false
		c.faults, c.partitions, c.skew = pick(r, 0, 0.01), 1, 2*time.Second
		c.foldEvery = min(c.foldEvery, 20*time.Millisecond)
	case manyEpochs:
		c.truncate, c.elections, c.contested, c.foreign = false, false, false, false
		c.faults, c.partitions, c.join = pick(r, 0, 0.01), 1, 1
		c.length = w.Between(25*time.Second, 40*time.Second)
	case frontiers:
		c.truncate, c.elections, c.foreign, c.contested = false, false, false, false
		c.faults, c.partitions, c.regions = pick(r, 0, 0.01), 1, pick(r, 2, 3, 3)
		c.window = pick(r, 24*time.Hour, 24*time.Hour, 8*time.Second)
		if c.register {
			c.procs = pick(r, 1, 1, 2) // one that fences has the seats, too, and waits for no other
		}
		c.foldEvery = min(c.foldEvery, 20*time.Millisecond)
		if c.writes += 20; c.tidies {
			c.entities = pick(r, 2, 6, 12) // of many some rest
		}
	case ordinary, regimes:
	}
}

// scheduleRegime draws the faults that the regime has besides the ordinary ones.
func (w *World) scheduleRegime() {
	often := func(n int, do func()) {
		for range n {
			w.After(w.Between(500*time.Millisecond, w.cfg.length), do)
		}
	}
	switch w.cfg.regime {
	case linkFights:
		often(12, w.fightLink)
	case elections:
		often(25, w.elect)
		often(6, w.moveLink)
	case lostTails:
		for _, r := range w.regions {
			for _, from := range w.regions {
				if from != r {
					w.loseAborted(r, from)
				}
			}
		}
		often(4, w.moveLink)
	case cutsInAudit:
		often(6, func() { w.fenceUnheard(3, 0) })
	case restartsAtCuts:
		often(6, func() { w.fenceUnheard(12, 2*time.Second) })
	case liftedRules:
		often(8, w.reload)
	case seatFights:
		often(6, w.stream)
	case overlappingSeats:
		often(10, w.overlap)
	case manyEpochs:
		for _, r := range w.regions {
			w.renewUnits(r)
		}
	case frontiers:
		w.scheduleFrontiers(often)
	case ordinary, deposedLinks, regimes:
	}
}

// renewUnits has a region fence units of its own and claim them again, over and over.
func (w *World) renewUnits(r *region) {
	w.After(w.Between(time.Second, 4*time.Second), func() {
		if w.calm {
			return
		}
		cmd := ownership.Command{Verb: ownership.VerbFence, Reason: "once more", Unit: pick(w.Rand(), w.home(r)...)}
		w.ask(pick(w.Rand(), r.procs...), cmd)
		w.After(w.Between(200*time.Millisecond, 600*time.Millisecond), func() {
			undo := cmd
			undo.Verb = ownership.VerbUnfence
			w.ask(pick(w.Rand(), r.procs...), undo)
		})
		w.renewUnits(r)
	})
}

// fight is a link that is taken from the instance that is just beginning to run it.
type fight struct {
	way     [2]event.RegionID
	victim  *proc
	next    *proc
	held    []func() // what the victim's shards would do first
	started bool     // the victim's shards may begin
	over    bool     // the victim has heard of it
}

// fightLink gives a link to another instance with another number of shards, while
// the one that had it is just beginning to run it: it has read the generation that
// the other changes, and its shards begin when the other has taken their ids.
func (w *World) fightLink() {
	from, to := pick(w.Rand(), w.regions...), pick(w.Rand(), w.regions...)
	way := [2]event.RegionID{from.id, to.id}
	if from == to || w.calm || w.fight != nil && !w.fight.over {
		return
	}
	f := &fight{way: way, victim: from.procs[from.linked[to]]}
	from.linked[to] = (from.linked[to] + 1) % len(from.procs)
	f.next = from.procs[from.linked[to]]
	w.shards[way] = 1 + (w.shards[way]+w.Rand().IntN(2))%3
	w.fight = f
	w.Logf("link %s-%s is fought for by %s", from.name, to.name, f.next.name)
	f.victim.kill()
	w.After(w.Between(20*time.Millisecond, 100*time.Millisecond), f.victim.start)
	w.After(5*time.Second, func() { w.beginVictim(f) })
	w.After(w.Between(6*time.Second, 9*time.Second), func() {
		f.over = true
		f.victim.hearLink(to)
	})
	if w.border != nil && w.Chance(0.7) {
		w.After(w.Between(0, 1500*time.Millisecond), w.reload)
	}
	for range 30 {
		w.After(w.Between(0, 6*time.Second), func() {
			if !w.calm {
				w.writeAt(from)
			}
		})
	}
}

// holdShard keeps a shard of a fight's victim from beginning, and has the other
// instance hear of the link; false: it may begin.
func (s *shardRun) holdShard(begin func()) bool {
	w, to := s.l.p.w, s.l.to
	f := w.fight
	if f == nil || f.started || f.victim != s.l.p || f.way != [2]event.RegionID{s.l.p.region.id, to.id} {
		return false
	}
	if len(f.held) == 0 {
		w.After(w.Between(0, 100*time.Millisecond), func() { f.next.hearLink(to) })
	}
	f.held = append(f.held, func() {
		s.l.p.after(0, func() {
			if !s.closed {
				begin()
			}
		})
	})
	return true
}

// fencedShard lets a fight's victim begin soon after the other instance has taken an
// id of its shards.
func (l *linkRun) fencedShard() {
	w := l.p.w
	if f := w.fight; f != nil && f.next == l.p && f.way == [2]event.RegionID{l.p.region.id, l.to.id} {
		w.After(w.Between(0, 200*time.Millisecond), func() { w.beginVictim(f) })
	}
}

func (w *World) beginVictim(f *fight) {
	if f.started {
		return
	}
	f.started = true
	for _, begin := range f.held {
		begin()
	}
}

// loseAborted lets a remote partition lose an aborted transaction at its end, again
// and again, soon after it was aborted. Readers there are slow for a while.
func (w *World) loseAborted(r, from *region) {
	for _, seatTP := range w.seats {
		tp := remoteTP(from, seatTP)
		var watch func()
		watch = func() {
			r.kafka.Watch(tp, func() {
				log, aborted := r.kafka.Log(tp)
				first := len(log) - 1
				if w.calm || first < 0 || log[first].Kind != kafka.Abort || !w.Chance(0.5) {
					w.After(0, watch)
					return
				}
				for first > 0 && aborted(&log[first-1]) {
					first--
				}
				to, end := log[first].Offset, r.kafka.List(tp, false)
				w.After(w.Between(5*time.Millisecond, 60*time.Millisecond), func() {
					if !w.calm && r.kafka.List(tp, false) == end && to < end-1 {
						w.Logf("%s loses the aborted transaction at the end of %v, from %d (end %d)", r.name, tp, to, end)
						w.counts["truncations"]++
						w.slow[slowKey{r, tp}] = w.Now() + w.Between(200*time.Millisecond, 2*time.Second)
						r.kafka.Truncate(tp, to)
					}
					watch()
				})
			})
		}
		watch()
	}
}

// slowKey names a partition that readers in a region are slow to read.
type slowKey struct {
	in *region
	tp kafka.TP
}

// slowUntil is until when a fetch of a partition in a region takes.
func (w *World) slowUntil(r *region, tp kafka.TP) time.Duration { return w.slow[slowKey{r, tp}] }

// strike has another instance take a seat whose produce of n records is on its way: some
// of them come late, perhaps behind the other's barrier. It returns how late, 0: not at
// all, and how many come before.
func (s *seatRun) strike(n int) (late time.Duration, ahead int) {
	w := s.p.w
	if w.cfg.regime != seatFights || w.calm || !w.Chance(pick(w.Rand(), 0.12, float64(n)/12)) {
		return 0, 0
	}
	w.After(w.Between(0, 3*time.Millisecond), func() { w.takeSeat(s.p.region, s.tp) })
	return w.Between(20*time.Millisecond, 1500*time.Millisecond), w.Rand().IntN(n)
}

// fenceUnheard fences a region that hears nothing of the register, and whose links
// reach nobody: what it writes meanwhile lies past the cut, and is on the links' desk
// when both end; the region hears of the register again so much later.
func (w *World) fenceUnheard(writes int, later time.Duration) {
	victim := pick(w.Rand(), w.regions...)
	var others []*proc
	for _, r := range w.regions {
		if r != victim {
			others = append(others, r.procs...)
		}
	}
	d := w.Between(500*time.Millisecond, 2500*time.Millisecond)
	w.deafen(victim, d)
	if later > 0 {
		for _, p := range victim.procs {
			p.inst.Cut(d + later)
		}
	}
	cmd := ownership.Command{Verb: ownership.VerbFence, Reason: "deaf", Region: victim.name}
	if w.Chance(0.5) {
		cmd.Region, cmd.Unit = "", pick(w.Rand(), w.home(victim)...)
	}
	w.After(w.Between(0, d/2), func() { w.ask(pick(w.Rand(), others...), cmd) })
	undo := cmd
	undo.Verb = ownership.VerbUnfence
	w.After(d+w.Between(500*time.Millisecond, 3*time.Second), func() { w.ask(pick(w.Rand(), others...), undo) })
	for range writes {
		w.After(w.Between(0, d), func() { w.writeAt(victim) })
	}
}

// overlap gives a seat to an instance whose fold hangs before it has a term. The one
// before gets the seat back meanwhile, and begins, writes and publishes; the other one is
// told late, and writes in between.
func (w *World) overlap() {
	r, tp := pick(w.Rand(), w.regions...), pick(w.Rand(), w.seats...)
	first := r.assigned[tp]
	slow, other := r.procs[(first+1)%len(r.procs)], r.procs[first]
	if w.calm || !slow.alive || !other.alive || slow.seats[tp] != nil {
		return
	}
	w.Logf("seat %v of %s: %s is slow, and %s begins beside it", tp, r.name, slow.name, other.name)
	r.assigned[tp] = (first + 1) % len(r.procs)
	slow.reassign(tp)
	hung := slow.seats[tp]
	hung.hang = true
	w.After(w.Between(20*time.Millisecond, 200*time.Millisecond), func() {
		r.assigned[tp] = first
		if s := other.seats[tp]; s != nil {
			s.close("begins again")
		}
		other.reassign(tp)
	})
	write := func(p *proc) func() {
		return func() {
			if p.alive && !w.calm {
				w.attemptAt(w.newWrite(tp), r, p)
			}
		}
	}
	for range 4 {
		w.After(w.Between(100*time.Millisecond, time.Second), write(other))
		w.After(w.Between(300*time.Millisecond, 1500*time.Millisecond), write(slow))
	}
	w.After(w.Between(2*time.Second, 3*time.Second), func() {
		hung.hang = false
		slow.after(0, hung.fold.pump)
		slow.after(0, func() { slow.reassign(tp) })
	})
}

// writeAt has a client write in a region.
func (w *World) writeAt(r *region) { w.attempt(w.newWrite(pick(w.Rand(), w.seats...)), r) }

// newWrite is a client's write under a key of its own.
func (w *World) newWrite(tp kafka.TP) *op {
	n := w.cfg.writes + len(w.ops)
	o := &op{n: n, tp: tp}
	o.req.Request = w.request(o.tp, n)
	o.req.Idempotency = event.HashKey([]byte(event.DefaultIdempotencySecret), "", o.tp.Topic, fmt.Sprintf("k%d", n))
	o.req.Fingerprint = o.req.Request.Fingerprint()
	w.ops = append(w.ops, o)
	return o
}

// lateAudit is how late a link's decision is written down, of which it hears nothing
// then; 0: in time.
func (w *World) lateAudit() time.Duration {
	if w.cfg.regime != linkFights || w.calm || !w.Chance(0.25) {
		return 0
	}
	return w.Between(200*time.Millisecond, 3*time.Second)
}

// kindOfRule draws what a policy says of a topic: where links fight or are deposed, all
// rules look at records; where rules are lifted, those of every other policy do.
func (w *World) kindOfRule() rulesOf {
	switch {
	case w.cfg.regime == linkFights, w.cfg.regime == deposedLinks, w.cfg.regime == liftedRules && w.border.revision%2 == 1:
		return rulesOf(w.Rand().IntN(2))
	case w.cfg.regime == liftedRules:
		return mayLeave
	}
	return rulesOf(w.Rand().IntN(6))
}

// slowly is how long a link's process takes to write down a decision, and to hear of
// a cut.
func (w *World) slowly() time.Duration {
	if w.cfg.regime != cutsInAudit || w.calm || w.Chance(0.3) {
		return 0
	}
	return w.Between(0, 1500*time.Millisecond)
}

// depose has another instance take the link under another policy while a decision is on
// its way. It returns how late that comes; 0: nothing happens to it.
func (l *linkRun) depose(decided []replicate.Decided) time.Duration {
	w, old, from, to := l.p.w, l.p, l.p.region, l.to
	if w.cfg.regime != deposedLinks || w.calm || w.Now() < w.nextDeposal || !slices.ContainsFunc(decided, rulesRecords) || !w.Chance(0.5) {
		return 0
	}
	late := w.Between(2500*time.Millisecond, 4*time.Second)
	w.nextDeposal = w.Now() + late + time.Second
	from.linked[to] = (from.linked[to] + 1) % len(from.procs)
	next := from.procs[from.linked[to]]
	w.Logf("link %s-%s is taken from %s by %s while a decision is on its way", from.name, to.name, old.name, next.name)
	old.orders[to] = 0
	w.After(200*time.Millisecond, old.kill)
	w.After(w.nextDeposal-w.Now(), old.start)
	w.reload()
	w.After(w.Between(200*time.Millisecond, 600*time.Millisecond), func() { next.hearLink(to) })
	return late
}

// rulesRecords tells whether a rule has decided about records.
func rulesRecords(d replicate.Decided) bool {
	return slices.ContainsFunc(d.Runs, func(r residency.Run) bool { return r.Code.Ruled() })
}

// holdAtCut keeps the fold from committing a table that ends the epoch of another
// region, for a while.
func (s *seatRun) holdAtCut(items []judged.Item) {
	w := s.p.w
	if w.cfg.regime != restartsAtCuts || w.calm || s.fold.held || !slices.ContainsFunc(items, s.endsAnother) {
		return
	}
	s.fold.held = true
	s.p.after(w.Between(2*time.Second, 5*time.Second), func() {
		s.fold.held = false
		s.fold.pump()
	})
}

// endsAnother tells whether an item is a table under which another region's epoch ends
// and none follows.
func (s *seatRun) endsAnother(it judged.Item) bool {
	if it.Verdict != judged.Cuts {
		return false
	}
	for _, r := range s.p.w.regions {
		of := it.Validity.Logs[r.id].List
		if n := len(of); r != s.p.region && n > 0 && of[n-1].Ended {
			return true
		}
	}
	return false
}

// restartPastCut restarts the process when its indexes have an orphan from another
// region, and its fold has not committed the table that says so. The register is not
// reached for a while after.
func (s *seatRun) restartPastCut(items []judged.Item) {
	p, w := s.p, s.p.w
	foreign := func(it judged.Item) bool { return it.Verdict == judged.Orphan && it.Origin != p.region.id }
	if !s.fold.held || w.calm || !slices.ContainsFunc(items, foreign) {
		return
	}
	w.After(0, func() {
		p.kill()
		p.inst.Cut(w.Between(500*time.Millisecond, 2*time.Second))
	})
	w.After(w.Between(20*time.Millisecond, 200*time.Millisecond), p.start)
}
