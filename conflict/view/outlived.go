package view

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
)

// outlived tells whether compaction may have removed tombstones of the state topic that came
// after a cache was brought up to date: it would keep for good what they removed.
func (v *View) outlived(ctx context.Context, topic string, at, now time.Time) bool {
	age := now.Sub(at)
	if !at.IsZero() && age >= -shortestMemory && age < shortestMemory {
		return false
	}
	memory, err := v.memoryOf(ctx, topic)
	// Half of it, since clocks differ; one that was set back says nothing.
	old := at.IsZero() || age < -shortestMemory || err != nil || age >= memory/2
	if old {
		v.cfg.Logger.Info("the cache of a state topic is older than what the topic remembers; filling it again", "topic", topic,
			"partition", v.cfg.Partition, "age", age, "delete.retention.ms", memory.Milliseconds(), "err", err)
	}
	return old
}

// shortestMemory is the age up to which nobody is asked how long a topic remembers.
const shortestMemory = time.Minute

// memoryOf is how long a topic keeps tombstones.
func (v *View) memoryOf(ctx context.Context, topic string) (time.Duration, error) {
	described, err := kadm.NewClient(v.cfg.Client).DescribeTopicConfigs(ctx, topic)
	if err != nil {
		return 0, fmt.Errorf("describe topic %s: %w", topic, err)
	}
	config, err := described.On(topic, nil)
	if err == nil {
		err = config.Err
	}
	if err != nil {
		return 0, fmt.Errorf("describe topic %s: %w", topic, err)
	}
	for _, c := range config.Configs {
		if c.Key == "delete.retention.ms" && c.Value != nil {
			ms, err := strconv.ParseInt(*c.Value, 10, 64)
			if err != nil || ms < 0 {
				return 0, fmt.Errorf("topic %s has delete.retention.ms %q", topic, *c.Value)
			}
			return time.Duration(min(ms, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond, nil
		}
	}
	return 0, fmt.Errorf("topic %s names no delete.retention.ms", topic)
}
