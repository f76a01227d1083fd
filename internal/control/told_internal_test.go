package control

import (
	"testing"

	"github.com/geogate/geogate/internal/event"
)

// TestTold: what a region has told comes newest first, without what frontiers may not count
// on, and with nothing at all if that is the newest. Records that come in between hide none.
func TestTold(t *testing.T) {
	told := func(counted ...bool) *Follower {
		f := &Follower{progress: make(map[progressKey][]Progress)}
		for i, c := range counted {
			k := progressKey{2, "t", 0}
			f.progress[k] = append(f.progress[k], Progress{End: event.Point{Next: int64(i)}, Counted: c})
		}
		return f
	}
	for _, tt := range []struct {
		counted []bool
		want    []int64
	}{
		{nil, nil},
		{[]bool{true}, []int64{0}},
		{[]bool{true, true, false}, nil},
		{[]bool{true, false, true, true}, []int64{3, 2, 0}},
		{[]bool{false, true}, []int64{1}},
	} {
		var got []int64
		for p := range told(tt.counted...).Told(2, "t", 0) {
			got = append(got, p.End.Next)
		}
		if len(got) != len(tt.want) {
			t.Errorf("%v: %v, want %v", tt.counted, got, tt.want)
			continue
		}
		for i := range got {
			if got[i] != tt.want[i] {
				t.Errorf("%v: %v, want %v", tt.counted, got, tt.want)
			}
		}
	}
	f, seen := told(true, true, true), []int64(nil)
	for p := range f.Told(2, "t", 0) {
		k := progressKey{2, "t", 0}
		seen = append(seen, p.End.Next)
		f.progress[k] = append(f.progress[k], Progress{End: event.Point{Next: 9}, Counted: true})
	}
	if len(seen) != 3 || seen[0] != 2 || seen[2] != 0 {
		t.Errorf("with records that come in between: %v", seen)
	}
}
