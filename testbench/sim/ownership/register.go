package ownership

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/router"
)

// register is the stream that decides: linearizable, as the real one is as long
// as no disk is rolled back.
type register struct {
	s      *sim
	log    []message
	last   map[string]uint64 // newest sequence of a subject
	ids    map[string]uint64
	owners map[string]string // region by unit and epoch
	epochs map[string]event.Epoch
	stall  time.Duration // no write before: an election runs
}

type message struct {
	subject string
	data    []byte
}

func (r *register) init(s *sim) {
	*r = register{s: s, last: make(map[string]uint64), ids: make(map[string]uint64),
		owners: make(map[string]string), epochs: make(map[string]event.Epoch)}
	if s.chance(0.5) {
		s.after(s.between(10*time.Second, turmoil), func() { r.stall = s.now + s.between(4*time.Second, 24*time.Second) })
	}
}

// write is one attempt as the server executes it.
func (r *register) write(w router.Write) (router.Outcome, uint64) {
	if seq, ok := r.ids[w.ID]; ok {
		return router.Stored, seq
	}
	if w.Guard != "" && r.last[w.Guard] != w.Expect {
		return router.Conflict, 0
	}
	r.log = append(r.log, message{w.Subject, w.Data})
	seq := uint64(len(r.log))
	r.ids[w.ID], r.last[w.Subject] = seq, seq
	r.check(w, seq)
	r.strike(w)
	for _, p := range r.s.procs {
		p.wakeWatch()
	}
	return router.Stored, seq
}

// claims tells the region whose leases a write makes void for a claim.
func claims(w router.Write) string {
	var x router.RegionRecord
	if json.Unmarshal(w.Data, &x) != nil || !strings.HasPrefix(x.Reason, "claim of") {
		return ""
	}
	return x.Region
}

// lurks holds such a write back until a prey has just renewed its lease: then the
// wait that follows is as tight as it can be.
func (r *register) lurks(w router.Write) bool {
	const moment = 3 * time.Millisecond
	region := claims(w)
	for _, p := range r.s.procs {
		// No longer than a renewal takes to come; a prey that is away has none.
		if region != "" && p.prey && p.region == region && p.core != nil && p.awake <= r.s.now && p.off <= r.s.now {
			age := r.s.now - p.fresh
			return age > moment && age < 4*time.Second
		}
	}
	return false
}

// strike cuts off those who would learn from their next renewal that a claim has
// made their leases void: they go on for as long as the protocol lets them.
func (r *register) strike(w router.Write) {
	region := claims(w)
	for _, p := range r.s.procs {
		if w.Subject == "own.live."+p.region+"."+p.name {
			p.fresh = r.s.now
		}
		if region != "" && p.prey && p.region == region && !r.s.calmed {
			p.prey = false
			p.cut(30 * time.Second)
			// Its last renewal is answered all the same.
			p.off = 0
			r.s.after(2*time.Second, func() { p.off = max(p.off, r.s.now+28*time.Second) })
		}
	}
}

// check holds what is stored against the invariants of the register: epochs only
// rise, an epoch has one owner, intervals of one region do not overlap.
func (r *register) check(w router.Write, seq uint64) {
	var u router.UnitRecord
	if err := json.Unmarshal(w.Data, &u); err != nil || u.Unit == "" || u.State == "" {
		return
	}
	r.s.log("register %d: %s %s epoch %d owner %q by %s", seq, u.Unit, u.State, u.Epoch, u.Owner, u.By)
	if u.State == router.UnitFenced && r.s.half[u.Unit] && !r.s.calmed {
		delete(r.s.half, u.Unit)
		for _, p := range r.s.procs {
			if strings.HasPrefix(w.ID, p.name+"/") {
				p.kill()
			}
		}
	}
	if u.Epoch < r.epochs[u.Unit] {
		r.s.violate("I1", "the epoch of %s goes back from %d to %d", u.Unit, r.epochs[u.Unit], u.Epoch)
	}
	r.epochs[u.Unit] = u.Epoch
	if u.Owner != "" {
		key := fmt.Sprintf("%s %d", u.Unit, u.Epoch)
		if was := r.owners[key]; was != "" && was != u.Owner {
			r.s.violate("I2", "epoch %d of %s has owners %s and %s", u.Epoch, u.Unit, was, u.Owner)
		}
		r.owners[key] = u.Owner
	}
	var end int64
	for i, t := range u.Epochs {
		start, _ := router.Offset(t.Start, topic, 0, 0)
		cut, has := router.Offset(t.Cut, topic, 0, 0)
		if start < end {
			r.s.violate("I5", "epoch %d of %s begins at %d, below the cut %d before", t.Epoch, u.Unit, start, end)
		}
		if i > 0 && t.Epoch <= u.Epochs[i-1].Epoch {
			r.s.violate("I1", "epochs of %s do not rise: %d after %d", u.Unit, t.Epoch, u.Epochs[i-1].Epoch)
		}
		if i < len(u.Epochs)-1 && !t.Ended {
			r.s.violate("I5", "epoch %d of %s has a successor and no cut", t.Epoch, u.Unit)
		}
		if t.Ended && has {
			end = max(end, cut)
		}
	}
}
