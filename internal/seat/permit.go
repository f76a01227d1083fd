package seat

import "github.com/geogate/geogate/internal/event"

// WritePermit says whether the seat's region may write its unit. It answers from
// memory, at once.
type WritePermit interface {
	// Grant gives the permission to accept a write now, or says why there is none
	// in an error that Write returns as it is: nothing was stored.
	Grant() (Grant, error)
	// Holds tells whether what was granted is held still, with no interruption
	// that anybody else could have used.
	Holds(Grant) bool
	// Intervals is the newest that is known of the partition's logs: which of
	// their records count. Its Revision never falls. nil: nothing is known yet.
	Intervals() *event.ValidityTable
	// Changed is closed when Intervals may have changed next.
	Changed() <-chan struct{}
}

// Grant is a permission to write.
type Grant struct {
	Epoch event.Epoch // that records carry
	Live  uint64      // what else must not have changed when the write is answered
	// Reach is how far each origin's log must be indexed before a write is
	// accepted: an earlier owner may have stored its key there.
	Reach *event.Vector
}

// permit asks whether the region may write now: the check before writes are
// accepted, and once more before those that have waited are sent.
func (c *Core) permit() (Grant, error) {
	if c.env.Permit == nil {
		return Grant{Epoch: c.cfg.Epoch}, nil
	}
	g, err := c.env.Permit.Grant()
	if err != nil {
		return Grant{}, err
	}
	if g.Reach != nil {
		if indexed := c.env.Indexed(); !reaches(&indexed, g.Reach) {
			return Grant{}, ErrNotReady
		}
	}
	return g, nil
}

func reaches(v, want *event.Vector) bool {
	for r := range want {
		if v[r].Compare(want[r]) < 0 {
			return false
		}
	}
	return true
}

// heldGrant is what the permit has said of a grant in a step: the writes that are read
// back together have nearly always the same.
type heldGrant struct {
	asked, holds bool
	epoch        event.Epoch
	live         uint64
}

// holds is the check after the read-back: the permission is the one under which
// the write was accepted.
func (c *Core) holds(g *Grant) bool {
	if c.env.Permit == nil {
		return true
	}
	if h := &c.held; !h.asked || h.epoch != g.Epoch || h.live != g.Live {
		*h = heldGrant{asked: true, holds: c.env.Permit.Holds(*g), epoch: g.Epoch, live: g.Live}
	}
	return c.held.holds
}
