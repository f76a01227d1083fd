package ownership

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/geogate/geogate/internal/event"
)

// What operators ask for. A plan is carried by the instance that was asked; it
// takes no step from what it has read: each begins with a conditional write of
// its own. A plan whose instance dies is asked for again, from its beginning.

// Verb is what is asked for.
type Verb string

// The verbs.
const (
	VerbFence   Verb = "fence"
	VerbUnfence Verb = "unfence"
)

// Command is what an operator asks for: of a region or of one unit.
type Command struct {
	Verb   Verb
	Region string
	Unit   string
	Reason string
	// DryRun has a repair say what it would do.
	DryRun bool
	// At is when it was asked, Unix milliseconds; a region's retirement keeps it.
	At int64
}

// ResultCode says how a command ended. The numbers are part of the management
// API's answer.
type ResultCode int

// The ends of a command.
const (
	ResultDone         ResultCode = 0
	ResultPrecondition ResultCode = 3  // what the command needs is not so; nothing was done
	ResultMoved        ResultCode = 6  // a unit was given to a region meanwhile
	ResultInProgress   ResultCode = 8  // what was started goes on
	ResultLoss         ResultCode = 10 // done, and answered writes may not count
	ResultUnreachable  ResultCode = 12 // the register has not been read
	ResultRegressed    ResultCode = 13 // the register is not believed
)

// Result is what became of a command.
type Result struct {
	Code   ResultCode   `json:"exit"`
	Detail string       `json:"detail"`
	Units  []FencedUnit `json:"units"`
	// Steps are those of a repair.
	Steps []string `json:"-"`
}

// FencedUnit is one unit that a fence has taken.
type FencedUnit struct {
	Unit  string      `json:"unit"`
	Epoch event.Epoch `json:"epoch"`
	// Cut tells where the last owner's epoch was cut: "end", past everything
	// that was answered, or "applied", at the most that any other region had.
	Cut string `json:"cut"`
}

// The kinds of cuts.
const (
	CutEnd     = "end"
	CutApplied = "applied"
)

type stage uint8

const (
	stageRegion stage = iota // fence the region
	stageUnits               // fence the units
	stageTouch               // the region is still fenced by us
	stageBump                // of a unit alone: make its last owner's leases void
	stageDrain               // wait until all have drained, or for W
	stageCut                 // list and write the cuts
)

// plan is one command on its way.
type plan struct {
	c    *Core
	ref  uint64
	also []uint64 // commands that want the same, and get the same answer
	cmd  Command
	done bool

	stage  stage
	region string // whose leases have to end
	rev    uint64 // of the region's record that the plan wrote
	id     string // of that write
	// waitFrom is from where W counts; 0 not yet.
	waitFrom time.Duration
	units    map[string]*unitFence
}

// unitFence is one unit of a fence.
type unitFence struct {
	epoch          event.Epoch
	rev            uint64
	behind         string // the region's fence that it follows; "" for a unit's
	endsAsked      bool
	pendingAnswers int
	ends           []Extent
	own            []Extent // where the region's own logs end, if they were listed
	tries          int      // cuts that its logs did not bear out
	cutAtEnd       bool     // else it is at what other regions have applied
	cutWritten     bool
	next           *placing // the record with the cut; nil before it is made
}

func (c *Core) ask(now time.Duration, ev Ask) {
	if ev.Command.Verb == VerbRepair {
		c.askRepair(now, ev)
		return
	}
	p := &plan{c: c, ref: ev.Ref, cmd: ev.Command, units: make(map[string]*unitFence)}
	switch {
	case !c.ready():
		p.refuse()
		return
	case ev.Command.Unit != "":
		u := c.units[ev.Command.Unit]
		if u == nil {
			p.answer(ResultPrecondition, fmt.Sprintf("unit %s is not known to the register", ev.Command.Unit))
			return
		}
		p.stage, p.region = stageUnits, u.rec.Last
	default:
		if _, ok := c.cfg.Regions.ID(ev.Command.Region); !ok {
			p.answer(ResultPrecondition, fmt.Sprintf("region %q is not one of the deployment", ev.Command.Region))
			return
		}
		p.stage, p.region = stageRegion, ev.Command.Region
	}
	if p.ownAway() || c.joins(p) {
		return
	}
	c.plans = append(c.plans, p)
}

