package ownership

import (
	"math/rand/v2"
	"time"

	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/testbench/sim/register"
)

// In some histories regions are retired and returned. The one that is retired fences
// another at that time, and its instance stands still half-way, or hears nothing: it would
// set a cut from what it had applied before. The one that retires or returns it stops
// half-way, too, and others do the same, at the same time.

// drawRetired draws whether a history is such a one, from randomness of its own.
func drawRetired(seed uint64) bool {
	return !drawTight(seed) && !drawEqualNames(seed) && !drawUndone(seed) && !drawForgetful(seed) && !drawReplaced(seed) && !drawOften(seed) &&
		rand.New(rand.NewPCG(seed, 0x726574697265)).IntN(8) == 0
}

// retire schedules such a history.
func (s *sim) retire() {
	for _, p := range s.procs {
		s.every(20*time.Millisecond, 300*time.Millisecond, p.clientWrite)
	}
	s.every(20*time.Second, 90*time.Second, func() { s.pick().Pause(s.Between(100*time.Millisecond, 20*time.Second)) })
	s.every(20*time.Second, 90*time.Second, func() { s.pick().Cut(s.Between(time.Second, 20*time.Second)) })
	s.every(60*time.Second, 200*time.Second, func() { s.pick().Die() })
	s.every(30*time.Second, 120*time.Second, s.operate)
	for _, at := range []time.Duration{5 * time.Second, 100 * time.Second} {
		way := []func(){s.retireOne, s.retireOne, s.cutDeaf, s.nameLate, s.nameOld, s.nameOld}[s.Rand().IntN(6)]
		s.After(at+s.Between(0, 10*time.Second), way)
	}
	s.After(turmoil, s.calm)
	s.After(turmoil+40*time.Second, s.returnAll)
	s.After(turmoil+60*time.Second, s.returnAll) // a plan may have been under way
}

// returnAll has every region returned that is retired.
func (s *sim) returnAll() {
	for _, r := range s.topology.Regions() {
		if rec, ok := s.reg.Region(r.Name); ok && rec.State == ownership.RegionRetired {
			s.ask(s.running(), ownership.Command{Verb: ownership.VerbReturn, Region: r.Name})
		}
	}
}

// retireOne has a region fenced and retired while one of its instances fences another one.
func (s *sim) retireOne() {
	gone := s.pick()
	others := s.beside(gone.Region)
	if !gone.Alive() || len(others) == 0 {
		return
	}
	other := func() *proc { return others[s.Rand().IntN(len(others))] }
	region := gone.Region
	s.halfFence(gone, other().Region)
	at := s.Between(100*time.Millisecond, 4*time.Second)
	for range 1 + s.Rand().IntN(2) {
		s.After(at+s.Between(0, time.Second), func() {
			s.ask(other(), ownership.Command{Verb: ownership.VerbFence, Region: region, Reason: "gone"})
		})
	}
	at += s.Between(20*time.Second, 28*time.Second)
	for range 1 + s.Rand().IntN(3) {
		s.After(at+s.Between(0, 2*time.Second), func() { s.retireBy(other(), region) })
	}
	at += s.Between(time.Second, 30*time.Second)
	for range s.Rand().IntN(3) {
		s.After(at+s.Between(0, 3*time.Second), func() {
			by := other()
			if s.Chance(0.3) {
				by = gone
			}
			s.ask(by, ownership.Command{Verb: ownership.VerbReturn, Region: region, Reason: "repaired"})
			s.stumble(by)
		})
	}
	s.After(at+s.Between(0, 15*time.Second), func() {
		s.ask(other(), ownership.Command{Verb: ownership.VerbUnfence, Region: region})
	})
}

// fenced gives a region that has just been fenced, one of its instances, and one of another
// region; then is called when that is done.
func (s *sim) fenced(then func(gone, other *proc)) {
	gone := s.pick()
	others := s.beside(gone.Region)
	if len(others) == 0 || s.calmed {
		return
	}
	other := others[s.Rand().IntN(len(others))]
	s.ask(other, ownership.Command{Verb: ownership.VerbFence, Region: gone.Region, Reason: "gone"})
	s.After(s.Between(20*time.Second, 24*time.Second), func() { then(gone, other) })
}

