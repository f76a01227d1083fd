//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/testbench/client"
)

// run runs the second part: three fences, then what came of them, then the scan.
func (s *fencing) run(ctx context.Context) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	for _, c := range s.scenarios() {
		if err := s.round(ctx, c); err != nil {
			return fmt.Errorf("fence of eu, %s: %w", c.name, err)
		}
	}
	if err := s.leak.plant(ctx, "after the fences", false); err != nil {
		return err
	}
	if err := s.quiet(ctx); err != nil {
		return err
	}
	if err := s.verify(ctx); err != nil {
		return err
	}
	var metrics [][]byte
	for _, r := range s.w.regions() {
		m, err := s.leak.askEverything(ctx, r)
		if err != nil {
			return err
		}
		metrics = append(metrics, m)
	}
	if err := s.stopGateways(); err != nil {
		return err
	}
	return s.leakCheck(metrics...)
}

// begin waits until both regions own their units and plants what must not leave.
func (s *fencing) begin(ctx context.Context) error {
	started := time.Now()
	for _, r := range s.w.regions() {
		err := s.await(ctx, r.name+" owns its units", func() bool {
			units, err := s.w.units(ctx, r)
			return err == nil && !slices.ContainsFunc(unitsOf(r), func(name string) bool {
				u := units[name]
				return u.State != "ACTIVE" || u.Owner == nil || *u.Owner != r.name
			})
		})
		if err != nil {
			return err
		}
	}
	s.rep.say("both regions own their units after %s", time.Since(started).Round(10*time.Millisecond))
	return s.leak.plantNative(ctx)
}

// quiet waits until both links have nothing left to do and both regions have
// applied the last acknowledged write of every place that counts.
func (s *fencing) quiet(ctx context.Context) error {
	started := time.Now()
	ctx, cancel := context.WithTimeout(ctx, quietWait)
	defer cancel()
	if err := s.w.linksIdle(ctx); err != nil {
		return err
	}
	last := make(map[place]client.Answer)
	for _, a := range s.answers() {
		dot, err := event.ParseDot(a.answer.Dot, s.w)
		if err != nil {
			return fmt.Errorf("answer to %s: %w", a.Idem, err)
		}
		p := place{a.Topic, dot.Region, dot.Partition}
		if was, ok := last[p]; !ok || was.Offset < a.answer.Offset {
			last[p] = a.answer
		}
	}
	for _, r := range s.w.regions() {
		for p, a := range last {
			if err := s.applied(ctx, r, p, a); err != nil {
				return err
			}
		}
	}
	s.rep.say("quiet after %s: lag 0, %d places applied in both regions", time.Since(started).Round(100*time.Millisecond), len(last))
	return nil
}

// answers are all acknowledgements: of the load, of lost writes that were sent
// again, and of those whose outcome was unknown.
func (s *fencing) answers() (all []*attempt) {
	for _, a := range s.diary.acked() {
		all = append(all, a)
	}
	for _, l := range s.lost {
		if l.asked != "" {
			again := *l.attempt
			again.answer, again.region = l.again, l.asked
			all = append(all, &again)
		}
	}
	for _, a := range s.settled {
		all = append(all, a)
	}
	return all
}

// applied reads with a token until the region has applied what it stands for.
func (s *fencing) applied(ctx context.Context, r *region, p place, a client.Answer) error {
	path := "/v1/topics/" + p.topic + "/records?" + url.Values{"view": {"merged"}, "from": {"earliest"}, "limit": {"1"}}.Encode()
	var last error
	ok := poll(ctx, retryPause, func() bool {
		_, _, err := r.gateway.Do(ctx, http.MethodGet, path, nil, http.Header{"Geogate-Token": {a.Token}})
		if err != nil && ctx.Err() == nil {
			last = err
		}
		return err == nil || !client.MayRetry(err)
	})
	if !ok || last != nil && !client.MayRetry(last) {
		return fmt.Errorf("%s does not apply %s to %s: %w", r.name, p.topic, a.Dot, errors.Join(last, ctx.Err()))
	}
	return nil
}

