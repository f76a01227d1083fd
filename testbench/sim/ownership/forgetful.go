package ownership

import (
	"math/rand/v2"
	"time"

	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/testbench/sim/register"
)

// In some histories the register forgets a fence that only the instance which fenced
// has heard of, and nothing else goes wrong. When that instance starts again, the
// register is longer than it was: the epochs of its mark alone tell.

// drawForgetful draws whether a history is such a one, from randomness of its own.
func drawForgetful(seed uint64) bool {
	return !drawTight(seed) && !drawEqualNames(seed) && !drawUndone(seed) && rand.New(rand.NewPCG(seed, 0x666f72676574)).IntN(20) == 0
}

// forgetFences schedules such a history.
func (s *sim) forgetFences() {
	for _, p := range s.procs {
		s.every(20*time.Millisecond, 300*time.Millisecond, p.clientWrite)
	}
	s.After(s.Between(40*time.Second, 60*time.Second), s.forgetFence)
	s.After(turmoil, s.calm)
}

// forgetFence has an instance fence a unit of its own while all others are cut off. It
// dies as soon as it has made the leases void, and the register loses all that was stored
// from the fence on.
func (s *sim) forgetFence() {
	p := s.pick()
	if !p.Alive() || len(p.Tokens().Held) == 0 {
		return
	}
	for _, q := range s.procs {
		if q != p {
			q.Cut(4 * time.Second)
		}
	}
	unit, stored := p.Home[0], 0
	s.reg.Stored = func(by *register.Instance, subject string) {
		if stored == 0 && subject != ownership.UnitSubject(unit) {
			return
		}
		stored++
		if by == p.Instance && subject == ownership.RegionSubject(p.Region) {
			s.reg.Stored = nil
			s.After(0, func() {
				p.Die()
				s.reg.Rollback(stored)
			})
		}
	}
	s.ask(p, ownership.Command{Verb: ownership.VerbFence, Unit: unit, Reason: "forgotten"})
}
