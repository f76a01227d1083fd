package replicate

import (
	"reflect"
	"slices"
	"testing"

	"github.com/geogate/geogate/internal/offsets"
)

// TestCoreFoldsOnlyWhatFollows: what a block says of its first run it says of all, so runs
// from the time before records could be denied are not folded with those after, and no run
// is continued over a marker of the source: each keeps the barrier before it.
func TestCoreFoldsOnlyWhatFollows(t *testing.T) {
	run := func(i int64, restricted bool, barriers ...int64) offsets.Run {
		r := offsets.Run{Target: 10 * i, Source: 10 * i, Count: 9, Barrier: offsets.NoBarrier, Barriers: barriers, Restricted: restricted}
		if len(barriers) > 0 {
			r.Barrier = barriers[len(barriers)-1]
		}
		return r
	}
	after := run(5, true)
	after.Barrier = 39
	for name, c := range map[string]struct {
		runs []offsets.Run
		keys []int64 // of the records that may be folded into one
	}{
		"alike":            {[]offsets.Run{run(1, false), run(2, false), run(3, false)}, []int64{10, 20, 30}},
		"after barriers":   {[]offsets.Run{run(1, false), run(2, false), run(4, false, 39)}, []int64{10, 20, 40}},
		"restricted since": {[]offsets.Run{run(1, false), run(2, false), run(3, true), run(4, true, 39), after}, []int64{30, 40, 50}},
		"a barrier that no run names": {[]offsets.Run{run(1, false), run(2, false), {
			Target: 30, Source: 30, Count: 1, Barrier: 29,
		}}, []int64{30}},
	} {
		s := &stream{}
		for _, r := range c.runs {
			s.remember(&plannedPart{described: []offsets.Run{r}})
		}
		if !slices.Equal(s.runRecordKeys, c.keys) {
			t.Errorf("%s: the records at %v would be folded, want %v", name, s.runRecordKeys, c.keys)
			continue
		}
		back, err := offsets.ParseRuns(s.unfoldedRuns[0].Target, offsets.AppendRuns(nil, s.unfoldedRuns))
		if want := c.runs[len(c.runs)-len(c.keys):]; err != nil || !reflect.DeepEqual(back, want) {
			t.Errorf("%s: the block says %+v, %v; want %+v", name, back, err, want)
		}
	}
}
