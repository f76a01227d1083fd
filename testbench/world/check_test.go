package world_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/testbench/client"
	"github.com/geogate/geogate/testbench/naive"
	"github.com/geogate/geogate/testbench/world"
)

// window is the configured idempotency window.
const window = 24 * time.Hour

// topicLog is what the origins' logs of one topic hold.
type topicLog struct {
	name  string
	all   map[event.Dot]client.Logged
	valid map[int32][]event.Event // by partition, of all origins, in log order for each
	// void are the copies that lost their standing to another of the same
	// idempotency key, with that one.
	void map[event.Dot]event.Dot
	// stands are the writes that have effect, by partition.
	stands map[int32][]naive.Write
	folded map[int32]map[string]naive.Entity
}

// check holds the settled world against the naive fold of the origins' logs.
func (s *schedule) check() {
	s.t.Helper()
	for _, topic := range []string{flights, notes, github} {
		l := s.log(topic)
		s.checkAcknowledged(l)
		for _, from := range s.w.Regions() {
			for _, to := range s.w.Regions() {
				if from != to {
					copiedExactly(s.t, from, to, topic)
				}
			}
		}
		for _, r := range s.w.Regions() {
			s.checkFeed(l, r)
		}
		if topic == github {
			s.checkEvents(l)
			continue
		}
		s.checkEntities(l)
	}
}

func (s *schedule) log(topic string) *topicLog {
	s.t.Helper()
	l := &topicLog{
		name: topic, all: make(map[event.Dot]client.Logged), valid: make(map[int32][]event.Event), void: make(map[event.Dot]event.Dot),
		stands: make(map[int32][]naive.Write), folded: make(map[int32]map[string]naive.Entity),
	}
	for _, r := range s.w.Regions() {
		log, err := r.Origin(limit(s.t), topic)
		if err != nil {
			s.t.Fatal(err)
		}
		for _, rec := range log {
			l.all[rec.At] = rec
			if !rec.Void {
				l.valid[rec.At.Partition] = append(l.valid[rec.At.Partition], rec.Event)
			}
		}
	}
	for p, events := range l.valid {
		l.stands[p], l.folded[p] = naive.Writes(events, window), naive.Fold(events, window)
		for _, w := range l.stands[p] {
			for _, v := range w.Voided {
				l.void[v.At] = w.Event.At
			}
		}
	}
	return l
}

// checkAcknowledged is G1, and the answers' part of G2: what was acknowledged lies
// valid where the answer says, and each region gave one answer to one key for
// ever, but that a region without a record of its own may have replayed either of
// two others' before it saw both.
func (s *schedule) checkAcknowledged(l *topicLog) {
	s.t.Helper()
	perKey := make(map[event.IdempotencyKey]map[event.RegionID]int)
	for _, a := range s.order {
		if a.wr.Topic != l.name {
			continue
		}
		for _, answer := range a.acked {
			at, err := event.ParseDot(answer.Dot, s.w)
			if err != nil {
				s.t.Fatal(err)
			}
			rec, ok := l.all[at]
			switch {
			case !ok:
				s.t.Errorf("G1: acknowledged %s of %s is in no log", answer.Dot, l.name)
			case rec.Void:
				s.t.Errorf("G1: acknowledged %s of %s is void (barrier %d)", answer.Dot, l.name, rec.Barrier)
			case rec.ID.String() != answer.ID || rec.Stamp.String() != answer.Stamp || string(rec.Event.Key) != a.wr.Key || string(rec.Value) != string(a.wr.Value):
				s.t.Errorf("G1: %s of %s is not what was acknowledged: %s", answer.Dot, l.name, answer.Raw)
			}
		}
	}
	for _, rec := range l.all {
		if k := rec.Envelope.Key; !rec.Void && !k.IsZero() {
			if perKey[k] == nil {
				perKey[k] = make(map[event.RegionID]int)
			}
			if perKey[k][rec.At.Region]++; perKey[k][rec.At.Region] > 1 {
				s.t.Errorf("G2: %s has a second valid record of its key in its own region", rec.At.Format(s.w))
			}
		}
	}
}

