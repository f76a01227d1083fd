package conflict

import (
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/judged"
)

// Foldable is how many items at the head of a queue may be folded: those that the
// journal has. While the journal has less than what was committed there are none,
// because a refold needs every earlier event; journaled is false then.
func Foldable(queue []judged.Item, journal, committed *event.Vector) (n int, journaled bool) {
	if !journal.CoversAll(committed) {
		return 0, false
	}
	for n < len(queue) {
		if it := &queue[n]; it.Verdict != judged.Cuts && it.Next.Compare(journal[it.Origin]) > 0 {
			break
		}
		n++
	}
	return n, true
}

// RestrictedOrigins is of which origins (bit r: origin r) records may be missing in
// a region: as the folded items say, and as control has announced. The region itself
// misses none of its own.
func (p *Position) RestrictedOrigins(announced uint16, own event.RegionID) uint16 {
	return (p.Restricted | announced) &^ (1 << own)
}
