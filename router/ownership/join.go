package ownership

import (
	"slices"
	"time"

	"github.com/geogate/geogate/internal/event"
)

// A unit's record has all epochs that had an owner, because readers judge by them what is
// in the logs, and somebody may read a log from its beginning in years. Most of them nobody
// needs to tell apart: where the next epoch of a region begins at the offset at which the
// one before was cut, and all that lies in both counts, they can be one interval, in which
// what was written under either counts. The owner joins them once its region has judged its
// own log so far and found no orphan in it. Then no reader ever judges otherwise.

const (
	// joinFrom is how many ended epochs of the owner a record has before they are joined.
	joinFrom = 8
	// tidyAgain is the time between two looks at whether they can be.
	tidyAgain = time.Minute
)

// tidying is what was found out about the epochs of a unit.
type tidying struct {
	rev   uint64 // of the record that was looked at
	again time.Duration
	next  *placing // the record with joined epochs; nil: there is none
}

// tidy joins epochs in the record of a unit that the instance holds, once they are many.
func (c *Core) tidy(now time.Duration, unit string) {
	u, t := c.units[unit], c.tidying[unit]
	switch {
	case u == nil || u.rec.State != UnitActive || u.rec.Owner != c.cfg.Region || !c.leased(now) || c.proofs[unit].rev != c.lease.rev:
	case c.rumoured(UnitSubject(unit)) || !u.rec.Resolved() || !c.free(now, "unit "+unit):
	case t.next != nil && t.rev == u.rev:
		if c.store(now, unit, t.next.names) {
			delete(c.tidying, unit)
			c.writeUnit(now, "unit "+unit, t.next.record, t.next.rev, func(time.Duration, uint64, bool) {})
		}
	case now < t.again && t.rev == u.rev, u.rec.ended(c.cfg.Region) < c.joinFrom() || !c.allRead(refsVersion):
	default:
		c.tidying[unit] = tidying{rev: u.rev, again: now + tidyAgain}
		c.do(AskJudged{Unit: unit, Rev: u.rev})
	}
}

func (c *Core) joinFrom() int {
	if c.cfg.Join > 0 {
		return c.cfg.Join
	}
	return joinFrom
}

// ended counts the ended epochs of a region.
func (u *UnitRecord) ended(region string) (n int) {
	for i := range u.Epochs {
		if t := &u.Epochs[i]; t.Ended && t.Owner == region {
			n++
		}
	}
	return n
}

// judged takes how the logs of a unit were judged.
func (c *Core) judged(_ time.Duration, ev Judged) {
	u, t := c.units[ev.Unit], c.tidying[ev.Unit]
	if !ev.OK || u == nil || u.rev != ev.Rev || t.rev != ev.Rev {
		return // looked at again later
	}
	next := u.rec
	next.Epochs = join(u.rec.Epochs, c.cfg.Region, ev.Logs)
	if len(next.Epochs) == len(u.rec.Epochs) {
		return
	}
	next.Incarnation++
	next.By, next.Reason = c.cfg.Region, ""
	t.next = c.place(next, u.rev)
	c.tidying[ev.Unit] = t
}

// join joins what can be joined of a region's epochs, given how its logs were judged.
func join(history []Tenure, region string, logs []JudgedLog) []Tenure {
	judged := make(map[logPlace]*JudgedLog, len(logs))
	for i := range logs {
		judged[logPlace{logs[i].Topic, logs[i].Partition}] = &logs[i]
	}
	out := slices.Clone(history)
	for i := 0; i < len(out); i++ {
		for out[i].Owner == region {
			j := i + 1
			for j < len(out) && out[j].Owner != region {
				j++
			}
			if j == len(out) || !joins(out, i, j, judged) {
				break
			}
			a, b := &out[i], &out[j]
			b.First, b.Start, b.StartAt = a.Epoch, a.Start, a.StartAt
			if a.First != 0 {
				b.First = a.First
			}
			out = slices.Delete(out, i, i+1)
			if j > i+1 {
				break // another owner's is here now
			}
		}
	}
	return out
}

// joins tells whether nobody has to tell two epochs of one owner apart, between which it
// has no other.
func joins(history []Tenure, i, j int, judged map[logPlace]*JudgedLog) bool {
	a, b := &history[i], &history[j]
	if !a.Ended || !b.Ended || j+1 == len(history) {
		return false
	}
	if apart := j > i+1; apart && (leavesOut(a, b) || i > 0 && (leavesOutFor(&history[i-1], a) || leavesOutFor(&history[i-1], &history[i+1]))) {
		return false // what a cut leaves out is ended by the start that comes next in the record
	}
	// The second begins where the first was cut.
	start := indexExtents(b.Start)
	for _, e := range a.Cut {
		for p, offset := range e.Offsets {
			if at, ok := start.offset(e.Topic, e.Incarnation, int32(p)); offset >= 0 && (!ok || at != offset) {
				return false
			}
		}
	}
	// Everything in both was judged and counts, also where the record says nothing.
	ends := lastPoints(a.Start, a.Cut, b.Start, b.Cut)
	next, cut := &history[j+1], indexExtents(b.Cut)
	if next.Owner != b.Owner && leavesOut(b, b) {
		return false
	}
	for _, e := range next.Start {
		for p, offset := range e.Offsets {
			at, to := logPlace{e.Topic, int32(p)}, event.Point{Incarnation: e.Incarnation, Next: offset}
			if _, ok := cut.offset(e.Topic, e.Incarnation, int32(p)); !ok && next.Owner == b.Owner && offset >= 0 && ends[at].Compare(to) < 0 {
				ends[at] = to // what the second's cut leaves out ends here
			}
		}
	}
	from := firstPoints(a.Start)
	for at := range ends {
		if judged[at] == nil {
			return false
		}
	}
	for at, l := range judged {
		if l.To.Compare(ends[at]) < 0 || from[at].Compare(l.From) < 0 {
			return false
		}
	}
	return true
}

// leavesOut tells whether the cut of a tenure has nothing of a partition that is in the
// start of another one.
func leavesOut(a, b *Tenure) bool {
	cut := indexExtents(a.Cut)
	for _, e := range b.Start {
		for p, offset := range e.Offsets {
			if _, ok := cut.offset(e.Topic, e.Incarnation, int32(p)); !ok && offset > 0 {
				return true
			}
		}
	}
	return false
}

// leavesOutFor is leavesOut where it counts: the two are of one owner.
func leavesOutFor(a, b *Tenure) bool { return a.Owner == b.Owner && leavesOut(a, b) }

// lastPoints are the highest points of partitions.
func lastPoints(lists ...[]Extent) map[logPlace]event.Point {
	out := make(map[logPlace]event.Point)
	for _, list := range lists {
		for _, e := range list {
			for p, offset := range e.Offsets {
				at, to := logPlace{e.Topic, int32(p)}, event.Point{Incarnation: e.Incarnation, Next: offset}
				if offset >= 0 && out[at].Compare(to) <= 0 {
					out[at] = to
				}
			}
		}
	}
	return out
}

// firstPoints are the lowest points of partitions; one that is not there begins at the
// start of its log.
func firstPoints(extents []Extent) map[logPlace]event.Point {
	out := make(map[logPlace]event.Point)
	for _, e := range extents {
		for p, offset := range e.Offsets {
			at, from := logPlace{e.Topic, int32(p)}, event.Point{Incarnation: e.Incarnation, Next: offset}
			if old, ok := out[at]; offset >= 0 && (!ok || from.Compare(old) < 0) {
				out[at] = from
			}
		}
	}
	return out
}
