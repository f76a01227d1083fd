package seat_test

import (
	"testing"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/seat"
)

// TestPromiseSinceTheLookUp: while a write waits in its order, another copy of it may come
// from elsewhere. It is a twin all the same, so the seat does not promise that copy before
// the write was read back, even if what it carries as its context covers it.
func TestPromiseSinceTheLookUp(t *testing.T) {
	d := newDesk(t, seat.CoreConfig{})
	o := seat.NewOrder()
	first := d.ordered(o, 1, "a", "1")
	d.openTerm(7)
	d.vector = event.Vector{2: {Next: 5}}
	second := d.ordered(o, 2, "a", "2")
	d.vector = event.Vector{2: {Next: 9}} // the copy is at 8
	d.land(first)
	d.readAll()
	env, _, _, err := event.Decode(d.sent[second].Headers)
	if err != nil || env.Context != d.vector {
		t.Fatalf("the second is sent with context %v, %v", env.Context, err)
	}
	if got := d.core.Claims().Promised[2].Next; got != 5 {
		t.Errorf("promised %d while the write is in flight, its key was looked up at 5", got)
	}
	d.land(second)
	d.readAll()
	if got := d.core.Claims().Promised[2].Next; got != 9 {
		t.Errorf("promised %d in the end", got)
	}
}

// TestPromiseKeepsToEndingLogs: from when the instance knows that an epoch is over until its
// fold has the cut, nothing more of that log is promised.
func TestPromiseKeepsToEndingLogs(t *testing.T) {
	table := func(revision uint64, known event.Epoch, ended bool) *event.ValidityTable {
		a := &event.ValidityTable{Revision: revision}
		for r := event.RegionID(1); r <= 3; r++ {
			a.Logs[r] = event.Tenures{Known: event.FirstEpoch(r), List: []event.Tenure{{Epoch: event.FirstEpoch(r)}}}
		}
		a.Logs[2].Known = known
		if ended {
			a.Logs[2].List[0].Ended, a.Logs[2].List[0].Cut = true, []event.Point{{Next: 6}}
		}
		return a
	}
	runs, fenced, cut := table(1, 18, false), table(2, 33, false), table(3, 33, true)
	d, own := newOwned(t)
	a := d.write(1, "a")
	d.openTerm(0)
	d.land(a)
	d.readAll()
	next := int64(4)
	for _, c := range []struct {
		what         string
		known, folds *event.ValidityTable
		rises        bool
	}{
		{"nothing is known yet", nil, nil, true},
		{"the epoch runs", runs, runs, true},
		{"it is over", fenced, runs, false},
		{"the fold knows that it is over", fenced, fenced, false},
		{"the cut is known", cut, fenced, false},
		{"it is, and was never heard to be set", cut, nil, false},
		{"the fold has the cut", cut, cut, true},
	} {
		own.table, d.folded = c.known, c.folds
		before := d.core.Claims().Promised
		next++
		d.vector = event.Vector{1: {Next: next}, 2: {Next: next}, 3: {Next: next}}
		got := d.core.Claims().Promised
		if got[3].Next != next || got[1].Next != next || (got[2].Next == next) != c.rises || !c.rises && got[2] != before[2] {
			t.Errorf("%s: promised %v from %v, at %d", c.what, got, before, next)
		}
	}
}

// TestKeysWaitForTheIndex: a seat whose index was lost takes no key for free before it has
// read again what the fold had committed. Writes without a key need not wait.
func TestKeysWaitForTheIndex(t *testing.T) {
	d := newDesk(t, seat.CoreConfig{})
	d.vector, d.lost = event.Vector{2: {Next: 5}}, true
	d.wantErr(d.write(1, "a"), seat.ErrNotReady)
	d.wantOpen(d.write(0, "b"))
	if err := d.index.Apply(nil, nil, event.Vector{2: {Next: 4}}); err != nil {
		t.Fatal(err)
	}
	d.wantErr(d.write(1, "a"), seat.ErrNotReady)
	if err := d.index.Apply(nil, nil, event.Vector{2: {Next: 5}}); err != nil {
		t.Fatal(err)
	}
	d.wantOpen(d.write(1, "a"))
}

// TestClaimsOfAnEarlierVersion: what a version before frontiers has promised is repeated, and
// counted on only once a term of this one has begun.
func TestClaimsOfAnEarlierVersion(t *testing.T) {
	for _, counted := range []bool{false, true} {
		published := seat.Claims{Promised: event.Vector{2: {Next: 3}}, Counted: counted}
		d := newDesk(t, seat.CoreConfig{Published: published})
		if cl := d.core.Claims(); cl.Counted != counted || cl.Promised != published.Promised {
			t.Errorf("claims %+v before the first term, published %+v", cl, published)
		}
		d.write(0, "a")
		d.openTerm(1)
		if cl := d.core.Claims(); !cl.Counted {
			t.Errorf("claims %+v under a term", cl)
		}
	}
}
