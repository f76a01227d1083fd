//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/testbench/client"
)

// logs are the four origin logs, by topic and region name.
type logs map[string]map[string]*origin

// verify counts and compares everything at the end.
func (s *lossless) verify(ctx context.Context) error {
	ls := make(logs)
	for _, topic := range []string{flightsTopic, githubTopic} {
		ls[topic] = make(map[string]*origin)
		for _, r := range s.w.regions() {
			o, err := readOrigin(ctx, r, topic)
			if err != nil {
				return err
			}
			ls[topic][r.name] = o
			s.rep.say("log of %s in %s: %d records, %d barriers", topic, r.name, len(o.all), o.barriers)
		}
	}
	s.everyWriteIsInItsLog(ls)
	s.everyDotIsApplied()
	s.oneCopyPerRegion(ls)
	for _, step := range []func(context.Context, logs) error{
		s.copiesAreExact, s.eventsOnce, s.entitiesAgree, s.mergedTopicAgrees, s.conflictFeed, s.topicsAreOurs, s.commands,
	} {
		if err := step(ctx, ls); err != nil {
			return err
		}
	}
	return nil
}

// everyWriteIsInItsLog: each answer names a valid record with the id, key and
// bytes of the write.
func (s *lossless) everyWriteIsInItsLog(ls logs) {
	n := 0
	for _, topic := range []string{flightsTopic, githubTopic} {
		for _, e := range s.ledger.of(topic) {
			for asked, a := range e.asked {
				n++
				dot, err := event.ParseDot(a.Dot, s.w)
				if err != nil {
					s.note("answer to %s: %v", e.Idem, err)
					continue
				}
				rec := ls[topic][s.w.Name(dot.Region)].at[dot]
				switch {
				case rec == nil:
					s.note("%s, acknowledged in %s as %s: no such record", e.Idem, asked, a.Dot)
				case rec.Void:
					s.note("%s, acknowledged in %s as %s: the record is void (barrier %d)", e.Idem, asked, a.Dot, rec.Barrier)
				case rec.ID.String() != a.ID || rec.Envelope.Key != hashKey(topic, e.Idem):
					s.note("%s, acknowledged in %s as %s with id %s: another record lies there, id %s", e.Idem, asked, a.Dot, a.ID, rec.ID)
				case string(rec.Event.Key) != e.Key || !bytes.Equal(rec.Value, e.Value) || (rec.Value == nil) != (e.Value == nil):
					s.note("%s at %s: key %q value %.80q, sent %q %.80q", e.Idem, a.Dot, rec.Event.Key, rec.Value, e.Key, e.Value)
				}
			}
		}
	}
	s.report("every acknowledged write is in its log, valid and byte for byte", "%d answers to %d keys", n, len(s.ledger.entries))
}

func hashKey(topic, idem string) event.IdempotencyKey {
	return event.HashKey([]byte(event.DefaultIdempotencySecret), "", topic, idem)
}

// everyDotIsApplied: both regions have served a read that waits for a dot at or
// above each acknowledged one. A vector has no gaps.
func (s *lossless) everyDotIsApplied() {
	n := 0
	for _, topic := range []string{flightsTopic, githubTopic} {
		for _, e := range s.ledger.of(topic) {
			for _, a := range e.asked {
				dot, err := event.ParseDot(a.Dot, s.w)
				if err != nil {
					continue // reported above
				}
				n++
				for _, r := range s.w.regions() {
					upTo, ok := s.covered[r.name][place{topic, dot.Region, dot.Partition}]
					if !ok || upTo < dot.Offset {
						s.note("%s of %s is not known to be applied in %s (to %d)", a.Dot, e.Idem, r.name, upTo)
					}
				}
			}
		}
	}
	s.report("every acknowledged write is, by dot, in both regions' vectors", "%d answers, 2 regions", n)
}

// oneCopyPerRegion: in one region's log a key has one valid record.
func (s *lossless) oneCopyPerRegion(ls logs) {
	n := 0
	for topic, regions := range ls {
		for name, o := range regions {
			seen := make(map[event.IdempotencyKey]event.Dot)
			for _, rec := range o.all {
				if rec.Void {
					continue
				}
				n++
				if was, ok := seen[rec.Envelope.Key]; ok {
					s.note("%s in %s: one key at %v and %v", topic, name, was, rec.At)
				}
				seen[rec.Envelope.Key] = rec.At
			}
		}
	}
	s.report("a region's log holds at most one valid record of a key", "%d records", n)
}

