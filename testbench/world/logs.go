package world

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/event"
)

// Read reads a topic of the region's Kafka from its start to where it ends now,
// control records included, ordered by partition and offset. committed leaves
// aborted records out. A topic that does not exist is an error.
func (r *Region) Read(ctx context.Context, topic string, committed bool) ([]*kgo.Record, error) {
	list, level := r.admin.ListEndOffsets, kgo.ReadUncommitted()
	if committed {
		list, level = r.admin.ListCommittedOffsets, kgo.ReadCommitted()
	}
	starts, err := r.admin.ListStartOffsets(ctx, topic)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("list starts of %s in %s: %w", topic, r.Name, err)
	}
	ends, err := list(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("list ends of %s in %s: %w", topic, r.Name, err)
	}
	from := make(map[int32]kgo.Offset)
	open := make(map[int32]int64)
	ends.Each(func(end kadm.ListedOffset) {
		if start, ok := starts.Lookup(topic, end.Partition); ok && start.Offset < end.Offset {
			from[end.Partition], open[end.Partition] = kgo.NewOffset().At(start.Offset), end.Offset
		}
	})
	if len(open) == 0 {
		return nil, nil
	}
	c, err := kgo.NewClient(kgo.SeedBrokers(r.kafka.Seeds()...), kgo.FetchIsolationLevel(level), kgo.KeepControlRecords(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return drainTo(ctx, c, topic, open)
}

// drainTo reads until every partition has come to its end in open. A control
// marker ends every log that a transaction wrote, so the last offset is read even
// if its record was aborted or compacted away, except where compaction took the
// very last one: Kafka never does.
func drainTo(ctx context.Context, c *kgo.Client, topic string, open map[int32]int64) ([]*kgo.Record, error) {
	var all []*kgo.Record
	for len(open) > 0 {
		fs := c.PollFetches(ctx)
		if err := errors.Join(ctx.Err(), fs.Err()); err != nil {
			return nil, fmt.Errorf("read %s: %w", topic, err)
		}
		fs.EachRecord(func(rec *kgo.Record) {
			end, ok := open[rec.Partition]
			if !ok || rec.Offset >= end {
				return
			}
			all = append(all, rec)
			if rec.Offset+1 == end {
				delete(open, rec.Partition)
			}
		})
	}
	slices.SortStableFunc(all, func(a, b *kgo.Record) int {
		return cmp.Or(cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
	})
	return all, nil
}

// Data leaves control records out.
func Data(all []*kgo.Record) []*kgo.Record {
	return slices.DeleteFunc(slices.Clone(all), func(r *kgo.Record) bool { return r.Attrs.IsControl() })
}

// Logged is a record of an origin's log with the log's verdict on it.
type Logged struct {
	event.Event
	Void   bool
	Record *kgo.Record
}

// Origin reads the region's own log of a topic and judges it by the void rule,
// told anew here: a record is void if its incarnation is not the log's (0), if the
// barrier that it names does not lie before it, or if another one lies between.
// Nothing but barriers is written into these topics in transactions, so every
// commit marker is one.
func (r *Region) Origin(ctx context.Context, topic string) ([]Logged, error) {
	all, err := r.Read(ctx, topic, false)
	if err != nil {
		return nil, err
	}
	var out []Logged
	barrier := make(map[int32]int64)
	for _, rec := range all {
		if rec.Attrs.IsControl() {
			if len(rec.Key) >= 4 && binary.BigEndian.Uint16(rec.Key[2:]) == 1 { // version, type: 1 is commit
				barrier[rec.Partition] = rec.Offset
			}
			continue
		}
		at := event.Dot{Region: r.ID, Partition: rec.Partition, Offset: rec.Offset}
		ev, err := event.FromRecord(at, rec.Timestamp.UnixMilli(), rec.Key, rec.Value, event.FromHeaders(rec.Headers))
		if err != nil {
			return nil, fmt.Errorf("decode %s of %s: %w", at.Format(r.w), topic, err)
		}
		last, seen := barrier[rec.Partition]
		out = append(out, Logged{
			Event: ev, Record: rec,
			Void: ev.Stamped && (ev.Incarnation != 0 || ev.Barrier >= ev.At.Offset || seen && last > ev.Barrier),
		})
	}
	return out, nil
}

// Produce writes a record into the region's Kafka as a native producer does.
func (r *Region) Produce(ctx context.Context, rec *kgo.Record) error {
	if err := r.client.ProduceSync(ctx, rec).FirstErr(); err != nil {
		return fmt.Errorf("produce to %s in %s: %w", rec.Topic, r.Name, err)
	}
	return nil
}