// verify compares logs, register and what both regions show.
func (s *fencing) verify(ctx context.Context) error {
	ls, all, err := s.judgeAll(ctx)
	if err != nil {
		return err
	}
	for _, topic := range topicsOfThreeSites {
		for _, r := range s.w.regions() {
			if o := ls[topic][r.name]; len(o.all) > 0 {
				s.rep.say("log of %s in %s: %d records, %d barriers", topic, r.name, len(o.all), o.barriers)
			}
		}
	}
	s.epochsRise()
	if err := s.sameRegister(ctx); err != nil {
		return err
	}
	s.everyAnswerCounts(ctx, ls, all)
	s.oneEffect(all)
	s.refusedIsNotStored(all)
	if err := s.commands(ctx); err != nil {
		return err
	}
	for _, step := range []func(context.Context, map[string][]judged) error{s.copies, s.events, s.entitiesAgree, s.mergedTopics} {
		if err := step(ctx, all); err != nil {
			return err
		}
	}
	return nil
}

// epochsRise: nothing was acknowledged under an epoch older than one that had been
// acknowledged for its unit when the request was sent.
func (s *fencing) epochsRise() {
	var acks []*attempt
	epochs := make(map[string]map[uint64]bool)
	for _, a := range s.diary.acked() {
		acks = append(acks, a)
		if epochs[a.unit] == nil {
			epochs[a.unit] = make(map[uint64]bool)
		}
		epochs[a.unit][a.answer.Epoch] = true
	}
	byAnswer := slices.Clone(acks)
	slices.SortFunc(acks, func(a, b *attempt) int { return a.sent.Compare(b.sent) })
	slices.SortFunc(byAnswer, func(a, b *attempt) int { return a.got.Compare(b.got) })
	newest := make(map[string]uint64)
	for _, a := range acks {
		for len(byAnswer) > 0 && byAnswer[0].got.Before(a.sent) {
			newest[byAnswer[0].unit] = max(newest[byAnswer[0].unit], byAnswer[0].answer.Epoch)
			byAnswer = byAnswer[1:]
		}
		if a.answer.Epoch < newest[a.unit] {
			s.note("%s of %s was acknowledged in epoch %d, after epoch %d", a.Idem, a.unit, a.answer.Epoch, newest[a.unit])
		}
	}
	n := 0
	for _, f := range flowsOf(s.w.eu) {
		n += len(epochs[f.unit])
		if want := 1 + len(s.scenarios()); len(epochs[f.unit]) != want {
			s.note("%s was written in epochs %v, want %d of them", f.unit, slices.Sorted(maps.Keys(epochs[f.unit])), want)
		}
	}
	s.report("no write is acknowledged under an epoch older than one that was before", "%d writes, %d epochs of eu", len(acks), n)
}

// sameRegister: both regions know the same of every unit, and eu owns its own.
func (s *fencing) sameRegister(ctx context.Context) error {
	us, err := s.w.units(ctx, s.w.us)
	if err != nil {
		return err
	}
	eu, err := s.w.units(ctx, s.w.eu)
	if err != nil {
		return err
	}
	for name := range us {
		if fmt.Sprintf("%+v", us[name].Epochs) != fmt.Sprintf("%+v", eu[name].Epochs) || us[name].Epoch != eu[name].Epoch {
			s.note("of %s us knows %+v, eu %+v", name, us[name], eu[name])
		}
	}
	for _, r := range s.w.regions() {
		for _, name := range unitsOf(r) {
			if u := us[name]; u.Owner == nil || *u.Owner != r.name || u.State != "ACTIVE" {
				s.note("%s ends as %+v", name, u)
			}
		}
	}
	s.report("both regions know the same intervals of every unit", "%d units", len(us))
	return nil
}