// joins has a fence end with the plan of another command for the same region or unit, if
// that one has yet to prove that its fence holds: whoever gets no answer asks again, and
// two plans of one instance would undo each other's proof for ever.
func (c *Core) joins(p *plan) bool {
	if p.cmd.Verb != VerbFence && p.cmd.Verb != VerbRetire {
		return false
	}
	for _, o := range c.plans {
		if !o.done && o.stage < stageDrain && o.cmd.Verb == p.cmd.Verb && o.cmd.Region == p.cmd.Region && o.cmd.Unit == p.cmd.Unit {
			o.also = append(o.also, p.ref)
			return true
		}
	}
	return false
}

// failPlans ends all plans when the register is not believed any more.
func (c *Core) failPlans() {
	for _, p := range c.plans {
		p.refuse()
	}
	c.plans = nil
}

// refuse answers what cannot be done while the register is not believed or not
// known.
func (p *plan) refuse() {
	if why := p.c.distrust; why != "" {
		p.answer(ResultRegressed, why)
	} else {
		p.answer(ResultUnreachable, "this instance has not read the ownership register to its end; retry")
	}
}

func (p *plan) answer(code ResultCode, detail string) {
	if p.done {
		return
	}
	p.done = true
	r := Result{Code: code, Detail: detail, Units: []FencedUnit{}}
	for _, unit := range slices.Sorted(maps.Keys(p.units)) {
		t := p.units[unit]
		kind := CutApplied
		if t.cutAtEnd {
			kind = CutEnd
		}
		r.Units = append(r.Units, FencedUnit{Unit: unit, Epoch: t.epoch, Cut: kind})
	}
	for _, ref := range append([]uint64{p.ref}, p.also...) {
		p.c.do(Answer{Ref: ref, Result: r})
	}
}

func (p *plan) purpose(what string) string { return fmt.Sprintf("plan %d %s", p.ref, what) }

func (p *plan) advance(now time.Duration) {
	if p.done {
		return
	}
	if p.ownAway() {
		return
	}
	if why := p.tooLong(now); why != "" {
		p.answer(ResultPrecondition, why)
		return
	}
	if p.cmd.Verb == VerbRetire || p.cmd.Verb == VerbReturn {
		p.advanceRetirement(now)
		return
	}
	if p.cmd.Verb == VerbUnfence {
		if p.cmd.Unit != "" {
			p.unfenceUnit(now)
		} else {
			p.unfenceRegion(now)
		}
		return
	}
	switch p.stage {
	case stageRegion:
		p.fenceRegion(now)
	case stageUnits:
		p.fenceUnits(now)
	case stageTouch:
		p.touch(now)
	case stageBump:
		p.bump(now)
	case stageDrain:
		p.awaitDrained(now)
	case stageCut:
		p.cut(now)
	}
}

// tooLong says which record of the plan's the register does not take, "" if there is none. A
// later command tries again: the servers may have been given another limit.
func (p *plan) tooLong(now time.Duration) string {
	for _, unit := range slices.Sorted(maps.Keys(p.c.units)) {
		u := p.c.units[unit]
		r := p.c.tooLong[UnitSubject(unit)]
		if r.size > 0 && now < r.at+inspectAgain && (unit == p.cmd.Unit || p.cmd.Unit == "" && u.rec.Last == p.region) {
			return recordTooLong(unit, len(u.rec.Epochs), r.size)
		}
	}
	return ""
}

// tooLongRecords says which units' records the register does not take.
func (c *Core) tooLongRecords() (list []string) {
	for _, unit := range slices.Sorted(maps.Keys(c.units)) {
		if r := c.tooLong[UnitSubject(unit)]; r.size > 0 {
			list = append(list, recordTooLong(unit, len(c.units[unit].rec.Epochs), r.size))
		}
	}
	return list
}

// recordTooLong says what to do about a record that the register does not take.
func recordTooLong(unit string, epochs, size int) string {
	return fmt.Sprintf("the next record of %s has %d epochs and %d bytes, which is more than the register's servers take in a message; raise max_payload of the NATS servers", unit, epochs, size)
}

