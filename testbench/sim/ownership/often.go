package ownership

import (
	"math/rand/v2"
	"time"

	"github.com/geogate/geogate/router/ownership"
)

// In some histories units are fenced and unfenced all the time, most by their own
// region, and little else goes wrong: their epochs are many, most begin where the one before
// was cut, and are joined. Writes that come late lie in between now and then.

// drawOften draws whether a history is such a one, from randomness of its own.
func drawOften(seed uint64) bool {
	return !drawTight(seed) && !drawEqualNames(seed) && !drawUndone(seed) && !drawForgetful(seed) && !drawReplaced(seed) &&
		rand.New(rand.NewPCG(seed, 89)).IntN(8) == 0
}

// often schedules such a history.
func (s *sim) often() {
	s.lateWrites = 0.004
	s.reg.Lease = ownership.LeaseConfig{Duration: 4 * time.Second, Margin: 400 * time.Millisecond, Renew: 600 * time.Millisecond, Timeout: 400 * time.Millisecond}
	for _, p := range s.procs {
		s.every(20*time.Millisecond, 300*time.Millisecond, p.clientWrite)
	}
	for _, unit := range s.units() {
		s.every(8*time.Second, 14*time.Second, func() { s.fenceAndUnfence(unit) })
	}
	s.every(2*time.Second, 10*time.Second, func() { // somebody may have fenced it beside
		s.ask(s.running(), ownership.Command{Verb: ownership.VerbUnfence, Region: s.pick().Region})
	})
	s.every(40*time.Second, 90*time.Second, func() { s.pick().Pause(s.Between(100*time.Millisecond, 20*time.Second)) })
	s.every(40*time.Second, 90*time.Second, func() { s.pick().Die() })
	s.every(30*time.Second, 90*time.Second, func() { s.pick().Cut(s.Between(time.Second, 10*time.Second)) })
	s.every(40*time.Second, 150*time.Second, func() { s.reg.Elect(s.Between(200*time.Millisecond, 5*time.Second)) })
	if s.Chance(0.2) {
		s.After(s.Between(turmoil/2, turmoil), s.forget)
	}
	s.After(turmoil, s.calm)
}

// fenceAndUnfence has a unit fenced for a moment.
func (s *sim) fenceAndUnfence(unit string) {
	p := s.pick()
	for range 10 { // it is the owner's mostly: then the cut is where the log ends
		if p.Region == s.logs[unit].region || s.Chance(0.1) {
			break
		}
		p = s.pick()
	}
	s.ask(p, ownership.Command{Verb: ownership.VerbFence, Unit: unit, Reason: "often"})
	s.After(s.Between(500*time.Millisecond, 3*time.Second), func() {
		s.ask(s.pick(), ownership.Command{Verb: ownership.VerbUnfence, Unit: unit})
	})
}
