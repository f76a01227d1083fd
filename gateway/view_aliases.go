package gateway

import (
	"math"

	"github.com/geogate/geogate/internal/event"
)

// aliasCache knows for each origin a stretch of its log in which no event has another
// copy. Hardly any has one, and asking the view for each record costs more than all else
// that is done with it.
//
// What was found holds for the rest of the read, although copies come later. Of an event that
// the view had folded when it was asked, a copy that comes after that follows it in the
// merged topic as well, and no cursor that this read was given covers it: that the reader
// had seen it before the event would have been known.
type aliasCache [event.MaxRegion + 1]struct {
	incarnation uint16
	from, to    int64
}

// aliasesAhead is how far the view must have folded past an event for a search that goes on
// from there to be worth more than asking for the one event.
const aliasesAhead = 16

// of are the other copies of the event at a dot.
func (c *aliasCache) of(view View, at event.Dot) ([]event.Dot, error) {
	known := &c[at.Region]
	if known.incarnation == at.Incarnation && known.from <= at.Offset && at.Offset < known.to {
		return nil, nil
	}
	folded, _ := view.Committed() // before the view is asked
	if !folded[at.Region].Reaches(at.Incarnation, at.Offset+aliasesAhead) {
		return view.Aliases(at)
	}
	next, found, err := view.NextAliased(at)
	if err != nil {
		return nil, err
	}
	known.incarnation, known.from, known.to = at.Incarnation, at.Offset, math.MaxInt64
	if p := folded[at.Region]; p.Incarnation == at.Incarnation {
		known.to = p.Next
	}
	if found {
		known.to = min(known.to, next.Offset)
	}
	if at.Offset < known.to {
		return nil, nil
	}
	return view.Aliases(at)
}