// fenceRegion ends all leases of the region, whether it was fenced before or not.
func (p *plan) fenceRegion(now time.Duration) {
	c, purpose := p.c, p.purpose("region")
	if !c.free(now, purpose) {
		return
	}
	if r := p.regionOf(); r.rec.away() {
		p.answer(ResultPrecondition, fmt.Sprintf("region %s %s; there is nothing to fence", p.region, r.rec.notUp()))
		return
	}
	next, expect := c.nextRegion(p.region, p.cmd.Reason)
	next.State, next.Plan = RegionFenced, c.nextID()
	c.write(now, purpose, Write{Subject: RegionSubject(p.region), Data: encode(next), Guard: RegionSubject(p.region), Expect: expect}, 0,
		func(now time.Duration, seq uint64, ok bool) {
			if !ok {
				return // begins again with the newer record
			}
			p.rev, p.id, p.waitFrom, p.stage = seq, next.Plan, now, stageUnits
			c.do(Broadcast{Subject: RegionSubject(p.region), Seq: seq, Data: encode(next)})
		})
}

// fenceUnits takes the units from their owner: those of a region that the watch
// has shown before the region's fence, or the one that was named.
func (p *plan) fenceUnits(now time.Duration) {
	c := p.c
	if p.cmd.Unit == "" && c.seen < p.rev {
		return
	}
	waiting := false
	for _, unit := range slices.Sorted(maps.Keys(c.units)) {
		u := c.units[unit]
		if p.cmd.Unit != "" && unit != p.cmd.Unit || p.cmd.Unit == "" && u.rec.Last != p.region || p.fenced(unit) {
			continue
		}
		switch over := ended(&u.rec); {
		case over && p.cmd.Unit != "":
			p.repeat(now, unit)
			return
		case over && u.rec.State == UnitFenced && u.rec.Scope == ScopeUnit:
			continue // nobody may claim it
		}
		waiting = true
		if c.free(now, p.purpose(unit)) {
			p.fenceUnit(now, unit)
		}
	}
	switch {
	case waiting:
	case p.cmd.Unit != "":
		p.stage = stageBump
	default:
		p.stage = stageTouch
	}
}

// fenced tells whether a unit is FENCED since the plan has written so, as far as is known:
// others may have written it again, but an epoch does not come back.
func (p *plan) fenced(unit string) bool {
	t, u := p.units[unit], p.c.units[unit]
	return t != nil && t.behind == p.id && u.rev >= t.rev && u.rec.State == UnitFenced && u.rec.Epoch == t.epoch
}

// ended tells whether nobody owns the unit and its last epoch has its cut.
func ended(u *UnitRecord) bool {
	n := len(u.Epochs)
	return u.Owner == "" && (n == 0 || u.Epochs[n-1].Ended)
}

// repeat answers a fence of a unit that is fenced and cut already; one that a
// region may claim again is fenced once more.
func (p *plan) repeat(now time.Duration, unit string) {
	c, u := p.c, p.c.units[unit]
	code, loss := ResultDone, ""
	if n := len(u.rec.Epochs); n > 0 && u.rec.Epochs[n-1].Applied {
		code, loss = ResultLoss, "; answered writes that no other region had applied are orphans"
	}
	if u.rec.State == UnitFenced && u.rec.Scope == ScopeUnit {
		p.answer(code, fmt.Sprintf("%s is already fenced, since epoch %d%s", unit, u.rec.Epoch, loss))
		return
	}
	if !c.free(now, p.purpose(unit)) {
		return
	}
	next := p.fencedRecord(&u.rec)
	c.writeUnit(now, p.purpose(unit), next, u.rev, func(now time.Duration, _ uint64, ok bool) {
		if ok {
			p.answer(code, fmt.Sprintf("%s is fenced in epoch %d; its last epoch was cut before%s", unit, next.Epoch, loss))
		}
	})
}

func (p *plan) fencedRecord(u *UnitRecord) UnitRecord {
	next := *u
	if u.State != UnitFenced {
		next.Epoch = nextEpoch(u.Epoch, p.c.cfg.ID)
	}
	next.Owner, next.State, next.For, next.Live, next.Claim, next.Incarnation = "", UnitFenced, "", 0, "", 0
	next.By, next.Reason = p.c.cfg.Region, p.cmd.Reason
	next.Scope = ScopeRegion
	if p.cmd.Unit != "" || u.Scope == ScopeUnit {
		next.Scope = ScopeUnit
	}
	return next
}

