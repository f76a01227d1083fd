package event_test

import (
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/geogate/geogate/internal/event"
)

// fencedOnce is a log of region 2 that owned 18 from 0 to 10, and 34 from 14 on,
// after a fence in 33.
func fencedOnce() *event.ValidityTable {
	a := &event.ValidityTable{Revision: 9}
	a.Logs[2] = event.Tenures{Known: 34, List: []event.Tenure{
		{Epoch: 18, Ended: true, Cut: []event.Point{{Next: 10}}},
		{Epoch: 34, Start: []event.Point{{Next: 14}}},
	}}
	return a
}

func TestJudge(t *testing.T) {
	a := fencedOnce()
	for _, c := range []struct {
		what   string
		at     event.Dot
		epoch  event.Epoch
		expect event.Judgement
	}{
		{"inside", event.Dot{Region: 2, Offset: 9}, 18, event.Authoritative},
		{"at the cut", event.Dot{Region: 2, Offset: 10}, 18, event.Orphan},
		{"late, inside the next interval", event.Dot{Region: 2, Offset: 20}, 18, event.Orphan},
		{"next epoch", event.Dot{Region: 2, Offset: 14}, 34, event.Authoritative},
		{"next epoch before its start", event.Dot{Region: 2, Offset: 13}, 34, event.Orphan},
		{"an epoch that had no owner", event.Dot{Region: 2, Offset: 20}, 33, event.Orphan},
		{"an epoch to come", event.Dot{Region: 2, Offset: 20}, 50, event.Unsettled},
		{"unstamped inside", event.Dot{Region: 2, Offset: 3}, 0, event.Authoritative},
		{"unstamped between", event.Dot{Region: 2, Offset: 12}, 0, event.Orphan},
		{"unstamped in the running interval", event.Dot{Region: 2, Offset: 99}, 0, event.Authoritative},
		{"a log that never was owned", event.Dot{Region: 1, Offset: 0}, 0, event.Unsettled},
		{"an incarnation that came while the epoch ran", event.Dot{Region: 2, Incarnation: 1, Offset: 0}, 34, event.Authoritative},
		{"an incarnation that was not cut", event.Dot{Region: 2, Incarnation: 1, Offset: 0}, 18, event.Orphan},
	} {
		if got := a.Judge(c.at, c.epoch); got != c.expect {
			t.Errorf("%s: %d, want %d", c.what, got, c.expect)
		}
	}
	if got := (*event.ValidityTable)(nil).Judge(event.Dot{Region: 2}, 99); got != event.Authoritative {
		t.Errorf("without a register: %d", got)
	}
}

// TestJoinedTenures: epochs that follow each other without a gap and without an orphan judge
// everything as one tenure does that joins them, and going from one to the other takes
// nothing out.
func TestJoinedTenures(t *testing.T) {
	points := func(next int64) []event.Point { return []event.Point{{Next: next}} }
	apart, joined := &event.ValidityTable{Revision: 9}, &event.ValidityTable{Revision: 10}
	last := event.Tenure{Epoch: 66, Start: points(30)}
	apart.Logs[2] = event.Tenures{Known: 66, List: []event.Tenure{
		{Epoch: 18, Ended: true, Cut: points(10)},
		{Epoch: 34, Start: points(10), Ended: true, Cut: points(20)},
		{Epoch: 50, Start: points(20), Ended: true, Cut: points(25)},
		last,
	}}
	joined.Logs[2] = event.Tenures{Known: 66, List: []event.Tenure{{First: 18, Epoch: 50, Ended: true, Cut: points(25)}, last}}
	epochAt := func(offset int64) event.Epoch {
		switch {
		case offset < 10:
			return 18
		case offset < 20:
			return 34
		case offset < 25:
			return 50
		}
		return 66
	}
	for offset := int64(0); offset < 40; offset++ {
		at := event.Dot{Region: 2, Offset: offset}
		for _, e := range []event.Epoch{0, epochAt(offset), 66, 67, 17} { // under others nothing lies there
			if a, b := apart.Judge(at, e), joined.Judge(at, e); a != b {
				t.Errorf("offset %d under epoch %d: %d apart, %d joined", offset, e, a, b)
			}
		}
		if e := event.Epoch(34); offset >= 25 && joined.Judge(at, e) != event.Orphan {
			t.Errorf("offset %d under epoch %d, which has ended, counts", offset, e)
		}
		v := event.Vector{2: {Next: offset}}
		if apart.Known(v) != joined.Known(v) {
			t.Errorf("Known(%d): %v apart, %v joined", offset, apart.Known(v), joined.Known(v))
		}
		if a, b := apart.Decided(2, v[2]), joined.Decided(2, v[2]); b.Compare(a) > 0 {
			t.Errorf("Decided(%d): %v apart, %v joined", offset, a, b)
		}
	}
	if from, found := joined.Orphans(apart, 2); found {
		t.Errorf("what is joined takes something out from %v on", from)
	}
	if from, found := joined.NewlyCut(apart, 2); found {
		t.Errorf("joining epochs has made a new cut at %v", from)
	}
	// A reader that knew only the first of them looks again for orphans past the last cut, no earlier.
	before := &event.ValidityTable{Revision: 3}
	before.Logs[2] = event.Tenures{Known: 18, List: []event.Tenure{{Epoch: 18}}}
	if from, found := joined.Orphans(before, 2); !found || from.Next != 25 {
		t.Errorf("for who knew the first epoch alone, orphans from %v on, %t", from, found)
	}
}

