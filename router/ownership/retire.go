package ownership

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// A region that is fenced may come back, and fence others with cuts at what it has applied;
// so the others wait for what it promises to have folded. One that is retired may not until
// it is returned, so nobody waits for it.
//
// That a region is retired stands in its own record, and then in the record of each unit,
// which is what readers of logs go by. A region that is retired sets no cut in a record
// that says so: a cut is written on condition of the unit's record, and only by an
// instance that the watch has brought as far as that. So of a cut that a region set before
// it was retired, all know when they know that it is; and after that there is none.
//
// Whether a unit's record names a region is changed only by who has seen the region's
// record as far as the unit's. A region's return therefore writes the record of every unit
// once more: what somebody is about to write who has not heard of the return is refused.
// The region itself makes sure that all of them were written, before it asks what the others
// have settled without it and catches up with that.

// The verbs of a region's retirement.
const (
	VerbRetire Verb = "retire"
	VerbReturn Verb = "return"
)

const (
	// RegionRetired is a region that is fenced, and that nobody waits for.
	RegionRetired RegionState = "RETIRED"
	// RegionReturned is a region that is fenced, that others wait for again, and that has
	// yet to catch up with what they have settled without it: until then it is not
	// unfenced, and fences nobody.
	RegionReturned RegionState = "RETURNED"
)

// retireVersion is the version of a record that says that a region is retired. Earlier
// versions do not read it.
const retireVersion = 3

// Retirement is who retired a region, when and why.
type Retirement struct {
	At     int64  `json:"at"` // Unix milliseconds, by the clock of the gateway that was asked
	By     string `json:"by"` // region
	Reason string `json:"reason,omitempty"`
}

// away tells whether the region is retired, or has not caught up since.
func (r *RegionRecord) away() bool { return r.State == RegionRetired || r.State == RegionReturned }

// seal gives the record the version that its state needs.
func (r *RegionRecord) seal() *RegionRecord {
	r.Version = recordVersion
	if r.away() {
		r.Version = retireVersion
	} else {
		r.Retired = nil
	}
	return r
}

// away tells whether the own region is retired, or has not caught up since.
func (c *Core) away() bool {
	r := c.regions[c.cfg.Region]
	return r != nil && r.rec.away()
}

// retired are the regions that are retired, in order.
func (c *Core) retired() (names []string) {
	for _, name := range slices.Sorted(maps.Keys(c.regions)) {
		if c.regions[name].rec.State == RegionRetired {
			names = append(names, name)
		}
	}
	return names
}

// markRetired has the next record of a unit name the regions that are retired, if what is
// known of regions is as new as the record that it follows. The first record of a unit
// names none: there is nothing that would tell who has not heard of a return.
func (c *Core) markRetired(next *UnitRecord, expect uint64) {
	if expect > 0 && c.seen >= expect {
		next.Retired = c.retired()
	}
	next.seal()
}

// seal gives the record the version that it needs for the regions that it names.
func (u *UnitRecord) seal() {
	switch {
	case len(u.Retired) > 0:
		u.Version = retireVersion
	case u.Version == retireVersion:
		u.Version = refsVersion
	}
}

// updateRetired writes the record of a unit that the region owns again, if it does not name
// the regions that are retired: its first record names none.
func (c *Core) updateRetired(now time.Duration, unit string) {
	u, purpose := c.units[unit], "unit "+unit
	if u == nil || u.rec.Owner != c.cfg.Region || !c.leased(now) || c.seen < u.rev || slices.Equal(u.rec.Retired, c.retired()) || !c.free(now, purpose) {
		return
	}
	c.writeUnit(now, purpose, u.rec, u.rev, func(time.Duration, uint64, bool) {})
}