// fenceUnit writes that nobody owns the unit. One that was fenced and cut before
// is written as well, and keeps its cut: a claim of it that is on its way, from
// before the region's fence, is refused by that.
func (p *plan) fenceUnit(now time.Duration, unit string) {
	c, u := p.c, p.c.units[unit]
	next := p.fencedRecord(&u.rec)
	t := &unitFence{epoch: next.Epoch, behind: p.id}
	if ended(&u.rec) {
		n := len(u.rec.Epochs)
		t.cutWritten, t.cutAtEnd = true, n == 0 || !u.rec.Epochs[n-1].Applied
	}
	c.writeUnit(now, p.purpose(unit), next, u.rev, func(_ time.Duration, seq uint64, ok bool) {
		if ok {
			t.rev = seq
			p.units[unit] = t
		}
	})
}

// touch writes the region's record as it is, on condition of the fence's revision. Stored:
// the region was fenced all the while, and W counts from the fence. Not: somebody undid the
// fence in between, and all begins again, or fenced the region, too. Then the units are
// fenced again behind that fence and it is touched: two plans that undid each other's proof
// would begin again for ever. Records with the id of one fence follow each other, whoever
// writes them, so any of them may be touched.
func (p *plan) touch(now time.Duration) {
	c, purpose := p.c, p.purpose("touch")
	if !c.free(now, purpose) {
		return
	}
	next, rev := RegionRecord{}, uint64(0)
	if r := c.regions[p.region]; r != nil {
		next, rev = r.rec, r.rev
	}
	switch {
	case next.State != p.holdsRegion() || next.Plan == "":
		p.stage, p.waitFrom = stageRegion, 0
		return
	case next.Plan != p.id:
		p.stage, p.rev, p.id, p.waitFrom = stageUnits, rev, next.Plan, 0
		return
	}
	c.write(now, purpose, Write{Subject: RegionSubject(p.region), Data: encode(next), Guard: RegionSubject(p.region), Expect: rev}, 0,
		func(now time.Duration, _ uint64, ok bool) {
			if !ok {
				return // looks at what is newer
			}
			if p.waitFrom == 0 { // another one's fence, of which this write is the first proof
				p.waitFrom = now
			}
			p.stage = stageDrain
		})
}

// bump ends the leases of the last owner's region after the unit was fenced.
func (p *plan) bump(now time.Duration) {
	if p.region == "" {
		p.answer(ResultPrecondition, fmt.Sprintf("%s never had an owner", p.cmd.Unit))
		return
	}
	if !p.c.free(now, p.purpose("bump")) {
		return
	}
	if !p.fenced(p.cmd.Unit) {
		p.stage = stageUnits // somebody wrote the unit again before its owner's leases were void
		return
	}
	p.c.bump(now, p.purpose("bump"), p.region, "fence of "+p.cmd.Unit, func(now time.Duration, seq uint64) {
		if p.fenced(p.cmd.Unit) { // else it begins again
			p.rev, p.waitFrom, p.stage = seq, now, stageDrain
		}
	})
}

// awaitDrained waits until every life of the region has recorded that it holds
// nothing of the units, or until none can hold a lease any more; a little longer for
// one that waits for others, and is about to say where the logs end.
func (p *plan) awaitDrained(now time.Duration) {
	c := p.c
	// Renewals from before the fence lie before it in the register, and none comes
	// after: once the watch has passed the fence, the instances are known.
	if c.seen < p.rev {
		return
	}
	late := now - p.waitFrom - c.wait(p.region)
	for unit, t := range p.units {
		if late >= 0 && (late >= c.silence() || !c.outwaiting(p.region, unit, t.epoch)) {
			continue
		}
		if !t.cutWritten && !c.allDrained(p.region, unit, t.epoch) && !c.allGone(p.region) {
			return
		}
	}
	p.stage = stageCut
}

