package ownership

import (
	"math/rand/v2"
	"time"

	"github.com/geogate/geogate/router/ownership"
)

// In some histories all instances of a region have one name, as an old process and
// its successor have: whichever claims the name later is the one that stays.

// drawEqualNames draws whether a history is such a one, from randomness of its own.
func drawEqualNames(seed uint64) bool {
	return !drawTight(seed) && rand.New(rand.NewPCG(seed, 0x657175616c)).IntN(6) == 0
}

// succeed cuts an instance off that holds units, starts another process under its
// name, which may stop again soon, and has their region fenced: the first one goes on
// for as long as its lease lasts. Or the first one is blind and renews its lease after the
// second one's first record, which is cut off and goes on for as long.
func (s *sim) succeed() {
	var first, second, fencer *proc
	for _, i := range s.Rand().Perm(len(s.procs)) {
		p := s.procs[i]
		switch {
		case first == nil && p.Alive() && len(p.Tokens().Held) > 0:
			first = p
		case p.Alive():
			fencer = p
		}
	}
	for _, p := range s.procs {
		if first != nil && p.As == first.As && !p.Alive() {
			second = p
		}
	}
	if second == nil || fencer == nil {
		return
	}
	s.Logf("%s is started in the place of %s", second.Name, first.Name)
	s.Count("successions")
	if s.Chance(0.4) {
		first.Blind(25 * time.Second)
		second.Boot()
		s.After(s.Between(4*time.Second, 8*time.Second), func() {
			second.Cut(30 * time.Second)
			s.ask(fencer, ownership.Command{Verb: ownership.VerbFence, Region: first.Region, Reason: "blind predecessor"})
		})
		return
	}
	first.Cut(s.Between(10*time.Second, 30*time.Second))
	second.Boot()
	if s.Chance(0.5) {
		s.After(s.Between(500*time.Millisecond, 3*time.Second), second.Stop)
	}
	s.After(s.Between(time.Second, 5*time.Second), func() {
		s.ask(fencer, ownership.Command{Verb: ownership.VerbFence, Region: first.Region, Reason: "succession"})
	})
}
