//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/testbench/client"
)

// topicsOfThreeSites are all topics whose logs have records of the load or of the leak
// test.
var topicsOfThreeSites = []string{flightsTopic, githubTopic, catalogueTopic, ordersTopic, patientsTopic, privateTopic}

// loadTopics are those of the load; what is checked of values is checked of them.
var loadTopics = topicsOfThreeSites[:4]

// readLogs reads every origin log of some topics.
func (s *fencing) readLogs(ctx context.Context, topics []string) (logs, error) {
	ls := make(logs)
	for _, topic := range topics {
		ls[topic] = make(map[string]*origin)
		for _, r := range s.w.regions() {
			o, err := readOrigin(ctx, r, topic)
			if err != nil {
				return nil, err
			}
			ls[topic][r.name] = o
		}
	}
	return ls, nil
}

// judgeAll reads the logs and the register and says which records are orphans, by
// dot and topic.
func (s *fencing) judgeAll(ctx context.Context) (ls logs, all map[string][]judged, err error) {
	units, err := s.w.units(ctx, s.w.us)
	if err != nil {
		return nil, nil, err
	}
	if ls, err = s.readLogs(ctx, topicsOfThreeSites); err != nil {
		return nil, nil, err
	}
	all = make(map[string][]judged)
	for topic, regions := range ls {
		if all[topic], err = judge(topic, regions, units); err != nil {
			return nil, nil, err
		}
	}
	return ls, all, nil
}

// record names a record over all topics.
type record struct{ topic, dot string }

// orphansOf are the orphans among judged records, by unit.
func (s *fencing) orphansOf(all map[string][]judged) map[string]map[record]judged {
	out := make(map[string]map[record]judged)
	for topic, list := range all {
		for _, j := range list {
			if !j.orphan {
				continue
			}
			u := unitOf(topic, j.region)
			if out[u] == nil {
				out[u] = make(map[record]judged)
			}
			out[u][record{topic, j.At.Format(s.w)}] = j
		}
	}
	return out
}

// acked are the acknowledged writes of the load, by record.
func (d *diary) acked() map[record]*attempt {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make(map[record]*attempt)
	for _, a := range d.all {
		if a.acked() {
			out[record{a.Topic, a.answer.Dot}] = a
		}
	}
	return out
}

// orphansAreListed: what lies past a cut in eu's logs is what eu lists, all of it
// and nothing else; a fence that answered 0 has left no acknowledged write there.
func (s *fencing) orphansAreListed(ctx context.Context, c scenario) error {
	_, all, err := s.judgeAll(ctx)
	if err != nil {
		return err
	}
	want, acked := s.orphansOf(all), s.diary.acked()
	fresh, topics := 0, make(map[string]int)
	for _, dots := range want {
		for at := range dots {
			topics[at.topic]++
			a := acked[at]
			if a == nil || s.lost[a.Idem] != nil {
				continue
			}
			fresh++
			s.lost[a.Idem] = &lostWrite{attempt: a}
			if c.exit == 0 {
				s.note("%s, acknowledged as %s, is an orphan after a fence that answered 0", a.Idem, at.dot)
			}
		}
	}
	if c.exit != 0 && fresh == 0 {
		s.note("no acknowledged write became an orphan: nothing was tried")
	}
	for _, name := range unitsOf(s.w.eu) {
		s.listAgrees(ctx, name, want[name])
	}
	s.report(fmt.Sprintf("every orphan of a region that was %s is listed, and nothing else", c.name), "orphans so far %v, %d of the load acknowledged", topics, len(s.lost))
	return s.commandLists(ctx, want)
}

// exitUnreachable is the code of a command when the register cannot be reached.
const exitUnreachable = 12

// unitsOf are all units that a region owns.
func unitsOf(r *region) (names []string) {
	for _, f := range flowsOf(r) {
		names = append(names, f.unit)
	}
	return append(names, "health/"+r.name)
}

// listAgrees polls eu's list of a unit's orphans until it is what the logs and the
// register say.
func (s *fencing) listAgrees(ctx context.Context, unit string, want map[record]judged) {
	var missing, extra []string
	var err error
	short, cancel := context.WithTimeout(ctx, knowWait/2)
	defer cancel()
	poll(short, 200*time.Millisecond, func() bool {
		var list []client.Orphan
		if list, err = s.w.eu.gateway.Orphans(short, unit); err != nil {
			var p *client.Problem
			return errors.As(err, &p) && p.Status == 404
		}
		missing, extra = nil, nil
		have := make(map[record]bool)
		for _, o := range list {
			at := record{o.Topic, o.Dot}
			j, ok := want[at]
			switch {
			case !ok:
				extra = append(extra, at.dot)
			case have[at]:
				extra = append(extra, at.dot+" twice")
			case o.ID == nil || *o.ID != j.ID.String() || o.Epoch == nil || *o.Epoch != uint64(j.Event.Epoch) || o.Stamp != stampText(&j.Event) || o.Op != j.Op.String():
				extra = append(extra, fmt.Sprintf("%s as %+v", at.dot, o))
			}
			have[at] = true
		}
		for at, j := range want {
			if !have[at] {
				missing = append(missing, fmt.Sprintf("%s of %s (%s)", at.dot, at.topic, j.why))
			}
		}
		return len(missing)+len(extra) == 0
	})
	if err != nil {
		s.note("%v", err)
		return
	}
	slices.Sort(missing)
	for _, m := range missing {
		s.note("orphans of %s in eu lack %s", unit, m)
	}
	for _, x := range extra {
		s.note("orphans of %s in eu have %s, which is none by the register", unit, x)
	}
}

