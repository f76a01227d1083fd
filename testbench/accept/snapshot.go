//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/testbench/client"
)

const conflictsTopic = "_geogate.conflicts"

// outputs are the topics that a fold writes for others to read.
var outputs = []string{flightsTopic + ".merged", githubTopic + ".merged", conflictsTopic}

// snapshot is what a region has emitted and shows.
type snapshot struct {
	ends     map[string]map[int32]int64 // by topic: offset after the last record
	entities map[string]string          // by key: body, or the problem's code
}

func (s *lossless) snapshot(ctx context.Context, r *region) (snapshot, error) {
	snap := snapshot{ends: make(map[string]map[int32]int64)}
	for _, topic := range outputs {
		all, err := client.ReadTopic(ctx, r.seeds(), topic, true)
		if err != nil {
			return snap, err
		}
		snap.ends[topic] = make(map[int32]int64)
		for _, rec := range all {
			snap.ends[topic][rec.Partition] = rec.Offset + 1
		}
	}
	var err error
	snap.entities, err = s.entities(ctx, r, s.flightKeys())
	return snap, err
}

// flightKeys are the entities of flights that the ledger knows.
func (s *lossless) flightKeys() []string {
	keys := make(map[string]bool)
	for _, e := range s.ledger.of(flightsTopic) {
		keys[e.Key] = true
	}
	return slices.Sorted(maps.Keys(keys))
}

// entities reads entities from one region. What is no entity is the problem's
// code and, of a deleted one, the version that the problem names.
func (s *lossless) entities(ctx context.Context, r *region, keys []string) (map[string]string, error) {
	out := make(map[string]string)
	for _, key := range keys {
		e, err := r.gateway.Entity(ctx, flightsTopic, key, "", "")
		var p *client.Problem
		switch {
		case errors.As(err, &p) && p.Code == "ENTITY_UNKNOWN":
			out[key] = p.Code + " " + p.Version
		case err != nil:
			return nil, fmt.Errorf("read entity %s in %s: %w", key, r.name, err)
		default:
			out[key] = e.Raw
			if etag := e.Header.Get("ETag"); etag != `"`+e.Version+`"` {
				s.note("entity %s in %s: ETag %s, version %s", key, r.name, etag, e.Version)
			}
		}
	}
	return out, nil
}

// compareSnapshot checks that since a snapshot exactly the fresh writes were
// emitted, each once, and that nothing that was shown has changed.
func (s *lossless) compareSnapshot(ctx context.Context, r *region, before snapshot, fresh []item) error {
	want := make(map[string]map[string]int) // topic → id → times seen
	for _, topic := range outputs {
		want[topic] = make(map[string]int)
	}
	for _, it := range fresh {
		a := s.ledger.get(it.Idem).asked[s.home(it).name]
		want[it.Topic+".merged"][a.ID] = 0
	}
	for _, topic := range outputs {
		all, err := client.ReadTopic(ctx, r.seeds(), topic, true)
		if err != nil {
			return err
		}
		for _, rec := range client.Data(all) {
			if rec.Offset < before.ends[topic][rec.Partition] {
				continue
			}
			if topic == conflictsTopic {
				s.note("%s emits a conflict again: %s", r.name, rec.Value)
				continue
			}
			s.countFresh(r, topic, rec, want[topic])
		}
		for id, n := range want[topic] {
			if n != 1 {
				s.note("%s: fresh write %s emitted %d times after the loss of the store", topic, id, n)
			}
		}
	}
	s.report("a region that lost its store emits nothing twice and nothing too little", "%d fresh writes", len(fresh))

	after, err := s.entities(ctx, r, slices.Sorted(maps.Keys(before.entities)))
	if err != nil {
		return err
	}
	for key, body := range before.entities {
		if after[key] != body {
			s.note("entity %s was %s, is %s", key, body, after[key])
		}
	}
	s.report("a region that lost its store shows the same entities", "%d entities", len(after))
	return nil
}

// countFresh notes a merged record that is not one of the fresh writes.
func (s *lossless) countFresh(r *region, topic string, rec *kgo.Record, want map[string]int) {
	e, _, _, err := event.Decode(event.FromHeaders(rec.Headers))
	if err != nil {
		s.note("%s %d/%d in %s: %v", topic, rec.Partition, rec.Offset, r.name, err)
		return
	}
	id := e.ID.String()
	if _, ok := want[id]; !ok {
		s.note("%s emits %s again at %d/%d (key %s)", topic, id, rec.Partition, rec.Offset, rec.Key)
		return
	}
	want[id]++
}
