package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/retention"
	"github.com/geogate/geogate/internal/sleep"
	"github.com/geogate/geogate/internal/txn"
)

const (
	// needlessAtOnce is how many tombstones are in flight at most, needlessRounds how often as
	// many are written for one copy in one look.
	needlessAtOnce = 1000
	needlessRounds = 20
	// needlessTopics is how many topics one request names at most, needlessTime how long one
	// look may take.
	needlessTopics = 300
	needlessTime   = 30 * time.Second
)

// needlessRuns writes tombstones for runs that lie below where the logs of copies begin: the
// topics of runs are as long-lived as the logs that they describe. Only the instance itself
// knows where its logs begin and what it has folded, so the link cannot do that.
//
// Writing one twice, or late, does no harm: nobody asks for a run below the start of a log.
type needlessRuns struct {
	node  *Node
	admin *kadm.Client
	every time.Duration
}

func newNeedlessRuns(n *Node) *needlessRuns {
	return &needlessRuns{n, kadm.NewClient(n.client), cmp.Or(n.deps.RetentionEvery, retention.Every)}
}

// Run looks again and again until the context ends, and returns nil then.
func (d *needlessRuns) Run(ctx context.Context) error {
	failed := false
	sleep.Every(ctx, d.every, func() {
		err := d.look(ctx)
		if err != nil && ctx.Err() == nil && !failed {
			d.node.log.Warn("cannot delete the runs of records that were deleted from copies; will try again", "err", err)
		}
		failed = err != nil
	})
	return nil
}

func (d *needlessRuns) look(ctx context.Context) error {
	select {
	case <-d.node.control.Ready():
	default:
		return nil // what is not read is not known
	}
	ctx, cancel := context.WithTimeout(ctx, needlessTime)
	defer cancel()
	remotes := make(map[string]control.Topic)
	for _, t := range d.node.control.Topics() {
		if t.Kind == control.KindRemote {
			remotes[t.Name] = t
		}
	}
	copies := make(map[control.Copy]bool)
	for _, r := range d.node.topology.Others(d.node.cfg.Region) {
		for _, c := range d.node.control.Copies(r.ID) {
			copies[c] = true
		}
	}
	unread := d.node.seats.Unread()
	var errs []error
	for names := range slices.Chunk(slices.Sorted(maps.Keys(remotes)), needlessTopics) {
		starts, err := d.admin.ListStartOffsets(ctx, names...)
		if err != nil {
			return fmt.Errorf("list where copies begin: %w", err)
		}
		starts.Each(func(s kadm.ListedOffset) {
			t := remotes[s.Topic]
			c := control.Copy{Topic: t.ID, Partition: s.Partition}
			if s.Err != nil || s.Offset <= 0 || !copies[c] {
				return
			}
			below, ok := d.below(t, s.Partition, s.Offset, unread)
			if ok {
				errs = append(errs, d.drop(ctx, t.Origin, c, below))
			}
		})
	}
	return errors.Join(errs...)
}

// below is the offset of a copy below which no run is needed: where its log begins, or where
// the fold reads on if that is lower, since runs tell how much it has lost. ok is false where
// that is not known.
func (d *needlessRuns) below(t control.Topic, partition int32, start int64, unread map[txn.TopicPartition]retention.Need) (int64, bool) {
	if need, ok := unread[txn.TopicPartition{Topic: t.Name, Partition: partition}]; ok {
		return min(start, need.Next), true
	}
	_, folded := d.node.control.Record(control.StateOf(t.Source))
	return start, !folded
}

// drop writes tombstones for a copy's runs below an offset.
func (d *needlessRuns) drop(ctx context.Context, from event.RegionID, c control.Copy, below int64) error {
	topic := control.RunsFrom(d.node.topology.Name(from))
	for range needlessRounds {
		slot, keys := d.node.control.Needless(from, c, below, needlessAtOnce)
		if len(keys) == 0 {
			return nil
		}
		recs := make([]*kgo.Record, len(keys))
		for i, k := range keys {
			recs[i] = &kgo.Record{Topic: topic, Partition: slot, Key: k}
		}
		if err := d.node.client.ProduceSync(ctx, recs...).FirstErr(); err != nil {
			return fmt.Errorf("write tombstones to %s/%d: %w", topic, slot, err)
		}
		if len(keys) < needlessAtOnce {
			return nil
		}
		if err := d.node.control.Sync(ctx); err != nil { // they are taken out as their tombstones are read
			return err
		}
	}
	return nil
}
