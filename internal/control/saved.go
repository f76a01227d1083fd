package control

import (
	"context"
	"fmt"
	"math"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/offsets"
	"github.com/geogate/geogate/internal/txn"
)

// runsReadTo notes that the runs of a slot were read below next; the caller holds mu.
func (f *Follower) runsReadTo(from event.RegionID, p txn.TopicPartition, next int64) {
	s := f.saved[from]
	if s != nil {
		s.Under(p.Partition, f.runsTopics[from], f.committed.epochOf(p))
	}
	f.links[from].RunsReadTo(p.Partition, next)
	if s == nil || s.Err() == nil {
		return
	}
	select {
	case f.broken <- fmt.Errorf("store the runs of %s: %w", p.Topic, s.Err()):
	default:
	}
}

// resumeRuns tells from where a topic of runs is read: from where reading has ended before,
// if what was kept of it is still true, and else from its start. Other topics are read from
// their starts.
func (f *Follower) resumeRuns(ctx context.Context, topic string, starts map[int32]int64) (map[int32]int64, error) {
	rt := f.routes()[topic]
	s := f.saved[rt.from]
	if rt.kind != routeRuns || s == nil {
		return starts, nil
	}
	found, err := f.committed.topics.Lookup(ctx, topic)
	if err != nil {
		return nil, fmt.Errorf("look up topic %s: %w", topic, err)
	}
	ends, err := f.committed.admin.ListEndOffsets(ctx, topic)
	if err != nil {
		return nil, fmt.Errorf("list the ends of %s: %w", topic, err)
	}
	places, epochEnds, err := f.places(ctx, s, topic, starts)
	if err != nil {
		return nil, err
	}
	out := make(map[int32]int64, len(starts))
	whole := len(places) == 0
	for slot, first := range starts {
		end, ok := ends.Lookup(topic, slot)
		if !ok {
			return nil, fmt.Errorf("list the end of %s/%d: no answer", topic, slot)
		}
		if end.Err != nil {
			return nil, fmt.Errorf("list the end of %s/%d: %w", topic, slot, end.Err)
		}
		out[slot] = first
		p, known := places[slot]
		if !known {
			continue // nothing of it was read
		}
		epochEnd, told := epochEnds[slot]
		if !told {
			epochEnd = math.MaxInt64
		}
		next, valid := savedPlace(p, event.TopicID(found.ID), first, end.Offset, epochEnd)
		if !valid {
			f.log.Info("the stored runs are of another log, or of one that has lost its end; reading all runs again", "topic", topic, "partition", slot, "read_to", p.Next, "end", end.Offset, "epoch_end", epochEnd)
			whole = true
		}
		out[slot] = next
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.runsTopics[rt.from] = event.TopicID(found.ID)
	if whole {
		s.Reset()
		f.links[rt.from].runs.reset()
		return starts, nil
	}
	return out, nil
}

// places are how far the slots of a topic of runs were read, and, as far as the cluster can
// tell, where what was written under their leader epochs ends.
func (f *Follower) places(ctx context.Context, s SavedRuns, topic string, slots map[int32]int64) (map[int32]Place, map[int32]int64, error) {
	places, epochEnds := make(map[int32]Place), make(map[int32]int64)
	var epochs kadm.OffsetForLeaderEpochRequest
	f.mu.Lock()
	for slot := range slots {
		if p, ok := s.Place(slot); ok {
			places[slot] = p
			if p.Epoch >= 0 {
				epochs.Add(topic, slot, p.Epoch)
			}
		}
	}
	f.mu.Unlock()
	if len(epochs) == 0 {
		return places, epochEnds, nil
	}
	got, err := f.committed.admin.OffsetForLeaderEpoch(ctx, epochs)
	if err != nil {
		return nil, nil, fmt.Errorf("ask where leader epochs of %s end: %w", topic, err)
	}
	for slot, x := range got[topic] {
		if x.Err != nil {
			return nil, nil, fmt.Errorf("ask where leader epoch %d of %s/%d ends: %w", places[slot].Epoch, topic, slot, x.Err)
		}
		epochEnds[slot] = x.EndOffset
	}
	return places, epochEnds, nil
}

// Needless gives the keys of records of a copy's runs that nobody needs, at most most of
// them, and the partition of the topic of runs that they are in: the log of the copy begins
// at target or above it, and its readers have read what lies below. Once tombstones for the
// keys are read, their runs are taken out.
func (f *Follower) Needless(from event.RegionID, c Copy, target int64, most int) (slot int32, keys [][]byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.links[from]
	if l == nil {
		return 0, nil
	}
	p := l.byTarget[partition{c.Topic, c.Partition}]
	if p == nil {
		return 0, nil
	}
	for _, first := range l.runs.needless(c, target, most) {
		keys = append(keys, offsets.AppendKey(nil, c.Topic, c.Partition, first))
	}
	return p.slot, keys
}

// Copies are the partitions that the link from a region has a position for.
func (f *Follower) Copies(from event.RegionID) []Copy {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []Copy
	if l := f.links[from]; l != nil {
		for p := range l.byTarget {
			out = append(out, Copy{p.topic, p.num})
		}
	}
	return out
}
