package topics

import (
	"context"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/warning"
	"github.com/geogate/geogate/router"
)

// describe is a local topic with its partitions.
//
// The view of an events topic spans every partition that any region's log has. Of a
// topic of entities the regions must have the same number: a key that one of them writes
// to another partition never meets what the others write, so such a topic is held.
func (c *Catalogue) describe(detail kadm.TopicDetail) gateway.Topic {
	t := gateway.Topic{Name: detail.Topic, ID: detail.ID, Domain: c.policy.Domain(detail.Topic)}
	t.Partitions = c.partitions(detail, t.Domain.Kind == conflict.Events)
	copies := c.copies(detail.Topic)
	if t.Domain.Kind == conflict.Entities {
		t.Held = c.uneven(detail, copies)
		return t
	}
	t.Local = int32(len(detail.Partitions))
	t.Span = max(t.Local, c.stateOf(detail.Topic))
	for _, n := range copies {
		t.Span = max(t.Span, n)
	}
	return t
}

// partitions is over how many of a topic's partitions keys are spread: no more than are
// declared or, where nothing is declared, than there were when the topic was first used.
// A key that moved to one that was added later would not find its idempotency key again.
func (c *Catalogue) partitions(detail kadm.TopicDetail, events bool) int32 {
	n := int32(len(detail.Partitions))
	for _, d := range c.policy.Declared() {
		if d.Topic != detail.Topic {
			continue
		}
		if n = min(n, d.Partitions); events {
			return n
		}
	}
	first := c.stateOf(detail.Topic)
	if events && c.follower != nil {
		if x, ok := c.follower.Record(control.StateOf(detail.Topic)); ok && x.Partitions > 0 {
			first = x.Partitions // the state topic has grown since
		}
	}
	if first > 0 {
		n = min(n, first)
	}
	return n
}

// stateOf is how many partitions a topic's state topic has, 0 if there is none.
func (c *Catalogue) stateOf(topic string) int32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return int32(len(c.known[control.StateOf(topic)].Partitions))
}

// copies is how many partitions the copies of other regions' logs of a topic have, by the
// name of the region.
func (c *Catalogue) copies(topic string) map[string]int32 {
	if c.follower == nil {
		return nil
	}
	out := make(map[string]int32)
	for _, r := range c.topology.Others(c.region) {
		name := router.RemoteName(r.Name, topic)
		x, ok := c.follower.Record(name)
		if !ok || x.Kind != control.KindRemote || x.Origin != r.ID || x.Source != topic {
			continue
		}
		c.mu.Lock()
		detail, made := c.known[name]
		c.mu.Unlock()
		if made && detail.Err == nil && event.TopicID(detail.ID) == x.ID && len(detail.Partitions) > 0 {
			out[r.Name] = int32(len(detail.Partitions))
		}
	}
	return out
}

// uneven says which regions' logs of a topic have another number of partitions than the
// local one, "" if none has.
func (c *Catalogue) uneven(detail kadm.TopicDetail, copies map[string]int32) string {
	var others []string
	for _, r := range c.topology.Others(c.region) {
		if n, ok := copies[r.Name]; ok && int(n) != len(detail.Partitions) {
			others = append(others, fmt.Sprintf("%d in %s", n, r.Name))
		}
	}
	if len(others) == 0 {
		return ""
	}
	return fmt.Sprintf("the topic has %d partitions in %s and %s", len(detail.Partitions), c.region, strings.Join(others, ", "))
}

// SameKeys tells whether another region's log of a topic spreads keys over as many
// partitions as the local one, as far as that is known: a topic of entities folds no other.
func (c *Catalogue) SameKeys(topic, region string) bool {
	n, ok := c.copies(topic)[region]
	c.mu.Lock()
	defer c.mu.Unlock()
	return ok && int(n) == len(c.known[topic].Partitions)
}