// cut lists where the last owner's epochs end, and writes it.
func (p *plan) cut(now time.Duration) {
	c := p.c
	left := 0
	for _, unit := range slices.Sorted(maps.Keys(p.units)) {
		t := p.units[unit]
		if t.cutWritten {
			continue
		}
		left++
		if !t.endsAsked {
			t.endsAsked = true
			p.list(unit, t)
		}
		if t.pendingAnswers == 0 && c.free(now, p.purpose("cut "+unit)) {
			p.writeCut(now, unit, t)
		}
	}
	if left > 0 || p.done {
		return
	}
	code, detail := ResultDone, "fenced; every answered write lies below the cut"
	for _, t := range p.units {
		if !t.cutAtEnd {
			code, detail = ResultLoss, "fenced; answered writes that no other region had applied, if there are any, are orphans"
		}
	}
	if p.cmd.Verb == VerbRetire {
		code, detail = ResultDone, fmt.Sprintf("region %s is retired: no region waits for it; after a return, geogate status at its own gateway says what it lacks", p.region)
	}
	p.answer(code, detail)
}

// list finds the cut of a unit. Where the region's instances have drained, or the
// logs are our own, it is the end: nothing is answered any more. Else it is the
// most that any other region has applied.
func (p *plan) list(unit string, t *unitFence) {
	c := p.c
	if c.allDrained(p.region, unit, t.epoch) {
		t.cutAtEnd = true
		t.ends = mergeExtents(t.ends, c.drainedEnds(p.region, unit, t.epoch))
	}
	if p.region == c.cfg.Region {
		t.cutAtEnd = true
		t.pendingAnswers++
		c.do(List{Unit: unit, Rev: t.rev, Ref: p.ref})
		return
	}
	// Never below what this region has published as applied.
	t.pendingAnswers++
	c.do(AskApplied{Unit: unit, Region: p.region, Ref: p.ref})
}

// planListed takes the ends that a plan has asked for.
func (c *Core) planListed(ev Listed) bool {
	for _, p := range c.plans {
		if t := p.units[ev.Unit]; t != nil && ev.Ref == p.ref {
			t.own = ev.Ends
			t.addEnds(ev.Ends, ev.OK)
			return true
		}
	}
	return false
}

func (c *Core) applied(_ time.Duration, ev Applied) {
	for _, p := range c.plans {
		if t := p.units[ev.Unit]; t != nil && p.ref == ev.Ref {
			t.addEnds(ev.Ends, ev.OK)
		}
	}
}

func (t *unitFence) addEnds(ends []Extent, ok bool) {
	t.pendingAnswers--
	if !ok {
		t.endsAsked = false // ask again
		return
	}
	t.ends = mergeExtents(t.ends, ends)
}

func (p *plan) writeCut(now time.Duration, unit string, t *unitFence) {
	c, u := p.c, p.c.units[unit]
	n := len(u.rec.Epochs)
	switch {
	case u.rec.State != UnitFenced || u.rec.Epoch != t.epoch:
		p.answer(ResultMoved, fmt.Sprintf("somebody let a region claim %s again before its cut was set: it is %s in epoch %d", unit, u.rec.State, u.rec.Epoch))
		return
	case n == 0 || u.rec.Epochs[n-1].Ended:
		t.cutWritten, t.cutAtEnd = true, n == 0 || !u.rec.Epochs[n-1].Applied // by another gateway's plan
		return
	}
	if !u.rec.Resolved() || !p.mayCut(u) {
		return // the watch is about to bring what it names, or what became of the own region
	}
	if t.next != nil && t.next.rev == u.rev {
		p.writePlaced(now, unit, t)
		return
	}
	if p.region == c.cfg.Region && p.pastEnd(now, unit, t, &u.rec.Epochs[n-1]) {
		return
	}
	next := u.rec
	next.Epochs = slices.Clone(u.rec.Epochs)
	last := &next.Epochs[n-1]
	// What was applied of an epoch may be nothing: a cut lies never below its start.
	last.Ended, last.Applied, last.Cut = true, !t.cutAtEnd, raise(t.ends, last.Start)
	last.CutAt = nil
	t.next = c.place(next, u.rev)
	p.writePlaced(now, unit, t)
}

// writePlaced writes the record with the cut once all that it names is stored.
func (p *plan) writePlaced(now time.Duration, unit string, t *unitFence) {
	if !p.c.store(now, unit, t.next.names) {
		return
	}
	p.c.writeUnit(now, p.purpose("cut "+unit), t.next.record, t.next.rev, func(_ time.Duration, _ uint64, ok bool) {
		t.cutWritten = t.cutWritten || ok
	})
}