// checkEvents is G2 on a topic of events: of the copies of a key each merged view
// shows exactly one, and every other event once.
func (s *schedule) checkEvents(l *topicLog) {
	s.t.Helper()
	for _, r := range s.w.Regions() {
		times := make(map[event.Dot]int) // by the copy that stands
		for _, rec := range records(s.t, r, l.name, "merged") {
			at, err := event.ParseDot(rec.Dot, s.w)
			if err != nil {
				s.t.Fatal(err)
			}
			if _, ok := l.all[at]; !ok || l.all[at].Void {
				s.t.Errorf("G2: %s shows %s, which is not valid in any log", r.Name, rec.Dot)
			}
			times[cmp.Or(l.void[at], at)]++
		}
		effects := 0
		for _, writes := range l.stands {
			for _, w := range writes {
				effects++
				if n := times[w.Event.At]; n != 1 {
					s.t.Errorf("G2: %s shows the write %s %d times", r.Name, w.Event.At.Format(s.w), n)
				}
			}
		}
		if len(times) != effects {
			s.t.Errorf("G2: %s shows %d writes, the logs have %d", r.Name, len(times), effects)
		}
	}
}

// checkEntities is G4, and G2 on entities: every region shows the same bytes, and
// they are what the naive fold says, as is the last record of the merged topic.
func (s *schedule) checkEntities(l *topicLog) {
	s.t.Helper()
	for p, entities := range l.folded {
		for key, want := range entities {
			var bodies []string
			for _, r := range s.w.Regions() {
				e, err := r.Entity(l.name, key)
				if code := client.Code(err); err != nil && code != "ENTITY_UNKNOWN" {
					s.t.Fatal(err)
				}
				if why := s.differs(&e, err, &want); why != "" {
					s.t.Errorf("G4: %s shows %s of %s as %s (%v): %s", r.Name, key, l.name, e.Raw, err, why)
				}
				bodies = append(bodies, e.Raw)
			}
			for _, b := range bodies[1:] {
				if b != bodies[0] {
					s.t.Errorf("G4: %s of %s partition %d:\n%s", key, l.name, p, strings.Join(bodies, "\n"))
				}
			}
		}
	}
	for _, r := range s.w.Regions() {
		last := make(map[string]string)
		for _, rec := range records(s.t, r, l.name, "merged") {
			last[rec.Key.Text()] = rec.Dot
		}
		for _, entities := range l.folded {
			for key, want := range entities {
				if last[key] != want.Winner.At.Format(s.w) {
					s.t.Errorf("G4: %s.merged in %s ends with %s for %s, the winner is %s", l.name, r.Name, last[key], key, want.Winner.At.Format(s.w))
				}
			}
		}
	}
}

// differs says what of a shown entity is not as folded.
func (s *schedule) differs(got *client.Entity, err error, want *naive.Entity) string {
	var dots []string
	for _, e := range slices.Backward(want.Live) {
		dots = append(dots, e.At.Format(s.w))
	}
	version := strings.Join(dots, "+")
	if want.Winner.Op == event.Delete {
		p, ok := err.(*client.Problem)
		// One that nothing can concern any more may have been forgotten.
		forgotten := ok && p.Version == "" && len(want.Live) == 1
		if !ok || p.Version != version && !forgotten {
			return "folded: deleted, version " + version
		}
		return ""
	}
	if err != nil {
		return "folded: version " + version
	}
	shown := []string{got.Dot}
	for _, sibling := range got.Siblings {
		shown = append(shown, sibling.Dot)
	}
	slices.Sort(shown)
	slices.Sort(dots)
	switch {
	case got.Version != version, got.Dot != want.Winner.At.Format(s.w), got.Value.Text() != string(want.Winner.Value), !slices.Equal(shown, dots):
		return fmt.Sprintf("folded: %s of %s", want.Winner.At.Format(s.w), version)
	}
	return ""
}

