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

// drawReplaced draws whether a history is one in which processes with other times take
// over the names of others, which hear nothing of it, and nothing else goes wrong.
func drawReplaced(seed uint64) bool {
	return !drawTight(seed) && !drawUndone(seed) && !drawForgetful(seed) && rand.New(rand.NewPCG(seed, 0x7265706c)).IntN(12) == 0
}

// replace schedules such a history.
func (s *sim) replace() {
	for _, p := range s.procs {
		s.every(20*time.Millisecond, 300*time.Millisecond, p.clientWrite)
	}
	for at := 30 * time.Second; at < turmoil-30*time.Second; at += 70 * time.Second {
		s.After(at+s.Between(0, 5*time.Second), func() {
			first, second, fencer := s.successors()
			if second == nil || fencer == nil {
				return
			}
			s.succeedUnheard(first, second, fencer)
			s.After(50*time.Second, func() {
				s.ask(s.running(), ownership.Command{Verb: ownership.VerbUnfence, Region: first.Region})
			})
		})
	}
	s.After(turmoil, s.calm)
}

// succeed cuts an instance off that holds units, starts another process under its
// name, which may stop again soon, and has their region fenced: the first one goes on
// for as long as its lease lasts. Or the first one is blind and renews its lease after the
// second one's first record, which is cut off and goes on for as long.
func (s *sim) succeed() {
	first, second, fencer := s.successors()
	if second == nil || fencer == nil {
		return
	}
	if s.Chance(0.4) {
		s.succeedUnheard(first, second, fencer)
		return
	}
	s.started(first, second)
	first.Cut(s.Between(10*time.Second, 30*time.Second))
	second.Boot()
	if s.Chance(0.5) {
		s.After(s.Between(500*time.Millisecond, 3*time.Second), second.Stop)
	}
	s.After(s.Between(time.Second, 5*time.Second), func() {
		s.ask(fencer, ownership.Command{Verb: ownership.VerbFence, Region: first.Region, Reason: "succession"})
	})
}

// successors are an instance that holds units, a process that may be started under its
// name, and one that is asked for a fence; nil where there is none.
func (s *sim) successors() (first, second, fencer *proc) {
	for _, i := range s.Rand().Perm(len(s.procs)) {
		p := s.procs[i]
		switch {
		case first == nil && p.Alive() && len(p.Tokens().Held) > 0 && s.heir(p) != nil:
			first = p
		case p.Alive():
			fencer = p
		}
	}
	if first != nil {
		second = s.heir(first)
	}
	return first, second, fencer
}

// heir is a process that does not run and has the name of one that does.
func (s *sim) heir(of *proc) *proc {
	for _, p := range s.procs {
		if p.As == of.As && !p.Alive() {
			return p
		}
	}
	return nil
}

func (s *sim) started(first, second *proc) {
	s.Logf("%s is started in the place of %s", second.Name, first.Name)
	s.Count("successions")
}

// succeedUnheard starts the second process, perhaps with longer leases, while the first one
// hears nothing of it.
func (s *sim) succeedUnheard(first, second, fencer *proc) {
	s.started(first, second)
	first.Blind(25 * time.Second)
	if second.Lease = s.reg.Lease; s.Chance(0.7) {
		second.Lease.Duration += s.Between(5*time.Second, 15*time.Second)
	}
	second.Boot()
	s.fenceBoth(first, second, fencer, s.Now()+10*time.Second)
}

// fenceBoth has the region of two processes of one name fenced as soon as the second one
// holds units, too, and the first one, which has heard nothing of it, has renewed once
// more. The second one is cut off then, and goes on for as long as its lease lasts.
func (s *sim) fenceBoth(first, second, fencer *proc, end time.Duration) {
	switch t := second.Tokens(); {
	case !second.Alive() || !first.Alive() || s.Now() > end || s.calmed:
	case t == nil || len(t.Held) == 0 || t.Until <= second.Clock():
		s.After(50*time.Millisecond, func() { s.fenceBoth(first, second, fencer, end) })
	default:
		second.Cut(40 * time.Second)
		s.After(s.Between(0, 4*time.Second), func() {
			s.ask(fencer, ownership.Command{Verb: ownership.VerbFence, Region: first.Region, Reason: "blind predecessor"})
		})
	}
}