// copiesAreExact: a remote topic holds its origin's records, all, once, in
// order, byte for byte.
func (s *lossless) copiesAreExact(ctx context.Context, ls logs) error {
	n := 0
	for topic, regions := range ls {
		for name, o := range regions {
			target := s.w.other(o.region)
			remote := name + "." + topic
			all, err := client.ReadTopic(ctx, target.seeds(), remote, true)
			if err != nil {
				return err
			}
			got := make(map[int32][]*kgo.Record)
			for _, rec := range client.Data(all) {
				got[rec.Partition] = append(got[rec.Partition], rec)
			}
			want := make(map[int32][]*kgo.Record)
			for _, rec := range o.all {
				want[rec.Record.Partition] = append(want[rec.Record.Partition], rec.Record)
			}
			for p := range int32(partitions) {
				n += len(got[p])
				s.sameRecords(fmt.Sprintf("%s partition %d in %s", remote, p, target.name), got[p], want[p])
			}
		}
	}
	s.report("remote topics hold every record of their origin once, in order, byte for byte", "%d records", n)
	return nil
}

func (s *lossless) sameRecords(where string, got, want []*kgo.Record) {
	if why := differ(got, want); why != "" {
		s.note("%s: %s", where, why)
	}
}

// differ says where copies are not their originals, byte for byte.
func differ(got, want []*kgo.Record) string {
	for i := range min(len(got), len(want)) {
		g, w := got[i], want[i]
		same := bytes.Equal(g.Key, w.Key) && bytes.Equal(g.Value, w.Value) && (g.Value == nil) == (w.Value == nil) &&
			g.Timestamp.Equal(w.Timestamp) && slices.EqualFunc(g.Headers, w.Headers, func(a, b kgo.RecordHeader) bool {
			return a.Key == b.Key && bytes.Equal(a.Value, b.Value) && (a.Value == nil) == (b.Value == nil)
		})
		if !same {
			return fmt.Sprintf("%d records for %d; record %d (offset %d) is not the origin's %d", len(got), len(want), i, g.Offset, w.Offset)
		}
	}
	if len(got) != len(want) {
		return fmt.Sprintf("%d records, origin has %d", len(got), len(want))
	}
	return ""
}

// eventsOnce: on github each key once, in both merged views, in both merged
// topics, and in what the follower got over both regions.
func (s *lossless) eventsOnce(ctx context.Context, ls logs) error {
	keyOf := make(map[string]string) // event id → idempotency key
	names := make(map[event.IdempotencyKey]string)
	for _, e := range s.ledger.of(githubTopic) {
		names[hashKey(githubTopic, e.Idem)] = e.Idem
	}
	for _, o := range ls[githubTopic] {
		for _, rec := range o.all {
			if idem, ok := names[rec.Envelope.Key]; ok && !rec.Void {
				keyOf[rec.ID.String()] = idem
			}
		}
	}
	once := func(where string, ids []string) {
		times := make(map[string]int)
		for _, id := range ids {
			idem, ok := keyOf[id]
			if !ok {
				s.note("%s: event %s is no acknowledged write", where, id)
			}
			times[idem]++
		}
		for _, e := range s.ledger.of(githubTopic) {
			if n := times[e.Idem]; n != 1 {
				s.note("%s: key %s %d times", where, e.Idem, n)
			}
		}
	}
	for _, r := range s.w.regions() {
		shown, err := r.gateway.Records(ctx, githubTopic, "merged")
		if err != nil {
			return err
		}
		once("merged view of "+r.name, idsOf(shown))
	}
	s.report("on github each key is once in both merged views", "%d keys", len(names))
	for _, r := range s.w.regions() {
		all, err := client.ReadTopic(ctx, r.seeds(), githubTopic+".merged", true)
		if err != nil {
			return err
		}
		var ids []string
		for _, rec := range client.Data(all) {
			e, _, _, err := event.Decode(event.FromHeaders(rec.Headers))
			if err != nil {
				s.note("%s %d/%d in %s: %v", rec.Topic, rec.Partition, rec.Offset, r.name, err)
			}
			ids = append(ids, e.ID.String())
		}
		once("github.merged in "+r.name, ids)
	}
	s.report("on github each key is once in both merged topics", "%d keys", len(names))
	once("follower", idsOf(s.followed))
	s.report("a follower that moved regions with its cursor got each event once", "%d events, told %d times to wait", len(s.followed), s.stale)
	return nil
}

