package seat

import "time"

// chainKey names the writes of one Order and record key.
type chainKey struct {
	order *Order
	key   uint64 // Order.hash
}

// chain puts a write behind those of its Order and record key that are not settled.
//
// Writes of a chain that are sent together are stored together or up to one of them,
// because a producer's records of a partition are appended in sequence. What is sent
// later might be stored although something before it was not: a client that gives up a
// batch goes on with another sequence. So the next ones wait until those before them were
// read back, and go then, however many they are.
func (c *Core) chain(w *write) {
	if w.Order == nil || w.Request.Key == nil {
		return
	}
	w.chained = chainKey{w.Order, w.Order.hash(w.Request.Key)}
	if last := c.chains[w.chained]; last != nil {
		last.next, w.leader = w, last
	}
	c.chains[w.chained] = w
}

// mayFollow tells whether a write may be sent now: those of its chain before it are
// settled, or are sent in the same step. A broker that has nothing of a producer yet
// takes any sequence, so what is sent before a record was read back under the term goes
// alone.
func (c *Core) mayFollow(w *write) bool {
	if w.leader != nil && (w.leader.step != c.step || !c.proven) {
		return false
	}
	w.step = c.step
	return true
}

// unchain lets the next of a chain go when a write is settled.
func (c *Core) unchain(w *write) {
	if w.chained.order == nil {
		return
	}
	if c.chains[w.chained] == w {
		delete(c.chains, w.chained)
	}
	next, leader := w.next, w.leader
	w.next, w.leader = nil, nil
	if leader != nil {
		leader.next = next
	}
	if next == nil {
		return
	}
	if next.leader = leader; leader == nil && !next.sent {
		c.released = append(c.released, next)
	}
}

// stopChain refuses what waits behind a write that has failed.
func (c *Core) stopChain(w *write) {
	for next := w.next; next != nil; {
		w, next = next, next.next
		if !w.sent {
			c.finish(w, Answer{}, ErrAfterFailure)
		}
	}
}

// sendReleased sends what waited only for writes that are settled now. Their keys are
// held since they were looked up, under the same term.
func (c *Core) sendReleased(now time.Time) {
	for len(c.released) > 0 && c.mayWrite() {
		g, refused := c.permit()
		c.sending = c.sending[:0]
		for _, w := range c.released {
			for ; w != nil && c.writes[w.Ref] == w && !w.sent && c.mayFollow(w); w = w.next {
				w.grant = g
				c.sending = append(c.sending, w)
			}
		}
		c.released = c.released[:0]
		if refused == nil {
			c.send(now, c.sending)
			continue
		}
		for _, w := range c.sending {
			if c.writes[w.Ref] == w {
				c.finish(w, Answer{}, refused)
			}
		}
	}
	c.released = c.released[:0] // those of a term to come are sent with all that wait for it
}
