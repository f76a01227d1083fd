package offsets_test

import (
	"encoding/hex"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/offsets"
)

func TestGolden(t *testing.T) {
	topic := event.TopicID{0xaa, 15: 0xbb}
	key := offsets.AppendKey(nil, topic, 3, 258)
	if got, want := hex.EncodeToString(key), "aa0000000000000000000000000000bb000000030000000000000102"; got != want {
		t.Errorf("runs key = %s, want %s", got, want)
	}
	runs := []offsets.Run{
		{Target: 258, Source: 300, Count: 5, Incarnation: 1, Barrier: 299, Barriers: []int64{7, 299}},
		{Target: 264, Source: 305, Count: 128, Incarnation: 1, Barrier: 299},
		{Target: 393, Source: 435, Count: 1, Incarnation: 1, Barrier: 433, Barriers: []int64{433}},
	}
	value := offsets.AppendRuns(nil, runs)
	want := "010001ac02ac0203" + "0000050207a402" + "0100800100" + "0102010100"
	if got := hex.EncodeToString(value); got != want {
		t.Errorf("runs value = %s, want %s", got, want)
	}
	back, err := offsets.ParseRuns(258, value)
	if err != nil || !reflect.DeepEqual(back, runs) {
		t.Errorf("ParseRuns = %+v, %v", back, err)
	}
	for i := range runs {
		runs[i].Restricted = true
	}
	restricted := offsets.AppendRuns(nil, runs)
	if got := hex.EncodeToString(restricted); got != "02"+want[2:] {
		t.Errorf("restricted runs = %s", got)
	}
	if back, err := offsets.ParseRuns(258, restricted); err != nil || !reflect.DeepEqual(back, runs) {
		t.Errorf("ParseRuns = %+v, %v", back, err)
	}
	pos := offsets.Position{Incarnation: 2, SourceCovered: 300, SourceEpoch: 4, Barrier: -1, Target: topic, TargetCovered: 9, TargetEpoch: -1}
	raw := pos.Append(nil)
	if got, want := hex.EncodeToString(raw), "010002ac020500aa0000000000000000000000000000bb0900"; got != want {
		t.Errorf("position = %s, want %s", got, want)
	}
	for _, restricted := range []bool{false, true} {
		pos.Restricted = restricted
		if got, err := offsets.ParsePosition(pos.Append(nil)); err != nil || got != pos {
			t.Errorf("ParsePosition = %+v, %v", got, err)
		}
	}
}

// genRuns draws runs as a link makes them: sources and targets rise, barriers lie
// in the source gaps.
func genRuns(t *rapid.T, n int) []offsets.Run {
	var runs []offsets.Run
	target, source, barrier, inc := int64(0), int64(0), int64(-1), uint16(0)
	shape := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "shape"), 1))
	for range n {
		target += shape.Int64N(4)
		gap := shape.Int64N(5)
		r := offsets.Run{Target: target, Count: 1 + shape.Int64N(200), Incarnation: inc, Restricted: inc%2 == 1}
		for b := source; b < source+gap; b++ {
			if shape.IntN(2) == 0 {
				r.Barriers, barrier = append(r.Barriers, b), b
			}
		}
		r.Source, r.Barrier = source+gap, barrier
		runs = append(runs, r)
		target, source = r.TargetEnd(), r.SourceEnd()
	}
	return runs
}

func TestRunsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		runs := genRuns(t, rapid.IntRange(1, 40).Draw(t, "n"))
		back, err := offsets.ParseRuns(runs[0].Target, offsets.AppendRuns(nil, runs))
		if err != nil || !reflect.DeepEqual(back, runs) {
			t.Fatalf("%v\n got %+v\nwant %+v", err, back, runs)
		}
	})
}

// TestMapAgainstList holds the packed map against a plain list, with blocks that
// arrive again, folded, in any order.
func TestMapAgainstList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		runs := genRuns(t, rapid.SampledFrom([]int{1, 7, 60, 600}).Draw(t, "n"))
		var m offsets.Map
		hidden := rapid.SliceOfN(rapid.IntRange(0, len(runs)-1), 0, 5).Draw(t, "late")
		late := map[int]bool{}
		for _, i := range hidden {
			late[i] = true
		}
		for i, r := range runs {
			if !late[i] {
				if err := m.Add(r); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := m.Add(runs...); err != nil { // everything once more, as one folded block
			t.Fatal(err)
		}
		if m.Len() != len(runs) || m.End() != runs[len(runs)-1].TargetEnd() {
			t.Fatalf("Len %d End %d, want %d and %d", m.Len(), m.End(), len(runs), runs[len(runs)-1].TargetEnd())
		}
		for range 20 {
			at := rapid.Int64Range(0, m.End()+2).Draw(t, "target")
			if rapid.Bool().Draw(t, "from the store") {
				m.Forget()
			}
			want, found := offsets.Run{}, false
			for _, r := range runs {
				if r.Target <= at && at < r.TargetEnd() {
					want, found = r, true
				}
			}
			got, ok := m.Locate(at)
			if ok != found || ok && !reflect.DeepEqual(got.Barrier, want.Barrier) {
				t.Fatalf("Locate(%d) = %+v, %v; want %+v, %v", at, got, ok, want, found)
			}
			if !ok {
				continue
			}
			_, source, _ := m.Source(at)
			if rapid.Bool().Draw(t, "back from the store") {
				m.Forget()
			}
			if source != want.Source+at-want.Target {
				t.Fatalf("Source(%d) = %d in %+v", at, source, want)
			}
			if back, ok := m.Target(want.Incarnation, source); !ok || back != at {
				t.Fatalf("Target(Source(%d)) = %d, %v", at, back, ok)
			}
			if from, ok := m.TargetFrom(want.Incarnation, source); !ok || from != at {
				t.Fatalf("TargetFrom(Source(%d)) = %d, %v", at, from, ok)
			}
		}
		// A place that was not copied is read from the run after it.
		for i := range len(runs) - 1 {
			a, b := runs[i], runs[i+1]
			if a.Incarnation != b.Incarnation || a.SourceEnd() == b.Source {
				continue
			}
			if i%7 == 0 {
				m.Forget()
			}
			if from, ok := m.TargetFrom(a.Incarnation, a.SourceEnd()); !ok || from != b.Target {
				t.Fatalf("TargetFrom(%d), between %+v and %+v, is %d, %v", a.SourceEnd(), a, b, from, ok)
			}
		}
		cut := rapid.Int64Range(0, m.End()).Draw(t, "cut")
		m.Cut(cut)
		if m.End() > cut {
			t.Fatalf("End %d after Cut(%d)", m.End(), cut)
		}
		if _, ok := m.Locate(cut); ok {
			t.Fatalf("Locate(%d) found what was cut", cut)
		}
	})
}

