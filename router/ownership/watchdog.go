package ownership

import "time"

// How an instance notices that it does not hear what it should: a watch on a
// server that is cut off stays open, sends heartbeats and brings nothing.

// checkRenewals finds out that the watch brings nothing: own renewals do not come back.
func (c *Core) checkRenewals(now time.Duration) {
	if len(c.awaitedRenewals) == 0 || now-c.awaitedRenewals[0].at <= 2*c.cfg.Lease.Renew {
		return
	}
	const reconnectAfter = 3
	c.silentWatches++
	c.do(Rewatch{From: c.seen, Reconnect: c.silentWatches%reconnectAfter == 0})
	for i := range c.awaitedRenewals {
		c.awaitedRenewals[i].at = now
	}
}

// checkSilence finds out that nothing is answered any more, although renewals or
// questions are on their way, or that the watch stops before it has brought the
// register as far as it went: the server may be cut off from the others, and
// another one may not be. It is found within 3·R of the last answer.
func (c *Core) checkSilence(now time.Duration) {
	stuck := c.seen < c.watchGoal && now-c.lastWatchEvent > c.silence()
	if !c.opened || c.distrust != "" || c.released || !stuck && now-c.lastAnswer <= c.silence() {
		return
	}
	c.silentWatches++
	c.lastAnswer, c.lastWatchEvent = now, now // the next server gets as long
	c.do(Rewatch{From: c.seen, Reconnect: true})
}

// silence is how long nothing need be heard: a renewal is due within that time,
// and its answer.
func (c *Core) silence() time.Duration { return c.cfg.Lease.Renew + c.cfg.Lease.Timeout }

// inquireEvery is the pause between questions of an instance without a lease.
const inquireEvery = 500 * time.Millisecond

// inquire asks what became of the region and of its units while no lease holds.
// The watch of an instance that was cut off or stopped may take long to come back.
// An answer is a hint, from whichever server: it can end what is held, and it lets
// clients hear soon that they must go elsewhere, or that the region may renew again.
func (c *Core) inquire(now time.Duration) {
	if !c.opened || c.distrust != "" || c.released || now < c.nextInquiry || c.lease.rev != 0 && now < c.lease.until {
		return
	}
	c.nextInquiry = now + inquireEvery
	region := c.regions[c.cfg.Region]
	c.do(Read{Subject: RegionSubject(c.cfg.Region)})
	if region != nil && region.rec.State != RegionUp {
		// That is answer enough for clients; only an unfence is of interest.
		c.nextInquiry = now + c.cfg.Lease.Renew
		return
	}
	for _, unit := range c.ours() {
		if u := c.units[unit]; u != nil && u.rec.Owner == c.cfg.Region {
			c.do(Read{Subject: UnitSubject(unit)})
		}
	}
}

// resume follows a time in which the process was stopped: its connection may be
// dead, its watch silent, its lease gone, and nothing has told it so far.
func (c *Core) resume(now time.Duration) {
	c.renewAt, c.nextInquiry, c.lastAnswer = now, now, now
	for _, o := range c.ops {
		o.retryAt = min(o.retryAt, now)
	}
	if c.opened && c.distrust == "" && !c.released {
		c.do(Rewatch{From: c.seen, Reconnect: true})
	}
}

// expire counts the leases that run out though nobody took them: the instance
// stops to accept, and goes on under the same epoch when a renewal is stored.
func (c *Core) expire(now time.Duration) {
	region := c.regions[c.cfg.Region]
	switch {
	case c.lease.rev == 0:
	case now < c.lease.until || region == nil || region.rec.State != RegionUp:
		c.leaseRanOut = false
	case !c.leaseRanOut:
		c.leaseRanOut = true
		c.softFences++
	}
}

// WatchSilent tells whether the watch has been found silent and has not come back.
func (c *Core) WatchSilent() bool { return c.silentWatches > 0 }

// SoftFences counts the times that the lease has run out though nobody took it;
// out tells whether it is so now.
func (c *Core) SoftFences() (times uint64, out bool) {
	return c.softFences, c.leaseRanOut && c.lease.rev != 0
}
