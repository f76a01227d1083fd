package seats

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/geogate/geogate/conflict/view"
	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/txn"
)

const fetchTimeout = 30 * time.Second

// fetcher reads single events from the region's Kafka: a refold asks for the few
// that it makes live again.
type fetcher struct {
	own     event.RegionID
	control *control.Follower
	topics  *txn.Topics
	decoder *txn.Decoder
}

// topicFetcher is a fetcher for one partition of a local topic and its copies.
type topicFetcher struct {
	*fetcher
	topic     gateway.Topic
	partition int32
}

// Fetch implements view.Fetcher. An event that retention has taken is view.ErrGone.
func (f topicFetcher) Fetch(ctx context.Context, at event.Dot) (event.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	topic, offset, err := f.place(at)
	if err != nil {
		return event.Event{}, err
	}
	var found *event.Event
	where := txn.TopicPartition{Topic: topic, Partition: f.partition}
	_, err = txn.ReadCommitted(ctx, f.topics, f.decoder, where, offset, offset+1, func(r *txn.Record) error {
		if r.Refused != nil {
			return r.Refused
		}
		ev, err := event.FromRecord(at, r.Timestamp, r.Key, r.Value, r.Headers)
		found = &ev
		return err
	})
	if err == nil && found == nil || errors.Is(err, kerr.OffsetOutOfRange) {
		err = view.ErrGone
	}
	if err != nil {
		return event.Event{}, fmt.Errorf("fetch event of region %d at %s/%d offset %d: %w", at.Region, topic, f.partition, offset, err)
	}
	return *found, nil
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
	// The position is asked for first: below it everything is described.
	cov, covered := f.control.Covered(at.Region, remote.ID, at.Partition)
	offset, ok = f.control.TargetOffset(at.Region, remote.ID, at.Partition, at.Incarnation, at.Offset)
	if !ok && covered && at.Incarnation == cov.Source.Incarnation && at.Offset < cov.Source.Next {
		return "", 0, fmt.Errorf("fetch event of region %d: the runs of offset %d of %s/%d were deleted with its record: %w", at.Region, at.Offset, f.topic.Name, at.Partition, view.ErrGone)
	}
	if !ok {
		return "", 0, fmt.Errorf("fetch event of region %d: no run holds offset %d of %s/%d", at.Region, at.Offset, f.topic.Name, at.Partition)
	}
	return remote.Name, offset, nil
}