// A log is over at the cut of its last epoch as long as no later epoch has started, and is not
// taken for over while the register may know a later one.
func TestOverAndCutPending(t *testing.T) {
	log := func(known event.Epoch, list ...event.Tenure) *event.ValidityTable {
		a := &event.ValidityTable{Revision: 5}
		a.Logs[2] = event.Tenures{Known: known, List: list}
		return a
	}
	cut := event.Tenure{Epoch: 18, Ended: true, Cut: []event.Point{{Next: 10}}}
	recreated := event.Tenure{Epoch: 18, Ended: true, Cut: []event.Point{{Incarnation: 1, Next: 4}}}
	for _, c := range []struct {
		what    string
		table   *event.ValidityTable
		at      event.Point
		over    bool
		pending bool
	}{
		{"no register", nil, event.Point{Next: 10}, false, false},
		{"nothing is known of the register", &event.ValidityTable{}, event.Point{Next: 10}, false, false},
		{"an epoch runs", log(18, event.Tenure{Epoch: 18}), event.Point{Next: 10}, false, false},
		{"fenced, the cut is to come", log(33, event.Tenure{Epoch: 18}), event.Point{Next: 10}, false, true},
		{"below the cut", log(33, cut), event.Point{Next: 9}, false, false},
		{"at the cut", log(33, cut), event.Point{Next: 10}, true, false},
		{"past the cut, which was known late", log(33, cut), event.Point{Next: 12}, true, false},
		{"the next epoch has started", fencedOnce(), event.Point{Next: 10}, false, false},
		{"in the next epoch", fencedOnce(), event.Point{Next: 15}, false, false},
		{"it has never owned the unit", log(33), event.Point{}, true, false},
		{"cut in a later incarnation", log(33, recreated), event.Point{Next: 99}, false, false},
		{"at the cut of that", log(33, recreated), event.Point{Incarnation: 1, Next: 4}, true, false},
		{"its epochs are in no register", func() *event.ValidityTable {
			a := log(0)
			a.Logs[2] = event.Unregistered()
			return a
		}(), event.Point{Next: 99}, false, false},
	} {
		if c.table.Gone(2, c.at) {
			t.Errorf("%s: a region that is not retired is gone", c.what)
		}
		if c.table != nil {
			if c.table.Retired = 1 << 2; c.table.Gone(2, c.at) != c.over || c.table.Gone(1, c.at) {
				t.Errorf("%s: of a region that is retired, gone is not %v", c.what, c.over)
			}
		}
		if over, pending := c.table.Over(2, c.at), c.table.CutPending(2); over != c.over || pending != c.pending {
			t.Errorf("%s: over %v, cut pending %v; want %v, %v", c.what, over, pending, c.over, c.pending)
		}
	}
}

func TestCutAndOrphans(t *testing.T) {
	a := fencedOnce()
	if cut, next := a.Cut(2, 0, 0); cut != 10 || next != 14 {
		t.Errorf("Cut from 0 = %d, %d", cut, next)
	}
	if cut, next := a.Cut(2, 0, 12); cut != 12 || next != 14 {
		t.Errorf("Cut from 12 = %d, %d", cut, next)
	}
	if cut, next := a.Cut(2, 0, 20); cut != event.NoCut || next != event.NoCut {
		t.Errorf("Cut from 20 = %d, %d", cut, next)
	}
	if cut, next := a.Cut(1, 0, 0); cut != 0 || next != event.NoCut {
		t.Errorf("Cut of a log that never was owned = %d, %d", cut, next)
	}
	before := &event.ValidityTable{Revision: 3}
	before.Logs[2] = event.Tenures{Known: 18, List: []event.Tenure{{Epoch: 18}}}
	if from, found := a.Orphans(before, 2); !found || from != (event.Point{Next: 10}) {
		t.Errorf("Orphans = %v, %v", from, found)
	}
	if _, found := a.Orphans(a, 2); found {
		t.Error("a table makes orphans of the records that count in it")
	}
	if _, found := a.Orphans(before, 1); found {
		t.Error("another log has orphans")
	}
	// A record without a gateway that was folded before the cut was known, and that
	// nothing judges until the next interval is.
	fenced := &event.ValidityTable{Revision: 5}
	fenced.Logs[2] = event.Tenures{Known: 33, List: a.Logs[2].List[:1]}
	at := event.Dot{Region: 2, Offset: 12}
	if before.Judge(at, 0) != event.Authoritative || fenced.Judge(at, 0) != event.Unsettled || a.Judge(at, 0) != event.Orphan {
		t.Error("a record between two intervals is judged otherwise")
	}
	if from, found := a.Orphans(fenced, 2); !found || from != (event.Point{Next: 10}) {
		t.Errorf("Orphans past a cut once the next interval is known = %v, %v", from, found)
	}
}

