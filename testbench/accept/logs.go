//go:build unix

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sort"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/event"
)

// readTopic reads a topic from its start to where it ends now, control records
// included, each partition in order. committed leaves aborted records out.
func readTopic(ctx context.Context, seeds []string, topic string, committed bool) ([]*kgo.Record, error) {
	level := kgo.ReadUncommitted()
	if committed {
		level = kgo.ReadCommitted()
	}
	c, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.FetchIsolationLevel(level), kgo.KeepControlRecords())
	if err != nil {
		return nil, err
	}
	defer c.Close()
	adm := kadm.NewClient(c)
	list := adm.ListEndOffsets
	if committed {
		list = adm.ListCommittedOffsets
	}
	ends, err := list(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("list ends of %s: %w", topic, err)
	}
	starts, err := adm.ListStartOffsets(ctx, topic)
	if err != nil {
		return nil, fmt.Errorf("list starts of %s: %w", topic, err)
	}
	from := make(map[int32]kgo.Offset)
	open := make(map[int32]int64)
	ends.Each(func(o kadm.ListedOffset) {
		if s, ok := starts.Lookup(topic, o.Partition); ok && s.Offset < o.Offset {
			from[o.Partition], open[o.Partition] = kgo.NewOffset().At(s.Offset), o.Offset
		}
	})
	if len(open) == 0 {
		return nil, nil
	}
	c.AddConsumePartitions(map[string]map[int32]kgo.Offset{topic: from})
	var all []*kgo.Record
	for len(open) > 0 {
		fs := c.PollFetches(ctx)
		if err := errors.Join(ctx.Err(), fs.Err()); err != nil {
			return nil, fmt.Errorf("read %s: %w", topic, err)
		}
		fs.EachRecord(func(r *kgo.Record) {
			end, ok := open[r.Partition]
			if !ok || r.Offset >= end {
				return
			}
			all = append(all, r)
			if r.Offset+1 == end {
				delete(open, r.Partition)
			}
		})
	}
	sort.SliceStable(all, func(i, j int) bool {
		if all[i].Partition != all[j].Partition {
			return all[i].Partition < all[j].Partition
		}
		return all[i].Offset < all[j].Offset
	})
	return all, nil
}

// dataRecords leaves the control records out.
func dataRecords(all []*kgo.Record) (data []*kgo.Record) {
	for _, r := range all {
		if !r.Attrs.IsControl() {
			data = append(data, r)
		}
	}
	return data
}

// placed is a record of an origin log with the verdict on it.
type placed struct {
	event.Event
	void bool
	raw  *kgo.Record
}

// origin is one region's own log of a topic.
type origin struct {
	region *region
	all    []placed
	at     map[event.Dot]*placed
	// barriers counts the commit markers: one for each term of each seat.
	barriers int
}

// readOrigin reads a region's own log of a topic and judges each record by the
// void rule: a record is void if its incarnation is not the log's (0 here), if
// the barrier that it names does not lie before it, or if another lies between.
//
// Nothing else writes transactions into these topics, so every commit marker is
// a barrier.
func readOrigin(ctx context.Context, r *region, topic string) (*origin, error) {
	all, err := readTopic(ctx, r.seeds(), topic, false)
	if err != nil {
		return nil, err
	}
	o := &origin{region: r, at: make(map[event.Dot]*placed)}
	last := make(map[int32]int64)
	for _, rec := range all {
		if rec.Attrs.IsControl() {
			if isCommit(rec) {
				last[rec.Partition] = rec.Offset
				o.barriers++
			}
			continue
		}
		dot := event.Dot{Region: r.id, Partition: rec.Partition, Offset: rec.Offset}
		ev, err := event.FromRecord(dot, rec.Timestamp.UnixMilli(), rec.Key, rec.Value, event.FromHeaders(rec.Headers))
		if err != nil {
			return nil, fmt.Errorf("decode record %d/%d of %s in %s: %w", rec.Partition, rec.Offset, topic, r.name, err)
		}
		if !ev.Stamped || ev.Region != r.id {
			return nil, fmt.Errorf("record %d/%d of %s in %s: stamped %v, region %d", rec.Partition, rec.Offset, topic, r.name, ev.Stamped, ev.Region)
		}
		barrier, seen := last[rec.Partition]
		o.all = append(o.all, placed{
			Event: ev, raw: rec,
			void: ev.Incarnation != 0 || ev.Barrier >= ev.At.Offset || seen && barrier > ev.Barrier,
		})
	}
	for i := range o.all {
		o.at[o.all[i].At] = &o.all[i]
	}
	return o, nil
}

// isCommit tells a commit marker from an abort marker: the key of a control
// record is version and type, int16 each; type 1 is commit.
func isCommit(r *kgo.Record) bool {
	return len(r.Key) >= 4 && binary.BigEndian.Uint16(r.Key[2:]) == 1
}
