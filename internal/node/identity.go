package node

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/router"
	"github.com/geogate/geogate/router/ownership"
)

// ErrRefused is wrapped by errors that say that the instance must not run as the
// cluster and the configuration are; it has changed nothing that matters.
var ErrRefused = errors.New("start refused")

// identify records which incarnation of a local partition's log its present topic
// id stands for: number 0 when the partition is first used, the next number when
// the topic was deleted and made again. Where the incarnation before ended is what
// the region last published of it: nothing beyond was promised to anybody.
func (t *topics) identify(ctx context.Context, topic gateway.Topic, partition int32) error {
	known := t.follower.Incarnations(t.own, topic.Name, partition)
	next := control.Incarnation{Origin: t.own, Topic: topic.Name, Partition: partition, ID: topic.ID}
	if n := len(known); n > 0 {
		last := known[n-1]
		if last.ID == topic.ID {
			return nil
		}
		next.Number = last.Number + 1
		if p, ok := t.follower.Progress(t.own, topic.Name, partition); ok && p.End.Incarnation == last.Number {
			next.End = p.End.Next
		}
		t.log.Error("topic was deleted and made again: a new incarnation of its log begins",
			"topic", topic.Name, "partition", partition, "incarnation", next.Number, "ended", next.End)
	}
	if err := t.checkOrigin(topic, partition); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), topicTimeout)
	defer cancel()
	// The one is the record, the other travels to the other regions.
	for _, to := range []string{control.TopicIncarnations, control.TopicControl} {
		if err := control.Write(ctx, t.client, to, next); err != nil {
			return fmt.Errorf("record incarnation of %s/%d: %w", topic.Name, partition, err)
		}
	}
	return t.await(ctx, topic, partition, next.Number)
}

// checkOrigin refuses a log that has another region's number in the records of its
// cluster: the region's id in the configuration is not the one that it has, and
// under it the region would take its own events for somebody else's.
func (t *topics) checkOrigin(topic gateway.Topic, partition int32) error {
	for r := event.RegionID(1); r <= event.MaxRegion; r++ {
		if r == t.own {
			continue
		}
		for _, x := range t.follower.Incarnations(r, topic.Name, partition) {
			if x.ID == topic.ID {
				return fmt.Errorf("check topic %s: %w: its log in this cluster belongs to the region with id %d, and the configuration gives this region id %d; a region's id never changes",
					topic.Name, ErrRefused, r, t.own)
			}
		}
	}
	return nil
}

// await returns once control has read the record back.
func (t *topics) await(ctx context.Context, topic gateway.Topic, partition int32, number uint16) error {
	for {
		changed := t.follower.Changed()
		for _, x := range t.follower.Incarnations(t.own, topic.Name, partition) {
			if x.Number == number && x.ID == topic.ID {
				return nil
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("read back incarnation of %s/%d: %w", topic.Name, partition, ctx.Err())
		}
	}
}

// checkRetention refuses a topic that forgets records sooner than idempotency keys:
// a rebuilt index would take a retry for a new write.
func (t *topics) checkRetention(ctx context.Context, name string) error {
	text, err := t.config(ctx, name, "retention.ms")
	if err != nil {
		return err
	}
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil || ms < 0 || time.Duration(ms) >= t.window/time.Millisecond {
		return nil // no number, or none that is too small
	}
	return fmt.Errorf("check topic %s: %w: retention.ms is %d, below the idempotency window of %s; raise the one or lower idempotency.window", name, ErrRefused, ms, t.window)
}

// checkKind refuses a topic whose kind is not the one that it was first used with:
// what was derived from it has the other kind's form. The merged topic tells, for
// only that of entities is compacted.
func (t *topics) checkKind(ctx context.Context, topic gateway.Topic) error {
	merged := router.Merged(topic.Name)
	x, ok, err := t.registry.Registered(ctx, merged)
	if err != nil || !ok || x.Kind != control.KindDerived || x.Of != topic.Name {
		return err // whatever has the name is the next one's trouble
	}
	all, err := t.admin.ListTopics(ctx, merged)
	if err != nil {
		return fmt.Errorf("look up topic %s: %w", merged, err)
	}
	if !all.Has(merged) {
		return nil
	}
	cleanup, err := t.cleanup(ctx, merged)
	if err != nil {
		return err
	}
	was := ownership.Events
	if strings.Contains(cleanup, compacted) {
		was = ownership.Entity
	}
	if was == topic.Domain.Kind {
		return nil
	}
	return fmt.Errorf("check topic %s: %w: it was of kind %s before (cleanup.policy of %s is %s) and the policy now says %s; a topic's kind cannot change, use a new topic",
		topic.Name, errMismatch, was, merged, cleanup, topic.Domain.Kind)
}

// unknown says what a topic that geogate writes is, and where to read it.
func (t *topics) unknown(name string, x control.Topic) error {
	detail := "this is an internal topic; native readers may read it"
	switch {
	case x.Kind == control.KindRemote:
		origin := t.topology.Name(x.Origin)
		detail = fmt.Sprintf("this topic is the copy of %s from region %s: read %s with view=origin:%s, or both regions with view=merged", x.Source, origin, x.Source, origin)
	case x.Use == control.UseMerged:
		detail = fmt.Sprintf("this topic is the merged view of %s: read %s with view=merged, and write there", x.Of, x.Of)
	}
	return &gateway.UnknownTopic{Topic: name, Detail: detail}
}
