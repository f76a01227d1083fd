package topics

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/router"
)

// Settings of topics (KIP-937 added the bounds of timestamps).
const (
	maxMessageBytes = "max.message.bytes"
	retentionMS     = "retention.ms"
	retentionBytes  = "retention.bytes"
	timestampType   = "message.timestamp.type"
	timestampBefore = "message.timestamp.before.max.ms"
	timestampAfter  = "message.timestamp.after.max.ms"

	defaultMaxMessage = 1_048_588
	// envelopeBytes is more than what geogate adds to a record that it derives.
	envelopeBytes = 64 << 10
	// batchBytes is the largest batch of small records that is written (txn.DefaultBatchBytes).
	batchBytes = 900 << 10
)

// derivedSettings are what a topic derived from a local one is made with, given the
// local one's settings as the broker applies them: a record that the local topic took
// must fit, whatever its size and time, and what is kept there must be kept here.
//
// A merged record is the local one with some headers, a state record holds up to one
// value for each region.
func derivedSettings(local map[string]string, cleanup string, values int) map[string]string {
	limit, err := strconv.ParseInt(local[maxMessageBytes], 10, 64)
	if err != nil {
		limit = defaultMaxMessage
	}
	limit = max(limit*int64(values)+envelopeBytes, batchBytes+envelopeBytes) // many small records in a batch
	out := map[string]string{
		maxMessageBytes: strconv.FormatInt(min(limit, math.MaxInt32), 10),
		timestampType:   "CreateTime",
	}
	for _, key := range []string{timestampBefore, timestampAfter} {
		if _, known := local[key]; known { // brokers before 3.6 know neither
			out[key] = strconv.FormatInt(math.MaxInt64, 10)
		}
	}
	if cleanup == deleted {
		for _, key := range []string{retentionMS, retentionBytes} {
			if v, known := local[key]; known {
				out[key] = v
			}
		}
	}
	return out
}

// configs are a topic's settings as the broker applies them, defaults included.
func (c *Catalogue) configs(ctx context.Context, name string) (map[string]string, error) {
	all, err := c.configsOf(ctx, name)
	if err == nil && all[name] == nil {
		err = fmt.Errorf("describe topic %s: %w", name, kerr.UnknownTopicOrPartition)
	}
	return all[name], err
}

// configsOf are the settings of topics; one that is not there, or cannot be described, has
// none, which is an error only where it is the only one.
func (c *Catalogue) configsOf(ctx context.Context, names ...string) (map[string]map[string]string, error) {
	described, err := c.admin.DescribeTopicConfigs(ctx, names...)
	if err != nil {
		return nil, fmt.Errorf("describe topics: %w", err)
	}
	all := make(map[string]map[string]string, len(described))
	for _, d := range described {
		if d.Err != nil && len(names) == 1 {
			return nil, fmt.Errorf("describe topic %s: %w", d.Name, d.Err)
		}
		if d.Err != nil {
			continue
		}
		out := make(map[string]string, len(d.Configs))
		for _, kv := range d.Configs {
			if kv.Value != nil {
				out[kv.Key] = *kv.Value
			}
		}
		all[d.Name] = out
	}
	return all, nil
}

// derivedSpecs are the topics that are derived from a local one with these settings.
func (c *Catalogue) derivedSpecs(topic gateway.Topic, local map[string]string) (state, merged spec) {
	merged = spec{name: router.Merged(topic.Name), partitions: topic.ViewPartitions(), cleanup: deleted}
	if topic.Domain.Kind == conflict.Entities {
		merged.cleanup = compacted
	}
	merged.configs = derivedSettings(local, merged.cleanup, 1)
	state = spec{name: control.StateOf(topic.Name), partitions: topic.ViewPartitions(), cleanup: compacted}
	state.configs = derivedSettings(local, state.cleanup, len(c.topology.Regions()))
	if topic.Domain.Kind == conflict.Events {
		for _, s := range []*spec{&state, &merged} {
			s.grows, s.mayHave = true, true
		}
	}
	return state, merged
}

// widen gives a derived topic that has these settings the limits that it needs, and tells
// whether it had others: it would refuse a larger record, or one whose time is out of its bounds.
// Retention is an operator's to change, so another one is only a warning.
func (c *Catalogue) widen(ctx context.Context, s spec, have map[string]string) (changed bool, err error) {
	changed, differs, err := c.widenNow(ctx, s, have)
	if err != nil {
		c.log.Warn("a derived topic may be too small for what is derived", "topic", s.name, "err", err)
		differs = err.Error()
	}
	c.mu.Lock()
	c.differs[s.name] = differs
	c.mu.Unlock()
	return changed, err
}

func (c *Catalogue) widenNow(ctx context.Context, s spec, have map[string]string) (changed bool, differs string, err error) {
	var alter []kadm.AlterConfig
	var other []string
	for key, want := range s.configs {
		switch key {
		case maxMessageBytes, timestampBefore, timestampAfter:
			now, err := strconv.ParseInt(have[key], 10, 64)
			least, err2 := strconv.ParseInt(want, 10, 64)
			if err == nil && err2 == nil && now < least {
				alter = append(alter, kadm.AlterConfig{Op: kadm.SetConfig, Name: key, Value: &want})
			}
		case timestampType:
			if have[key] != want {
				alter = append(alter, kadm.AlterConfig{Op: kadm.SetConfig, Name: key, Value: &want})
			}
		default:
			if have[key] != want {
				other = append(other, fmt.Sprintf("%s is %s, of the topic itself %s", key, have[key], want))
			}
		}
	}
	slices.Sort(other)
	differs = strings.Join(other, ", ")
	if len(alter) == 0 {
		return false, differs, nil
	}
	responses, err := c.admin.AlterTopicConfigs(ctx, alter, s.name)
	if err == nil {
		_, err = responses.On(s.name, func(r *kadm.AlterConfigsResponse) error { return r.Err })
	}
	if err != nil {
		return false, differs, fmt.Errorf("raise the limits of topic %s: %w", s.name, err)
	}
	for _, x := range alter {
		have[x.Name] = *x.Value
	}
	c.log.Info("raised limits of a derived topic", "topic", s.name, "settings", len(alter))
	return true, differs, nil
}
