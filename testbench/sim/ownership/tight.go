package ownership

import (
	"math/rand/v2"
	"time"

	"github.com/geogate/geogate/router/ownership"
)

// An eighth of the histories are tight: an instance with a slow clock, which hears
// nothing of the register but what it asks, loses a unit to a fence that stops
// half-way. Just after it has renewed its lease it is cut off, and another instance of
// its region, whose clock is fast, claims the unit. There the wait W has nothing to
// spare, and nothing else goes wrong that would give it time. Once the renewal is answered
// only when it is sent again. Last, an instance whose watch is silent hears of its region
// and not of the unit that it loses.

// drawTight draws whether a history is tight, from randomness of its own.
func drawTight(seed uint64) bool { return rand.New(rand.NewPCG(seed, 0x7469676874)).IntN(8) == 0 }

// tighten schedules a tight history.
func (s *sim) tighten() {
	s.fast, s.reg.NoCasts = true, true
	for _, p := range s.procs {
		s.every(20*time.Millisecond, 300*time.Millisecond, p.clientWrite)
	}
	for i, steal := range []func(){s.stealUnit, s.stealAnsweredLate, s.fenceSlowly, s.stealOverheard} {
		at := time.Duration(30+45*i) * time.Second
		s.After(at+s.Between(0, 3*time.Second), steal)
	}
	s.After(turmoil, s.calm)
}

// cast chooses an instance that holds units, another one of its region, and one of
// another region; ok is false where there are none.
func (s *sim) cast() (victim, heir, fencer *proc, ok bool) {
	for _, i := range s.Rand().Perm(len(s.procs)) {
		for _, q := range s.procs {
			switch p := s.procs[i]; {
			case !p.Alive() || !q.Alive() || p == q || len(p.Tokens().Held) == 0:
			case p.Region == q.Region:
				victim, heir = p, q
			case victim == p:
				fencer = q
			}
		}
		if heir != nil && fencer != nil {
			break
		}
	}
	return victim, heir, fencer, heir != nil && fencer != nil
}

// stealUnit has a unit fenced half-way under an instance that holds it, and claimed by
// another one of its region.
func (s *sim) stealUnit() {
	victim, heir, unit := s.fenceHalf()
	if victim != nil {
		s.After(50*time.Millisecond, func() { s.awaitRenewal(victim, heir, unit, s.Now()+10*time.Second) })
	}
}

// stealAnsweredLate has a unit taken as stealUnit does, when the victim's renewal has been
// stored and not answered: it hears of it by a retry, after its leases were made void. Its
// lease ends when it would have ended without that.
func (s *sim) stealAnsweredLate() {
	victim, heir, unit := s.fenceHalf()
	if victim == nil {
		return
	}
	victim.LateRetry(func() {
		s.ask(heir, ownership.Command{Verb: ownership.VerbUnfence, Unit: unit})
		s.writeBoth(victim, heir, 18*time.Second, 21*time.Second)
	})
}

// fenceSlowly has a unit fenced by another instance of its own region, which says that every
// answered write lies below the cut: time passes between what it writes of the region and of
// the unit, the victim renews its lease meanwhile, and hears nothing after that.
func (s *sim) fenceSlowly() {
	victim, fencer, _, ok := s.cast()
	if !ok {
		return
	}
	unit := victim.Home[0]
	s.reg.SlowFence(unit)
	s.ask(fencer, ownership.Command{Verb: ownership.VerbFence, Unit: unit, Reason: "slow"})
	s.writeBoth(victim, fencer, 15*time.Second, 30*time.Second)
	s.After(35*time.Second, func() { s.ask(fencer, ownership.Command{Verb: ownership.VerbUnfence, Unit: unit}) })
}

// fenceHalf has a unit fenced half-way under an instance with a slow clock, which does not
// hear of it. All others' clocks are fast, that of the heir, too, who may claim the unit. The
// victim is nil where there is none.
func (s *sim) fenceHalf() (victim, heir *proc, unit string) {
	victim, heir, fencer, ok := s.cast()
	if !ok {
		return nil, nil, ""
	}
	for _, p := range s.procs {
		p.SetRate(1 + drift)
	}
	victim.SetRate(1 - drift)
	unit = victim.Home[0]
	victim.Blind(4 * time.Second) // longer, and it would notice
	s.reg.HalfFence(unit)
	s.ask(fencer, ownership.Command{Verb: ownership.VerbFence, Unit: unit, Reason: "tight"})
	return victim, heir, unit
}

// writeBoth has clients write through both all the time, from some time on until another one.
func (s *sim) writeBoth(victim, heir *proc, from, to time.Duration) {
	for at := from; at < to; at += 5 * time.Millisecond {
		s.After(at, victim.clientWrite)
		s.After(at, heir.clientWrite)
	}
}

// stealOverheard has a unit taken as stealUnit does. Of what is broadcast, the victim
// hears what concerns regions alone: it learns that its leases are void, may renew, and
// hears nothing of the unit.
func (s *sim) stealOverheard() {
	victim, heir, fencer, ok := s.cast()
	if !ok {
		return
	}
	s.reg.NoCasts = s.noCasts
	unit := victim.Home[0]
	victim.HearRegions(turmoil - s.Now())
	s.reg.HalfFence(unit)
	s.ask(fencer, ownership.Command{Verb: ownership.VerbFence, Unit: unit, Reason: "overheard"})
	s.After(time.Second, func() { s.ask(heir, ownership.Command{Verb: ownership.VerbUnfence, Unit: unit}) })
}

// awaitRenewal cuts the victim off as soon as its lease has been renewed, and has the
// heir claim the unit.
func (s *sim) awaitRenewal(victim, heir *proc, unit string, end time.Duration) {
	if !victim.Alive() || !heir.Alive() || s.Now() > end {
		return
	}
	before := victim.Tokens().Until
	s.After(2*time.Millisecond, func() {
		if t := victim.Tokens(); t == nil || t.Until <= before || len(t.Held) == 0 {
			s.awaitRenewal(victim, heir, unit, end)
			return
		}
		s.Logf("%s has renewed and is cut off; %s claims %s", victim.Name, heir.Name, unit)
		victim.Cut(25 * time.Second)
		s.ask(heir, ownership.Command{Verb: ownership.VerbUnfence, Unit: unit})
		s.writeBoth(victim, heir, 17*time.Second, 19*time.Second)
	})
}