// A log whose topic was recreated: what an epoch's bounds do not list, and what came
// without a gateway.
func TestJudgeIncarnations(t *testing.T) {
	old := &event.ValidityTable{Revision: 1}
	old.Logs[2] = event.Tenures{Known: 18, List: []event.Tenure{{Epoch: 18}}}
	cut := &event.ValidityTable{Revision: 2}
	cut.Logs[2] = event.Tenures{Known: 33, List: []event.Tenure{{Epoch: 18, Ended: true, Cut: []event.Point{{Incarnation: 1, Next: 4}}}}}
	if from, found := cut.Orphans(old, 2); !found || from != (event.Point{Incarnation: 1, Next: 4}) {
		t.Errorf("orphans from %v, %v: whoever has come to an incarnation has had those before", from, found)
	}
	for at, want := range map[event.Dot]event.Judgement{
		{Region: 2, Offset: 3}: event.Authoritative, {Region: 2, Incarnation: 1, Offset: 4}: event.Orphan, {Region: 2, Incarnation: 2}: event.Orphan,
	} {
		if got := cut.Judge(at, 18); got != want {
			t.Errorf("%v: %v, want %v", at, got, want)
		}
	}
	again := &event.ValidityTable{Revision: 3}
	again.Logs[2] = event.Tenures{Known: 34, List: []event.Tenure{
		{Epoch: 18, Ended: true, Cut: []event.Point{{Next: 4}}}, {Epoch: 34, Start: []event.Point{{Incarnation: 1, Next: 2}}},
	}}
	for offset, want := range map[int64]event.Judgement{3: event.Authoritative, 4: event.Orphan} {
		if got := again.Judge(event.Dot{Region: 2, Offset: offset}, 0); got != want {
			t.Errorf("without a gateway at %d of a log that was replaced before the next interval: %v, want %v", offset, got, want)
		}
	}
	if got := again.Judge(event.Dot{Region: 2, Incarnation: 2}, 34); got != event.Authoritative {
		t.Errorf("later incarnation: %v", got)
	}
}

func TestKnown(t *testing.T) {
	a := fencedOnce()
	for _, c := range []struct{ have, expect int64 }{{8, 8}, {10, 10}, {12, 10}, {14, 10}, {15, 15}, {90, 90}} {
		v := event.Vector{1: {Next: 5}, 2: {Next: c.have}}
		if got := a.Known(v); got[2].Next != c.expect || got[1].Next != 5 {
			t.Errorf("Known(%d) = %v, want %d", c.have, got, c.expect)
		}
	}
	if v := (event.Vector{2: {Next: 12}}); (*event.ValidityTable)(nil).Known(v) != v {
		t.Error("without a register something is in doubt")
	}
}

func drawValidityTable(t *rapid.T) *event.ValidityTable {
	points := func(label string) []event.Point {
		var out []event.Point
		for i := range rapid.IntRange(0, 2).Draw(t, label) {
			out = append(out, event.Point{Incarnation: uint16(i), Next: rapid.Int64Range(0, 40).Draw(t, label+" next")})
		}
		return out
	}
	a := &event.ValidityTable{Revision: rapid.Uint64().Draw(t, "revision")}
	for r := event.RegionID(1); r <= 3; r++ {
		e := event.Epoch(0)
		for range rapid.IntRange(0, 3).Draw(t, "tenures") {
			e += event.Epoch(rapid.IntRange(1, 20).Draw(t, "epoch"))
			x := event.Tenure{Epoch: e, Start: points("start"), Ended: rapid.Bool().Draw(t, "ended")}
			if x.Ended {
				x.Cut = points("cut")
			}
			if e > 1 && rapid.Bool().Draw(t, "joins") {
				x.First = event.Epoch(rapid.IntRange(1, int(e)-1).Draw(t, "first"))
			}
			a.Logs[r].List = append(a.Logs[r].List, x)
		}
		a.Logs[r].Known = e
	}
	a.Retired = rapid.Uint16().Draw(t, "retired") &^ 1
	return a
}

func TestValidityTableBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := drawValidityTable(t)
		r := event.NewReader(event.AppendValidityTable(nil, a))
		got := event.ReadValidityTable(r)
		if err := r.Close(); err != nil || !reflect.DeepEqual(got, a) {
			t.Fatalf("%+v, %v, want %+v", got, err, a)
		}
	})
}

func FuzzValidityTable(f *testing.F) {
	f.Add(event.AppendValidityTable(nil, fencedOnce()))
	retired := fencedOnce()
	retired.Retired = 1 << 2
	f.Add(event.AppendValidityTable(nil, retired))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := event.NewReader(b)
		a := event.ReadValidityTable(r)
		if r.Close() != nil {
			return
		}
		again := event.NewReader(event.AppendValidityTable(nil, a))
		if got := event.ReadValidityTable(again); again.Close() != nil || !reflect.DeepEqual(got, a) {
			t.Fatalf("%+v becomes %+v", a, got)
		}
	})
}
