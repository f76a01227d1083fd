package replicate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/txn"
)

// The copy of a compacted topic is compacted, too, as long as no gateway writes to the
// source: of a gateway's records compaction could drop one that counts and keep one that
// is void. A gateway announces its barrier before it writes, so the copy is made to keep
// everything within one look at the topics, and what was copied meanwhile is younger than
// compactionLag.
const compactionLag = time.Hour

const (
	describedAtOnce = 300
	// cleanupKnownFor is how long a change of a source's cleanup policy may go unseen.
	cleanupKnownFor = 5 * time.Minute
)

// copies is what discovery knows of the cleanup policies of sources and their copies.
type copies struct {
	compacted map[event.TopicID]bool   // sources, by whether they are compacted
	since     time.Time                // when the first of these was asked
	keepAll   map[event.TopicID]bool   // remote topics that are certain to keep everything
	keeps     map[event.TopicID]string // remote topics of compacted sources that keep everything, and why
}

func newCopies() copies {
	return copies{compacted: map[event.TopicID]bool{}, since: time.Now(), keepAll: map[event.TopicID]bool{}, keeps: map[event.TopicID]string{}}
}

// findCompacted finds out which of the source's topics are compacted, where that is not
// known yet. What cannot be described counts as not compacted.
func (d *discovery) findCompacted(ctx context.Context, list []txn.Topic) error {
	if time.Since(d.copies.since) > cleanupKnownFor {
		d.copies.compacted, d.copies.since = map[event.TopicID]bool{}, time.Now()
	}
	list = slices.DeleteFunc(list, func(t txn.Topic) bool { _, known := d.copies.compacted[t.ID]; return known })
	ids := make(map[string]event.TopicID, len(list))
	for some := range slices.Chunk(list, describedAtOnce) {
		names := make([]string, 0, len(some))
		for _, t := range some {
			ids[t.Name] = t.ID
			names = append(names, t.Name)
		}
		described, err := kadm.NewClient(d.source).DescribeTopicConfigs(ctx, names...)
		if err != nil {
			return fmt.Errorf("describe source topics: %w", err)
		}
		for _, x := range described {
			d.copies.compacted[ids[x.Name]] = x.Err == nil && strings.Contains(cleanupPolicy(x), "compact")
		}
	}
	return nil
}

func cleanupPolicy(x kadm.ResourceConfig) string {
	for _, c := range x.Configs {
		if c.Key == "cleanup.policy" {
			return c.MaybeValue()
		}
	}
	return ""
}

// settleCopy compacts the new copy of a compacted topic, or makes sure that the copy keeps
// everything. Its error blocks the topic.
func (d *discovery) settleCopy(ctx context.Context, t txn.Topic, remote string, id event.TopicID, created bool) error {
	if !d.copies.compacted[t.ID] {
		delete(d.copies.keeps, id)
		return nil
	}
	if d.cfg.NativeOnly != nil && d.cfg.NativeOnly(t.Name, t.ID) {
		if !created {
			return nil // as it was made, or as an operator wants it
		}
		err := alterTopic(ctx, d.target, remote, map[string]string{
			"cleanup.policy": "compact", "min.compaction.lag.ms": fmt.Sprint(compactionLag.Milliseconds()),
		})
		switch {
		case err == nil:
			d.cfg.Logger.Info("the copy of a compacted topic is compacted until a gateway writes the topic", "topic", remote)
			return nil
		case !concernsTopic(err):
			return err
		}
		d.copies.keeps[id] = fmt.Sprintf("the target does not let the link compact it: %v", err)
		return nil
	}
	d.copies.keeps[id] = "a gateway writes to the topic, and compaction could drop a record that counts"
	if d.copies.keepAll[id] {
		return nil
	}
	described, err := kadm.NewClient(d.target).DescribeTopicConfigs(ctx, remote)
	if err == nil && len(described) == 1 && described[0].Err == nil && !strings.Contains(cleanupPolicy(described[0]), "compact") {
		d.copies.keepAll[id] = true
		return nil
	}
	err = alterTopic(ctx, d.target, remote, map[string]string{"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"})
	switch {
	case err == nil:
		d.cfg.Logger.Info("the copy of a compacted topic keeps everything from now on: a gateway writes the topic", "topic", remote)
	case errors.Is(err, kerr.TopicAuthorizationFailed) && len(described) == 1 && described[0].Err != nil:
		// The link may neither see nor change it, so no link has made it compacted.
	case concernsTopic(err):
		return &blockedError{reason: fmt.Sprintf("%s is compacted, a gateway writes its source, and the target does not let the link change that: %v; set cleanup.policy=delete, retention.ms=-1 and retention.bytes=-1 there", remote, err)}
	default:
		return err
	}
	d.copies.keepAll[id] = true
	return nil
}

// alterTopic changes settings of a topic.
func alterTopic(ctx context.Context, cl *kgo.Client, name string, settings map[string]string) error {
	var alter []kadm.AlterConfig
	for key, value := range settings {
		alter = append(alter, kadm.AlterConfig{Op: kadm.SetConfig, Name: key, Value: &value})
	}
	responses, err := kadm.NewClient(cl).AlterTopicConfigs(ctx, alter, name)
	if err == nil {
		_, err = responses.On(name, func(r *kadm.AlterConfigsResponse) error { return r.Err })
	}
	if err != nil {
		return fmt.Errorf("change settings of %s: %w", name, err)
	}
	return nil
}