// mostCutTries bounds how often a cut is asked after that the logs do not bear out: a broker
// may show an older end for a moment.
const mostCutTries = 20

// pastEnd tells whether the cut of a unit of the own region would lie past the end of a
// log, which no cut may: an instance has claimed it, or the epoch begins there.
func (p *plan) pastEnd(now time.Duration, unit string, t *unitFence, last *Tenure) bool {
	c := p.c
	wrong := pastEnds(unit, p.region, []Tenure{{Epoch: last.Epoch, Owner: p.region, Start: last.Start, Cut: t.ends}}, t.own)
	if len(wrong) == 0 {
		return false
	}
	t.endsAsked, t.ends = false, nil
	t.tries++
	c.notBefore[p.purpose("cut "+unit)] = now + retryLimit
	if t.tries > mostCutTries {
		p.answer(ResultInProgress, fmt.Sprintf("%s is fenced, and its cut is not written, because it would lie past the end of a log: %s; see geogate register repair --dry-run. An unfence lets the region claim the unit and sets the cut at the end of its log", unit, wrong[0]))
	}
	return true
}

// unfenceRegion lets the region hold leases again, whether it was fenced or not:
// that it was not is no more believed from a read than that it was.
func (p *plan) unfenceRegion(now time.Duration) {
	c, purpose := p.c, p.purpose("region")
	if !c.free(now, purpose) {
		return
	}
	if r := p.regionOf(); r.rec.away() {
		p.answer(ResultPrecondition, fmt.Sprintf("region %s %s", p.region, r.rec.notUp()))
		return
	}
	next, expect := c.nextRegion(p.region, p.cmd.Reason)
	was := next.State
	next.State, next.Plan = RegionUp, ""
	c.write(now, purpose, Write{Subject: RegionSubject(p.region), Data: encode(next), Guard: RegionSubject(p.region), Expect: expect}, 0,
		func(now time.Duration, seq uint64, ok bool) {
			if !ok {
				return
			}
			c.do(Broadcast{Subject: RegionSubject(p.region), Seq: seq, Data: encode(next)})
			detail := fmt.Sprintf("region %s may claim its own units again; the first claim may take %s", p.region, c.wait(p.region).Round(100*time.Millisecond))
			if was == RegionUp {
				detail = fmt.Sprintf("region %s was not fenced", p.region)
			}
			p.answer(ResultDone, detail)
		})
}

// unfenceUnit gives a unit back to its last owner.
func (p *plan) unfenceUnit(now time.Duration) {
	c, u := p.c, p.c.units[p.cmd.Unit]
	if !c.free(now, p.purpose("unit")) {
		return
	}
	region := c.regions[u.rec.Last]
	switch {
	case u.rec.Owner != "":
		p.answer(ResultDone, fmt.Sprintf("%s is not fenced: %s owns it in epoch %d", p.cmd.Unit, u.rec.Owner, u.rec.Epoch))
		return
	case region != nil && region.rec.State != RegionUp:
		p.answer(ResultPrecondition, fmt.Sprintf("region %s %s; its units are unfenced with it: geogate unfence --region %s", u.rec.Last, region.rec.notUp(), u.rec.Last))
		return
	case u.rec.State == UnitPreparing && u.rec.For == u.rec.Last:
		p.answer(ResultDone, fmt.Sprintf("%s may be claimed by %s already", p.cmd.Unit, u.rec.For))
		return
	}
	next := u.rec
	next.State, next.For, next.Scope, next.By, next.Reason = UnitPreparing, u.rec.Last, "", c.cfg.Region, p.cmd.Reason
	c.writeUnit(now, p.purpose("unit"), next, u.rev, func(now time.Duration, _ uint64, ok bool) {
		if ok {
			p.answer(ResultDone, fmt.Sprintf("%s may be claimed by %s again; that may take %s", p.cmd.Unit, next.For, c.wait(next.For).Round(100*time.Millisecond)))
		}
	})
}

// describe is the region or unit of a command, for people.
func (c Command) describe() string {
	if c.Verb == VerbRepair {
		return "the register"
	}
	if c.Unit != "" {
		return "unit " + c.Unit
	}
	return "region " + strings.TrimSpace(c.Region)
}
