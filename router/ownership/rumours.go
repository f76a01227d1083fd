package ownership

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/geogate/geogate/internal/event"
)

// What another instance says of the register is a rumour. One that is newer than what
// is known stops whatever it speaks against, at once, and is asked after. It becomes
// known when the register shows it, never before: it is passed on to nobody. What a
// register that answers does not show within the patience is dropped, unless the
// region's own Kafka has a copy of it: then the register has forgotten. A register that
// does not answer neither confirms nor denies, and what was stopped stays so.

const (
	// rumourPatience is how long the register may take to show what is rumoured.
	rumourPatience = 5 * time.Second
	// mistrustTime is how long rumours are not listened to after a false one: they
	// only make stopping faster, and who tells false ones must not stop a region again
	// and again.
	mistrustTime = time.Minute
	// mostRumours bounds what is asked after at a time.
	mostRumours = 256
)

// Memory is what the copy of the register in the region's own Kafka has seen.
type Memory struct {
	Epochs map[string]event.Epoch // the highest of each unit
	Live   map[string]uint64      // the highest liveness epoch of each region
	// Regions are the newest records of regions, by liveness epoch.
	Regions map[string]RegionRecord
	Last    uint64 // the highest revision
	// Units are the newest records, as they are in the register, and Extents what they name.
	Units   map[string]Copied
	Extents ExtentSets
	// Abandoned: the region has given the register up, and nothing came after that.
	Abandoned bool
}

// join takes in what another memory has seen besides.
func (m *Memory) join(o Memory) {
	m.Epochs, m.Live = maps.Clone(m.Epochs), maps.Clone(m.Live)
	if m.Epochs == nil {
		m.Epochs = make(map[string]event.Epoch)
	}
	if m.Live == nil {
		m.Live = make(map[string]uint64)
	}
	for unit, e := range o.Epochs {
		m.Epochs[unit] = max(m.Epochs[unit], e)
	}
	for region, live := range o.Live {
		m.Live[region] = max(m.Live[region], live)
	}
	m.Last = max(m.Last, o.Last)
	m.Regions = maps.Clone(m.Regions)
	for _, r := range o.Regions {
		m.TakeRegion(&r)
	}
	extents := m.Extents
	m.Extents = ExtentSets{} // the other one's is not touched
	m.Extents.join(&extents)
	m.Extents.join(&o.Extents)
	m.Units = maps.Clone(m.Units)
	for unit, c := range o.Units {
		m.takeCopy(unit, c)
	}
}

// rumour is what an instance has said of a record; one of unit and region is set.
type rumour struct {
	seq    uint64
	unit   *UnitRecord
	region *RegionRecord
	heard  time.Duration
	askAt  time.Duration // when to ask the register next
	denied bool          // the register answered after the patience, and does not show it
}

// epoch is the unit's or the region's.
func (r *rumour) epoch() uint64 {
	if r.region != nil {
		return r.region.Live
	}
	return uint64(r.unit.Epoch)
}

// parseRumour reads a rumour; ok is false for what can be none of the register.
func (c *Core) parseRumour(ev Seen) (r rumour, ok bool) {
	r = rumour{seq: ev.Seq}
	if strings.HasPrefix(ev.Subject, subjectRegion) {
		rec, err := decode[RegionRecord](ev.Data)
		r.region = &rec
		id, known := c.cfg.Regions.ID(rec.Region)
		return r, err == nil && known && id == rec.ID && RegionSubject(rec.Region) == ev.Subject
	}
	rec, err := decode[UnitRecord](ev.Data)
	r.unit = &rec
	return r, err == nil && rec.Unit != "" && UnitSubject(rec.Unit) == ev.Subject
}

// hear takes a rumour.
func (c *Core) hear(now time.Duration, ev Seen) {
	r, ok := c.parseRumour(ev)
	old := c.rumours[ev.Subject]
	if !ok || now < c.mistrustUntil || c.shown(&r) || c.contradicted(&r) {
		return
	}
	if old == nil && len(c.rumours) >= mostRumours || old != nil && r.seq <= old.seq && r.epoch() <= old.epoch() {
		return
	}
	r.heard, r.askAt = now, now
	if old != nil {
		r.heard = old.heard // what follows gives a false one no more time
	}
	c.rumours[ev.Subject] = &r
	c.changes++
	switch {
	case r.region != nil && r.region.Region == c.cfg.Region:
		c.drop()
		c.quit("lease")
	case r.unit != nil && !(r.unit.State == UnitActive && r.unit.Owner == c.cfg.Region && r.unit.Epoch == c.proofs[r.unit.Unit].epoch):
		delete(c.proofs, r.unit.Unit)
	}
}

// known is the epoch that the register has shown of what a rumour is about, and the
// revision of that.
func (c *Core) known(r *rumour) (epoch, rev uint64) {
	if r.region != nil {
		if k := c.regions[r.region.Region]; k != nil {
			return k.rec.Live, k.rev
		}
		return 0, 0
	}
	if k := c.units[r.unit.Unit]; k != nil {
		return uint64(k.rec.Epoch), k.rev
	}
	return 0, 0
}

