package seat

import (
	"context"
	"iter"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/judged"
)

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
	Add(items []judged.Item) error
}

// StoreWith is what an index stores within the transaction of another; get gives nil for
// what is not there.
type StoreWith = func(get func(key []byte) ([]byte, error), set func(key, value []byte) error) error

// JointSink is a Sink that can store what the own log has together with the index of keys.
type JointSink interface {
	Sink
	// AddWith calls store once, and gives it what the sink stores of a stretch; nil where
	// it has nothing to store, or gets the stretch later by Add. It returns store's error,
	// or its own. Beside it, Add may be called by another goroutine.
	AddWith(of Stretch, store func(StoreWith) error) error
}

// Stretch is places of the own log that were judged as they were read back, none of which
// lies in a transaction.
type Stretch struct {
	// From: nothing that was judged at or above it lies in a transaction.
	From int64
	// Begins is where the log had been judged to before.
	Begins int64
	Places []Read
}

// Items are the places, judged.
func (s *Stretch) Items() iter.Seq[*judged.Item] {
	return func(yield func(*judged.Item) bool) {
		for i := range s.Places {
			if !yield(&s.Places[i].Item) {
				return
			}
		}
	}
}

// Follows tells whether an index that has come so far, committed, may take the stretch: it
// has all before it, and nothing in it can yet be aborted.
func (s *Stretch) Follows(applied *event.Vector) bool {
	if len(s.Places) == 0 {
		return false
	}
	first := &s.Places[0].Item
	next := offsetIn(applied[first.Origin], first.Next.Incarnation)
	return next >= s.From && next >= s.Begins
}

// Folder is the fold of a seat's partition (conflict/view).
type Folder interface {
	// Committed is the committed vector with the last barrier of each origin's
	// log there. It answers at once, also while Fold runs.
	Committed() (event.Vector, Barriers)
	// Fold folds items of several origins, in log order for each; it keeps them, so that
	// they are not to be changed any more. It blocks while it has enough to do, which is
	// the seat's back-pressure. Items below
	// Committed have no effect, but for an Orphan with a table, which revokes
	// its event. An error ends the seat.
	Fold(ctx context.Context, items []judged.Item) error
	// Confirm returns nil once a transaction of the fold has been committed that began
	// after the call: until then no other instance of the region had taken the fold.
	// An error ends the seat.
	Confirm(ctx context.Context) error
	// Validity is the table of the last Cuts item that was folded and committed,
	// nil if there was none. It answers at once.
	Validity() *event.ValidityTable
	// Context is what a write under a key that is accepted now has seen: the
	// committed vector, but of restricted origins only what the entity's own live
	// values say. restricted has bit r set for each such origin r.
	Context(key []byte) (v event.Vector, restricted uint16, err error)
}
