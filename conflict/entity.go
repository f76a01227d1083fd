package conflict

import (
	"slices"

	"github.com/geogate/geogate/internal/event"
)

// maxReported limits the dead losers that an entity remembers so that the feed names
// each write once even if a refold brings it back. Beyond it the oldest are
// forgotten: a write that dies, is forgotten, comes back and loses again would be
// told twice.
const maxReported = 32

// Entity is what a region keeps of an entity: its state, which is the same in
// every region, and what this region has reported about it, which is not.
type Entity struct {
	State
	Shown    event.Dot  // winner last written to the merged topic; zero: none
	Reported []Reported // losers that the feed has named, oldest first

	// Latest is, of each origin, the last event that the state is made of, void copies of a
	// live value included. It leaves out what the frontier has reached: where it is zero the
	// entity rests.
	Latest event.Vector
	// Tracked: Latest is known, and the cover lacks only what the frontier has reached. It is
	// not while there is no frontier.
	Tracked bool
}

// Reported remembers that the feed has named a lost write.
type Reported struct {
	Lost event.Dot
	Won  Party // what it was said to lose to; zero: a correction gave it back
	// Stale is set when Won was revoked, or when the feed has said meanwhile that
	// the loser stands again, until the feed has been corrected: a loser that is
	// dead by then is corrected only if it comes back.
	Stale bool
}

// IsZero tells whether nothing is worth keeping.
func (e *Entity) IsZero() bool {
	return len(e.Live) == 0 && e.Cover.IsZero() && len(e.Reported) == 0 && e.Shown == event.Dot{} && e.Latest.IsZero()
}

// clone is a copy that can be changed without touching e; values are shared.
func (e *Entity) clone() *Entity {
	c := *e
	c.Live, c.Reported = slices.Clone(e.Live), slices.Clone(e.Reported)
	return &c
}

// revision is what one item does to events folded before: those that no longer
// stand, and those that stand again.
type revision struct {
	gone, back []event.Dot
	orphan     event.Dot // of gone, the one that never comes back; zero: none
}

// report adds to the feed what the present winner makes of the losers. r says what
// this item revoked, if anything. Invariant: each write is named as lost with
// reason concurrent at most once; every later change is a correction.
func (e *Entity) report(policy *Policy, key []byte, win int, r *revision) []Conflict {
	if r != nil && r.orphan != (event.Dot{}) {
		e.Reported = slices.DeleteFunc(e.Reported, func(t Reported) bool { return t.Lost == r.orphan })
	}
	for i := range e.Reported {
		if r != nil && (slices.Contains(r.gone, e.Reported[i].Won.At) || slices.Contains(r.back, e.Reported[i].Lost)) {
			e.Reported[i].Stale = true
		}
	}
	if !policy.ReportsLosers || win < 0 {
		return nil
	}
	if len(e.Live) == 1 && len(e.Reported) == 0 {
		return nil
	}
	var feed []Conflict
	say := func(reason Reason, lost, won Party) {
		feed = append(feed, Conflict{Key: key, Reason: reason, Rule: policy.Rule, Lost: lost, Won: won})
	}
	winner := partyOf(&e.Live[win].Event)
	for i := range e.Live {
		loser := partyOf(&e.Live[i].Event)
		at := slices.IndexFunc(e.Reported, func(t Reported) bool { return t.Lost == loser.At })
		switch {
		case i == win && at >= 0 && e.Reported[at].Won != Party{}:
			say(Revoked, e.Reported[at].Won, winner)
			e.Reported[at] = Reported{Lost: winner.At}
		case i == win:
		case at < 0:
			say(Concurrent, loser, winner)
			e.Reported = append(e.Reported, Reported{Lost: loser.At, Won: winner})
		case e.Reported[at].Won == Party{} || e.Reported[at].Stale:
			say(Revoked, loser, winner)
			e.Reported[at] = Reported{Lost: loser.At, Won: winner}
		}
	}
	e.forgetReported()
	return feed
}

// forgetReported keeps all living losers and the youngest dead ones.
func (e *Entity) forgetReported() {
	if len(e.Reported) <= maxReported {
		return
	}
	over := len(e.Reported) - maxReported
	e.Reported = slices.DeleteFunc(e.Reported, func(t Reported) bool {
		if over == 0 || slices.ContainsFunc(e.Live, func(l Live) bool { return l.Event.At == t.Lost }) {
			return false
		}
		over--
		return true
	})
}