// ownAway refuses the retirement of the own region, and, while that is retired or has not
// caught up, everything but a return. It tells whether it has answered.
func (p *plan) ownAway() bool {
	c := p.c
	switch {
	case p.cmd.Verb == VerbRetire && p.cmd.Region == c.cfg.Region:
		p.answer(ResultPrecondition, fmt.Sprintf("region %s cannot be retired by its own gateways; ask a gateway of a region that stays", c.cfg.Region))
	case c.away() && p.cmd.Verb != VerbReturn:
		p.answer(ResultPrecondition, fmt.Sprintf("this gateway's own region %s %s; ask a gateway of another region", c.cfg.Region, c.regions[c.cfg.Region].rec.notUp()))
	}
	return p.done
}

// notUp says why a region may hold no leases, and what to do.
func (r *RegionRecord) notUp() string {
	switch r.State {
	case RegionRetired:
		return "is retired: no region waits for it, and it neither writes nor fences until it is returned (geogate region return " + r.Region + ")"
	case RegionReturned:
		return "was retired, has been returned, and has not yet caught up with what the others have settled without it"
	case RegionFenced:
		return "is fenced"
	}
	return "is not fenced"
}

// Away says, for people, why a region that is retired, or was, takes no writes, and what
// to do; lacking is what it has not caught up with.
func (r *RegionRecord) Away(lacking string) string {
	if r.State == RegionReturned {
		return fmt.Sprintf("the region was retired, has been returned, and takes no writes until it has caught up: %s", cmp.Or(lacking, "it has not been checked yet"))
	}
	return fmt.Sprintf("the region was retired by %s on %s (%s): it takes no writes, and no other region waits for it; to let it take part again, run geogate region return %s",
		r.Retired.By, time.UnixMilli(r.Retired.At).UTC().Format(time.RFC3339), r.Retired.Reason, r.Region)
}

// regionOf is what is known of the region of a plan.
func (p *plan) regionOf() *known[RegionRecord] {
	if r := p.c.regions[p.region]; r != nil {
		return r
	}
	return &known[RegionRecord]{rec: RegionRecord{Region: p.region, State: RegionUp}}
}

// retireRegion writes that the region is retired, on condition that it is fenced and
// everything that it ever owned is cut. One that is retired already may have been so by a
// plan that stopped half-way: it goes on from there.
func (p *plan) retireRegion(now time.Duration) {
	c, r := p.c, p.regionOf()
	purpose := p.purpose("region")
	switch {
	case r.rec.State == RegionRetired:
		p.rev, p.id, p.stage = r.rev, r.rec.Plan, stageUnits
		return
	case r.rec.State == RegionUp:
		p.answer(ResultPrecondition, fmt.Sprintf("region %s is not fenced; first, while its gateway runs if it does: geogate fence --region %s --reason TEXT", p.region, p.region))
		return
	case c.seen < r.rev || !c.free(now, purpose):
		return
	}
	if unit := c.uncut(p.region); unit != "" {
		p.answer(ResultPrecondition, fmt.Sprintf("unit %s of region %s has an owner or no cut yet; first: geogate fence --region %s --reason TEXT", unit, p.region, p.region))
		return
	}
	if old := c.cannotRead(retireVersion, p.region); old != "" {
		p.answer(ResultPrecondition, fmt.Sprintf("instance %s may run a version that does not know of retired regions; bring every instance of the regions that stay to this version first", old))
		return
	}
	next, expect := c.nextRegion(p.region, p.cmd.Reason)
	next.State, next.Plan = RegionRetired, c.nextID()
	next.Retired = &Retirement{At: p.cmd.At, By: c.cfg.Region, Reason: p.cmd.Reason}
	p.writeRegion(now, &next, expect, func(seq uint64) {
		p.rev, p.id, p.waitFrom, p.stage = seq, next.Plan, now, stageUnits
	})
}

// writeRegion writes the region's next record and tells everybody; then is called if it was
// stored.
func (p *plan) writeRegion(now time.Duration, next *RegionRecord, expect uint64, then func(seq uint64)) {
	data, subject := encode(next.seal()), RegionSubject(p.region)
	p.c.write(now, p.purpose("region"), Write{Subject: subject, Data: data, Guard: subject, Expect: expect}, 0, func(_ time.Duration, seq uint64, ok bool) {
		if ok {
			p.c.do(Broadcast{Subject: subject, Seq: seq, Data: data})
			then(seq)
		}
	})
}

