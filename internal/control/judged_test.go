package control_test

import (
	"testing"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/internal/warning"
)

// judgedRecord is how a log was judged, with a region's proof.
func judgedRecord(x control.Judged, region event.RegionID, secret string) control.Judged {
	x.Prove(region, []byte(secret))
	return x
}

// TestJudgedOfTheOwnRegionOnly: how a log was judged counts for the topic that there is, and
// only if somebody of the own region says so who has the deployment's secret. What a forger
// writes over is not forgotten, and what an earlier version wrote, without a proof, is no word
// at all: the region says it again.
func TestJudgedOfTheOwnRegionOnly(t *testing.T) {
	const secret = "a secret of thirty-two characters"
	var skipped warning.Skipped
	f := control.NewUnconnected(control.Config{Region: 1, Regions: map[event.RegionID]string{1: "us", 2: "eu"}, Secret: []byte(secret), Skipped: &skipped})
	x := control.Judged{ID: topicA, Partition: 3, Topic: "flights", From: event.Point{Next: 12}, To: event.Point{Next: 300}}
	var offset int64
	take := func(topic string, key, value []byte) (passedOver bool) {
		before := skipped.Total()
		f.Take(&txn.Record{Topic: topic, Key: key, Value: value, Offset: offset})
		offset++
		return skipped.Total() > before
	}
	other := x
	other.Partition = 2
	further := x
	further.To.Next = 400
	proven, moved := judgedRecord(x, 1, secret), judgedRecord(further, 1, secret)
	moved.To.Next++
	old := append([]byte{1}, x.AppendValue(nil)[1:]...)
	old = old[:len(old)-len(x.Proof)]
	if y, err := control.ParseJudged(x.AppendKey(nil), old); err != nil || y != x {
		t.Errorf("an earlier version's: %+v, %v", y, err)
	}
	forged := func(when string, want bool) {
		t.Helper()
		for _, c := range []struct {
			name, topic string
			value       []byte
			warned      bool
		}{
			{"of another region", control.ControlFrom("eu"), proven.AppendValue(nil), false},
			{"without a proof", control.TopicControl, old, false},
			{"with an empty proof", control.TopicControl, further.AppendValue(nil), true},
			{"with another secret", control.TopicControl, judgedRecord(further, 1, "another").AppendValue(nil), true},
			{"with another region's proof", control.TopicControl, judgedRecord(further, 2, secret).AppendValue(nil), true},
			{"with another partition's proof", control.TopicControl, judgedRecord(other, 1, secret).AppendValue(nil), true},
			{"that says more than was proven", control.TopicControl, moved.AppendValue(nil), true},
			{"a tombstone", control.TopicControl, nil, false},
		} {
			if warned := take(c.topic, x.AppendKey(nil), c.value); warned != c.warned {
				t.Errorf("%s, one %s: warned of: %t", when, c.name, warned)
			}
			if got, ok := f.Judged("flights", topicA, 3); ok != want || want && got != x {
				t.Errorf("%s, one %s counts: %+v, %t", when, c.name, got, ok)
			}
		}
	}
	forged("at first", false)
	take(control.TopicControl, x.AppendKey(nil), proven.AppendValue(nil))
	if got, ok := f.Judged("flights", topicA, 3); !ok || got != x {
		t.Errorf("%+v, %t", got, ok)
	}
	forged("later", true)
	if got, ok := f.Judged("flights", topicB, 3); ok {
		t.Errorf("of a topic that was deleted: %+v", got)
	}
	if _, err := control.ParseClaim(proven.AppendKey(nil), proven.AppendValue(nil)); err == nil {
		t.Error("links carry it")
	}
}
