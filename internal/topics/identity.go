package topics

import (
	"context"
	"fmt"

	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/router"
)

// Identify records which incarnation of a local partition's log its present topic
// id stands for: number 0 when the partition is first used, the next number when
// the topic was deleted and made again. Where the incarnation before ended is what
// the region last published of it: nothing beyond was promised to anybody.
func (c *Catalogue) Identify(ctx context.Context, topic gateway.Topic, partition int32) error {
	known := c.follower.Incarnations(c.own, topic.Name, partition)
	next := control.Incarnation{Origin: c.own, Topic: topic.Name, Partition: partition, ID: topic.ID}
	if n := len(known); n > 0 {
		last := known[n-1]
		if last.ID == topic.ID {
			return nil
		}
		next.Number = last.Number + 1
		if p, ok := c.follower.Progress(c.own, topic.Name, partition); ok && p.End.Incarnation == last.Number {
			next.End = p.End.Next
		}
		c.log.Error("topic was deleted and recreated: a new incarnation of its log begins",
			"topic", topic.Name, "partition", partition, "incarnation", next.Number, "ended", next.End)
	}
	if err := c.checkOrigin(topic, partition); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), topicTimeout)
	defer cancel()
	// The one is the record, the other travels to the other regions.
	for _, to := range []string{control.TopicIncarnations, control.TopicControl} {
		if err := control.Write(ctx, c.client, to, next); err != nil {
			return fmt.Errorf("record incarnation of %s/%d: %w", topic.Name, partition, err)
		}
	}
	return c.await(ctx, topic, partition, next.Number)
}

// checkOrigin refuses a log that has another region's number in the records of its
// cluster: the region's id in the configuration is not the one that it has, and
// under it the region would take its own events for somebody else's.
func (c *Catalogue) checkOrigin(topic gateway.Topic, partition int32) error {
	for r := event.RegionID(1); r <= event.MaxRegion; r++ {
		if r == c.own {
			continue
		}
		for _, x := range c.follower.Incarnations(r, topic.Name, partition) {
			if x.ID == topic.ID {
				return fmt.Errorf("check topic %s: %w: its log in this cluster belongs to the region with id %d, and the configuration gives this region id %d; a region's id never changes",
					topic.Name, ErrRefused, r, c.own)
			}
		}
	}
	return nil
}

// await returns once control has read the record back.
func (c *Catalogue) await(ctx context.Context, topic gateway.Topic, partition int32, number uint16) error {
	for {
		changed := c.follower.Changed()
		for _, x := range c.follower.Incarnations(c.own, topic.Name, partition) {
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

// unknown says what a topic that geogate writes is, and where to read it.
func (c *Catalogue) unknown(name string, x control.Topic) error {
	detail := "this is an internal topic; native readers may read it"
	switch {
	case x.Kind == 0 && !router.Internal(name):
		detail = "its name is one that geogate gives to the topics that it writes, and _geogate.topics has no record that says what it is: it is neither written nor copied"
	case x.Kind == control.KindRemote:
		origin := c.topology.Name(x.Origin)
		detail = fmt.Sprintf("this topic is the copy of %s from region %s: read %s with view=origin:%s, or both regions with view=merged", x.Source, origin, x.Source, origin)
	case x.Use == control.UseMerged:
		detail = fmt.Sprintf("this topic is the merged view of %s: read %s with view=merged, and write there", x.Of, x.Of)
	}
	return &gateway.UnknownTopic{Topic: name, Detail: detail}
}
