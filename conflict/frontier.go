package conflict

import (
	"iter"
	"slices"

	"github.com/geogate/geogate/internal/event"
)

// Told is what a region has published of its log of a partition, at one moment: every
// record that it gets at or above End has a context that covers Promised.
type Told struct {
	End          event.Point
	Promised     event.Vector // its own entry: how much of its own log it has folded
	Ownership    uint64       // revision of the ownership register that it had folded
	Incarnations uint64       // revision of the incarnations that it had folded
	Floor        event.Point  // of its own log
}

// Sight is what a region knows when it asks how much of a partition is settled.
type Sight struct {
	Own          event.RegionID
	Regions      []event.RegionID // all, the own included: each may fence any other
	Vector       event.Vector     // folded
	Ownership    uint64           // revision folded, that of Table
	Incarnations uint64           // revision folded
	Table        *event.ValidityTable
	// Told is what a region has published, the newest first: mostly no more is asked for.
	Told func(event.RegionID) iter.Seq[Told]
	// Before is the frontier that was computed before; it never falls.
	Before event.Vector
	// Twins are the copies of each idempotency key that has several, if they do not all
	// lie below Before; it may be asked for several times. Those that are orphans by Table
	// count for nothing.
	Twins iter.Seq[[]Copy]
	// Lacking: not all copies up to Vector are known, because what keeps them was lost and is
	// being filled again.
	Lacking bool
}

// Holder says what keeps an entry of a frontier where it is.
type Holder uint8

// The holders.
const (
	NotHeld       Holder = iota
	HeldByFold           // a region has not promised to have folded more
	HeldByUnheard        // nothing that a region has published can be used yet, or it has published nothing
	HeldByFloor          // the origin has not said that it knows that all have it
	HeldByTwin           // copies of an idempotency key lie on both sides
	HeldByStore          // the own store is being filled again
	HeldByLog            // a region is retired, and not all that counts of its log is folded here
)

// String is what status calls it.
func (h Holder) String() string {
	return [...]string{"", "fold", "unheard", "floor", "twin", "store", "log"}[h]
}

// Hold is why an entry of a frontier is not higher.
type Hold struct {
	Why Holder
	By  event.RegionID // the region that has to say more; 0 for a twin and the store
}

// Frontier is how much of each origin's log is settled.
type Frontier struct {
	// At: no event below it is revoked any more, nor is there another copy to come of its
	// idempotency key within the window. It covers Sight.Before.
	At event.Vector
	// Floor is what the region may publish as its floor, before it is raised to the last.
	Floor event.Point
	Holds [event.MaxRegion + 1]Hold
}

// Frontier computes the frontier of a partition as one region sees it: for each origin the
// lowest of its own floor and of what all regions promise to have folded of it, lowered
// until the copies of no key lie on both sides. What a region has published is used only
// once this one has come to the end that was published with it, and has folded the same
// revisions: else it may speak of a log that a cut, not known here, has shortened.
//
// Nothing is waited for of a region that is retired, once all that counts of its log is
// folded here: it sets no cut any more that could lie below the frontier, and nothing
// comes of it that has not seen what lies there.
func (s *Sight) Frontier() Frontier {
	f := Frontier{At: s.Vector}
	var used [event.MaxRegion + 1]*Told
	var waited []event.RegionID
	for _, q := range s.Regions {
		if q != s.Own && s.Table.Gone(q, s.Vector[q]) {
			continue
		}
		used[q], waited = s.usable(q), append(waited, q)
	}
	for _, r := range s.Regions {
		lower := func(to event.Point, why Holder, by event.RegionID) {
			if to.Compare(f.At[r]) < 0 {
				if by != s.Own && s.Table.IsRetired(by) {
					why = HeldByLog
				}
				f.At[r], f.Holds[r] = to, Hold{why, by}
			}
		}
		lowest := s.Vector[r]
		for _, q := range waited {
			if used[q] == nil {
				lower(event.Point{}, HeldByUnheard, q)
				lowest = event.Point{}
				continue
			}
			promised := used[q].Promised[r]
			if used[q].Ownership != s.Ownership {
				// What lies past a cut may have been folded before the cut was known there.
				promised = s.Table.Known(used[q].Promised)[r]
			}
			lower(promised, HeldByFold, q)
			if promised.Compare(lowest) < 0 {
				lowest = promised
			}
		}
		if used[r] != nil {
			lower(used[r].Floor, HeldByFloor, r)
		}
		if s.Lacking {
			lower(s.Before[r], HeldByStore, 0)
		}
		if r == s.Own {
			f.Floor = lowest
		}
		if f.At[r].Compare(s.Before[r]) <= 0 {
			f.At[r] = s.Before[r]
		}
	}
	for r := range f.At {
		if !slices.Contains(s.Regions, event.RegionID(r)) {
			f.At[r] = s.Before[r]
		}
	}
	s.keepTwins(&f)
	return f
}

