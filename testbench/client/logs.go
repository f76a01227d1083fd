package client

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

// ReadTopic reads a topic of a Kafka from its start to where it ends now, control
// records included, ordered by partition and offset. committed leaves aborted
// records out. A topic that does not exist is an error.
func ReadTopic(ctx context.Context, seeds []string, topic string, committed bool) ([]*kgo.Record, error) {
	level := kgo.ReadUncommitted()
	if committed {
		level = kgo.ReadCommitted()
	}
	c, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.FetchIsolationLevel(level), kgo.KeepControlRecords(), kgo.DisableClientMetrics())
	if err != nil {
		return nil, fmt.Errorf("make kafka client: %w", err)
	}
	defer c.Close()
	adm := kadm.NewClient(c)
	list := adm.ListEndOffsets
	if committed {
		list = adm.ListCommittedOffsets
	}
	starts, err := adm.ListStartOffsets(ctx, topic)
	if err := errors.Join(err, starts.Error()); err != nil {
		return nil, fmt.Errorf("list starts of %s: %w", topic, err)
	}
	ends, err := list(ctx, topic)
	if err := errors.Join(err, ends.Error()); err != nil {
		return nil, fmt.Errorf("list ends of %s: %w", topic, err)
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
	c.AddConsumePartitions(map[string]map[int32]kgo.Offset{topic: from})
	return readTo(ctx, c, topic, open)
}

// readTo reads until every partition has come to its end in open. A control
// marker ends every log that a transaction wrote, so the last offset is read even
// if its record was aborted or compacted away, except where compaction took the
// very last one: Kafka never does.
func readTo(ctx context.Context, c *kgo.Client, topic string, open map[int32]int64) ([]*kgo.Record, error) {
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

// Origin reads a region's own log of a topic and judges it by the void rule,
// written down here once more: a record is void if its incarnation is not the
// log's (0), if the barrier that it names does not lie before it, or if another one
// lies between. Nothing but barriers is written into these topics in transactions,
// so every commit marker is one: one for each term of each seat.
func Origin(ctx context.Context, seeds []string, region event.RegionID, topic string) (log []Logged, barriers int, err error) {
	all, err := ReadTopic(ctx, seeds, topic, false)
	if err != nil {
		return nil, 0, err
	}
	j := NewJudge(region, topic)
	for _, rec := range all {
		l, marker, err := j.Judge(rec)
		switch {
		case err != nil:
			return nil, 0, err
		case !marker:
			log = append(log, l)
		}
	}
	return log, j.Barriers, nil
}

// Judge judges the records of a region's own log one after the other, in the order of
// each partition, control records included.
type Judge struct {
	region   event.RegionID
	topic    string
	barrier  map[int32]int64 // the last by partition
	Barriers int             // how many it has met
}

// NewJudge begins at the start of a region's own log of a topic.
func NewJudge(region event.RegionID, topic string) *Judge {
	return &Judge{region: region, topic: topic, barrier: make(map[int32]int64)}
}

// Judge takes the next record; marker is true for a control record.
func (j *Judge) Judge(rec *kgo.Record) (l Logged, marker bool, err error) {
	if rec.Attrs.IsControl() {
		if isCommit(rec) {
			j.barrier[rec.Partition] = rec.Offset
			j.Barriers++
		}
		return l, true, nil
	}
	at := event.Dot{Region: j.region, Partition: rec.Partition, Offset: rec.Offset}
	ev, err := event.FromRecord(at, rec.Timestamp.UnixMilli(), rec.Key, rec.Value, event.FromHeaders(rec.Headers))
	if err != nil {
		return l, false, fmt.Errorf("decode record %d/%d of %s: %w", rec.Partition, rec.Offset, j.topic, err)
	}
	last, seen := j.barrier[rec.Partition]
	return Logged{
		Event: ev, Record: rec,
		Void: ev.Stamped && (ev.Incarnation != 0 || ev.Barrier >= ev.At.Offset || seen && last > ev.Barrier),
	}, false, nil
}

// isCommit tells a commit marker from an abort marker: the key of a control record
// is version and type, int16 each; type 1 is commit.
func isCommit(r *kgo.Record) bool {
	return len(r.Key) >= 4 && binary.BigEndian.Uint16(r.Key[2:]) == 1
}
