package replicate

import (
	"fmt"
	"testing"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/residency"
	"github.com/geogate/geogate/router"
)

// newFacts is of a link from region 1 to region 2 that copies every topic but those
// that begin with "x-".
func newFacts(t testing.TB, border *residency.Guard) *Facts {
	m, err := router.NewMatcher([]string{"*"}, []string{"x-*"})
	if err != nil {
		t.Fatal(err)
	}
	return NewFacts(router.Region{Name: "us", ID: 1}, router.Region{Name: "eu", ID: 2}, m, border, func() []byte { return ownSettings(1).AppendValue(nil) })
}

// ownSettings is what the tests' source runs with, said in a region's name.
func ownSettings(r event.RegionID) control.Settings {
	return control.Settings{Region: r, Values: []control.SettingValue{{ID: control.SettingWindow, Value: []byte{7}}}}
}

// TestFactsOfOthersStay: what a record of the control topic claims about a topic
// that the target may not hear of, or in another region's name, does not cross,
// whoever wrote it.
func TestFactsOfOthersStay(t *testing.T) {
	policy, err := residency.Parse("residency.yaml", []byte(`version: 1
kind: ResidencyPolicy
name: facts
revision: 1
default: deny
rules:
  - {id: open, effect: allow, topics: ["open", "later"], from: [us], to: [eu]}
`), []string{"eu", "us"})
	if err != nil {
		t.Fatal(err)
	}
	facts := newFacts(t, residency.NewGuard(policy))
	id, other := event.TopicID{1}, event.TopicID{2}
	facts.Know(map[string]FactTopic{
		"open": {ID: id, Partitions: 3}, "secret": {ID: id, Partitions: 3}, "shared": {ID: id, Partitions: 3, Shared: true},
		"x-left-out": {ID: id, Partitions: 3},
	})
	facts.Announced("open")
	progress := func(topic string, id event.TopicID, partition int32) control.Progress {
		return control.Progress{ID: id, Partition: partition, Topic: topic}
	}
	incarnation := func(origin event.RegionID, topic string, partition int32) control.Incarnation {
		return control.Incarnation{Origin: origin, Topic: topic, Partition: partition, ID: other}
	}
	for _, c := range []struct {
		record interface {
			AppendKey(b []byte) []byte
			AppendValue(b []byte) []byte
		}
		crosses bool
	}{
		{progress("open", id, 2), true},
		{progress("open", id, 3), false},
		{progress("open", other, 0), false},
		{progress("shared", id, 0), true},
		{progress("secret", id, 0), false},
		{progress("SECRET-of-nobody", id, 0), false},
		{progress("later", id, 0), false},
		{progress("x-left-out", id, 0), false},
		{incarnation(1, "open", 2), true},
		{incarnation(1, "open", 3), false},
		{incarnation(2, "open", 0), false},
		{incarnation(3, "open", 0), false},
		{incarnation(1, "later", 0), true}, // not listed yet, and written only once
		{incarnation(1, "secret", 0), false},
		{incarnation(1, "shared", 0), false},
		{incarnation(1, "SECRET-of-nobody", 0), false},
		{control.Restriction{Origin: 1, To: 2, Topic: "open"}, true},
		{control.Restriction{Origin: 1, To: 3, Topic: "open"}, false},
		{control.Restriction{Origin: 3, To: 2, Topic: "open"}, false},
		{control.Restriction{Origin: 1, To: 2, Topic: "later"}, false},
		{control.Barrier{}, false},
		{ownSettings(1), true},
		{ownSettings(2), false}, // in the other region's name
		{control.Settings{Region: 1, Values: []control.SettingValue{{ID: 60, Value: []byte("SECRET")}}}, false},
	} {
		if got := facts.carries(c.record.AppendKey(nil), c.record.AppendValue(nil)); got != c.crosses {
			t.Errorf("%+v: crosses %t, want %t", c.record, got, c.crosses)
		}
	}
}

// TestFactsFollowThePolicy: what the policy does not allow any more does not cross
// any more, also before the topics were listed again.
func TestFactsFollowThePolicy(t *testing.T) {
	policy := func(topics string, revision int) *residency.Policy {
		t.Helper()
		policy, err := residency.Parse("residency.yaml", fmt.Appendf(nil, `version: 1
kind: ResidencyPolicy
name: facts
revision: %d
default: deny
rules:
  - {id: open, effect: allow, topics: [%q], from: [us], to: [eu]}
`, revision, topics), []string{"eu", "us"})
		if err != nil {
			t.Fatal(err)
		}
		return policy
	}
	guard := residency.NewGuard(policy("orders", 1))
	facts := newFacts(t, guard)
	facts.Know(map[string]FactTopic{"orders": {Partitions: 1}})
	x := control.Progress{Topic: "orders"}
	if !facts.carries(x.AppendKey(nil), x.AppendValue(nil)) {
		t.Fatal("an allowed topic's progress stays")
	}
	guard.Loaded(policy("others", 2))
	if facts.carries(x.AppendKey(nil), x.AppendValue(nil)) {
		t.Fatal("a denied topic's progress crosses")
	}
}