// everyAnswerCounts: an acknowledged write is in its log, byte for byte, and is
// authoritative or listed as an orphan.
func (s *fencing) everyAnswerCounts(ctx context.Context, ls logs, all map[string][]judged) {
	orphans := s.orphansOf(all)
	answers := s.answers()
	counts, listed := 0, make(map[record]bool)
	for _, name := range unitsOf(s.w.eu) {
		list, err := s.w.eu.gateway.Orphans(ctx, name)
		if err != nil {
			s.note("%v", err)
		}
		for _, o := range list {
			listed[record{o.Topic, o.Dot}] = true
		}
	}
	lost := 0
	for _, a := range answers {
		dot, err := event.ParseDot(a.answer.Dot, s.w)
		if err != nil {
			s.note("answer to %s: %v", a.Idem, err)
			continue
		}
		rec := ls[a.Topic][s.w.Name(dot.Region)].at[dot]
		at := record{a.Topic, a.answer.Dot}
		_, orphan := orphans[unitOf(a.Topic, s.w.Name(dot.Region))][at]
		switch {
		case rec == nil:
			s.note("%s, acknowledged as %s: no such record", a.Idem, a.answer.Dot)
		case rec.Void:
			s.note("%s, acknowledged as %s: the record is void (barrier %d)", a.Idem, a.answer.Dot, rec.Barrier)
		case rec.ID.String() != a.answer.ID || rec.Envelope.Key != s.hashKey(a.Topic, a.Idem) || uint64(rec.Event.Epoch) != a.answer.Epoch:
			s.note("%s, acknowledged as %s with id %s in epoch %d: another record lies there, id %s, epoch %d", a.Idem, a.answer.Dot, a.answer.ID, a.answer.Epoch, rec.ID, rec.Event.Epoch)
		case string(rec.Event.Key) != a.Key || !bytes.Equal(rec.Value, a.Value):
			s.note("%s at %s: key %q value %.80q, sent %q %.80q", a.Idem, a.answer.Dot, rec.Event.Key, rec.Value, a.Key, a.Value)
		case orphan && !listed[at]:
			s.note("%s, acknowledged as %s, is neither authoritative nor listed", a.Idem, a.answer.Dot)
		case !orphan && listed[at]:
			s.note("%s, acknowledged as %s, is authoritative and listed as an orphan", a.Idem, a.answer.Dot)
		case orphan:
			lost++
		default:
			counts++
		}
	}
	s.report("every acknowledged write is in its log, and authoritative or listed as an orphan", "%d answers: %d authoritative, %d orphans", len(answers), counts, lost)
}

func (s *fencing) hashKey(topic, idem string) event.IdempotencyKey {
	return event.HashKey(s.w.secret, "", topic, idem)
}

// valid are the authoritative events of a topic.
func valid(all []judged) (events []event.Event) {
	for _, j := range all {
		if !j.Void && !j.orphan {
			events = append(events, j.Event)
		}
	}
	return events
}

// oneEffect: every key that was acknowledged and is not listed as an orphan has
// one standing event, and no region has two authoritative records of it.
func (s *fencing) oneEffect(all map[string][]judged) {
	n := 0
	for _, topic := range loadTopics {
		stands, _ := stand(valid(all[topic]))
		times := make(map[event.IdempotencyKey]int)
		for _, st := range stands {
			times[st.Envelope.Key]++
			regions := make(map[event.RegionID]bool)
			for _, c := range st.copies {
				if regions[c.Region] {
					s.note("%s has two authoritative records of one key in one log: %v", topic, st.copies)
				}
				regions[c.Region] = true
			}
		}
		for _, a := range s.answers() {
			if a.Topic != topic {
				continue
			}
			n++
			if got := times[s.hashKey(topic, a.Idem)]; got != 1 {
				s.note("%s of %s, acknowledged, has %d effects", a.Idem, topic, got)
			}
		}
	}
	s.report("every acknowledged key has one effect, orphans' keys after their retry", "%d answers", n)
}

// refusedIsNotStored: a key that was only ever refused is in no log.
func (s *fencing) refusedIsNotStored(all map[string][]judged) {
	maybe := make(map[string]bool) // keys that may be stored
	for _, a := range s.diary.since("eu", time.Time{}) {
		if a.acked() || a.unknown() {
			maybe[a.Topic+" "+a.Idem] = true
		}
	}
	stored := make(map[string]map[event.IdempotencyKey]event.Dot)
	for topic, list := range all {
		stored[topic] = make(map[event.IdempotencyKey]event.Dot)
		for _, j := range list {
			if !j.Void {
				stored[topic][j.Envelope.Key] = j.At
			}
		}
	}
	n := 0
	for _, a := range s.diary.since("eu", time.Time{}) {
		if maybe[a.Topic+" "+a.Idem] {
			continue
		}
		n++
		if at, ok := stored[a.Topic][s.hashKey(a.Topic, a.Idem)]; ok {
			s.note("%s was refused with %v, and lies at %v of %s", a.Idem, a.err, at, a.Topic)
		}
	}
	s.report("what a region refused is not in its log", "%d refused writes", n)
}