// shown tells whether the register has shown as much as a rumour says, or has come
// past where it would be.
func (c *Core) shown(r *rumour) bool {
	epoch, rev := c.known(r)
	return epoch >= r.epoch() && max(rev, c.seen) >= r.seq
}

// contradicted tells whether a rumour of a later revision has an earlier epoch than
// the register has shown.
func (c *Core) contradicted(r *rumour) bool {
	epoch, _ := c.known(r)
	return epoch > r.epoch()
}

// forgotten tells whether a memory has epochs above those that the register has shown.
func (c *Core) forgotten(m *Memory) bool {
	for unit, e := range m.Epochs {
		if u := c.units[unit]; u == nil || u.rec.Epoch < e {
			return true
		}
	}
	for region, live := range m.Live {
		if r := c.regions[region]; r == nil || r.rec.Live < live {
			return true
		}
	}
	return false
}

// rumoured tells whether there is a rumour of a subject that speaks against what is
// known of it.
func (c *Core) rumoured(subject string) bool { return c.rumours[subject] != nil }

// askedRegister takes an answer of the register: its newest message of a subject, or
// none where seq is 0.
func (c *Core) askedRegister(now time.Duration, ev Seen) {
	c.lastAnswer = now
	if ev.Seq > 0 {
		if err := c.note(now, ev.Subject, ev.Seq, ev.Data); err != nil {
			c.drop() // whatever it was, to stop is safe; only the watch says what is true
		}
	}
	c.sought(&ev)
	if r := c.rumours[ev.Subject]; r != nil && now >= r.heard+rumourPatience && !c.shown(r) {
		r.denied = true
	}
}

// settleRumours asks after rumours, and drops those that are shown or denied.
func (c *Core) settleRumours(now time.Duration) {
	denied := false
	for _, subject := range slices.Sorted(maps.Keys(c.rumours)) {
		r := c.rumours[subject]
		switch {
		case c.shown(r):
			c.forget(now, subject)
		case r.denied:
			denied = true
		case now >= r.askAt && c.opened:
			r.askAt = now + inquireEvery
			c.do(Read{Subject: subject})
		}
	}
	if denied && !c.recalling && now >= c.notBefore["recall"] {
		c.recalling = true
		c.do(Recall{})
	}
}

// recalled takes what the region's own Kafka has copied of the register, and decides
// about rumours that the register denies.
func (c *Core) recalled(now time.Duration, ev Recalled) {
	for _, r := range c.repairs {
		r.recalled = false
		if ev.OK && r.memory == nil {
			r.remembers(ev.Memory)
		}
	}
	asked := c.recalling
	c.recalling = false
	if !ev.OK {
		c.notBefore["recall"] = now + retryLimit
		return
	}
	if !asked {
		return // for a repair alone
	}
	for _, subject := range slices.Sorted(maps.Keys(c.rumours)) {
		r := c.rumours[subject]
		if !r.denied {
			continue
		}
		c.forget(now, subject)
		if !ev.Memory.has(r) {
			c.mistrustUntil = now + mistrustTime
			c.falseRumours++
		}
	}
	if c.distrust == "" && c.forgotten(&ev.Memory) {
		c.remind(ev.Memory)
	}
}

// has tells whether a memory bears a rumour out.
func (m *Memory) has(r *rumour) bool {
	if r.region != nil {
		return m.Live[r.region.Region] >= r.region.Live
	}
	return m.Epochs[r.unit.Unit] >= r.unit.Epoch
}

// remind has the register held against what the region's own Kafka has of it, as at the
// start: it may have forgotten, or only the watch may be late, and another server's is
// not.
func (c *Core) remind(m Memory) {
	c.cfg.Mirrored.join(m)
	c.recalledLast = max(c.recalledLast, m.Last)
	c.opened = false
	c.drop()
	c.do(Rewatch{From: c.seen, Reconnect: true})
	c.do(Reopen{})
}

// forget ends a rumour; what it stopped may go on, by conditional writes.
func (c *Core) forget(now time.Duration, subject string) {
	delete(c.rumours, subject)
	c.changes++
	if subject == RegionSubject(c.cfg.Region) {
		c.renewAt = now
	}
}

// unconfirmed says what other instances have said of the register that it has not shown
// yet, in order.
func (c *Core) unconfirmed() (list []string) {
	for _, subject := range slices.Sorted(maps.Keys(c.rumours)) {
		if r := c.rumours[subject]; r.unit != nil {
			list = append(list, fmt.Sprintf("epoch %d of %s at revision %d", r.unit.Epoch, r.unit.Unit, r.seq))
		} else {
			list = append(list, fmt.Sprintf("liveness epoch %d of region %s at revision %d", r.region.Live, r.region.Region, r.seq))
		}
	}
	return list
}
