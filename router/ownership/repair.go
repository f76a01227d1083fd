package ownership

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/geogate/geogate/internal/event"
)

// The repair of the register, step by step. It is the only command that an instance takes
// which does not believe the register: it goes by what the register answers now, and
// writes on condition that nobody has written since.

// VerbRepair mends the register itself.
const VerbRepair Verb = "repair"

const (
	// repairPatience bounds the wait for answers of the register, Kafka and the logs.
	repairPatience = 20 * time.Second
	// openAgain is the time between two questions for what the register is.
	openAgain = 3 * time.Second
	// mostRounds bounds how often a repair begins again because somebody else writes.
	mostRounds = 20
	// MostFillers bounds the messages that bring the register past what was seen of it.
	MostFillers = 200_000
)

// repair is a repair on its way.
type repair struct {
	c    *Core
	ref  uint64
	cmd  Command
	done bool

	began  time.Duration // of the round
	rounds int

	opened   bool // the register has said how far it goes
	reopen   time.Duration
	memory   *Memory // what Kafka has; nil: not answered yet
	recalled bool    // asked
	found    map[string]*Seen
	askedAt  map[string]time.Duration
	ends     map[string][]Extent
	listedAt map[string]time.Duration

	steps  []string
	todo   []mending
	raise  uint64 // revision that the register has to come to; 0: it is past that
	raised bool   // asked for
	commit bool   // something was written
}

func (c *Core) askRepair(now time.Duration, ev Ask) {
	r := &repair{c: c, ref: ev.Ref, cmd: ev.Command}
	if len(c.repairs) > 0 {
		r.end(ResultInProgress, "another repair is on its way at this instance")
		return
	}
	c.repairs = append(c.repairs, r)
	r.begin(now)
}

// begin starts a round: nothing of an earlier one counts.
func (r *repair) begin(now time.Duration) {
	r.began, r.memory, r.recalled, r.todo = now, nil, false, nil
	r.found, r.askedAt = make(map[string]*Seen), make(map[string]time.Duration)
	r.ends, r.listedAt = make(map[string][]Extent), make(map[string]time.Duration)
	r.raise, r.raised, r.opened, r.reopen = 0, false, false, 0
	r.rounds++
}

func (r *repair) end(code ResultCode, format string, args ...any) {
	if r.done {
		return
	}
	r.done = true
	r.c.do(Answer{Ref: r.ref, Result: Result{Code: code, Detail: fmt.Sprintf(format, args...), Units: []FencedUnit{}, Steps: append([]string{}, r.steps...)}})
}

// advanceRepairs goes on with what is on its way.
func (c *Core) advanceRepairs(now time.Duration) {
	for _, r := range slices.Clone(c.repairs) {
		r.advance(now)
	}
	c.repairs = slices.DeleteFunc(c.repairs, func(r *repair) bool { return r.done })
}

func (r *repair) advance(now time.Duration) {
	switch {
	case r.done:
	case r.todo != nil:
		r.write(now)
	case now > r.began+repairPatience:
		r.end(ResultUnreachable, "%s", r.missing())
	case r.gather(now):
		r.plan(now)
	}
}

// gather asks for all that a repair goes by, again until it is there.
func (r *repair) gather(now time.Duration) bool {
	c := r.c
	if !r.opened {
		if now >= r.reopen {
			r.reopen = now + openAgain
			c.do(Reopen{})
		}
		return false
	}
	if r.memory == nil {
		if !r.recalled && c.free(now, "recall") {
			r.recalled = true
			c.do(Recall{})
		}
		return false
	}
	all := true
	for _, subject := range r.subjects() {
		if r.found[subject] != nil {
			continue
		}
		all = false
		if at, asked := r.askedAt[subject]; !asked || now >= at+retryLimit {
			r.askedAt[subject] = now
			c.do(Read{Subject: subject})
		}
	}
	if !all {
		return false
	}
	for _, unit := range r.unitNames() {
		if _, listed := r.ends[unit]; listed || !c.mayList(unit) {
			continue
		}
		all = false
		if at, asked := r.listedAt[unit]; !asked || now >= at+retryLimit {
			r.listedAt[unit] = now
			c.do(List{Unit: unit, Rev: r.found[UnitSubject(unit)].Seq, Ref: r.ref})
		}
	}
	return all
}

