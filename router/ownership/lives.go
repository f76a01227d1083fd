package ownership

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/geogate/geogate/internal/event"
)

// A process has a life: a random id that stands in all its lease and drained records.
// Two processes may be configured with one instance name, an old one that nobody has
// stopped and its successor. The first lease record of a life is written on condition
// of the newest one under its name: that ends the lives before it. Who has been ended
// and hears of it stops for good. One that hears nothing believes in its last renewal
// until that runs out, and a fence counts it: either it has drained by itself, or the
// life that ended it has outwaited it before it drained.

// ErrNameTaken is returned by an instance whose name another process has taken over:
// it has stopped, and must not be started again while the other one runs.
var ErrNameTaken = errors.New("ownership: another process has taken over the instance's name")

// instanceName is a name under which processes of a region run.
type instanceName struct{ region, instance string }

// livesOf are the lives under one name that may hold something.
type livesOf struct {
	newest uint64 // revision of the newest lease record
	writer string // the life that wrote it
	lives  map[string]life
	// after and by: the life by speaks for all others whose records are not above
	// this revision.
	after uint64
	by    string
}

// life is a life by its newest lease record.
type life struct {
	seq  uint64
	hold time.Duration // how long it believes in a renewal; 0: it does not say
	gone bool
	// waits: it outwaits other lives before it drains.
	waits bool
	reads int // the highest version of records that it reads
}

// note takes a lease record over; records of a life may come more than once.
func (n *livesOf) note(seq uint64, r *LeaseRecord) {
	if seq > n.newest {
		n.newest, n.writer = seq, r.Life
	}
	if r.After > n.after {
		n.after, n.by = r.After, r.Life
		for id, l := range n.lives {
			if id != n.by && l.seq <= n.after {
				delete(n.lives, id)
			}
		}
	}
	if seq <= n.lives[r.Life].seq || r.Life != n.by && seq <= n.after {
		return
	}
	if n.lives == nil {
		n.lives = make(map[string]life)
	}
	l := life{seq: seq, gone: r.Gone, waits: r.After > 0, reads: r.Reads}
	if r.Hold > 0 && r.Hold < mostDuration.Milliseconds() {
		l.hold = time.Duration(r.Hold) * time.Millisecond
	}
	n.lives[r.Life] = l
}

// ownName is what an instance knows of its own name.
type ownName struct {
	claimed uint64 // revision of its first lease record; 0 before
	written uint64 // of its newest
	taken   string // why it has stopped; "" before
	// others are the lives before this one, known all that ever wrote under the name
	// and are none of a successor, with the first revision that was heard of each.
	others livesOf
	known  map[string]uint64
	since  time.Duration // from when the others are outwaited
}

// Heard is the newest lease record of a region's instances: they renew their leases every
// few seconds, unless their region is fenced.
type Heard struct {
	At   time.Duration // when it came, on the clock of Step
	Gone bool          // the instance that wrote it has stopped
	// Fenced is when the region was fenced after that, 0 if it was not: from then on no
	// instance of it writes a lease, even if it runs.
	Fenced time.Duration
	seq    uint64
}

// livesUnder gives what is known of a name.
func (c *Core) livesUnder(region, instance string) *livesOf {
	name := instanceName{region, instance}
	if c.names[name] == nil {
		c.names[name] = &livesOf{}
	}
	return c.names[name]
}

// eachLife calls visit for every life of a region that may hold something, or has
// said that it does not any more, until that returns false.
func (c *Core) eachLife(region string, visit func(name instanceName, id string, l life) bool) {
	for name, n := range c.names {
		for id, l := range n.lives {
			if name.region == region && !visit(name, id, l) {
				return
			}
		}
	}
}

// noteFence notes when a region of which a lease record is known was fenced.
func (c *Core) noteFence(now time.Duration, r *RegionRecord) {
	if h, ok := c.heard[r.Region]; ok && h.Fenced == 0 && r.State == RegionFenced {
		h.Fenced = now
		c.heard[r.Region] = h
	}
}

// noteLease takes a lease record over.
func (c *Core) noteLease(now time.Duration, seq uint64, r *LeaseRecord) {
	c.livesUnder(r.Region, r.Instance).note(seq, r)
	if h := c.heard[r.Region]; seq > h.seq {
		c.heard[r.Region] = Heard{At: now, Gone: r.Gone, seq: seq}
	}
	if r.Region != c.cfg.Region || r.Instance != c.cfg.Instance || r.Life == c.cfg.Life {
		return
	}
	own := &c.name
	switch _, known := own.known[r.Life]; {
	case known:
	case own.claimed != 0 && seq > own.claimed:
		c.yield(r.Life)
		return
	default: // of two that start together, the one that claims first is ended: see claimedName
		own.known[r.Life] = seq
	}
	if seq > own.others.lives[r.Life].seq {
		own.since = now // it may be a renewal of one that has not heard yet that it was ended
	}
	own.others.note(seq, r)
}

// yield stops for good: a later life has the name.
func (c *Core) yield(to string) {
	if c.name.taken != "" {
		return
	}
	c.name.taken = fmt.Sprintf("process %q took over the name %s of process %q", to, c.cfg.Instance, c.cfg.Life)
	c.released = true
	c.changes++
	c.drop()
	c.ops, c.opByPurpose = make(map[uint64]*op), make(map[string]*op)
	for _, p := range c.plans {
		p.answer(ResultInProgress, "this instance has stopped, since another process has its name; the same command, given to that one, goes on from where things are")
	}
	c.plans = nil
}

// NameTaken says which process has taken the instance's name over, "" while none
// has. An instance that is told so holds nothing and writes nothing any more.
func (c *Core) NameTaken() string { return c.name.taken }

