//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/testbench/client"
)

func entityOf(body []byte) (e client.Entity) {
	// A body that is not an entity shows as one without content.
	_ = json.Unmarshal(body, &e)
	return e
}

// validByKey are the valid events of both logs of a topic, by record key.
func validByKey(regions map[string]*origin) map[string][]event.Event {
	out := make(map[string][]event.Event)
	for _, o := range regions {
		for _, rec := range o.all {
			if !rec.Void {
				out[string(rec.Event.Key)] = append(out[string(rec.Event.Key)], rec.Event)
			}
		}
	}
	return out
}

// entitiesAgree: every entity is the same bytes in both regions and is what the
// fold by definition says.
func (s *lossless) entitiesAgree(ctx context.Context, ls logs) error {
	valid := validByKey(ls[flightsTopic])
	keys := s.flightKeys()
	shown := make(map[string]map[string]string)
	for _, r := range s.w.regions() {
		var err error
		if shown[r.name], err = s.entities(ctx, r, keys); err != nil {
			return err
		}
	}
	for _, key := range keys {
		if us, eu := shown["us"][key], shown["eu"][key]; us != eu {
			s.note("entity %s differs:\nus %s\neu %s", key, us, eu)
		}
	}
	s.report("on flights every entity is byte-identical in both regions", "%d entities", len(keys))
	deleted, contested := 0, 0
	for _, key := range keys {
		live := fold(valid[key])
		if len(live) > 1 {
			contested++
		}
		got := shown["us"][key]
		if live[0].Op == event.Delete {
			deleted++
			if want := "ENTITY_UNKNOWN " + versionOf(live, s.w); got != want {
				s.note("entity %s was deleted by %s: shows %s, folded %s", key, live[0].At.Format(s.w), got, want)
			}
			continue
		}
		if why := s.differs(entityOf([]byte(got)), live); why != "" {
			s.note("entity %s: %s\nshown %s\nfolded %s", key, why, got, versionOf(live, s.w))
		}
	}
	s.report("on flights every entity is what the naive fold over both logs says", "%d entities, %d with siblings, %d deleted", len(keys), contested, deleted)
	return nil
}

// differs compares a shown entity with the folded one and says what is wrong.
func (s *lossless) differs(got client.Entity, live []*standing) string {
	w := live[0]
	for _, c := range []struct{ what, got, want string }{
		{"version", got.Version, versionOf(live, s.w)},
		{"dot", got.Dot, w.At.Format(s.w)},
		{"id", got.ID, w.ID.String()},
		{"region", got.Region, s.w.Name(w.At.Region)},
		{"stamp", got.Stamp, stampText(&w.Event)},
		{"partition", fmt.Sprint(got.Partition), fmt.Sprint(w.At.Partition)},
		{"policy", got.Policy, "lww"},
		{"topic", got.Topic, flightsTopic},
		{"key", string(got.Key.Data), string(client.Quote(string(w.Event.Key)))},
	} {
		if c.got != c.want {
			return fmt.Sprintf("%s %q, folded %q", c.what, c.got, c.want)
		}
	}
	if got.Value == nil || got.Value.Type != "json" || !bytes.Equal(got.Value.Data, w.Value) {
		return fmt.Sprintf("value is not that of %s", got.Dot)
	}
	var have, want []string
	for _, sib := range got.Siblings {
		have = append(have, sib.Dot+" "+sib.ID+" "+sib.Region+" "+sib.Stamp+" "+sib.Op)
	}
	for _, l := range live[1:] {
		want = append(want, l.At.Format(s.w)+" "+l.ID.String()+" "+s.w.Name(l.At.Region)+" "+stampText(&l.Event)+" "+l.Op.String())
	}
	slices.Sort(have)
	slices.Sort(want)
	if !slices.Equal(have, want) {
		return fmt.Sprintf("siblings %v, folded %v", have, want)
	}
	return ""
}

// stampText is a stamp's text form: its 8 wire bytes in hex.
func stampText(e *event.Event) string { return hex.EncodeToString(e.Stamp.Append(nil)) }

// mergedTopicAgrees: the last record of each key in flights.merged is the
// entity's winner.
func (s *lossless) mergedTopicAgrees(ctx context.Context, ls logs) error {
	valid := validByKey(ls[flightsTopic])
	for _, r := range s.w.regions() {
		all, err := client.ReadTopic(ctx, r.seeds(), flightsTopic+".merged", true)
		if err != nil {
			return err
		}
		lastDot := make(map[string]string)
		lastValue := make(map[string][]byte)
		for _, rec := range client.Data(all) {
			e, _, _, err := event.Decode(event.FromHeaders(rec.Headers))
			if err != nil || e.Dot == nil {
				s.note("flights.merged %d/%d in %s: no dot (%v)", rec.Partition, rec.Offset, r.name, err)
				continue
			}
			lastDot[string(rec.Key)], lastValue[string(rec.Key)] = e.Dot.Format(s.w), rec.Value
		}
		for key, events := range valid {
			w := fold(events)[0]
			if lastDot[key] != w.At.Format(s.w) || !bytes.Equal(lastValue[key], w.Value) {
				s.note("flights.merged in %s ends with %s for %s, the winner is %s", r.name, lastDot[key], key, w.At.Format(s.w))
			}
		}
		if len(lastDot) != len(valid) {
			s.note("flights.merged in %s has %d keys, both logs have %d", r.name, len(lastDot), len(valid))
		}
	}
	s.report("flights.merged ends with the winner of every entity in both regions", "%d entities", len(valid))
	return nil
}
