package seat

import (
	"github.com/geogate/geogate/internal/event"
)

// Claims is what a seat may publish about its partition: every record at or above
// End that can ever be valid has a stamp above Closed and a context that covers
// Promised, and its idempotency key was looked up when all that Promised covers was
// indexed. Of a restricted origin a context holds what the entity's live values
// say, so nothing is promised: that entry no longer rises, and says nothing.
type Claims struct {
	End      event.Point
	Closed   event.Stamp
	Promised event.Vector
	Counted  bool // false: a version before frontiers has promised that
}

// Bounded is what of earlier claims can be true of a log that ends at end and of what
// the region has committed: a seat promises no more than it has committed, and both are
// written in one transaction. Whoever can write to the control topic can have claimed
// more, and a seat would repeat it for ever.
func (cl Claims) Bounded(end event.Point, committed *event.Vector) Claims {
	if end.Compare(cl.End) < 0 {
		cl.End = end
	}
	for r := range cl.Promised {
		if committed[r].Compare(cl.Promised[r]) < 0 {
			cl.Promised[r] = committed[r]
		}
	}
	return cl
}

// Claims makes the claims that hold now. Before the seat's first barrier was read
// only End moves: a record of the process before may yet land.
func (c *Core) Claims() Claims {
	// Never below the end that was published: the stamps between are not known to
	// lie above the closed one.
	if here := (event.Point{Incarnation: c.cfg.Incarnation, Next: c.next}); c.claimed.End.Compare(here) < 0 {
		c.claimed.End = here
	}
	if c.term == NoBarrier && !c.cfg.NoLog || c.stopped {
		return c.claimed
	}
	closed, promised := c.env.Clock.Close(), c.env.Committed()
	if c.env.Context != nil {
		if _, restricted, err := c.env.Context(nil); err == nil {
			c.restricted |= restricted
		}
	}
	for r := range promised {
		if c.restricted>>r&1 == 1 {
			promised[r] = event.Point{}
		}
	}
	c.keepEnding(&promised)
	var context, looked *event.Vector // those that go together have one
	for w := c.accepted.first; w != nil; w = w.after {
		if w.looked != nil && w.looked != looked {
			promise(&promised, w.looked, c.cfg.Region)
			looked = w.looked
		}
		if !w.sent {
			continue
		}
		closed = min(closed, w.stamp-1)
		if w.context != context {
			promise(&promised, w.context, c.cfg.Region)
			context = w.context
		}
	}
	c.claimed.Counted = true
	c.claimed.Closed = max(c.claimed.Closed, closed)
	c.claimed.Promised.Join(&promised)
	return c.claimed
}

// keepEnding takes from v what lies above the last promise in logs that end: the epoch of
// one is over, as far as this instance knows, and the fold does not have its cut. Whoever
// sets the cut, this region too, lists what it has folded once it knows that the epoch is
// over, so no promise of its own lies past the cut before the fold knows it. Others count on
// that: what all have promised is not cut off any more.
func (c *Core) keepEnding(v *event.Vector) {
	if c.env.Permit == nil || c.env.Folded == nil {
		return
	}
	newest, folded := c.env.Permit.Intervals(), c.env.Folded()
	if newest == nil {
		return
	}
	for r := range v {
		id := event.RegionID(r)
		if _, cut := newest.NewlyCut(folded, id); cut || newest.CutPending(id) {
			v[r] = c.claimed.Promised[r]
		}
	}
}

// promise lowers v to a context; the own region's entry, which contexts leave
// out, stays.
func promise(v, context *event.Vector, own event.RegionID) {
	for r := range v {
		if event.RegionID(r) != own && context[r].Compare(v[r]) < 0 {
			v[r] = context[r]
		}
	}
}
