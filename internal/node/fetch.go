package node

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
)

const fetchTimeout = 30 * time.Second

// fetcher reads single events from the region's Kafka: a refold asks for the few
// that it makes live again.
type fetcher struct {
	own     event.RegionID
	control *control.Follower
	opts    func(purpose string) []kgo.Opt
}

// topicFetcher is a fetcher for one partition of a local topic and its copies.
type topicFetcher struct {
	*fetcher
	topic     gateway.Topic
	partition int32
}

// Fetch implements view.Fetcher. An event that retention has taken is an error:
// the partition must not go on without it.
func (f topicFetcher) Fetch(ctx context.Context, at event.Dot) (event.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	topic, offset, err := f.place(at)
	if err != nil {
		return event.Event{}, err
	}
	client, err := kgo.NewClient(append(f.opts("fetch"),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {f.partition: kgo.NewOffset().At(offset)}}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchMaxPartitionBytes(1<<20),
		kgo.FetchMaxWait(100*time.Millisecond),
	)...)
	if err != nil {
		return event.Event{}, fmt.Errorf("fetch event: %w", err)
	}
	defer client.Close()
	for {
		fs := client.PollFetches(ctx)
		if err := fs.Err0(); err != nil {
			return event.Event{}, fmt.Errorf("fetch event of region %d at %s/%d offset %d: %w", at.Region, topic, f.partition, offset, err)
		}
		for _, e := range fs.Errors() {
			return event.Event{}, fmt.Errorf("fetch event of region %d at %s/%d offset %d: %w", at.Region, topic, f.partition, offset, e.Err)
		}
		for it := fs.RecordIter(); !it.Done(); {
			r := it.Next()
			if r.Offset != offset {
				return event.Event{}, fmt.Errorf("fetch event of region %d: %s/%d has no record at %d any more", at.Region, topic, f.partition, offset)
			}
			return event.FromRecord(at, r.Timestamp.UnixMilli(), r.Key, r.Value, event.FromHeaders(r.Headers))
		}
	}
}

// place is where the event lies in this region's Kafka.
func (f topicFetcher) place(at event.Dot) (topic string, offset int64, err error) {
	if at.Region == f.own {
		return f.topic.Name, at.Offset, nil
	}
	remote, ok := f.control.Remote(at.Region, f.topic.Name)
	if !ok {
		return "", 0, fmt.Errorf("fetch event of region %d: no copy of %s is registered", at.Region, f.topic.Name)
	}
	offset, ok = f.control.Find(at.Region, remote.ID, at.Partition, at.Incarnation, at.Offset)
	if !ok {
		return "", 0, fmt.Errorf("fetch event of region %d: no run holds offset %d of %s/%d", at.Region, at.Offset, f.topic.Name, at.Partition)
	}
	return remote.Name, offset, nil
}