// copies: a remote topic of the load has exactly what counts of its origin and may
// leave, in order, byte for byte: no orphan crossed a link that knew the cut.
func (s *fencing) copies(ctx context.Context, all map[string][]judged) error {
	n := 0
	for _, topic := range loadTopics {
		for _, r := range s.w.regions() {
			want := make(map[int32][]*kgo.Record)
			for _, j := range all[topic] {
				if j.region == r.name && !j.Void && !j.orphan && mayLeave(topic, r, string(j.Event.Key)) {
					want[j.Record.Partition] = append(want[j.Record.Partition], j.Record)
				}
			}
			if len(want) == 0 {
				continue
			}
			target := s.w.other(r)
			remote, err := client.ReadTopic(ctx, target.seeds(), r.name+"."+topic, true)
			if err != nil {
				return err
			}
			got := make(map[int32][]*kgo.Record)
			for _, rec := range client.Data(remote) {
				got[rec.Partition] = append(got[rec.Partition], rec)
			}
			for p := range int32(partitions) {
				n += len(got[p])
				if why := differ(got[p], want[p]); why != "" {
					s.note("%s.%s partition %d in %s: %s", r.name, topic, p, target.name, why)
				}
			}
		}
	}
	s.report("remote topics hold what counts of their origin and may leave, once, in order, byte for byte", "%d records", n)
	return nil
}

// mayLeave is what threeSitesResidency says of the load's records.
func mayLeave(topic string, r *region, key string) bool {
	return topic != githubTopic || r.name != "eu" || key == "octo-org/octo-repo" || key == "octocat/hello-world" ||
		len(key) > len(publicKeys) && key[:len(publicKeys)] == publicKeys
}

// events: on github each acknowledged key is shown once in both regions' merged
// views, and no orphan is.
func (s *fencing) events(ctx context.Context, all map[string][]judged) error {
	keys := make(map[event.IdempotencyKey]string)
	for _, a := range s.answers() {
		if a.Topic == githubTopic {
			keys[s.hashKey(githubTopic, a.Idem)] = a.Idem
		}
	}
	keyOf, orphan := make(map[string]string), make(map[string]bool)
	for _, j := range all[githubTopic] {
		if idem, ok := keys[j.Envelope.Key]; ok && !j.Void {
			keyOf[j.ID.String()], orphan[j.ID.String()] = idem, j.orphan
		}
	}
	for _, r := range s.w.regions() {
		shown, err := r.gateway.Records(ctx, githubTopic, "merged")
		if err != nil {
			return err
		}
		times := make(map[string]int)
		for i, id := range idsOf(shown) {
			if orphan[id] {
				s.note("merged view of %s shows %s, an orphan (%s)", r.name, shown[i].Dot, keyOf[id])
			}
			times[keyOf[id]]++
		}
		for _, idem := range keys {
			if times[idem] != 1 {
				s.note("merged view of %s shows %s %d times", r.name, idem, times[idem])
			}
		}
	}
	s.report("on github each acknowledged key is shown once in both regions, and no orphan is", "%d keys", len(keys))
	return nil
}

// entityTopics are those of the load that have entities.
var entityTopics = []string{flightsTopic, ordersTopic, catalogueTopic}

// entitiesAgree: every entity is the same bytes in both regions and is what the
// fold over the authoritative events says.
func (s *fencing) entitiesAgree(ctx context.Context, all map[string][]judged) error {
	n := 0
	for _, topic := range entityTopics {
		byKey := make(map[string][]event.Event)
		for _, e := range valid(all[topic]) {
			byKey[string(e.Key)] = append(byKey[string(e.Key)], e)
		}
		for key, events := range byKey {
			n++
			var shown []string
			for _, r := range s.w.regions() {
				e, err := r.gateway.Entity(ctx, topic, key, "", "")
				if err != nil {
					s.note("entity %s of %s in %s: %v", key, topic, r.name, err)
				}
				shown = append(shown, e.Raw)
			}
			if shown[0] != shown[1] {
				s.note("entity %s of %s differs:\nus %s\neu %s", key, topic, shown[0], shown[1])
			}
			live := fold(events)
			got := entityOf([]byte(shown[0]))
			if got.Version != versionOf(live, s.w) || got.Dot != live[0].At.Format(s.w) || got.Value == nil || !bytes.Equal(got.Value.Data, live[0].Value) {
				s.note("entity %s of %s is %s, version %s; folded %s", key, topic, got.Dot, got.Version, versionOf(live, s.w))
			}
		}
	}
	s.report("every entity is byte-identical in both regions and what the fold over authoritative events says", "%d entities", n)
	return nil
}