// uncut is a unit of a region that has an owner, or of whose last epoch the cut is not
// known; "" if there is none.
func (c *Core) uncut(region string) string {
	for _, unit := range slices.Sorted(maps.Keys(c.units)) {
		if u := c.units[unit]; u.rec.Last == region && !ended(&u.rec) {
			return unit
		}
	}
	return ""
}

// cannotRead is an instance of any region but one that may run and does not read records of
// a version; "" if there is none.
func (c *Core) cannotRead(version int, but string) (found string) {
	for _, r := range c.cfg.Regions.Regions() {
		if r.Name == but {
			continue
		}
		c.eachLife(r.Name, func(name instanceName, _ string, l life) bool {
			if !l.gone && l.reads < version {
				found = cmp.Or(found, name.region+"/"+name.instance)
			}
			return true
		})
	}
	return found
}

// retireUnits has every unit's record say that the region is retired. Those of the region
// are fenced again with that, so that no claim from before is stored any more.
func (p *plan) retireUnits(now time.Duration) {
	c, r := p.c, p.regionOf()
	if c.seen < p.rev {
		return
	}
	if r.rec.State != RegionRetired {
		p.answer(ResultMoved, fmt.Sprintf("another command has changed region %s meanwhile: it %s", p.region, r.rec.notUp()))
		return
	}
	waiting := false
	for _, unit := range slices.Sorted(maps.Keys(c.units)) {
		u := c.units[unit]
		named, own := slices.Contains(u.rec.Retired, p.region), u.rec.Last == p.region
		if named && (!own || p.fenced(unit) || u.rec.State == UnitFenced && ended(&u.rec)) {
			continue
		}
		if waiting = true; c.seen < u.rev || !c.free(now, p.purpose(unit)) {
			continue
		}
		if own {
			p.fenceUnit(now, unit)
		} else {
			c.rewriteUnit(now, p.purpose(unit), unit, "retirement of region "+p.region)
		}
	}
	if !waiting {
		p.stage = stageTouch
	}
}

// rewriteUnit writes the record of a unit as it is, but for the regions that it names as
// retired.
func (c *Core) rewriteUnit(now time.Duration, purpose, unit, why string) {
	u := c.units[unit]
	next := u.rec
	next.By, next.Reason = c.cfg.Region, why
	c.writeUnit(now, purpose, next, u.rev, func(time.Duration, uint64, bool) {})
}

// returnRegion writes that the region is waited for again.
func (p *plan) returnRegion(now time.Duration) {
	c, r := p.c, p.regionOf()
	switch {
	case r.rec.State == RegionReturned:
		p.rev, p.stage = r.rev, stageUnits
		return
	case r.rec.State != RegionRetired:
		p.answer(ResultPrecondition, fmt.Sprintf("region %s is not retired: it %s", p.region, r.rec.notUp()))
		return
	case !c.free(now, p.purpose("region")):
		return
	}
	next, expect := c.nextRegion(p.region, p.cmd.Reason)
	next.State, next.Plan = RegionReturned, c.nextID()
	p.writeRegion(now, &next, expect, func(seq uint64) { p.rev, p.stage = seq, stageUnits })
}

// returnUnits writes the record of every unit once more.
func (p *plan) returnUnits(now time.Duration) {
	c, r := p.c, p.regionOf()
	switch {
	case c.seen < p.rev:
		return
	case r.rec.State == RegionRetired || r.rec.State == RegionUp:
		p.answer(ResultMoved, fmt.Sprintf("another command has changed region %s meanwhile: it %s", p.region, r.rec.notUp()))
		return
	}
	if c.rewriteOlder(now, p.purpose, p.rev, p.region) {
		p.answer(ResultDone, fmt.Sprintf("region %s is fenced, and waited for again; once it has caught up (geogate status): geogate unfence --region %s", p.region, p.region))
	}
}

