package control_test

import (
	"testing"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/defect"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/offsets"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/internal/warning"
)

// fuzzFollower fuzzes what a follower does with a record of one of the topics that it
// reads: it is skipped or kept, and whatever is asked afterwards is answered, twice over.
func fuzzFollower(f *testing.F, topic string, seeds ...[2][]byte) {
	for _, s := range append(seeds, [2][]byte{{1, 2}, {1}}, [2][]byte{nil, nil}, [2][]byte{{}, {}}, [2][]byte{[]byte("generation"), []byte("x")}) {
		f.Add(s[0], s[1], false)
		f.Add(s[0], s[1], true)
	}
	f.Fuzz(func(t *testing.T, key, value []byte, tombstone bool) {
		var skipped warning.Skipped
		var defects defect.Log
		w := control.NewUnconnected(control.Config{Region: 1, Regions: map[event.RegionID]string{1: "us", 2: "eu"}, Skipped: &skipped, Defects: &defects})
		r := &txn.Record{Topic: topic, Key: key, Value: value}
		for range 2 {
			w.Take(r)
			r.Offset++
			ask(w)
		}
		if tombstone {
			r.Value = nil
			w.Take(r)
			ask(w)
		}
		if n := defects.Total(); n > 0 {
			var out warning.List
			defects.Warnings(&out)
			t.Fatalf("%d panics: %v", n, out.All())
		}
	})
}

// ask asks a follower everything.
func ask(f *control.Follower) {
	for _, x := range f.Topics() {
		f.Remote(x.Origin, x.Source)
	}
	for _, topic := range []string{"flights", ""} {
		f.Incarnations(2, topic, 3)
		f.Incarnation(topic, topicB, 3)
		f.Progress(2, topic, 3)
		f.HighestClosed(topic, 3)
		f.LowestClosed(topic, 3, control.Standpoint{})
		f.Restricted(topic)
	}
	for _, id := range []event.TopicID{topicA, topicB, {}} {
		for _, at := range []int64{0, 5, 1<<63 - 1} {
			f.Locate(2, id, 3, at, -1)
			f.TargetOffset(2, id, 3, 0, at)
			f.TargetOffsetFrom(2, id, 3, 0, at)
		}
		f.Confirmed(2, id, 3, 7)
		f.Covered(2, id, 3)
	}
}

// seeds are the records of the codecs with a name.
func seeds(names ...string) (out [][2][]byte) {
	for _, c := range codecs() {
		for _, n := range names {
			if c.name == n {
				out = append(out, [2][]byte{c.key, c.value})
			}
		}
	}
	return out
}

func FuzzControlTopic(f *testing.F) {
	fuzzFollower(f, control.TopicControl, seeds("barrier", "progress", "incarnation", "restriction", "incident", "acceptance")...)
}

func FuzzControlOfAnotherRegion(f *testing.F) {
	fuzzFollower(f, control.ControlFrom("eu"), seeds("barrier", "progress", "incarnation", "restriction")...)
}

func FuzzRegistryTopic(f *testing.F) {
	fuzzFollower(f, control.TopicTopics, seeds("remote topic", "derived topic")...)
}

func FuzzIncarnationsTopic(f *testing.F) {
	fuzzFollower(f, control.TopicIncarnations, seeds("incarnation")...)
}

func FuzzPositionsTopic(f *testing.F) {
	pos := offsets.Position{Incarnation: 1, SourceCovered: 94, SourceEpoch: 3, Barrier: 90, Target: topicA, TargetCovered: 97, TargetEpoch: 2}
	fuzzFollower(f, control.PositionsFrom("eu"), [2][]byte{offsets.AppendPositionKey(nil, topicB, 3), pos.Append(nil)})
}

func FuzzRunsTopic(f *testing.F) {
	runs := []offsets.Run{{Target: 5, Source: 3, Count: 4, Barrier: 1}, {Target: 12, Source: 9, Count: 2, Barrier: 1}}
	fuzzFollower(f, control.RunsFrom("eu"), [2][]byte{offsets.AppendKey(nil, topicA, 3, 5), offsets.AppendRuns(nil, runs)})
}