// missing says what has not answered.
func (r *repair) missing() string {
	switch {
	case !r.opened:
		return "the ownership register does not answer; nothing was written"
	case r.memory == nil:
		return "the copy of the register in the Kafka of this region cannot be read; nothing was written"
	case len(r.found) < len(r.subjects()):
		return "the ownership register does not answer; nothing was written"
	}
	return "where the logs of this region end cannot be listed; nothing was written"
}

// mayList tells whether a unit may have epochs of this region: only its own logs can be
// listed.
func (c *Core) mayList(unit string) bool {
	_, region, split := strings.Cut(unit, "/")
	return !split || region == c.cfg.Region
}

func (r *repair) unitNames() []string {
	names := make(map[string]bool)
	for _, epochs := range []map[string]event.Epoch{r.memory.Epochs, r.c.mark.Epochs} {
		for unit := range epochs {
			names[unit] = true
		}
	}
	for unit := range r.c.units {
		names[unit] = true
	}
	return slices.Sorted(maps.Keys(names))
}

func (r *repair) subjects() (list []string) {
	for _, region := range r.c.cfg.Regions.Regions() {
		list = append(list, RegionSubject(region.Name))
	}
	for _, unit := range r.unitNames() {
		list = append(list, UnitSubject(unit))
	}
	return list
}

// remembers takes what the region's Kafka has of the register, and what this instance has
// seen of it besides.
func (r *repair) remembers(m Memory) {
	m.join(r.c.cfg.Mirrored)
	r.c.tell(&m)
	r.memory = &m
}

// tell adds what the instance has seen of the register to a memory.
func (c *Core) tell(m *Memory) {
	m.Extents.join(&c.extents)
	for _, u := range c.units {
		m.TakeUnit(&u.rec, u.rev, u.data)
	}
	for _, k := range c.regions {
		m.TakeRegion(&k.rec)
	}
}

// listed takes where the logs of a unit end.
func (r *repair) listed(ev Listed) bool {
	if ev.Ref != r.ref {
		return false
	}
	if _, asked := r.listedAt[ev.Unit]; ev.OK && asked && r.todo == nil {
		r.ends[ev.Unit] = append([]Extent{}, ev.Ends...)
	}
	return true
}

// saw takes an answer of the register.
func (r *repair) saw(ev Seen) {
	if _, asked := r.askedAt[ev.Subject]; asked && r.todo == nil {
		r.found[ev.Subject] = &ev
	}
}

// damage is what was found.
func (r *repair) damage() (*damage, error) {
	c := r.c
	d := &damage{
		region: c.cfg.Region, id: c.cfg.ID, ids: make(map[string]event.RegionID), reason: r.cmd.Reason,
		units: make(map[string]known[UnitRecord]), regions: make(map[string]known[RegionRecord]), memory: r.memory, mark: &c.mark, ends: r.ends,
		extents: &ExtentSets{}, inline: c.inline(),
	}
	d.extents.join(&c.extents)
	d.extents.join(&r.memory.Extents)
	for _, region := range c.cfg.Regions.Regions() {
		d.ids[region.Name] = region.ID
	}
	for subject, s := range r.found {
		if s.Seq == 0 {
			continue
		}
		if strings.HasPrefix(subject, subjectRegion) {
			rec, err := decode[RegionRecord](s.Data)
			if err != nil {
				return nil, err
			}
			if id := d.ids[rec.Region]; id != rec.ID {
				return nil, fmt.Errorf("region %s has id %d in the register and id %d in the configuration", rec.Region, rec.ID, id)
			}
			d.regions[rec.Region] = known[RegionRecord]{rev: s.Seq, data: s.Data, rec: rec}
			continue
		}
		rec, err := decode[UnitRecord](s.Data)
		if err != nil {
			return nil, err
		}
		d.extents.Resolve(&rec)
		d.units[rec.Unit] = known[UnitRecord]{rev: s.Seq, data: s.Data, hash: hash(s.Data), rec: rec}
	}
	return d, nil
}

