package conflict

import (
	"bytes"
	"slices"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
)

// Copy is one valid record of an idempotency key in some origin's log: neither
// fenced nor quarantined.
type Copy struct {
	At          event.Dot
	ID          event.ID
	Stamp       hlc.Stamp
	Fingerprint event.Fingerprint // zero: not known
	Entity      []byte            // record key; nil is null
	Epoch       event.Epoch       // under which it was written
}

// CopyOf is the copy that an event is of its idempotency key.
func CopyOf(ev *event.Event) Copy {
	return Copy{At: ev.At, ID: ev.ID, Stamp: ev.Stamp, Fingerprint: ev.Fingerprint, Entity: ev.Key, Epoch: ev.Epoch}
}

// compareCopies is the order of writes.
func compareCopies(a, b Copy) int {
	return event.Order{Stamp: a.Stamp, At: a.At, ID: a.ID}.Compare(event.Order{Stamp: b.Stamp, At: b.At, ID: b.ID})
}

// groupCopies sorts the copies of one key and splits them into groups: the smallest
// copy begins a group, copies within one window of its stamp (inclusive) belong
// to it, the next one begins another. The first of each group stands, the others
// are void.
func groupCopies(copies []Copy, window time.Duration) [][]Copy {
	slices.SortFunc(copies, compareCopies)
	var groups [][]Copy
	for start := 0; start < len(copies); {
		last := copies[start].Stamp.Add(window)
		end := start + 1
		for end < len(copies) && copies[end].Stamp <= last {
			end++
		}
		groups = append(groups, copies[start:end:end])
		start = end
	}
	return groups
}

// standingChange is a copy that lost its standing, or has it back, and the copy that it
// lost to or had lost to.
type standingChange struct{ lost, won Copy }

// settlement says what one copy more, or one less, of a key changes.
type settlement struct {
	groups [][]Copy
	leader Copy             // of the new copy's group, if there is one; the new copy itself if it stands
	lost   []standingChange // copies that are void now and were not before, the new one included
	back   []standingChange // copies that were void and stand now (won), and what they had lost to
	moved  []Copy           // the other copies whose group's leader changed
}

// settle compares the groups of a key before and after the copy at added came.
// copies holds the new one too; it is sorted in place.
func settle(copies []Copy, added event.Dot, window time.Duration) settlement {
	return compareGroups(groupCopies(without(copies, added), window), groupCopies(copies, window))
}

// unsettle compares the groups of a key before and after the copy at gone, which
// copies still holds, was taken out. copies is sorted in place.
func unsettle(copies []Copy, gone event.Dot, window time.Duration) settlement {
	return compareGroups(groupCopies(copies, window), groupCopies(without(copies, gone), window))
}

func without(copies []Copy, at event.Dot) []Copy {
	return slices.DeleteFunc(slices.Clone(copies), func(c Copy) bool { return c.At == at })
}

// compareGroups says what became of the copies that are in the groups after.
func compareGroups(old, now [][]Copy) settlement {
	before := make(map[event.Dot]Copy)
	for _, g := range old {
		for _, c := range g {
			before[c.At] = g[0]
		}
	}
	s := settlement{groups: now}
	for _, g := range s.groups {
		for _, c := range g {
			was, known := before[c.At]
			stood, stands := known && was.At == c.At, g[0].At == c.At
			if !known {
				s.leader = g[0]
			} else if was.At != g[0].At {
				s.moved = append(s.moved, c)
			}
			switch {
			case (stood || !known) && !stands:
				s.lost = append(s.lost, standingChange{lost: c, won: g[0]})
			case known && !stood && stands:
				s.back = append(s.back, standingChange{lost: was, won: c})
			}
		}
	}
	return s
}

// reason is cross-region-duplicate, or key-reuse if the two writes are known to
// have asked for different things.
func (o standingChange) reason() Reason {
	a, b := o.lost.Fingerprint, o.won.Fingerprint
	if !a.IsZero() && !b.IsZero() && a != b {
		return KeyReuse
	}
	return Duplicate
}

// siblingsOf is the dots of the other copies in c's group under c's entity.
func siblingsOf(c Copy, group []Copy) []event.Dot {
	var dots []event.Dot
	for _, o := range group {
		if o.At != c.At && sameKey(o.Entity, c.Entity) {
			dots = append(dots, o.At)
		}
	}
	slices.SortFunc(dots, event.Dot.Compare)
	return dots
}

// sameKey compares record keys; null differs from empty.
func sameKey(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }
