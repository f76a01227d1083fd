package ownership

import (
	"cmp"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/router/ownership"
)

// held (I10) checks the moment at which an instance acts as owner: nobody may
// believe to own the unit in another epoch, now or at any time before in a later
// one.
func (s *sim) held(p *proc, unit string, epoch event.Epoch) {
	l := s.logs[unit]
	if s.reg.Forgot() {
		return // then only I2 and I11 can hold
	}
	if epoch < l.highest {
		s.Violate("I10", "%s acts on %s in epoch %d after epoch %d was held", p.Name, unit, epoch, l.highest)
	}
	l.highest = max(l.highest, epoch)
	for _, q := range s.procs {
		if q == p || !q.Alive() {
			continue
		}
		g, err := q.Tokens().Grant(q.Clock(), unit)
		if err != nil {
			continue
		}
		if g.Epoch != epoch {
			s.Violate("I10", "%s acts on %s in epoch %d while %s holds epoch %d", p.Name, unit, epoch, q.Name, g.Epoch)
		}
	}
}

// notFenced (I10) checks an answer to a producer: none leaves a region whose fence
// was answered as done and stands.
func (s *sim) notFenced(p *proc, unit string) {
	plan := s.firm[p.Region]
	if r, ok := s.reg.Region(p.Region); ok && plan != "" && r.State != ownership.RegionUp && r.Plan == plan && !s.reg.Forgot() {
		s.Violate("I10", "%s answers a write of %s, and the fence %s of its region was answered before", p.Name, unit, plan)
	}
}

// checkEnd holds the end of a history against what was promised.
func (s *sim) checkEnd() {
	if s.reg.Forgot() {
		return
	}
	for _, unit := range s.units() {
		s.checkLog(unit)
	}
	s.counts["commands without an answer"] += len(s.asked)
	names := map[string]string{}
	for _, p := range s.procs {
		if other := names[p.As]; p.Alive() && other != "" {
			s.Violate("I16", "%s and %s run under the name %s", other, p.Name, p.As)
		} else if p.Alive() {
			names[p.As] = p.Name
		}
		if p.Blinded() {
			s.Violate("I13", "the watch of %s is still blind", p.Name)
		}
	}
}

// checkHeld (I10): after the calm every unit is held again by its region, also when the
// register had forgotten and was repaired.
func (s *sim) checkHeld(unit string) {
	if s.reg.Forgot() && (!s.repairedAll() || s.late) { // a fence that begins late ends after the unfences
		return
	}
	for _, p := range s.procs {
		if p.Alive() && p.Region == s.logs[unit].region {
			if _, err := p.Grant(unit); err == nil {
				return
			}
		}
	}
	s.Violate("I10", "nobody holds %s in the calm", unit)
}

// checkLog (I5, I6): the records that count follow each other by epoch, and every
// answered write counts, or lies past a cut whose command said that this was
// possible.
func (s *sim) checkLog(unit string) {
	u, ok := s.reg.Unit(unit)
	if !ok {
		return
	}
	var last event.Epoch
	for offset, rec := range s.logs[unit].records {
		if counts(&u, int64(offset), rec.epoch) {
			if rec.epoch < last {
				s.Violate("I5", "%s: record %d of epoch %d counts, behind one of epoch %d", unit, offset, rec.epoch, last)
			}
			last = rec.epoch
		}
		if rec.acked {
			s.checkRecord(&u, int64(offset), rec)
		}
	}
}

// counts tells whether a record lies in the interval of its epoch.
func counts(u *ownership.UnitRecord, offset int64, epoch event.Epoch) bool {
	for _, t := range u.Epochs {
		start, _ := ownership.Offset(t.Start, topic, 0, 0)
		cut, _ := ownership.Offset(t.Cut, topic, 0, 0)
		if t.Has(epoch) {
			return start <= offset && (!t.Ended || offset < cut)
		}
	}
	return false
}

func (s *sim) checkRecord(u *ownership.UnitRecord, offset int64, rec *record) {
	for i, t := range u.Epochs {
		if !t.Has(rec.epoch) {
			continue
		}
		if start, _ := ownership.Offset(t.Start, topic, 0, 0); offset < start {
			s.Violate("I6", "%s: the answered record %d of epoch %d lies before its start %d", u.Unit, offset, t.Epoch, start)
		}
		cut, _ := ownership.Offset(t.Cut, topic, 0, 0)
		if !t.Ended || offset < cut {
			return
		}
		s.counts["orphans"]++
		next := u.Epoch
		if i+1 < len(u.Epochs) {
			next = cmp.Or(u.Epochs[i+1].First, u.Epochs[i+1].Epoch)
		}
		// The fence's epoch lies between this one and the next owner's.
		for e := rec.epoch + 1; e <= next; e++ {
			kind := s.kinds[unitEpoch(u.Unit, e)]
			if kind == ownership.CutEnd {
				s.Violate("I6", "%s: the answered record %d of epoch %d lies past the cut %d, and the fence in epoch %d said that none does", u.Unit, offset, t.Epoch, cut, e)
			}
			if t.First != 0 && kind != "" {
				break // those that follow ended later epochs of the same interval
			}
		}
		return
	}
	s.Violate("I6", "%s: the answered record %d is of epoch %d, which never had an owner", u.Unit, offset, rec.epoch)
}
