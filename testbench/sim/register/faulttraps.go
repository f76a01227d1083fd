package register

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/geogate/geogate/router/ownership"
)

// moment is how fresh a renewal has to be for a trap that waits for it.
const moment = 3 * time.Millisecond

// claims tells the region whose leases a write makes void for a claim.
func claims(w *ownership.Write) string {
	var x ownership.RegionRecord
	if json.Unmarshal(w.Data, &x) != nil || !strings.HasPrefix(x.Reason, "claim of") {
		return ""
	}
	return x.Region
}

// heldBack holds such a write back until a targeted instance has just renewed its lease: then the
// wait that follows is as tight as it can be.
func (r *Stream) heldBack(w *ownership.Write) bool {
	region := claims(w)
	for _, p := range r.Instances {
		// No longer than a renewal takes to come; a targeted instance that is away has none.
		if region != "" && p.targeted && p.Region == region && p.Alive() && p.awake <= r.Now() && p.off <= r.Now() {
			age := r.Now() - p.lastRenewal
			return age > moment && age < r.Lease.Renew*4/3
		}
	}
	return false
}

// overtaken holds back a claim that a deaf instance has sent until a fence of its
// region, asked for at this moment, is stored: the fence finds nothing to take. Of the
// first claim of a unit no instance of the region hears; what others of them have sent of
// it comes a little later.
func (r *Stream) overtaken(p *Instance, w *ownership.Write) bool {
	u, ok := unitRecord(w.Data)
	if !ok || u.Owner == "" || u.Epoch <= r.epochs[u.Unit] || r.Calm() || r.Beside == nil {
		return false
	}
	hold, waits := r.overtakes[w.ID]
	if behind := r.firstClaims[u.Unit]; !waits && behind > r.Now() {
		hold, waits = overtaking{until: behind, whatever: true}, true
		r.overtakes[w.ID] = hold
	}
	if !waits {
		hold.until = r.Now()
		first := r.epochs[u.Unit] == 0
		if chance(r, 0.1) || first && chance(r, 0.3) {
			r.Count("overtaken claims")
			hold.until += 200 * time.Millisecond
			for _, q := range r.Instances {
				if q == p || first && q.Region == p.Region && q.Alive() {
					q.Blind(r.Lease.Duration)
				}
			}
			if first {
				r.firstClaims[u.Unit] = hold.until + 100*time.Millisecond
			}
			r.Beside(u.Owner)
		}
		r.overtakes[w.ID] = hold
	}
	record, _ := r.Region(u.Owner)
	return r.Now() < hold.until && (hold.whatever || record.State == ownership.RegionUp)
}

// overtaking is how long a claim is held back.
type overtaking struct {
	until    time.Duration
	whatever bool // becomes of the region's record
}

// cutOffTargets cuts off those who would learn from their next renewal that a claim has
// made their leases void: they go on for as long as the protocol lets them.
func (r *Stream) cutOffTargets(by *Instance, w ownership.Write) {
	if by.live(w.Subject) {
		by.lastRenewal = r.Now()
		if by.late != nil && !r.Calm() {
			then := by.late
			by.late = nil
			r.Count("late retries")
			by.silence(w.ID)
			then()
		}
	}
	r.slowed(by, &w)
	region := claims(&w)
	for _, p := range r.Instances {
		if region != "" && p.targeted && p.Region == region && !r.Calm() {
			p.targeted = false
			// Its last renewal is answered all the same.
			p.cutLater(r.Lease.Timeout, r.Lease.Duration*3/2)
		}
	}
}

// Target has the instance cut off at the moment at which a claim makes its leases
// void.
func (p *Instance) Target() { p.targeted = true }

// LateRetry lets the instance's next renewal be stored without an answer; then it
// runs, and the instance hears of nothing but the answer to the renewal's retry,
// and after that of nothing at all.
func (p *Instance) LateRetry(then func()) { p.late = then }

// silence keeps everything from the instance but the answer to a repeated write.
func (p *Instance) silence(id string) {
	p.await, p.hearsNothing = id, true
	p.disturb = p.s.Now() + 2*p.s.Lease.Duration
	p.s.After(3*p.s.Lease.Renew, func() { p.await = "" })
	p.s.After(2*p.s.Lease.Duration, func() {
		p.hearsNothing = false
		p.wakeWatch()
	})
}

// slowed makes a gap in a fence that makes leases void before the unit is FENCED:
// what its carrier writes of units comes late, and what the owner's instances have
// renewed meanwhile is the last that they hear.
func (r *Stream) slowed(by *Instance, w *ownership.Write) {
	var x ownership.RegionRecord
	if json.Unmarshal(w.Data, &x) != nil || !strings.HasPrefix(x.Reason, "fence of ") {
		return
	}
	unit := strings.TrimPrefix(x.Reason, "fence of ")
	if !r.slow[unit] || r.Calm() {
		return
	}
	delete(r.slow, unit)
	r.Count("slow fences")
	by.unitWritesFrom = r.Now() + r.Lease.Renew*8/3
	for _, p := range r.Instances {
		if p.Region == x.Region && p != by {
			p.cutLater(r.Lease.Renew*13/6, r.Lease.Duration*2)
		}
	}
}

// SlowFence lets what the next carrier of a unit's fence writes come late, once it
// has made the leases of the unit's owner void.
func (r *Stream) SlowFence(unit string) { r.slow[unit] = true }

// cutLater cuts the instance off in a while, for a while.
func (p *Instance) cutLater(in, d time.Duration) {
	p.s.After(in, func() {
		if !p.s.Calm() {
			p.Cut(d - in)
		}
	})
}
