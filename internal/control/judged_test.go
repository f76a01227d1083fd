package control_test

import (
	"testing"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/txn"
)

// TestJudgedOfTheOwnRegionOnly: how a log was judged counts for the topic that there is, and
// only if the own region says so.
func TestJudgedOfTheOwnRegionOnly(t *testing.T) {
	f := control.NewUnconnected(control.Config{Region: 1, Regions: map[event.RegionID]string{1: "us", 2: "eu"}})
	x := control.Judged{ID: topicA, Partition: 3, Topic: "flights", From: event.Point{Next: 12}, To: event.Point{Next: 300}}
	take := func(topic string, x control.Judged) {
		f.Take(&txn.Record{Topic: topic, Key: x.AppendKey(nil), Value: x.AppendValue(nil)})
	}
	take(control.ControlFrom("eu"), x)
	if got, ok := f.Judged("flights", topicA, 3); ok {
		t.Errorf("another region's word counts: %+v", got)
	}
	take(control.TopicControl, x)
	if got, ok := f.Judged("flights", topicA, 3); !ok || got != x {
		t.Errorf("%+v, %t", got, ok)
	}
	if got, ok := f.Judged("flights", topicB, 3); ok {
		t.Errorf("of a topic that was deleted: %+v", got)
	}
	if _, err := control.ParseClaim(x.AppendKey(nil), x.AppendValue(nil)); err == nil {
		t.Error("links carry it")
	}
}