// cutDeaf has a region that is fenced fence another one, and be retired and returned without
// hearing of it, before it sets the cut.
func (s *sim) cutDeaf() {
	s.fenced(func(gone, other *proc) {
		s.onStored(gone, func(subject string) bool { return subject == ownership.UnitSubject("a/"+other.Region) }, func() {
			for _, p := range s.procs {
				if p.Region == gone.Region {
					p.ReadNoRegions(60 * time.Second)
				}
			}
			s.After(s.Between(0, time.Second), func() { s.ask(other, ownership.Command{Verb: ownership.VerbRetire, Region: gone.Region}) })
			s.After(s.Between(3*time.Second, 12*time.Second), func() { s.ask(other, ownership.Command{Verb: ownership.VerbReturn, Region: gone.Region}) })
		})
		s.ask(gone, ownership.Command{Verb: ownership.VerbFence, Region: other.Region, Reason: "deaf"})
	})
}

// nameLate has what is written of units when a region is retired come late to the register,
// after its return.
func (s *sim) nameLate() {
	s.fenced(func(gone, other *proc) {
		s.onStored(other, func(subject string) bool { return subject == ownership.RegionSubject(gone.Region) }, func() {
			other.HoldUnitWrites(s.Between(15*time.Second, 40*time.Second))
			s.After(s.Between(time.Second, 5*time.Second), func() { s.ask(gone, ownership.Command{Verb: ownership.VerbReturn, Region: gone.Region}) })
		})
		s.ask(other, ownership.Command{Verb: ownership.VerbRetire, Region: gone.Region, Reason: "late"})
	})
}

// nameOld has an instance that has not heard of a region's return be asked to retire it.
func (s *sim) nameOld() {
	s.fenced(func(gone, other *proc) {
		s.onStored(other, func(subject string) bool { return subject == ownership.RegionSubject(gone.Region) }, func() {
			other.HoldUnitWrites(200 * time.Millisecond) // so that the others know of it alone
			for _, p := range s.beside(gone.Region) {
				if p != other {
					s.After(s.Between(100*time.Millisecond, 200*time.Millisecond), func() { p.ReadNoRegions(40 * time.Second) })
					s.After(s.Between(8*time.Second, 12*time.Second), func() { s.retireBy(p, gone.Region) })
				}
			}
			s.After(s.Between(4*time.Second, 7*time.Second), func() { s.ask(other, ownership.Command{Verb: ownership.VerbReturn, Region: gone.Region}) })
		})
		s.ask(other, ownership.Command{Verb: ownership.VerbRetire, Region: gone.Region, Reason: "old"})
	})
}

// onStored runs something once an instance has stored a record of a subject.
func (s *sim) onStored(p *proc, is func(subject string) bool, run func()) {
	s.reg.Stored = func(by *register.Instance, subject string) {
		switch {
		case s.calmed:
			s.reg.Stored = nil
		case by == p.Instance && is(subject):
			s.reg.Stored = nil
			run()
		}
	}
}

// beside are the instances of the other regions.
func (s *sim) beside(region string) (others []*proc) {
	for _, p := range s.procs {
		if p.Region != region {
			others = append(others, p)
		}
	}
	return others
}

// halfFence has an instance fence a region, and stand still or hear nothing once some of
// that is stored.
func (s *sim) halfFence(p *proc, region string) {
	left := 1 + s.Rand().IntN(3)
	s.reg.Stored = func(by *register.Instance, subject string) {
		if s.calmed {
			s.reg.Stored = nil
			return
		}
		if by != p.Instance || subject == ownership.RegionSubject(p.Region) {
			return
		}
		if left--; left > 0 {
			return
		}
		s.reg.Stored = nil
		gap := s.Between(20*time.Second, 60*time.Second)
		switch s.Rand().IntN(3) {
		case 0:
			p.Pause(gap)
			p.Blind(gap + s.Between(0, 20*time.Second))
		case 1:
			p.Cut(gap)
			p.Blind(gap + s.Between(0, 30*time.Second))
		default:
			p.Blind(gap + s.Between(0, 30*time.Second))
		}
	}
	s.ask(p, ownership.Command{Verb: ownership.VerbFence, Region: region, Reason: "half"})
}

// retireBy has an instance retire a region, and now and then stop half-way.
func (s *sim) retireBy(p *proc, region string) {
	s.ask(p, ownership.Command{Verb: ownership.VerbRetire, Region: region, Reason: "gone for good"})
	s.stumble(p)
}

// stumble has an instance die, stand still, or hear nothing shortly, now and then.
func (s *sim) stumble(p *proc) {
	at := s.Between(5*time.Millisecond, 300*time.Millisecond)
	switch s.Rand().IntN(6) {
	case 0:
		s.After(at, p.Die)
	case 1:
		s.After(at, func() { p.Pause(s.Between(time.Second, 20*time.Second)) })
	case 2:
		s.After(at, func() { p.Blind(s.Between(time.Second, 20*time.Second)) })
	}
}
