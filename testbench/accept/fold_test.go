//go:build unix

package main

import (
	"testing"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
)

type names struct{}

func (names) Name(id event.RegionID) string { return [...]string{"", "us", "eu"}[id] }

func (names) ID(name string) (event.RegionID, bool) {
	id, ok := map[string]event.RegionID{"us": 1, "eu": 2}[name]
	return id, ok
}

// at makes an event of region r at offset with a stamp, which had seen the other
// region's log below seen, with an idempotency key (0 is none).
func at(r event.RegionID, offset int64, stamp hlc.Stamp, seen int64, key byte) event.Event {
	e := event.Event{At: event.Dot{Region: r, Offset: offset}, Stamped: true}
	e.Region, e.Stamp = r, stamp
	e.ID = event.ID{byte(r), byte(offset)}
	e.Context[3-r].Next = seen
	e.Envelope.Key[0] = key
	return e
}

func version(events ...event.Event) string { return versionOf(fold(events), names{}) }

func TestFoldByDefinition(t *testing.T) {
	us0 := at(1, 0, 10, 0, 0)
	for name, c := range map[string]struct {
		events []event.Event
		want   string
	}{
		"one":                    {[]event.Event{us0}, "us/0/0/0"},
		"later in the same log":  {[]event.Event{us0, at(1, 1, 11, 0, 0)}, "us/0/0/1"},
		"concurrent":             {[]event.Event{us0, at(2, 0, 12, 0, 0)}, "eu/0/0/0+us/0/0/0"},
		"seen":                   {[]event.Event{us0, at(2, 0, 12, 1, 0)}, "eu/0/0/0"},
		"seen by one not live":   {[]event.Event{us0, at(2, 0, 12, 1, 0), at(2, 1, 13, 0, 0)}, "eu/0/0/1"},
		"twin, smaller stands":   {[]event.Event{at(1, 0, 10, 0, 7), at(2, 0, 12, 0, 7)}, "us/0/0/0"},
		"covering the void copy": {[]event.Event{at(1, 0, 10, 0, 7), at(2, 0, 12, 0, 7), at(2, 1, 13, 0, 0)}, "eu/0/0/1"},
		"what a twin covered":    {[]event.Event{at(1, 0, 10, 0, 0), at(1, 1, 15, 0, 7), at(2, 0, 12, 0, 7)}, "eu/0/0/0+us/0/0/0"},
	} {
		if got := version(c.events...); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	if live := fold([]event.Event{us0, at(2, 0, 12, 0, 0)}); live[0].At.Region != 2 {
		t.Errorf("winner of a concurrent pair: region %d", live[0].At.Region)
	}
}

func TestMustLose(t *testing.T) {
	e, w := at(1, 0, 10, 0, 0), at(2, 0, 12, 0, 0)
	both := mustLose([]event.Event{e, w}, 1)
	if !both[e.At] || len(both) != 1 {
		t.Errorf("live loser: %v", both)
	}
	if m := mustLose([]event.Event{e, w}, 2); len(m) != 0 {
		t.Errorf("the winner's region: %v", m)
	}
	// us had applied w when it accepted its next write.
	if m := mustLose([]event.Event{e, w, at(1, 1, 13, 1, 0)}, 1); !m[e.At] {
		t.Errorf("covered after it was beaten: %v", m)
	}
	// It had not: perhaps e was covered before w came.
	if m := mustLose([]event.Event{e, w, at(1, 1, 13, 0, 0)}, 1); len(m) != 0 {
		t.Errorf("perhaps covered first: %v", m)
	}
	// eu's next write saw e: perhaps it came together with w.
	if m := mustLose([]event.Event{e, w, at(1, 1, 13, 1, 0), at(2, 1, 14, 1, 0)}, 1); m[e.At] {
		t.Errorf("perhaps covered by the other region: %v", m)
	}
}
