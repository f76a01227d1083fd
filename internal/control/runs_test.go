package control_test

import (
	"fmt"
	"maps"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/offsets"
)

// TestRunRecordsInForce holds the records that are kept against a list of runs: records at the end, blocks that take the place of others, tombstones
// in whatever order, and records that a truncation made shorter.
func TestRunRecordsInForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := control.NewLinkIndex()
		want := map[int64]int64{}
		put := func(rs []offsets.Run) {
			first, end := rs[0].Target, rs[len(rs)-1].TargetEnd()
			if want[first] > end {
				maps.DeleteFunc(want, func(k, _ int64) bool { return k >= end })
			}
			maps.DeleteFunc(want, func(k, e int64) bool { return k > first && e <= end })
			want[first] = end
			k, v := runsRecord(rs...)
			if err := l.ApplyRuns(k, v); err != nil {
				t.Fatal(err)
			}
		}
		var runs []offsets.Run // of all records, in order
		target := int64(0)
		for range rapid.IntRange(1, 40).Draw(t, "records") {
			switch act := rapid.IntRange(0, 9).Draw(t, "act"); {
			case act < 6 || len(runs) < 2:
				r := offsets.Run{Target: target, Source: target, Count: rapid.Int64Range(1, 3).Draw(t, "count"), Barrier: -1}
				target = r.TargetEnd() + 1
				runs = append(runs, r)
				put([]offsets.Run{r})
			case act < 8: // some are folded, and tombstones follow
				from := rapid.IntRange(0, len(runs)-2).Draw(t, "from")
				until := rapid.IntRange(from+2, len(runs)).Draw(t, "until")
				if _, begins := want[runs[from].Target]; !begins || runs[until-1].TargetEnd() < want[runs[from].Target] {
					continue // a link folds whole records
				}
				straddles := false
				for k, e := range want {
					straddles = straddles || k < runs[until-1].TargetEnd() && runs[until-1].TargetEnd() < e
				}
				if straddles {
					continue
				}
				put(runs[from:until])
				for _, r := range runs[from+1 : until] {
					k, _ := runsRecord(r)
					if err := l.ApplyRuns(k, nil); err != nil {
						t.Fatal(err)
					}
					delete(want, r.Target)
				}
			default: // the remote log is cut inside a record
				at := rapid.IntRange(0, len(runs)-1).Draw(t, "at")
				first := runs[at].Target
				if _, begins := want[first]; !begins {
					continue
				}
				runs = runs[:at+1]
				runs[at].Count = 1
				target = runs[at].TargetEnd() + 1
				put(runs[at : at+1])
			}
		}
		// What lies past a cut stays until something else is written there.
		var stored []offsets.Run
		records := l.RunRecords(topicA, 3)
		for _, r := range records {
			if n := len(stored); n > 0 && r[0].Target < stored[n-1].TargetEnd() {
				t.Fatalf("record at %d begins inside the one before, which ends at %d", r[0].Target, stored[n-1].TargetEnd())
			}
			stored = append(stored, r...)
		}
		if len(stored) < len(runs) || !reflect.DeepEqual(stored[:len(runs)], runs) {
			t.Fatalf("stored %+v, want %+v", stored, runs)
		}
		if len(records) > len(want) {
			t.Fatalf("%d records are kept, the topic has %d", len(records), len(want))
		}
	})
}

// BenchmarkApplyRuns takes one more record where there are many: what that costs must not
// depend on how many.
func BenchmarkApplyRuns(b *testing.B) {
	for _, before := range []int64{1_000, 100_000} {
		b.Run(fmt.Sprint(before), func(b *testing.B) {
			l := control.NewLinkIndex()
			target := int64(0)
			apply := func() {
				k, v := runsRecord(offsets.Run{Target: target, Source: target, Count: 1, Barrier: -1})
				if err := l.ApplyRuns(k, v); err != nil {
					b.Fatal(err)
				}
				target += 2
			}
			for range before {
				apply()
			}
			for b.Loop() {
				apply()
			}
		})
	}
}