// commandLists: the command line gives the same list, and the status its length.
func (s *fencing) commandLists(ctx context.Context, want map[string]map[record]judged) error {
	for _, name := range unitsOf(s.w.eu) {
		out, code, err := s.w.command(ctx, s.w.eu, "owner", "orphans", name, "-o", "json")
		var p client.OrphanPage
		if err == nil {
			err = json.Unmarshal(out, &p)
		}
		if err != nil || code != 0 {
			s.note("geogate owner orphans %s: exit %d, %v: %.200s", name, code, err, out)
			continue
		}
		for _, o := range p.Orphans {
			if _, ok := want[name][record{o.Topic, o.Dot}]; !ok {
				s.note("geogate owner orphans %s names %s of %s", name, o.Dot, o.Topic)
			}
		}
		if p.End && len(p.Orphans) != len(want[name]) {
			s.note("geogate owner orphans %s names %d and says that this is the end, there are %d", name, len(p.Orphans), len(want[name]))
		}
	}
	// A region that has just come back may not reach the register yet.
	out, code, err := s.w.command(ctx, s.w.eu, "status", "-o", "json")
	var st status
	if err := errors.Join(err, json.Unmarshal(out, &st)); err != nil && code != exitUnreachable {
		return fmt.Errorf("geogate status: exit %d: %w", code, err)
	}
	counted := 0
	for _, u := range st.Units {
		counted += u.Orphans
		if u.Orphans != len(want[u.Unit]) {
			s.note("status of eu counts %d orphans of %s, there are %d", u.Orphans, u.Unit, len(want[u.Unit]))
		}
	}
	s.report("the command lists orphans, and the status counts them", "%d units, %d orphans", len(st.Units), counted)
	return nil
}

// bothWrite tells whether either region may write a topic.
func bothWrite(topic string) bool { return topic == flightsTopic || topic == githubTopic }

// retryElsewhere sends every other lost write that us may take to us, while eu is
// fenced, as a client that cannot reach its region would.
func (s *fencing) retryElsewhere(ctx context.Context) error {
	var some []*lostWrite
	for i, idem := range slices.Sorted(maps.Keys(s.lost)) {
		if l := s.lost[idem]; l.asked == "" && bothWrite(l.Topic) && i%2 == 0 {
			some = append(some, l)
		}
	}
	if len(some) == 0 {
		return nil
	}
	err := abreast(some, func(l *lostWrite) error { return s.retryLost(ctx, l, s.w.us) })
	if err != nil {
		return err
	}
	s.report("while a region is fenced, another accepts its orphans' keys again", "%d keys", len(some))
	return nil
}

// abreast does the same for some things, a few at a time.
func abreast[T any](list []T, do func(T) error) error {
	var g errgroup.Group
	g.SetLimit(singles)
	for _, x := range list {
		g.Go(func() error { return do(x) })
	}
	return g.Wait()
}

// retryHere sends the other lost writes to eu again, which owns its units again, and
// everything whose outcome is unknown.
func (s *fencing) retryHere(ctx context.Context, c scenario) error {
	var lost []*lostWrite
	for _, l := range s.lost {
		if l.asked == "" {
			lost = append(lost, l)
		}
	}
	var unknown []*attempt
	for _, a := range s.diary.since("eu", time.Time{}) {
		if a.unknown() && s.settled[a.Idem] == nil {
			unknown = append(unknown, a)
		}
	}
	err := abreast(lost, func(l *lostWrite) error { return s.retryLost(ctx, l, s.w.eu) })
	if err == nil {
		err = abreast(unknown, func(a *attempt) error { return s.askAgain(ctx, a, s.w.eu) })
	}
	if err != nil {
		return err
	}
	s.report(fmt.Sprintf("an unfenced region, %s before, accepts its orphans' keys again", c.name), "%d keys; %d unknown outcomes asked for again", len(lost), len(unknown))
	return nil
}

// retryLost sends an orphan's key again. It must be taken as if it had never been
// seen, and a second time replay that answer.
func (s *fencing) retryLost(ctx context.Context, l *lostWrite, r *region) error {
	a, err := r.store(ctx, l.Write)
	if err != nil {
		return err
	}
	dot, err := event.ParseDot(a.Dot, s.w)
	if err != nil {
		return err
	}
	l.asked, l.again = r.name, a
	was := l.answer
	switch {
	case a.Replayed:
		s.note("%s, an orphan at %s, is replayed by %s with %s", l.Idem, was.Dot, r.name, a.Dot)
	case a.Dot == was.Dot || a.ID == was.ID || dot.Region != r.id:
		s.note("%s, an orphan at %s, is accepted by %s at %s with id %s", l.Idem, was.Dot, r.name, a.Dot, a.ID)
	}
	again, err := r.store(ctx, l.Write)
	if err != nil {
		return err
	}
	if !again.Replayed || again.Raw != a.Raw {
		s.note("%s, accepted again by %s, is then answered with %s, not %s", l.Idem, r.name, again.Raw, a.Raw)
	}
	return nil
}