// idsOf are the event ids of records, "" where there is none.
func idsOf(shown []client.Record) []string {
	ids := make([]string, len(shown))
	for i, r := range shown {
		if r.ID != nil {
			ids[i] = *r.ID
		}
	}
	return ids
}

// topicsAreOurs: nothing but local topics crossed, and nothing crossed twice.
func (s *lossless) topicsAreOurs(ctx context.Context, _ logs) error {
	counted := 0
	for _, r := range s.w.regions() {
		peer := s.w.other(r)
		want := make(map[string]bool)
		for _, t := range []string{flightsTopic, githubTopic} {
			want[t], want[t+".merged"], want[peer.name+"."+t] = true, true, true
		}
		c, err := kgo.NewClient(kgo.SeedBrokers(r.seeds()...))
		if err != nil {
			return err
		}
		topics, err := kadm.NewClient(c).ListTopicsWithInternal(ctx)
		c.Close()
		if err != nil {
			return fmt.Errorf("list topics of %s: %w", r.name, err)
		}
		for name := range topics {
			counted++
			internal := strings.HasPrefix(name, "_geogate.") || strings.HasPrefix(name, "__")
			if !internal && !want[name] {
				s.note("%s has topic %s", r.name, name)
			}
			delete(want, name)
		}
		for name := range want {
			s.note("%s lacks topic %s", r.name, name)
		}
	}
	s.report("no derived or remote topic was replicated", "%d topics", counted)
	return nil
}

// commands: the CLI answers, and no log holds a payload or key.
func (s *lossless) commands(ctx context.Context, _ logs) error {
	for _, r := range s.w.regions() {
		out, err := exec.CommandContext(ctx, r.bin, "status", "--gateway", r.manage, "-o", "json").CombinedOutput()
		var st struct {
			Region string       `json:"region"`
			Mode   string       `json:"mode"`
			Links  []linkStatus `json:"links"`
		}
		switch jerr := json.Unmarshal(out, &st); {
		case err != nil || jerr != nil:
			s.note("geogate status of %s: %v: %s", r.name, errors.Join(err, jerr), out)
		case st.Region != r.name || st.Mode != "solo":
			s.note("geogate status of %s says region %q, mode %q", r.name, st.Region, st.Mode)
		}
		for _, l := range st.Links {
			if l.From == r.name && (l.State != "running" || len(l.Parked) > 0 || l.LagRecords == nil || *l.LagRecords != 0 || l.Copied == 0) {
				s.note("link of %s in the end: %+v", r.name, l)
			}
		}
		out, err = exec.CommandContext(ctx, r.bin, "topic", "list", "--gateway", r.manage).CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte(flightsTopic)) || !bytes.Contains(out, []byte(s.w.other(r).name+"."+githubTopic)) {
			s.note("geogate topic list of %s: %v: %s", r.name, err, out)
		}
	}
	s.report("status and topic list answer on the command line", "2 regions")
	for _, r := range s.w.regions() {
		raw, err := os.ReadFile(r.log)
		if err != nil {
			return err
		}
		for line := range bytes.Lines(raw) {
			if bytes.Contains(line, []byte(secretMark)) {
				s.note("log of %s: %.300s", r.name, line)
			}
			if !json.Valid(line) {
				s.note("log of %s has a line that is not JSON: %.300s", r.name, line)
			}
		}
	}
	s.report("logs are JSON and hold neither payloads nor keys", "2 logs")
	return nil
}

// stopGateways stops both gateways in order.
func (s *lossless) stopGateways() error {
	if err := s.w.down(s.note); err != nil {
		return err
	}
	s.report("both gateways drain and exit 0 in the end", "2 regions")
	return nil
}