// TestMapOfManyRecords looks up places in the store, record by record, against the list of
// runs: each place of the source, copied or not, below, between and above them.
func TestMapOfManyRecords(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		runs := genRuns(t, rapid.IntRange(2, 60).Draw(t, "n"))
		var m offsets.Map
		for left := runs; len(left) > 0; {
			n := min(rapid.IntRange(1, 4).Draw(t, "in a record"), len(left))
			if err := m.Add(left[:n]...); err != nil {
				t.Fatal(err)
			}
			if left = left[n:]; rapid.IntRange(0, 9).Draw(t, "forget") == 0 {
				m.Forget() // what is newest begins here
			}
		}
		forget := rapid.SampledFrom([]int{1, 2, 7, math.MaxInt}).Draw(t, "looks between forgetting")
		looks := 0
		for _, near := range runs {
			for _, source := range []int64{near.Source - 1, near.Source, near.SourceEnd() - 1, near.SourceEnd(), near.SourceEnd() + 3} {
				if source < 0 {
					continue
				}
				if looks++; looks%forget == 0 {
					m.Forget()
				}
				want, found, exact := int64(0), false, false
				for _, r := range runs { // the first that ends past the place
					if r.Incarnation > near.Incarnation || r.Incarnation == near.Incarnation && r.SourceEnd() > source {
						exact = r.Incarnation == near.Incarnation && r.Source <= source
						want, found = r.Target, true
						if exact {
							want += source - r.Source
						}
						break
					}
				}
				if got, ok := m.TargetFrom(near.Incarnation, source); ok != found || got != want {
					t.Fatalf("TargetFrom(%d, %d) = %d, %v; want %d, %v", near.Incarnation, source, got, ok, want, found)
				}
				if got, ok := m.Target(near.Incarnation, source); ok != exact || ok && got != want {
					t.Fatalf("Target(%d, %d) = %d, %v; want %d, %v", near.Incarnation, source, got, ok, want, exact)
				}
			}
			for _, target := range []int64{near.Target, near.TargetEnd() - 1, near.TargetEnd()} {
				if looks++; looks%forget == 0 {
					m.Forget()
				}
				i := slices.IndexFunc(runs, func(r offsets.Run) bool { return r.Target <= target && target < r.TargetEnd() })
				if got, ok := m.Locate(target); ok != (i >= 0) || ok && !reflect.DeepEqual(got, runs[i]) {
					t.Fatalf("Locate(%d) = %+v, %v; want run %d", target, got, ok, i)
				}
			}
		}
	})
}

func TestMapRefusesContradiction(t *testing.T) {
	var m offsets.Map
	if err := m.Add(offsets.Run{Target: 10, Source: 5, Count: 4, Barrier: -1}); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []offsets.Run{
		{Target: 10, Source: 6, Count: 4, Barrier: -1},
		{Target: 8, Source: 3, Count: 4, Barrier: -1},
		{Target: 13, Source: 8, Count: 4, Barrier: -1},
	} {
		if m.Add(bad) == nil {
			t.Errorf("Add(%+v) succeeded", bad)
		}
	}
	if m.Len() != 1 {
		t.Errorf("Len = %d after refused runs", m.Len())
	}
}

func FuzzParse(f *testing.F) {
	f.Add(int64(258), []byte{1, 0, 1, 0xac, 2, 0, 1, 0, 0, 5, 0})
	f.Fuzz(func(t *testing.T, first int64, raw []byte) {
		if runs, err := offsets.ParseRuns(max(first, 0), raw); err == nil {
			again, err := offsets.ParseRuns(runs[0].Target, offsets.AppendRuns(nil, runs))
			if err != nil || !reflect.DeepEqual(again, runs) {
				t.Fatalf("%+v does not survive: %+v, %v", runs, again, err)
			}
		}
		if p, err := offsets.ParsePosition(raw); err == nil {
			if again, err := offsets.ParsePosition(p.Append(nil)); err != nil || again != p {
				t.Fatalf("%+v does not survive", p)
			}
		}
		_, _, _, _ = offsets.ParseKey(raw)
	})
}
