package ownership

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/geogate/geogate/internal/event"
)

// How an instance comes to hold units, and ceases to.

// ours are the units that the region owns, owned last, or may claim, in order.
func (c *Core) ours() []string {
	set := make(map[string]struct{})
	for _, unit := range c.cfg.Home {
		set[unit] = struct{}{}
	}
	for unit, u := range c.units {
		if r := u.rec; r.Owner == c.cfg.Region || r.Last == c.cfg.Region || r.For == c.cfg.Region {
			set[unit] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(set))
}

// ensureRegion makes the own region's record, once in a deployment's life.
func (c *Core) ensureRegion(now time.Duration) {
	if c.regions[c.cfg.Region] != nil || !c.free(now, "region") {
		return
	}
	r := RegionRecord{Version: recordVersion, Region: c.cfg.Region, ID: c.cfg.ID, Live: 1, State: RegionUp, By: c.cfg.Region, Reason: "first start"}
	c.write(now, "region", Write{Subject: RegionSubject(r.Region), Data: encode(r), Guard: RegionSubject(r.Region)}, 0,
		func(time.Duration, uint64, bool) {})
}

// renew renews the lease on condition that the region's record is the one that is
// known. An answer proves that it was when the message was stored, which is not
// before it was first sent: so long the lease holds.
func (c *Core) renew(now time.Duration) {
	region := c.regions[c.cfg.Region]
	if region == nil || region.rec.State != RegionUp || c.name.claimed == 0 || now < c.renewAt || !c.free(now, "lease") ||
		c.rumoured(RegionSubject(c.cfg.Region)) {
		return
	}
	rev, first := region.rev, now
	r := c.leaseRecord(now, rev)
	w := Write{Subject: leaseSubject(r.Region, r.Instance), Data: encode(r), Guard: RegionSubject(r.Region), Expect: rev}
	c.write(now, "lease", w, now+2*c.cfg.Lease.Renew, func(now time.Duration, seq uint64, ok bool) {
		if !ok {
			c.drop()
			return
		}
		c.awaitedRenewals = append(c.awaitedRenewals, awaitedRenewal{seq, now})
		if c.seen >= seq {
			c.awaitedRenewals = c.awaitedRenewals[:len(c.awaitedRenewals)-1]
		}
		c.renewAt, c.name.written = first+c.cfg.Lease.Renew, max(c.name.written, seq)
		if c.regions[c.cfg.Region].rev == rev {
			c.lease = lease{rev: rev, seq: seq, until: first + c.cfg.Lease.hold()}
		}
		for _, p := range c.proofs {
			if p.after >= seq {
				c.renewAt = now // claimed while this renewal was on its way
			}
		}
	})
}

// leased tells whether the lease holds now.
func (c *Core) leased(now time.Duration) bool {
	region := c.regions[c.cfg.Region]
	return c.lease.rev != 0 && now < c.lease.until && region.rev == c.lease.rev && region.rec.State == RegionUp
}

// prove writes a unit's record that names this region as owner once more, or for
// the first time, on condition of the revision that is known. Only the
// acknowledgement makes the instance hold the unit.
func (c *Core) prove(now time.Duration, unit string) {
	purpose := "unit " + unit
	u, rev := c.units[unit], c.lease.rev
	if !c.leased(now) || c.proofs[unit].rev == rev || !c.free(now, purpose) || c.rumoured(UnitSubject(unit)) {
		return
	}
	var next UnitRecord
	var expect uint64
	switch {
	case u == nil && slices.Contains(c.cfg.Home, unit):
		// Nobody ever wrote the unit: its first interval begins at offset 0.
		epoch := event.FirstEpoch(c.cfg.ID)
		next = UnitRecord{Unit: unit, Epoch: epoch, Owner: c.cfg.Region, State: UnitActive, Epochs: []Tenure{{Epoch: epoch, Owner: c.cfg.Region}}}
	case u != nil && u.rec.State == UnitActive && u.rec.Owner == c.cfg.Region:
		next, expect = u.rec, u.rev
	default:
		return
	}
	next.Last, next.Live = c.cfg.Region, c.regions[c.cfg.Region].rec.Live
	next.Incarnation++
	next.By, next.Reason = c.cfg.Region, ""
	c.own(now, purpose, next, expect)
}

// own writes a record that makes the region the owner.
func (c *Core) own(now time.Duration, purpose string, next UnitRecord, expect uint64) {
	rev := c.lease.rev
	u := c.units[next.Unit]
	fresh := u == nil || u.rec.Owner == ""
	next.Claim = c.nextID()
	c.writeUnit(now, purpose, next, expect, func(now time.Duration, seq uint64, ok bool) {
		// The proof counts for the lease under which it was sent, and only if
		// nothing newer has said otherwise.
		u := c.units[next.Unit]
		if ok && c.lease.rev == rev && u.rec.State == UnitActive && u.rec.Owner == c.cfg.Region && u.rec.Epoch == next.Epoch && !c.rumoured(UnitSubject(next.Unit)) {
			c.changes++
			p := proof{epoch: next.Epoch, rev: rev, mark: c.markOf(next.Unit, next.Epoch), after: expect}
			if fresh {
				p.after = seq
				// What was listed for the claim is what its start is.
				c.inspected[next.Unit] = inspection{rev: seq, at: max(now, 1), answered: true}
			}
			if p.after >= c.lease.seq {
				c.renewAt = now
			}
			c.proofs[next.Unit] = p
		}
	})
}

// markOf is the version of the mark that will hold, or holds, an epoch.
func (c *Core) markOf(unit string, epoch event.Epoch) uint64 {
	if c.mark.Epochs[unit] >= epoch && c.mark.Created == c.created {
		return c.markVersion
	}
	return c.markVersion + 1
}

// writeUnit writes the next record of a unit, chained to the one before. One that
// takes the unit from its owner is broadcast at once.
func (c *Core) writeUnit(now time.Duration, purpose string, next UnitRecord, expect uint64, then func(now time.Duration, seq uint64, ok bool)) {
	next.Prev, next.PrevHash = expect, ""
	if next.Version == 0 {
		next.Version = recordVersion
	}
	if u := c.units[next.Unit]; u != nil && u.rev == expect {
		next.PrevHash = u.hash
	}
	c.markRetired(&next, expect)
	subject, data := UnitSubject(next.Unit), encode(next)
	c.write(now, purpose, Write{Subject: subject, Data: data, Guard: subject, Expect: expect}, 0, func(now time.Duration, seq uint64, ok bool) {
		if ok && next.Owner == "" {
			// What was stored, which need not be the newest that is known by now.
			c.do(Broadcast{Subject: subject, Seq: seq, Data: data})
		}
		then(now, seq, ok)
	})
}

// claimable tells whether the region may take a unit that nobody owns: one that
// was given to it, or its own of which only the region was fenced and is not any
// more.
func (c *Core) claimable(u *UnitRecord) bool {
	region := c.regions[c.cfg.Region]
	if region == nil || region.rec.State != RegionUp || u.Owner != "" {
		return false
	}
	return u.State == UnitPreparing && u.For == c.cfg.Region ||
		u.State == UnitFenced && u.Scope == ScopeRegion && u.Last == c.cfg.Region
}

// wait is W for the leases of a region: the longest that any of its instances
// believes in one, if that is longer than by the own times. It is complete once the
// watch has passed the write that made the leases void.
func (c *Core) wait(region string) time.Duration {
	w := c.cfg.Lease.Wait()
	c.eachLife(region, func(_ instanceName, _ string, l life) bool {
		if !l.gone {
			w = max(w, outlast(l.hold))
		}
		return true
	})
	return w
}

// claim takes a unit back: it makes the leases of the last owner's region void by
// a write of its record, waits until the last of them has run out, lists where
// the logs end, and claims.
func (c *Core) claim(now time.Duration, unit string) {
	u := c.units[unit]
	if u == nil || !c.claimable(&u.rec) || !u.rec.Resolved() || c.rumoured(UnitSubject(unit)) {
		return
	}
	last := u.rec.Last
	if b := c.bumps[last]; b.rev <= u.rev {
		c.bump(now, "bump "+last, last, "claim of "+unit, func(time.Duration, uint64) {})
		return
	} else if c.seen < b.rev || now < b.at+c.wait(last) {
		return
	}
	if !c.leased(now) || !c.free(now, "unit "+unit) {
		return
	}
	l := c.starts[unit]
	if l.rev != u.rev || !l.asked {
		// Listed only now: a record that an earlier owner stored while it still
		// could must lie below the start.
		c.starts[unit] = listing{rev: u.rev, asked: true}
		c.do(List{Unit: unit, Rev: u.rev})
		return
	}
	if l.ends == nil {
		return
	}
	if l.next != nil {
		c.ownPlaced(now, unit, l.next)
		return
	}
	if wrong := pastEnds(unit, c.cfg.Region, u.rec.Epochs, l.ends); len(wrong) > 0 {
		// An epoch that began there, behind what is in no log, would have answered
		// writes that count for nothing.
		delete(c.starts, unit)
		c.inspected[unit] = inspection{rev: u.rev, at: now, answered: true, wrong: wrong}
		c.notBefore["unit "+unit] = now + inspectAgain
		c.changes++
		return
	}
	next := u.rec
	next.Epoch = nextEpoch(u.rec.Epoch, c.cfg.ID)
	next.Owner, next.State, next.Last, next.For, next.Scope = c.cfg.Region, UnitActive, c.cfg.Region, "", ""
	next.Live, next.Incarnation = c.regions[c.cfg.Region].rec.Live, 1
	next.By, next.Reason = c.cfg.Region, ""
	next.Epochs = slices.Clone(u.rec.Epochs)
	start := mergeExtents(nil, l.ends) // none of the cuts before lies past it
	if n := len(next.Epochs); n > 0 && !next.Epochs[n-1].Ended {
		// The fence was undone before it had set the cut. The last owner is this
		// region, and it has nothing in flight: its end is the cut.
		next.Epochs[n-1].Ended, next.Epochs[n-1].Cut = true, start
	}
	next.Epochs = append(next.Epochs, Tenure{Epoch: next.Epoch, Owner: c.cfg.Region, Start: start})
	l.next = c.place(next, u.rev)
	c.starts[unit] = l
	c.ownPlaced(now, unit, l.next)
}

// ownPlaced claims with a record once all that it names is stored.
func (c *Core) ownPlaced(now time.Duration, unit string, p *placing) {
	if !c.store(now, unit, p.names) {
		return
	}
	delete(c.starts, unit)
	p.record.Live = c.regions[c.cfg.Region].rec.Live
	c.own(now, "unit "+unit, p.record, p.rev)
}

// inspection is what was found when the epochs of a unit were held against its logs.
type inspection struct {
	rev      uint64 // of the record that was looked at
	at       time.Duration
	answered bool
	wrong    []PastEnd
}

const (
	// inspectAgain is the time between two looks at a unit of which something is wrong.
	inspectAgain = 5 * time.Second
	// inspectRef is the Ref of a [List] for an inspection.
	inspectRef = 1<<64 - 1
)

// inspect holds the epochs of a unit that the region owns against where its logs end, once
// for each revision of its record: a start or cut past the end stops the partition, and
// an operator has to know.
func (c *Core) inspect(now time.Duration, unit string) {
	u, i := c.units[unit], c.inspected[unit]
	switch {
	case u == nil || u.rec.Owner != c.cfg.Region, !u.rec.Resolved(), !u.rec.measured():
		return
	case i.rev == u.rev && i.answered && len(i.wrong) == 0, i.at != 0 && now < i.at+inspectAgain:
		return
	}
	c.inspected[unit] = inspection{rev: u.rev, at: max(now, 1), wrong: i.wrong}
	c.do(List{Unit: unit, Rev: u.rev, Ref: inspectRef})
}

// measured tells whether there is an offset in the record.
func (u *UnitRecord) measured() bool {
	return slices.ContainsFunc(u.Epochs, func(t Tenure) bool { return len(t.Start)+len(t.Cut) > 0 })
}

// inspectListed takes the ends for an inspection.
func (c *Core) inspectListed(ev Listed) {
	u, i := c.units[ev.Unit], c.inspected[ev.Unit]
	if !ev.OK || u == nil || u.rev != ev.Rev || i.rev != ev.Rev {
		return // looked at again later
	}
	wrong := pastEnds(ev.Unit, c.cfg.Region, u.rec.Epochs, ev.Ends)
	if len(wrong) > 0 || len(i.wrong) > 0 {
		c.changes++
	}
	i.answered, i.wrong = true, wrong
	c.inspected[ev.Unit] = i
}

// pastEnds are all that are known of the present records.
func (c *Core) pastEnds() (list []PastEnd) {
	for _, unit := range slices.Sorted(maps.Keys(c.inspected)) {
		if i := c.inspected[unit]; c.units[unit] != nil {
			list = append(list, i.wrong...)
		}
	}
	return list
}

func (c *Core) listed(now time.Duration, ev Listed) {
	if ev.Ref == inspectRef {
		c.inspectListed(ev)
		return
	}
	for _, r := range c.repairs {
		if r.listed(ev) {
			return
		}
	}
	if c.planListed(ev) {
		return
	}
	l := c.starts[ev.Unit]
	if l.rev != ev.Rev || !l.asked {
		return
	}
	if !ev.OK {
		delete(c.starts, ev.Unit)
		c.notBefore["unit "+ev.Unit] = now + retryLimit
		return
	}
	l.ends = append([]Extent{}, ev.Ends...)
	c.starts[ev.Unit] = l
}

// bump writes a region's record with the next liveness epoch and the same state:
// every lease that hangs on the one before ends within W of the acknowledgement.
func (c *Core) bump(now time.Duration, purpose, region, reason string, then func(now time.Duration, seq uint64)) {
	if !c.free(now, purpose) {
		return
	}
	next, expect := c.nextRegion(region, reason)
	c.write(now, purpose, Write{Subject: RegionSubject(region), Data: encode(next), Guard: RegionSubject(region), Expect: expect}, 0,
		func(now time.Duration, seq uint64, ok bool) {
			if ok {
				c.bumps[region] = bump{rev: seq, at: now}
				c.do(Broadcast{Subject: RegionSubject(region), Seq: seq, Data: encode(next)})
				then(now, seq)
			}
		})
}

// nextRegion is a region's record with the next liveness epoch, and the revision
// that it follows.
func (c *Core) nextRegion(region, reason string) (next RegionRecord, expect uint64) {
	id, _ := c.cfg.Regions.ID(region)
	next = RegionRecord{Region: region, ID: id, State: RegionUp}
	if r := c.regions[region]; r != nil {
		next, expect = r.rec, r.rev
	}
	next.Live++
	next.By, next.Reason = c.cfg.Region, reason
	return *next.seal(), expect
}

// drain tells, once for each fence, that the instance holds nothing of a unit of
// this region any more.
func (c *Core) drain(now time.Duration, unit string) {
	u := c.units[unit]
	if u == nil || u.rec.Last != c.cfg.Region || u.rec.State != UnitFenced || c.settled[unit] >= u.rec.Epoch || !c.free(now, "drain "+unit) {
		return
	}
	if !c.alone(now) {
		return // what it says, it says for the lives that it has ended, too
	}
	if n := len(u.rec.Epochs); n > 0 && u.rec.Epochs[n-1].Ended {
		return
	}
	c.settled[unit] = u.rec.Epoch
	c.do(Settle{Unit: unit, Epoch: u.rec.Epoch})
}

func (c *Core) hasSettled(now time.Duration, ev Settled) {
	if c.settled[ev.Unit] != ev.Epoch {
		return
	}
	if !ev.OK {
		delete(c.settled, ev.Unit)
		c.notBefore["drain "+ev.Unit] = now + retryLimit
		return
	}
	d := &draining{Settled: ev}
	if len(ev.Ends) > 0 && len(encode(ev.Ends)) > c.inline() {
		d.names = split(ev.Unit, ev.Epoch, ev.Ends)
	}
	c.draining[ev.Unit] = d
}

// writeDrained tells where the logs of a unit ended when everything was dropped, once that
// is stored if it is long.
func (c *Core) writeDrained(now time.Duration, unit string) {
	ev := c.draining[unit]
	if ev == nil {
		return
	}
	if u := c.units[unit]; u.rec.Epoch > ev.Epoch {
		delete(c.draining, unit) // nobody waits for it any more
		return
	}
	if !c.store(now, unit, ev.names) {
		return
	}
	r := DrainedRecord{Version: recordVersion, Region: c.cfg.Region, Instance: c.cfg.Instance, Life: c.cfg.Life, Unit: ev.Unit, Epoch: ev.Epoch, Ends: ev.Ends}
	if n := len(ev.names); n > 0 {
		r.Version, r.Ends, r.EndsAt = refsVersion, nil, &ExtentsRef{Sum: ev.names[0].Sum, Parts: n}
	}
	delete(c.draining, unit)
	c.write(now, fmt.Sprintf("drained %s %d", ev.Unit, ev.Epoch), Write{Subject: drainedSubject(r.Region, r.Instance, r.Unit), Data: encode(r)}, 0,
		func(time.Duration, uint64, bool) {})
}

// release gives everything up and says so, so that nobody waits for this
// instance.
func (c *Core) release(now time.Duration) {
	c.released = true
	c.changes++
	c.drop()
	c.quit("lease")
	c.sayGone(now)
}

// Released tells whether the last word of an instance that stops has been stored, or
// need not be.
func (c *Core) Released() bool { return c.gone }

// Regressed says why the register is not believed any more, "" while it is.
func (c *Core) Regressed() string { return c.distrust }

// Changes rises whenever what is known of regions or units, or what is held, may
// have changed.
func (c *Core) Changes() uint64 { return c.changes }
