package judged

import (
	"fmt"

	"github.com/geogate/geogate/internal/event"
)

// Verdict is what is known of one place in an origin's log. The zero value is
// none: an item on which nobody has decided counts nowhere.
type Verdict uint8

// The verdicts. Only what is Valid is folded; of the rest the position moves.
const (
	// Valid: the event counts (twins and cuts are the fold's to settle).
	Valid Verdict = iota + 1
	// Void: written under a barrier that was not the newest any more. It never
	// counts, in any region.
	Void
	// Quarantined: a record that no gateway can have written as it is (broken
	// envelope, or a foreign record in a remote topic). Counted, never folded.
	Quarantined
	// Skip: no record (marker, hole, denied by policy); only the position moves.
	Skip
	// Orphan: what its log alone calls Valid, but the ownership register says that
	// it lies past its region's cut, or was written under another epoch. It never
	// counts, in any region.
	Orphan
	// Cuts is no place of a log: from here on Item.Validity is in force, and all
	// that it makes an Orphan of what was folded was given before.
	Cuts
)

// String is the verdict's name in logs and metrics.
func (v Verdict) String() string {
	switch v {
	case Valid:
		return "valid"
	case Void:
		return "void"
	case Quarantined:
		return "quarantined"
	case Skip:
		return "skip"
	case Orphan:
		return "orphan"
	case Cuts:
		return "cuts"
	}
	return fmt.Sprintf("verdict-%d", uint8(v))
}

// Item is one place in one origin's log of a partition, judged.
type Item struct {
	Origin event.RegionID
	// Event is zero for Skip and Cuts. The fold looks at no value and no headers of
	// an Orphan, and of the others but Valid at nothing but place, key and Stamped.
	Event   event.Event
	Verdict Verdict
	Next    event.Point // position in the origin's log after this item
	Barrier int64       // last barrier of that log at or before this item, -1 if none: a checkpoint
	// Restricted: places of the origin's log below Next may have been denied to
	// this region.
	Restricted bool
	// Validity is set on Cuts: the table that is in force from here on. On an
	// Orphan it says that the event was folded as one that counts: the table makes
	// it an orphan, and it is revoked.
	Validity *event.ValidityTable
}
