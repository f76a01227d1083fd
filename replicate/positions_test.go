package replicate

import (
	"testing"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/offsets"
)

// TestPositionRecordsWithGarbage: what the link did not write stops no partition but one
// of which nothing else is known.
func TestPositionRecordsWithGarbage(t *testing.T) {
	idB := event.TopicID{0xbb}
	good := offsets.Position{SourceCovered: 94, SourceEpoch: 3, Barrier: 90, Target: idA, TargetCovered: 97, TargetEpoch: 2}
	incident := Incident{Kind: Refused, Source: idA, Topic: "t", At: time.UnixMilli(1)}
	p := positionRecords{last: map[posKey]PositionRecord{}}
	for _, tt := range []struct {
		name       string
		key, value []byte
		bad        bool
	}{
		{"generation", []byte(GenerationKey), []byte("x"), false}, // findGeneration's
		{"position", offsets.AppendPositionKey(nil, idA, 0), good.Append(nil), false},
		{"incident", incident.AppendKey(nil), incident.AppendValue(nil), false},
		{"incident of nothing", incident.AppendKey(nil), []byte{9}, true},
		{"incident's tombstone", incident.AppendKey(nil), nil, true},
		{"no key", nil, []byte("x"), true},
		{"short key", []byte{1, 2}, []byte("x"), true},
		{"over a good position", offsets.AppendPositionKey(nil, idA, 0), []byte("x"), true},
		{"tombstone over a good position", offsets.AppendPositionKey(nil, idA, 0), nil, false},
		{"of a partition without one", offsets.AppendPositionKey(nil, idB, 1), []byte("x"), true},
		{"of another without one", offsets.AppendPositionKey(nil, idB, 2), []byte("x"), true},
		{"tombstone over that", offsets.AppendPositionKey(nil, idB, 2), nil, false},
	} {
		if err := p.take(tt.key, tt.value); (err != nil) != tt.bad {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if got := p.last[posKey{idA, 0}]; got.Position != good || got.Malformed {
		t.Errorf("the good position has become %+v", got)
	}
	if got := p.last[posKey{idB, 1}]; !got.Malformed || len(p.last) != 2 || len(p.incidents) != 1 {
		t.Errorf("positions %+v, incidents %+v", p.last, p.incidents)
	}
}

// TestUnplacedPartitionWaits: a partition whose only position cannot be read is not
// listed, not read, and shown with its reason; the others go on.
func TestUnplacedPartitionWaits(t *testing.T) {
	c := NewCore(CoreConfig{Generation: Generation{Number: 1, Shards: 1, Fenced: true}, Positions: "p", Runs: "r"})
	now := time.Unix(1000, 0)
	step := func(ev any) []any { return c.Step(now, ev) }
	step(Start{})
	stream := func(number int32) Stream {
		return Stream{Part: Part{"t", number}, Source: idA, Remote: "us.t", Target: idA}
	}
	step(Assigned{[]Stream{stream(0), stream(1)}})
	step(Inited{})
	step(GenerationRead{Found: Found{Generation{Number: 1, Shards: 1, Fenced: true}, true}})
	effects := step(PositionsRead{Positions: []PositionRecord{{Source: idA, Number: 1, Malformed: true}}})
	list, ok := effects[len(effects)-1].(List)
	if !ok || len(list.Streams) != 1 || list.Streams[0].Number != 0 {
		t.Fatalf("effects %+v", effects)
	}
	views, _ := c.view()
	for _, v := range views {
		if (v.parked != nil) != (v.part.Number == 1) {
			t.Errorf("partition %d: %+v", v.part.Number, v.parked)
		}
	}
	// Another reading finds a position.
	c.phase = phasePositions
	effects = step(PositionsRead{})
	if list, ok = effects[len(effects)-1].(List); !ok || len(list.Streams) != 2 {
		t.Fatalf("effects %+v", effects)
	}
}

// FuzzPositionRecords: whatever lies in a positions topic, it is taken or refused.
func FuzzPositionRecords(f *testing.F) {
	good := offsets.Position{SourceCovered: 94, SourceEpoch: 3, Barrier: 90, Target: idA, TargetCovered: 97, TargetEpoch: 2}
	incident := Incident{Kind: Refused, Source: idA, Topic: "t", At: time.UnixMilli(1)}
	f.Add(offsets.AppendPositionKey(nil, idA, 0), good.Append(nil))
	f.Add(incident.AppendKey(nil), incident.AppendValue(nil))
	f.Add([]byte(GenerationKey), Generation{Number: 3, Shards: 4, Cluster: "c", Fenced: true}.Append(nil))
	f.Add([]byte{1, 2}, []byte("x"))
	f.Fuzz(func(t *testing.T, key, value []byte) {
		p := positionRecords{last: map[posKey]PositionRecord{}}
		for range 2 {
			if err := p.take(key, value); err != nil && len(p.incidents) > 0 {
				t.Errorf("refused and taken: %v", err)
			}
		}
		if g, err := ParseGeneration(value); err == nil && (g.Number == 0 || g.Shards <= 0 || g.Shards > maxShards) {
			t.Errorf("generation %+v", g)
		}
	})
}