// plan finds out what has to be written, and begins with it unless it is a dry run.
func (r *repair) plan(now time.Duration) {
	c := r.c
	d, err := r.damage()
	if err != nil {
		r.end(ResultPrecondition, "the register has a record that this version or this deployment cannot have written, and that no repair can replace: %v; nothing was written", err)
		return
	}
	todo, why := d.mend()
	if why != "" {
		r.end(ResultPrecondition, "%s; nothing was written", why)
		return
	}
	beyond := max(c.mark.Seq, c.seen, r.memory.Last)
	if c.endsAt < beyond {
		r.raise = beyond
	}
	r.steps = nil
	if r.raise > 0 {
		if r.raise-c.endsAt > MostFillers {
			r.end(ResultPrecondition, "the register ends at revision %d and revision %d was seen before, which is too far to make up for; remove the stream OWN and start this instance again, which makes it anew past that; nothing was written", c.endsAt, r.raise)
			return
		}
		r.steps = append(r.steps, fmt.Sprintf("bring the register from revision %d past revision %d, which was seen before", c.endsAt, r.raise))
	}
	fenced := 0
	for _, m := range todo {
		if m.step != "" {
			r.steps = append(r.steps, m.step)
		}
		if strings.HasPrefix(m.subject, subjectRegion) {
			fenced++
		}
	}
	recreated := c.mark.Created != 0 && c.mark.Created != c.openedAs && c.repairSeq <= c.mark.Seq
	if len(r.steps) == 0 && !recreated && !r.commit && c.distrust == "" {
		r.end(ResultDone, "nothing has to be repaired: the register has all that this region has seen of it, and no start or cut lies past the end of a log here")
		return
	}
	if fenced > 0 || recreated || c.distrust != "" {
		r.steps = append(r.steps, "write that the register was repaired; instances that do not believe it look again")
		r.steps = append(r.steps, "then: repair at a gateway of every other region, too, before any region is unfenced: only its own Kafka has what it has seen")
		if fenced > 0 {
			r.steps = append(r.steps, "then: unfence the regions that are fenced: geogate unfence --region NAME")
		}
		r.commit = true
	}
	if r.cmd.DryRun {
		r.end(ResultDone, "the register can be repaired; nothing was done")
		return
	}
	r.todo = append([]mending{}, todo...)
	if r.commit {
		// It says something of what comes before it, whoever else says so, too.
		r.todo = append(r.todo, mending{subject: subjectRepair, free: true, data: encode(RepairRecord{Version: recordVersion, By: c.cfg.Region, Reason: r.cmd.Reason, Beyond: beyond})})
	}
	r.write(now)
}

// write does what comes next of the plan.
func (r *repair) write(now time.Duration) {
	c := r.c
	const purpose = "repair"
	switch {
	case r.raise > 0:
		if !r.raised {
			r.raised = true
			c.do(Raise{To: r.raise})
		}
	case len(r.todo) == 0:
		if r.commit {
			r.end(ResultDone, "the register is repaired from what this region has; repair at a gateway of every other region before any region is unfenced")
			return
		}
		r.end(ResultDone, "the register is repaired")
	case c.free(now, purpose):
		m := r.todo[0]
		guard := m.subject
		if m.free {
			guard = ""
		}
		c.write(now, purpose, Write{Subject: m.subject, Data: m.data, Guard: guard, Expect: m.expect}, 0, func(now time.Duration, _ uint64, ok bool) {
			switch {
			case r.done:
			case ok:
				r.todo = r.todo[1:]
			case r.rounds >= mostRounds:
				r.end(ResultMoved, "somebody else writes to the register all the while; ask again")
			default:
				r.begin(now)
			}
		})
	}
}

// raisedTo takes what became of a [Raise].
func (c *Core) raisedTo(ev Raised) {
	c.endsAt = max(c.endsAt, ev.Last)
	for _, r := range c.repairs {
		switch {
		case r.raise == 0:
		case ev.Last >= r.raise:
			r.raise = 0
		case r.rounds >= mostRounds:
			r.end(ResultUnreachable, "the register does not come past revision %d; ask again", r.raise)
		default:
			r.rounds++
			r.raised = false
		}
	}
}

// noteRepair takes the record of a repair that the register has shown.
func (c *Core) noteRepair(seq uint64) {
	c.repairSeq = max(c.repairSeq, seq)
	if c.distrust != "" && seq > c.failedAt {
		c.again = true
	}
}

// Follows has the state machine go on after another one, whose register was repaired: what
// that has asked for may still be answered, and is none of this one's; what it has seen
// counts, like what the region's Kafka has.
func (c *Core) Follows(old *Core) {
	c.serial, c.changes, c.markVersion = old.serial+1, old.changes+1, old.markVersion
	c.savedMark = old.savedMark
	c.cfg.Mirrored.join(old.cfg.Mirrored)
	old.tell(&c.cfg.Mirrored)
}

// Again tells whether a register that was not believed has been repaired: whoever runs the
// state machine starts another one, which looks at it as for the first time.
func (c *Core) Again() bool { return c.again && len(c.repairs) == 0 }