// mergedTopics: the last record of each key is the entity's winner.
func (s *fencing) mergedTopics(ctx context.Context, all map[string][]judged) error {
	n := 0
	for _, topic := range entityTopics {
		byKey := make(map[string][]event.Event)
		for _, e := range valid(all[topic]) {
			byKey[string(e.Key)] = append(byKey[string(e.Key)], e)
		}
		for _, r := range s.w.regions() {
			merged, err := client.ReadTopic(ctx, r.seeds(), topic+".merged", true)
			if err != nil {
				return err
			}
			last := make(map[string]string)
			for _, rec := range client.Data(merged) {
				e, _, _, err := event.Decode(event.FromHeaders(rec.Headers))
				if err != nil || e.Dot == nil {
					s.note("%s.merged %d/%d in %s: no dot (%v)", topic, rec.Partition, rec.Offset, r.name, err)
					continue
				}
				last[string(rec.Key)] = e.Dot.Format(s.w)
			}
			for key, events := range byKey {
				n++
				if w := fold(events)[0].At.Format(s.w); last[key] != w {
					s.note("%s.merged in %s ends with %s for %s, the winner is %s", topic, r.name, last[key], key, w)
				}
			}
		}
	}
	s.report("merged topics end with the winner of every entity in both regions", "%d entities", n)
	return nil
}

// stopGateways stops all three processes in order, and the brokers, whose files are then
// whole.
func (s *fencing) stopGateways() error {
	if err := s.w.down(s.note); err != nil {
		return err
	}
	if err := s.w.witness.Stop(stopWait); err != nil {
		return err
	}
	if code := s.w.witness.ExitCode(); code != 0 {
		s.note("the witness exits %d after SIGTERM", code)
	}
	s.report("both gateways and the witness drain and exit 0", "3 processes")
	return s.w.close()
}

// status is the part of geogate status -o json that ownership and residency are in.
type status struct {
	Mode     string `json:"mode"`
	Register *struct {
		State     string `json:"state"`
		Voters    int    `json:"voters"`
		Reachable int    `json:"reachable"`
	} `json:"register"`
	Regions []struct {
		Name  string `json:"name"`
		State string `json:"state"`
	} `json:"regions"`
	Units []struct {
		Unit    string `json:"unit"`
		Orphans int    `json:"orphans"`
	} `json:"units"`
	Residency struct {
		State string `json:"state"`
		Name  string `json:"name"`
	} `json:"residency"`
}

// commands: the command line tells what is so in the end, in both regions.
func (s *fencing) commands(ctx context.Context) error {
	for _, r := range s.w.regions() {
		var st status
		out, code, err := s.w.command(ctx, r, "status", "-o", "json")
		if err == nil {
			err = json.Unmarshal(out, &st)
		}
		switch {
		case err != nil || code != 0:
			s.note("geogate status of %s: exit %d, %v: %.200s", r.name, code, err, out)
		case st.Mode != "quorum" || st.Register == nil || st.Register.State != "ok" || st.Register.Voters != 3 || st.Register.Reachable != 3:
			s.note("geogate status of %s: mode %q, register %+v", r.name, st.Mode, st.Register)
		case st.Residency.State != "on" || st.Residency.Name != "accept":
			s.note("geogate status of %s: residency %+v", r.name, st.Residency)
		}
		for _, x := range st.Regions {
			if x.State != "UP" {
				s.note("geogate status of %s: region %s is %s", r.name, x.Name, x.State)
			}
		}
		out, code, err = s.w.command(ctx, r, "owner", "list")
		if err != nil || code != 0 {
			s.note("geogate owner list in %s: exit %d, %v", r.name, code, err)
		}
		for _, name := range unitsOf(s.w.eu) {
			if !bytes.Contains(out, []byte(name)) {
				s.note("geogate owner list in %s lacks %s:\n%s", r.name, name, out)
			}
			one, code, err := s.w.command(ctx, r, "owner", "get", name)
			if err != nil || code != 0 || !bytes.Contains(one, []byte("OWNER eu")) {
				s.note("geogate owner get %s in %s: exit %d, %v:\n%s", name, r.name, code, err, one)
			}
		}
	}
	s.report("status, owner list and owner get tell the same on the command line", "2 regions")
	return nil
}