// checkFeed is G5 for one region's feed.
func (s *schedule) checkFeed(l *topicLog, r *world.Region) {
	s.t.Helper()
	feed, err := r.Conflicts(l.name)
	if err != nil {
		s.t.Fatal(err)
	}
	lost, twins := make(map[event.Dot]int), make(map[event.Dot]int)
	for _, c := range feed {
		a, errA := event.ParseDot(c.Lost.Dot, s.w)
		b, errB := event.ParseDot(c.Won.Dot, s.w)
		loser, okA := l.all[a]
		winner, okB := l.all[b]
		if errA != nil || errB != nil || !okA || !okB || loser.Void || winner.Void || loser.ID.String() != c.Lost.ID || winner.Stamp.String() != c.Won.Stamp {
			s.t.Errorf("G5: feed of %s names what is not in the logs: %+v", r.Name, c)
			continue
		}
		switch c.Reason {
		case "concurrent":
			lost[a]++
			if l.name != flights || !event.Less(&loser.Event, &winner.Event) || covers(&loser.Event, b) || string(loser.Event.Key) != string(winner.Event.Key) {
				s.t.Errorf("G5: feed of %s has an untrue conflict %+v", r.Name, c)
			}
		case "cross-region-duplicate":
			twins[a]++
			if loser.Envelope.Key != winner.Envelope.Key || loser.Envelope.Key.IsZero() {
				s.t.Errorf("G5: feed of %s names twins that are none: %+v", r.Name, c)
			}
		case "revoked":
		default:
			s.t.Errorf("G5: feed of %s has reason %q: %+v", r.Name, c.Reason, c)
		}
	}
	for at, n := range lost {
		if n > 1 {
			s.t.Errorf("G5: feed of %s tells %d times that %s lost", r.Name, n, at.Format(s.w))
		}
	}
	for at := range l.void {
		if twins[at] != 1 {
			s.t.Errorf("G5: feed of %s names the twin %s %d times", r.Name, at.Format(s.w), twins[at])
		}
	}
	if l.name == flights {
		for at := range s.mustLose(l, r.ID) {
			if lost[at] != 1 {
				s.t.Errorf("G5: feed of %s tells %d times that its own %s lost", r.Name, lost[at], at.Format(s.w))
			}
		}
	}
}

// covers tells whether an event's writer had applied what lies at a dot.
func covers(e *event.Event, d event.Dot) bool {
	ctx := e.FullContext()
	return ctx.Covers(d)
}

// mustLose are the writes of a region that a concurrent write certainly beat
// while they were live there, whatever the order of arrival:
//
//   - one that is live in the end and not the winner, or
//   - one that only its own region's later write covers, when that write had also
//     seen a greater write which it was concurrent with: the region had folded
//     that one first.
func (s *schedule) mustLose(l *topicLog, region event.RegionID) map[event.Dot]bool {
	must := make(map[event.Dot]bool)
	for p, entities := range l.folded {
		for key, e := range entities {
			for _, live := range e.Live {
				if live.At.Region == region && live.At != e.Winner.At {
					must[live.At] = true
				}
			}
			var same []event.Event // the entity's standing writes without twins
			for _, w := range l.stands[p] {
				if string(w.Event.Key) == key {
					if len(w.Voided) > 0 {
						same = nil // twins can cover in more ways than these two cases know
						break
					}
					same = append(same, w.Event)
				}
			}
			for i := range same {
				if same[i].At.Region == region && beatenFirst(&same[i], same) {
					must[same[i].At] = true
				}
			}
		}
	}
	return must
}

// beatenFirst is the second case of mustLose.
func beatenFirst(e *event.Event, same []event.Event) bool {
	var first *event.Event // of e's region to cover e
	for i := range same {
		f := &same[i]
		if f.At == e.At || !covers(f, e.At) {
			continue
		}
		if f.At.Region != e.At.Region {
			return false // another region's write may have covered e before
		}
		if first == nil || f.At.Offset < first.At.Offset {
			first = f
		}
	}
	return first != nil && slices.ContainsFunc(same, func(w event.Event) bool {
		return w.At.Region != e.At.Region && covers(first, w.At) && !covers(e, w.At) && !covers(&w, e.At) && event.Less(e, &w)
	})
}
