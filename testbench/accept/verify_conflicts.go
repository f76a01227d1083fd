//go:build unix

package main

import (
	"context"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/testbench/client"
)

// conflictFeed checks each region's feed against both logs: what must be in it
// is, once; and what is in it is true.
func (s *lossless) conflictFeed(ctx context.Context, ls logs) error {
	for _, topic := range []string{flightsTopic, githubTopic} {
		at := make(map[string]*client.Logged) // by dot as text
		for _, o := range ls[topic] {
			for i := range o.all {
				at[o.all[i].At.Format(s.w)] = &o.all[i]
			}
		}
		beaten, twins := 0, 0
		for _, r := range s.w.regions() {
			feed, err := r.gateway.Conflicts(ctx, topic)
			if err != nil {
				return err
			}
			t := tally(feed)
			for _, c := range feed {
				s.feedRecordIsTrue(r, c, at)
			}
			s.noRepeats(r, t)
			if topic == flightsTopic {
				beaten += s.losersAreThere(r, t, ls[topic])
			}
			twins += s.twinsAreThere(r, t, ls[topic])
		}
		s.report("the conflict feed of "+topic+" has every lost write once and nothing untrue",
			"%d certainly beaten in their own region, %d twins", beaten, twins)
	}
	return nil
}

// counts is how often a feed names a dot as lost for a reason, and in how many
// corrections a dot stands.
type counts struct {
	lost    map[string]map[string]int // reason → dot → times
	revoked map[string]int
}

func tally(feed []client.Conflict) counts {
	t := counts{lost: make(map[string]map[string]int), revoked: make(map[string]int)}
	for _, c := range feed {
		if t.lost[c.Reason] == nil {
			t.lost[c.Reason] = make(map[string]int)
		}
		t.lost[c.Reason][c.Lost.Dot]++
		if c.Reason == "revoked" {
			t.revoked[c.Lost.Dot]++
			t.revoked[c.Won.Dot]++
		}
	}
	return t
}

// feedRecordIsTrue notes a record that the logs contradict, whatever the order
// in which its region saw them.
func (s *lossless) feedRecordIsTrue(r *region, c client.Conflict, at map[string]*client.Logged) {
	lost, won := at[c.Lost.Dot], at[c.Won.Dot]
	if c.Reason == "revoked" {
		return // names what an earlier record said; counted by tally
	}
	switch {
	case lost == nil || won == nil:
		s.note("feed of %s: %s of %s lost to %s: no such records", r.name, c.Reason, c.Lost.Dot, c.Won.Dot)
	case lost.Void || won.Void:
		s.note("feed of %s: %s of %s lost to %s: one was never valid", r.name, c.Reason, c.Lost.Dot, c.Won.Dot)
	case lost.ID.String() != c.Lost.ID || won.ID.String() != c.Won.ID || stampText(&lost.Event) != c.Lost.Stamp || stampText(&won.Event) != c.Won.Stamp:
		s.note("feed of %s: ids or stamps of %s, %s are not the records'", r.name, c.Lost.Dot, c.Won.Dot)
	case c.Key == nil || string(c.Key.Data) != string(client.Quote(string(lost.Event.Key))) || string(lost.Event.Key) != string(won.Event.Key):
		s.note("feed of %s: %s and %s are not both of the entity it names", r.name, c.Lost.Dot, c.Won.Dot)
	case c.Reason == "concurrent":
		lc, wc := lost.FullContext(), won.FullContext()
		if c.Rule == nil || *c.Rule != "lww" || !event.Less(&lost.Event, &won.Event) || lc.Covers(won.At) || wc.Covers(lost.At) {
			s.note("feed of %s: %s did not lose to %s by lww: another rule, greater, or one saw the other", r.name, c.Lost.Dot, c.Won.Dot)
		}
	case c.Reason == "cross-region-duplicate":
		if lost.Envelope.Key != won.Envelope.Key || !event.Less(&won.Event, &lost.Event) {
			s.note("feed of %s: %s is no later copy of %s", r.name, c.Lost.Dot, c.Won.Dot)
		}
	default:
		s.note("feed of %s: reason %q of %s", r.name, c.Reason, c.Lost.Dot)
	}
}

// noRepeats: a dot loses once for a reason, and once more after each correction
// that names it.
func (s *lossless) noRepeats(r *region, t counts) {
	for reason, dots := range t.lost {
		for dot, n := range dots {
			if reason != "revoked" && n > 1+t.revoked[dot] {
				s.note("feed of %s: %s lost %d times as %s, corrected %d times", r.name, dot, n, reason, t.revoked[dot])
			}
		}
	}
}

// losersAreThere: every write of region r that was certainly beaten there is in
// r's feed.
func (s *lossless) losersAreThere(r *region, t counts, regions map[string]*origin) int {
	n := 0
	for key, events := range validByKey(regions) {
		for dot := range mustLose(events, r.id) {
			n++
			if t.lost["concurrent"][dot.Format(s.w)] == 0 {
				s.note("feed of %s lacks %s of %s, which a concurrent write beat", r.name, dot.Format(s.w), key)
			}
		}
	}
	return n
}

// twinsAreThere: every later copy of a key that r accepted is in r's feed.
func (s *lossless) twinsAreThere(r *region, t counts, regions map[string]*origin) int {
	n := 0
	for _, events := range validByKey(regions) {
		_, dead := stand(events)
		for dot, by := range dead {
			if dot.Region != r.id {
				continue
			}
			n++
			if t.lost["cross-region-duplicate"][dot.Format(s.w)] == 0 {
				s.note("feed of %s lacks the twin %s of %s", r.name, dot.Format(s.w), by.Format(s.w))
			}
		}
	}
	return n
}
