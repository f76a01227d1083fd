package ownership

import (
	"encoding/json"
	"fmt"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/router"
)

// held checks the moment at which an instance acts as owner: nobody may believe
// to own the unit in another epoch, now or at any time before in a later one.
func (s *sim) held(p *proc, unit string, epoch event.Epoch) {
	l := s.logs[unit]
	if epoch < l.highest {
		s.violate("I10", "%s acts on %s in epoch %d after epoch %d was held", p.name, unit, epoch, l.highest)
	}
	l.highest = max(l.highest, epoch)
	for _, q := range s.procs {
		if q == p || q.core == nil {
			continue
		}
		g, err := q.tokens.Grant(q.clock(), unit)
		if err != nil {
			continue
		}
		if g.Epoch != epoch {
			s.violate("I10", "%s acts on %s in epoch %d while %s holds epoch %d", p.name, unit, epoch, q.name, g.Epoch)
		}
	}
}

// checkEnd holds the end of a history against what was promised.
func (s *sim) checkEnd() {
	for _, unit := range s.units() {
		s.checkHeld(unit)
		s.checkLog(unit)
	}
	for ref := range s.asked {
		s.counts["commands without an answer"]++
		_ = ref
	}
	for _, p := range s.procs {
		if p.core != nil && p.core.Blind() {
			s.violate("I13", "the watch of %s is still blind", p.name)
		}
	}
}

// checkHeld: after the calm every unit is held again by its region.
func (s *sim) checkHeld(unit string) {
	for _, p := range s.procs {
		if p.core != nil && p.region == s.logs[unit].region {
			if _, err := p.tokens.Grant(p.clock(), unit); err == nil {
				return
			}
		}
	}
	s.violate("I10", "nobody holds %s at the end of the calm", unit)
}

// checkLog: every answered write is authoritative, or lies past a cut whose
// command said that this was possible.
func (s *sim) checkLog(unit string) {
	seq := s.reg.last[router.UnitSubject(unit)]
	if seq == 0 {
		return
	}
	var u router.UnitRecord
	if err := json.Unmarshal(s.reg.log[seq-1].data, &u); err != nil {
		s.violate("I5", "record of %s: %v", unit, err)
		return
	}
	for offset, rec := range s.logs[unit].records {
		if !rec.acked {
			continue
		}
		s.checkRecord(&u, int64(offset), rec)
	}
}

func (s *sim) checkRecord(u *router.UnitRecord, offset int64, rec *record) {
	for i, t := range u.Epochs {
		if t.Epoch != rec.epoch {
			continue
		}
		if start, _ := router.Offset(t.Start, topic, 0, 0); offset < start {
			s.violate("I6", "%s: the answered record %d of epoch %d lies before its start %d", u.Unit, offset, t.Epoch, start)
		}
		cut, _ := router.Offset(t.Cut, topic, 0, 0)
		if !t.Ended || offset < cut {
			return
		}
		s.counts["orphans"]++
		next := u.Epoch
		if i+1 < len(u.Epochs) {
			next = u.Epochs[i+1].Epoch
		}
		// The fence's epoch lies between this one and the next owner's.
		for e := t.Epoch + 1; e <= next; e++ {
			if s.kinds[fmt.Sprintf("%s %d", u.Unit, e)] == router.CutEnd {
				s.violate("I6", "%s: the answered record %d of epoch %d lies past the cut %d, and the fence in epoch %d said that none does", u.Unit, offset, t.Epoch, cut, e)
			}
		}
		return
	}
	s.violate("I6", "%s: the answered record %d is of epoch %d, which never had an owner", u.Unit, offset, rec.epoch)
}