// takeName writes the first lease record of this life on condition of the newest one
// under its name. It proves nothing of the region's record, and so gives no lease.
func (c *Core) takeName(now time.Duration) {
	if c.name.claimed != 0 || !c.free(now, "name") {
		return
	}
	subject := leaseSubject(c.cfg.Region, c.cfg.Instance)
	w := Write{Subject: subject, Data: encode(c.leaseRecord(now, 0)), Guard: subject, Expect: c.livesUnder(c.cfg.Region, c.cfg.Instance).newest}
	c.write(now, "name", w, 0, func(now time.Duration, seq uint64, ok bool) {
		if ok {
			c.claimedName(now, seq)
		}
	})
}

// claimedName takes the acknowledgement of the first lease record. Another process may
// have ended this life already, and have been heard of before the acknowledgement came.
func (c *Core) claimedName(now time.Duration, seq uint64) {
	c.name.claimed, c.name.written, c.name.since = seq, seq, now
	for _, id := range slices.Sorted(maps.Keys(c.name.known)) {
		if c.name.known[id] > seq {
			c.yield(id)
			return
		}
	}
}

// leaseRecord is the next record of the own lease, on a revision of the region's.
func (c *Core) leaseRecord(now time.Duration, guard uint64) LeaseRecord {
	r := LeaseRecord{
		Version: recordVersion, Region: c.cfg.Region, Instance: c.cfg.Instance, Life: c.cfg.Life,
		Guard: guard, Hold: c.cfg.Lease.hold().Milliseconds(), Reads: retireVersion,
	}
	if !c.alone(now) {
		r.After, r.Hold = c.name.others.newest, max(r.Hold, c.othersHold().Milliseconds())
	}
	return r
}

// alone tells whether no other life under the name can believe in a lease any more.
// What others wrote before the newest own record is known then; what they wrote after
// it, everybody finds in the register.
func (c *Core) alone(now time.Duration) bool {
	return c.name.claimed != 0 && c.seen >= c.name.written && (c.othersHold() == 0 || now >= c.name.since+outlast(c.othersHold()))
}

// othersHold is how long a life before this one believes in a renewal, the longest;
// 0 where all have said that they hold nothing.
func (c *Core) othersHold() (hold time.Duration) {
	for _, l := range c.name.others.lives {
		if !l.gone {
			hold = max(hold, l.hold, c.cfg.Lease.hold())
		}
	}
	return hold
}

// drainedBy names who has drained what.
type drainedBy struct {
	instanceName
	life, unit string
}

// noteDrained takes a drained record over. What a life has drained for an earlier
// fence is of no use for a later one.
func (c *Core) noteDrained(r *DrainedRecord) {
	by := drainedBy{instanceName{r.Region, r.Instance}, r.Life, r.Unit}
	if r.Epoch < c.drained[by].Epoch {
		return
	}
	for d, old := range c.drained {
		if d.instanceName == by.instanceName && d.unit == r.Unit && old.Epoch < r.Epoch {
			delete(c.drained, d)
		}
	}
	c.drained[by] = *r
}

// allDrained tells whether every life of a region that may hold something has drained
// a unit for a fence.
func (c *Core) allDrained(region, unit string, epoch event.Epoch) bool {
	all, anyDrained := true, false
	c.eachLife(region, func(name instanceName, id string, l life) bool {
		switch d, ok := c.drained[drainedBy{name, id, unit}]; {
		case ok && d.Epoch >= epoch:
			anyDrained = true
		case !l.gone:
			all = false
		}
		return all
	})
	return all && anyDrained
}

// outwaiting tells whether a life of a region has yet to drain a unit for a fence, and
// waits until it can say so for the lives that it has ended.
func (c *Core) outwaiting(region, unit string, epoch event.Epoch) (waits bool) {
	c.eachLife(region, func(name instanceName, id string, l life) bool {
		waits = !l.gone && l.waits && c.drained[drainedBy{name, id, unit}].Epoch < epoch
		return !waits
	})
	return waits
}

// drainedEnds are where the logs of a unit ended for those who have drained it for a
// fence, the highest.
func (c *Core) drainedEnds(region, unit string, epoch event.Epoch) (ends []Extent) {
	for _, by := range slices.SortedFunc(maps.Keys(c.drained), drainedBy.compare) {
		if d := c.drained[by]; by.region == region && by.unit == unit && d.Epoch >= epoch {
			ends = mergeExtents(ends, d.Ends)
		}
	}
	return ends
}

func (d drainedBy) compare(o drainedBy) int {
	return cmp.Or(strings.Compare(d.instance, o.instance), strings.Compare(d.life, o.life))
}

// allGone tells whether every life of a region that ever had a lease has stopped
// cleanly: none answers anything, and none is there to say where the logs end.
func (c *Core) allGone(region string) bool {
	all, some := true, false
	c.eachLife(region, func(_ instanceName, _ string, l life) bool {
		all, some = all && l.gone, true
		return all
	})
	return all && some
}

// sayGone tells that the life holds nothing any more and answers nothing. It says so
// for all lives under the name: on condition that it wrote the newest record there,
// and not while another one may still believe in its lease.
func (c *Core) sayGone(now time.Duration) {
	n := c.livesUnder(c.cfg.Region, c.cfg.Instance)
	if !c.released || c.gone || !c.free(now, "gone") {
		return
	}
	if n.writer != c.cfg.Life || !c.alone(now) {
		c.gone = true
		return
	}
	r := c.leaseRecord(now, 0)
	r.Gone, r.Hold = true, 0
	subject := leaseSubject(r.Region, r.Instance)
	c.write(now, "gone", Write{Subject: subject, Data: encode(r), Guard: subject, Expect: n.newest}, 0, func(_ time.Duration, _ uint64, ok bool) {
		c.gone = ok // else a renewal, or a successor's record, came first
	})
}