// warnOfPartitions says what follows from the numbers of partitions of a topic in use.
// ungrown is why its derived topics lack some.
func (c *Catalogue) warnOfPartitions(out *warning.List, detail kadm.TopicDetail, ungrown string) {
	name := detail.Topic
	uneven := c.uneven(detail, c.copies(name))
	if uneven == "" && c.stateOf(name) == 0 {
		return // nobody uses it, or it is none of the local topics
	}
	t := c.describe(detail)
	have, used := len(detail.Partitions), int(t.Partitions)
	switch {
	case t.Held != "":
		out.Add(warning.PartitionsDiffer, name, "%s: keys of the others never meet those here, so the topic is held: it takes no writes, and its views lack other regions' records. Recreate it with one number everywhere", uneven)
	case uneven != "":
		out.Add(warning.PartitionsUneven, name, "%s: the view spans all of them, but a key is in another partition elsewhere, so a retry in another region is another event. Add partitions where there are fewer", uneven)
	}
	switch {
	case have > used && t.Domain.Kind == conflict.Entities:
		out.Add(warning.PartitionsUnused, name, "the topic has %d partitions, of which the first %d are used; records in the others are not folded", have, used)
	case have > used:
		out.Add(warning.PartitionsUneven, name, "the topic has %d partitions: the gateway reads all, and spreads keys over the first %d, which are as many as are declared or as there were when it was first used. To use the others, declare them in the ownership policy", have, used)
	}
	if ungrown != "" {
		for p := min(c.stateOf(name), c.mergedOf(name)); p < t.Span; p++ {
			out.Add(warning.ViewIncomplete, fmt.Sprintf("%s/%d", name, p), "views lack the partition: %s", ungrown)
		}
	}
}

// mergedOf is how many partitions a topic's merged topic has, 0 if there is none.
func (c *Catalogue) mergedOf(topic string) int32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return int32(len(c.known[router.Merged(topic)].Partitions))
}

// Incomplete says why a partition cannot be in the view of a topic, with an error that
// wraps gateway.ErrTopicBlocked; nil if it can.
func (c *Catalogue) Incomplete(topic string, partition int32) error {
	c.mu.Lock()
	why := c.ungrown[topic]
	c.mu.Unlock()
	if why == "" || partition < min(c.stateOf(topic), c.mergedOf(topic)) {
		return nil
	}
	return fmt.Errorf("partition %s/%d: %w: %s", topic, partition, gateway.ErrTopicBlocked, why)
}

// CompletePartitions is how many partitions the view of a topic has, without those at its end that
// cannot be in it.
func (c *Catalogue) CompletePartitions(topic gateway.Topic) int32 {
	n := topic.ViewPartitions()
	for n > 0 && c.Incomplete(topic.Name, n-1) != nil {
		n--
	}
	return n
}

// grow gives a derived topic the partitions that it lacks. What fails keeps only those
// partitions out of the views: the spec is lowered to what there is.
func (c *Catalogue) grow(ctx context.Context, s *spec, of string, have int32) {
	if have == 0 || have >= s.partitions {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, topicTimeout)
	defer cancel()
	resp, err := c.admin.UpdatePartitions(ctx, int(s.partitions), s.name)
	if err == nil {
		err = resp.Error()
	}
	if err == nil {
		if err = c.awaitLeaders(ctx, *s); err == nil {
			err = c.Refresh(ctx)
		}
	}
	if err == nil {
		c.log.Info("added partitions to a derived topic, as another region's log has more", "topic", s.name, "partitions", s.partitions)
		return
	}
	why := fmt.Sprintf("partitions cannot be added to %s: %v", s.name, err)
	c.mu.Lock()
	known := c.said == why
	c.ungrown[of], c.said = why, why
	c.mu.Unlock()
	if !known {
		c.log.Error("cannot add partitions to a derived topic; will try again", "topic", s.name, "have", have, "want", s.partitions, "err", err)
	}
	s.partitions = have
}

// awaitRecord returns once the registry's record of a topic has been read back.
func (c *Catalogue) awaitRecord(ctx context.Context, want control.Topic) error {
	ctx, cancel := context.WithTimeout(ctx, topicTimeout)
	defer cancel()
	for {
		changed := c.follower.Changed()
		if x, ok := c.follower.Record(want.Name); ok && x.Partitions == want.Partitions {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("read back the registry's record of %s: %w", want.Name, ctx.Err())
		}
	}
}
