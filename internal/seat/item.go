package seat

import (
	"context"
	"fmt"

	"github.com/geogate/geogate/internal/event"
)

// Verdict is what the origin's log alone says about one place in it.
type Verdict uint8

// The verdicts.
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

// NoBarrier is the offset of "no barrier yet" wherever a last barrier is kept.
const NoBarrier int64 = -1

// Barriers is the last barrier of each origin's log, NoBarrier where there is
// none. HAZARD: the zero value says that every log has one at offset 0; make
// one with NoBarriers.
type Barriers = [event.MaxRegion + 1]int64

// NoBarriers is "no log has a barrier".
func NoBarriers() (b Barriers) {
	for r := range b {
		b[r] = NoBarrier
	}
	return b
}

// Item is one place in one origin's log, judged.
type Item struct {
	Origin  event.RegionID
	Event   event.Event // zero for Skip; for Quarantined only At and the raw record
	Verdict Verdict
	Next    event.Point // position in the origin's log after this item
	Barrier int64       // last barrier of that log at or before this item: a checkpoint
	// Restricted: places of the origin's log below Next may have been denied to
	// this region.
	Restricted bool
	// Validity is set on Cuts: the table that is in force from here on. On an
	// Orphan it says that the event was folded as one that counts: the table makes
	// it an orphan, and it is revoked.
	Validity *event.ValidityTable
}

// Sink is an index that is fed before the fold. Its methods are called by one
// goroutine of a seat at a time.
type Sink interface {
	// Applied is how far each origin's log is indexed, and the last barrier of
	// that log there (NoBarrier if none, or if the sink keeps none of remote
	// logs: those come with the runs).
	Applied() (event.Vector, Barriers)
	// Add indexes items, in log order for each origin; items below Applied are
	// no error and have no effect. What it stores, with the new Applied, it
	// stores in one atomic step.
	Add(items []Item) error
}

// Folder is the fold of a seat's partition (conflict/view).
type Folder interface {
	// Committed is the committed vector with the last barrier of each origin's
	// log there. It answers at once, also while Fold runs.
	Committed() (event.Vector, Barriers)
	// Fold folds items of several origins, in log order for each; it blocks
	// while it has enough to do, which is the seat's back-pressure. Items below
	// Committed have no effect, but for an Orphan with a table, which revokes
	// its event. An error ends the seat.
	Fold(ctx context.Context, items []Item) error
	// Validity is the table of the last Cuts item that was folded and committed,
	// nil if there was none. It answers at once.
	Validity() *event.ValidityTable
	// Context is what a write under a key that is accepted now has seen: the
	// committed vector, but of restricted origins only what the entity's own live
	// values say. restricted has bit r set for each such origin r.
	Context(key []byte) (v event.Vector, restricted uint16, err error)
}
