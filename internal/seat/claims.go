package seat

import (
	"github.com/geogate/geogate/internal/event"
)

// Claims is what a seat may publish about its partition: every record at or above
// End that can ever be valid has a stamp above Closed and a context that covers
// Promised. Of a restricted origin a context holds what the entity's live values
// say, so nothing is promised: that entry no longer rises, and says nothing.
type Claims struct {
	End      event.Point
	Closed   event.Stamp
	Promised event.Vector
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
	var last *event.Vector
	for w := c.accepted.first; w != nil; w = w.after {
		if !w.sent {
			continue
		}
		closed = min(closed, w.stamp-1)
		if w.context != last { // those that were sent together have one
			promise(&promised, w.context, c.cfg.Region)
			last = w.context
		}
	}
	c.claimed.Closed = max(c.claimed.Closed, closed)
	c.claimed.Promised.Join(&promised)
	return c.claimed
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
