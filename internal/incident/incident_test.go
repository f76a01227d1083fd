package incident_test

import (
	"strings"
	"testing"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/incident"
)

var log = event.TopicID{7}

func lost(kind incident.Kind, from, until int64) incident.Incident {
	return incident.Incident{
		Place: incident.Place{Kind: kind, Log: log, Partition: 3, From: from}, Topic: "flights", Name: "us.flights", Origin: 1, Until: until,
		Found: time.UnixMilli(5000 + from),
	}
}

func acceptance(x incident.Incident) incident.Acceptance {
	return incident.Acceptance{ID: x.ID(), Until: x.Until, By: "alice", Reason: "old"}
}

// TestOneIncidentHoweverOftenFound: whoever finds it finds the same one. It grows, keeps the
// time when it was first found, and stays accepted when it is found again, in whatever order
// the records come.
func TestOneIncidentHoweverOftenFound(t *testing.T) {
	x, later := lost(incident.Fold, 5, 9), lost(incident.Fold, 5, 12)
	later.Found = later.Found.Add(time.Hour)
	if x.ID() != later.ID() || x.ID() == lost(incident.Fold, 6, 9).ID() || x.ID() == lost(incident.Keys, 5, 9).ID() {
		t.Fatal("ids")
	}
	steps := []func(*incident.Set){
		func(s *incident.Set) { s.Found(x) }, func(s *incident.Set) { s.Found(later) },
		func(s *incident.Set) { s.Accept(acceptance(later)) }, func(s *incident.Set) { s.Accept(acceptance(x)) },
	}
	for _, order := range [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 3, 0, 2}, {2, 0, 3, 1}} {
		var s incident.Set
		for _, i := range order {
			steps[i](&s)
		}
		e, ok := s.Get(x.ID())
		if !ok || e.Until != 12 || !e.Found.Equal(x.Found) || e.Acceptance == nil || e.Acceptance.Until != 12 || len(s.All()) != 1 {
			t.Errorf("in order %v: %+v", order, e)
		}
	}
	var s incident.Set
	if !s.Found(x) || s.Found(x) || !s.Found(later) {
		t.Error("tells wrongly what is new")
	}
	s = incident.Set{}
	if s.Accept(acceptance(x)); len(s.All()) != 0 {
		t.Error("an acceptance alone is shown")
	}
}

// TestMissing: what was accepted is not missing any more, what lies around it is; what was
// accepted for the fold is not missing for an index.
func TestMissing(t *testing.T) {
	var s incident.Set
	for _, x := range []incident.Incident{lost(incident.Fold, 5, 9), lost(incident.Keys, 9, 12), lost(incident.Fold, 20, 30)} {
		s.Found(x)
		s.Accept(acceptance(x))
	}
	s.Found(lost(incident.Fold, 40, 50)) // not accepted
	for _, c := range []struct {
		kind                    incident.Kind
		from, until, want, upTo int64
	}{
		{incident.Fold, 5, 9, 9, 9},
		{incident.Fold, 5, 15, 9, 15},
		{incident.Fold, 7, 8, 9, 8},
		{incident.Fold, 0, 9, 0, 5},
		{incident.Fold, 40, 50, 40, 50},
		{incident.Keys, 5, 12, 12, 12},
		{incident.Keys, 5, 15, 12, 15},
		{incident.Keys, 12, 30, 12, 20},
		{incident.History, 0, 30, 0, 20},
		{incident.Cut, 100, 110, 100, 110},
	} {
		from, upTo := s.Missing(incident.Place{Kind: c.kind, Log: log, Partition: 3, From: c.from}, c.until)
		if empty := c.want >= c.upTo; empty != (from >= upTo) || !empty && (from != c.want || upTo != c.upTo) {
			t.Errorf("%v from %d until %d: missing %d to %d, want %d to %d", c.kind, c.from, c.until, from, upTo, c.want, c.upTo)
		}
	}
	if from, _ := s.Missing(incident.Place{Kind: incident.Fold, Log: log, Partition: 4, From: 5}, 9); from != 5 {
		t.Error("accepted in another partition")
	}
}

// TestKeysComeToAnEnd: lost keys do not matter once the window has passed.
func TestKeysComeToAnEnd(t *testing.T) {
	keys, fold := incident.Entry{Incident: lost(incident.Keys, 5, 9)}, incident.Entry{Incident: lost(incident.Fold, 5, 9)}
	before, after := keys.Found.Add(time.Hour), keys.Found.Add(time.Hour+time.Millisecond)
	if keys.State(before, time.Hour) != incident.Open || keys.State(after, time.Hour) != incident.Expired || fold.State(after, time.Hour) != incident.Open {
		t.Error("states")
	}
	if !keys.LacksKeys(before, time.Hour) || keys.LacksKeys(after, time.Hour) || !fold.LacksKeys(before, time.Hour) || fold.LacksKeys(after, time.Hour) {
		t.Error("keys")
	}
	fold.Acceptance = &incident.Acceptance{}
	if fold.LacksKeys(before, time.Hour) || fold.State(before, time.Hour) != incident.Accepted {
		t.Error("accepted")
	}
}

// TestTexts: every kind says where, what it means, what to do, and what accepting does.
func TestTexts(t *testing.T) {
	for _, k := range incident.Kinds() {
		x := lost(k, 5, 9)
		x.To = 2
		names := func(id event.RegionID) string { return []string{"", "us", "eu"}[id] }
		texts := []string{x.Meaning(names), x.Remedy(), x.Consequence(names)}
		for _, s := range texts {
			if len(s) < 20 || strings.Contains(s, "%!") {
				t.Errorf("%v: %q", k, s)
			}
		}
		if !strings.Contains(texts[0], "offsets 5 to 8") || !strings.Contains(texts[0], "us.flights/3") || strings.HasPrefix(k.String(), "kind-") {
			t.Errorf("%v: %q", k, texts[0])
		}
		if k == incident.Link && (!strings.Contains(texts[0], "reads in eu lack them") || !strings.Contains(texts[2], "up to 4 records (offsets 5 to 8) will be missing in eu")) {
			t.Errorf("%v: %q", k, texts)
		}
	}
}

func FuzzParseID(f *testing.F) {
	f.Add("0a1b2c3d4e5f")
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		if id, err := incident.ParseID(s); err == nil && !strings.EqualFold(id.String(), s) {
			t.Errorf("%q is %s", s, id)
		}
	})
}