// rewriteOlder writes every unit's record once more that is older than a region's return, or
// still names it as retired, and tells whether there is none any more.
func (c *Core) rewriteOlder(now time.Duration, purpose func(string) string, rev uint64, region string) (done bool) {
	done = true
	for _, unit := range slices.Sorted(maps.Keys(c.units)) {
		u := c.units[unit]
		if u.rev > rev && !slices.Contains(u.rec.Retired, region) {
			continue
		}
		if done = false; c.seen >= u.rev && c.free(now, purpose(unit)) {
			c.rewriteUnit(now, purpose(unit), unit, "return of region "+region)
		}
	}
	return done
}

// catchUp is how far a region that was returned has come.
type catchUp struct {
	rev     uint64 // of the region's record
	asked   bool
	lacking string // what it has not caught up with
}

// rejoined is the reason in the record of a region that has caught up after its return.
const rejoined = "caught up after its return"

// catchUpAgain is the least time between two checks whether the region has caught up.
const catchUpAgain = 2 * time.Second

// rejoin has the own region, if it was returned, catch up with what the others have settled
// without it; then it is fenced like any other.
func (c *Core) rejoin(now time.Duration) {
	r := c.regions[c.cfg.Region]
	if r == nil || r.rec.State != RegionReturned {
		if c.catchUp != (catchUp{}) {
			c.catchUp = catchUp{}
			c.changes++
		}
		return
	}
	purpose := func(unit string) string { return "rejoin " + unit }
	if c.seen < r.rev || !c.rewriteOlder(now, purpose, r.rev, c.cfg.Region) {
		return
	}
	if c.catchUp.rev != r.rev {
		c.catchUp = catchUp{rev: r.rev, lacking: "it has not been checked yet"}
	}
	if !c.catchUp.asked && c.free(now, purpose("")) {
		c.catchUp.asked = true
		c.do(AskCaughtUp{Rev: r.rev})
	}
}

// caughtUp takes what the region's seats say, and writes that the region is fenced like any
// other, if they have caught up.
func (c *Core) caughtUp(now time.Duration, ev CaughtUp) {
	r, purpose := c.regions[c.cfg.Region], "rejoin "
	if r == nil || r.rev != ev.Rev || !c.catchUp.asked || c.catchUp.rev != ev.Rev {
		return
	}
	c.catchUp.asked = false
	c.notBefore[purpose] = now + catchUpAgain
	if c.catchUp.lacking != ev.Lacking {
		c.catchUp.lacking = ev.Lacking
		c.changes++
	}
	if ev.Lacking != "" || c.opByPurpose[purpose] != nil {
		return
	}
	next, expect := c.nextRegion(c.cfg.Region, rejoined)
	next.State, next.Plan = RegionFenced, ""
	subject := RegionSubject(c.cfg.Region)
	c.write(now, purpose, Write{Subject: subject, Data: encode(next.seal()), Guard: subject, Expect: expect}, 0, func(time.Duration, uint64, bool) {})
}

// mayCut tells whether a plan may set the cut of a unit: what became of the own region until
// the unit's record was written is known here, and others wait for what it promises.
func (p *plan) mayCut(u *known[UnitRecord]) bool {
	return p.c.seen >= u.rev && !p.c.away() && !slices.Contains(u.rec.Retired, p.c.cfg.Region)
}

// advanceRetirement goes on with a plan of a retirement or a return.
func (p *plan) advanceRetirement(now time.Duration) {
	switch {
	case p.cmd.Verb == VerbReturn && p.stage == stageRegion:
		p.returnRegion(now)
	case p.cmd.Verb == VerbReturn:
		p.returnUnits(now)
	case p.stage == stageRegion:
		p.retireRegion(now)
	case p.stage == stageUnits:
		p.retireUnits(now)
	case p.stage == stageTouch:
		p.touch(now)
	case p.stage == stageDrain:
		p.awaitDrained(now)
	case p.stage == stageCut:
		p.cut(now)
	}
}

// holdsRegion is the state in which a plan keeps its region while it takes the units.
func (p *plan) holdsRegion() RegionState {
	if p.cmd.Verb == VerbRetire {
		return RegionRetired
	}
	return RegionFenced
}