// CatchUp is what a region that was retired and returned has to have folded before it may own
// anything, or fence others: at least all that these have settled without it.
type CatchUp struct {
	// Lowest is the least that regions promise which have folded that it is back, and
	// which were never away or have caught up. None has settled more without it: no
	// frontier passes what one of them has promised, and of what they promise from now on
	// none is used before it is known that this region counts again.
	Lowest event.Vector
	// Unheard is a region that has yet to say so; 0: none has.
	Unheard event.RegionID
}

// CatchUpWith finds out what a region has to catch up with: regions are the others that were
// never away, known is the revision of the table in which they count it again. Promises of
// regions that are fenced are used where there are any, and not waited for.
func CatchUpWith(regions []event.RegionID, fenced func(event.RegionID) bool, known uint64, told func(event.RegionID) []Told) (c CatchUp) {
	heard := false
	for _, q := range regions {
		all := told(q)
		if n := len(all); n == 0 || all[n-1].Ownership < known {
			if !fenced(q) && c.Unheard == 0 {
				c.Unheard = q
			}
			continue
		}
		promised := all[len(all)-1].Promised
		for r := range promised {
			if !heard || promised[r].Compare(c.Lowest[r]) < 0 {
				c.Lowest[r] = promised[r]
			}
		}
		heard = true
	}
	if !heard && c.Unheard == 0 && len(regions) > 0 {
		c.Unheard = regions[0]
	}
	return c
}

// Lacks is an origin of whose log something has yet to be folded, at a vector under a
// table; ok is false if there is none.
func (c *CatchUp) Lacks(vector event.Vector, table *event.ValidityTable) (origin event.RegionID, ok bool) {
	s := Sight{Vector: vector, Table: table}
	for r := range c.Lowest {
		if !s.reached(event.RegionID(r), c.Lowest[r]) {
			return event.RegionID(r), true
		}
	}
	return 0, false
}

// usable is the newest of what a region has published that this one may use.
func (s *Sight) usable(q event.RegionID) *Told {
	for t := range s.Told(q) {
		if t.Ownership <= s.Ownership && t.Incarnations <= s.Incarnations && s.reached(q, t.End) {
			return &t
		}
	}
	return nil
}

// reached tells whether nothing that counts of a log lies between where this region has
// folded it to and an end: a log that was cut is not copied past its cut.
func (s *Sight) reached(q event.RegionID, end event.Point) bool {
	at := s.Vector[q]
	if at.Compare(end) >= 0 {
		return true
	}
	if at.Incarnation != end.Incarnation {
		return false
	}
	cut, next := s.Table.Cut(q, at.Incarnation, at.Next)
	return cut == at.Next && next >= end.Next
}

// keepTwins lowers the frontier until it separates no two copies of a key. What lay below
// the frontier before stays there.
func (s *Sight) keepTwins(f *Frontier) {
	for moved := s.Twins != nil; moved; {
		moved = false
		for twins := range s.Twins {
			above := slices.ContainsFunc(twins, func(c Copy) bool { return !f.At.Covers(c.At) && !s.isOrphan(&c) })
			if !above {
				continue
			}
			for _, c := range twins {
				if f.At.Covers(c.At) && !s.Before.Covers(c.At) && !s.isOrphan(&c) {
					f.At[c.At.Region] = event.Point{Incarnation: c.At.Incarnation, Next: c.At.Offset}
					f.Holds[c.At.Region] = Hold{Why: HeldByTwin}
					moved = true
				}
			}
		}
	}
}

// isOrphan: an orphan stays one, so it never stands for another copy.
func (s *Sight) isOrphan(c *Copy) bool { return s.Table.Judge(c.At, c.Epoch) == event.Orphan }

// Above is how many offsets of all logs are folded and lie above the frontier.
func (f *Frontier) Above(vector *event.Vector) (n int64) {
	for r := range vector {
		n += above(vector[r], f.At[r])
	}
	return n
}

// above is how many offsets lie between; of a later incarnation all do.
func above(folded, at event.Point) int64 {
	switch {
	case folded.Incarnation != at.Incarnation:
		return folded.Next
	case folded.Next <= at.Next:
		return 0
	}
	return folded.Next - at.Next
}

// Hindmost is the origin of which most lies above the frontier, and what holds it; ok is
// false if nothing lies above it.
func (f *Frontier) Hindmost(vector *event.Vector) (origin event.RegionID, h Hold, ok bool) {
	var most int64
	for r := range vector {
		if n := above(vector[r], f.At[r]); n > most {
			most, origin, ok = n, event.RegionID(r), true
		}
	}
	return origin, f.Holds[origin], ok
}
