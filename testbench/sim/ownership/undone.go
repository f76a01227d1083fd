package ownership

import (
	"math/rand/v2"
	"time"

	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/testbench/sim/register"
)

// In a tenth of the histories an instance fences its own region, somebody undoes that
// at a moment at which the one that fences does not look, and another instance of the
// region goes on: it renews its lease, and then hears of nothing. Nothing else goes
// wrong. The end of the own region's log is the cut there, which promises that every
// answered write counts.

// drawUndone draws whether a history is such a one, from randomness of its own.
func drawUndone(seed uint64) bool {
	return !drawTight(seed) && !drawEqualNames(seed) && rand.New(rand.NewPCG(seed, 0x756e646f6e65)).IntN(10) == 0
}

// undo schedules such a history.
func (s *sim) undo() {
	for _, p := range s.procs {
		s.every(20*time.Millisecond, 300*time.Millisecond, p.clientWrite)
	}
	s.After(s.Between(25*time.Second, 30*time.Second), s.undoHalf)
	s.After(s.Between(95*time.Second, 100*time.Second), s.undoUnseen)
	s.After(turmoil, s.calm)
}

// undoHalf has a fence undone between its write of the region and those of the units.
func (s *sim) undoHalf() {
	victim, fencer, other, ok := s.cast()
	if !ok {
		return
	}
	region := victim.Region
	gap := s.Between(3*time.Second, 8*time.Second)
	s.reg.Stored = func(by *register.Instance, subject string) {
		if by == fencer.Instance && subject == ownership.RegionSubject(region) {
			s.reg.Stored = nil
			fencer.Pause(gap)
			s.After(100*time.Millisecond, func() { s.ask(other, ownership.Command{Verb: ownership.VerbUnfence, Region: region}) })
			s.After(gap-500*time.Millisecond, func() { victim.Cut(40 * time.Second) })
		}
	}
	s.ask(fencer, ownership.Command{Verb: ownership.VerbFence, Region: region, Reason: "undone"})
}

// undoUnseen has a fence undone while the one that has fenced hears nothing, and is
// then asked to fence again.
func (s *sim) undoUnseen() {
	victim, fencer, other, ok := s.cast()
	if !ok {
		return
	}
	fence := ownership.Command{Verb: ownership.VerbFence, Region: victim.Region, Reason: "unseen"}
	s.ask(fencer, fence)
	s.After(2*time.Second, func() {
		fencer.Cut(50 * time.Second)
		s.ask(other, ownership.Command{Verb: ownership.VerbUnfence, Region: victim.Region})
	})
	s.After(51*time.Second, func() { victim.Blind(60 * time.Second) })
	s.After(52*time.Second+s.Between(time.Millisecond, 10*time.Millisecond), func() { s.ask(fencer, fence) }) // before it hears
}
