package ownership

import (
	"maps"
	"slices"
	"time"

	"github.com/geogate/geogate/internal/event"
)

// Tokens are what an instance holds and knows at one moment, for readers on
// other goroutines. They are immutable. Whether a unit is held depends on the
// time besides.
type Tokens struct {
	// Until is when the lease ends, on the clock of Step.
	Until time.Duration
	// Live is the revision of the region's record that the lease depends on.
	Live uint64
	// Held are the epochs of the units that the instance has proven.
	Held map[string]event.Epoch
	// Units and Regions are the newest records known, with their revisions.
	Units   map[string]Known[UnitRecord]
	Regions map[string]Known[RegionRecord]
	// Heard is when which region's instances were heard of last.
	Heard map[string]Heard
	// Unconfirmed says what other instances have said of the register and it has not
	// shown; what that speaks against is not held. FalseRumours counts what was denied.
	Unconfirmed  []string
	FalseRumours uint64
	// TooLong says which records the register does not take because they are too long.
	TooLong []string
	// Lacking is what the region has not caught up with after its return; "" if it was not
	// returned.
	Lacking string
	// PastEnds are starts and cuts past the ends of the region's own logs.
	PastEnds []PastEnd
	// Regressed says why the register is not believed, "" while it is.
	Regressed string
	// WatchSilent tells that the watch, or the whole register, has been found silent.
	WatchSilent bool
	// SoftFences counts the times that the lease ran out though nobody took it;
	// SoftFenced tells that it is so now.
	SoftFences uint64
	SoftFenced bool
	region     string
	seen       uint64
	// What is rumoured of the own region and of units.
	heardRegion *RegionRecord
	heardUnits  map[string]Known[UnitRecord]
}

// Known is a record with its revision.
type Known[T any] struct {
	Revision uint64
	Record   T
	data     []byte // its bytes in the register
}

// Tokens gives what is held and known now.
func (c *Core) Tokens() *Tokens {
	t := &Tokens{
		Held: make(map[string]event.Epoch), Units: make(map[string]Known[UnitRecord]), Regions: make(map[string]Known[RegionRecord]),
		Heard: maps.Clone(c.heard), Regressed: c.distrust, WatchSilent: c.WatchSilent(), region: c.cfg.Region, seen: c.seen,
	}
	t.SoftFences, t.SoftFenced = c.SoftFences()
	t.PastEnds, t.TooLong, t.Lacking = c.pastEnds(), c.tooLongRecords(), c.catchUp.lacking
	t.Unconfirmed, t.FalseRumours = c.unconfirmed(), c.falseRumours
	for _, r := range c.rumours {
		if r.unit != nil {
			if t.heardUnits == nil {
				t.heardUnits = make(map[string]Known[UnitRecord])
			}
			t.heardUnits[r.unit.Unit] = Known[UnitRecord]{Revision: r.seq, Record: *r.unit}
		} else if r.region.Region == c.cfg.Region {
			t.heardRegion = r.region
		}
	}
	for unit, u := range c.units {
		t.Units[unit] = Known[UnitRecord]{u.rev, u.rec, u.data}
	}
	for region, r := range c.regions {
		t.Regions[region] = Known[RegionRecord]{r.rev, r.rec, r.data}
	}
	if c.distrust != "" || c.lease.rev == 0 || c.released {
		return t
	}
	t.Until, t.Live = c.lease.until, c.lease.rev
	for unit, p := range c.proofs {
		if p.after >= c.lease.seq {
			continue
		}
		if p.rev == c.lease.rev && p.mark <= c.savedMark {
			t.Held[unit] = p.epoch
		}
	}
	return t
}

// Grant gives the permission to write a unit at a moment, or ErrUnproven, or a
// *NotOwnerError.
func (t *Tokens) Grant(now time.Duration, unit string) (Grant, error) {
	if epoch, ok := t.Held[unit]; ok && now < t.Until {
		return Grant{Epoch: epoch, Live: t.Live}, nil
	}
	u, known := t.Units[unit]
	region, alive := t.Regions[t.region]
	// A client is told of a rumour: it is soon confirmed, or dropped.
	if heard, ok := t.heardUnits[unit]; ok {
		u, known = heard, true
	}
	if t.heardRegion != nil {
		region.Record, alive = *t.heardRegion, true
	}
	if t.Regressed != "" || !known {
		return Grant{}, ErrUnproven
	}
	r := u.Record
	refusal := &NotOwnerError{Unit: unit, Owner: r.Owner, Epoch: r.Epoch, State: r.State, By: r.By, Reason: r.Reason}
	switch {
	case alive && region.Record.State != RegionUp:
		// The units' records follow their region's within a moment; a client need not wait.
		if region.Record.away() {
			refusal.Owner, refusal.State, refusal.By, refusal.Reason = "", UnitFenced, region.Record.By, "region "+t.region+" "+region.Record.notUp()
		} else if r.Owner == t.region {
			refusal.Owner, refusal.State, refusal.By, refusal.Reason = "", UnitFenced, region.Record.By, region.Record.Reason
		}
		return Grant{}, refusal
	case r.Owner != "" && r.Owner != t.region:
		return Grant{}, refusal
	case r.State == UnitFenced && !(r.Scope == ScopeRegion && r.Last == t.region),
		r.State == UnitPreparing && r.For != t.region:
		return Grant{}, refusal
	}
	return Grant{}, ErrUnproven
}

// Holds tells whether what a grant gave is still held.
func (t *Tokens) Holds(now time.Duration, unit string, g Grant) bool {
	epoch, ok := t.Held[unit]
	return ok && now < t.Until && epoch == g.Epoch && t.Live == g.Live
}

// newest is the newest record of a subject of a region or unit that the register has
// shown, if it has. What is only rumoured is not passed on.
func (t *Tokens) newest(subject string) (rev uint64, data []byte) {
	for region, r := range t.Regions {
		if RegionSubject(region) == subject {
			return r.Revision, r.data
		}
	}
	for unit, u := range t.Units {
		if UnitSubject(unit) == subject {
			return u.Revision, u.data
		}
	}
	return 0, nil
}

// Outdates tells whether a table is older than the record of a unit that is known:
// it may lack a cut, and a retry would be answered with a write that the region
// itself has lost. The watch brings the record in a moment.
func (t *Tokens) Outdates(table *event.ValidityTable, unit string) bool {
	return table == nil || table.Revision < max(t.Units[unit].Revision, t.heardUnits[unit].Revision)
}

// watchLags tells whether a unit's record is known to which the watch has not come.
func (t *Tokens) watchLags() bool {
	for _, u := range t.Units {
		if u.Revision > t.seen {
			return true
		}
	}
	return false
}

// Revision is how far the register is known without a gap.
func (t *Tokens) Revision() uint64 { return t.seen }

// UnitNames are the units that the register knows, in order.
func (t *Tokens) UnitNames() []string { return slices.Sorted(maps.Keys(t.Units)) }
