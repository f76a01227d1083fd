package world

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
)

// DeleteTopic deletes a topic in the region's Kafka, as an operator would.
func (r *Region) DeleteTopic(name string) error {
	ctx, cancel := r.w.context()
	defer cancel()
	if _, err := r.admin.DeleteTopic(ctx, name); err != nil {
		return fmt.Errorf("delete topic %s in %s: %w", name, r.Name, err)
	}
	return nil
}

// GrowTopic gives a topic more partitions, up to a number.
func (r *Region) GrowTopic(name string, partitions int) error {
	ctx, cancel := r.w.context()
	defer cancel()
	resp, err := r.admin.UpdatePartitions(ctx, partitions, name)
	if err == nil {
		err = resp.Error()
	}
	if err != nil {
		return fmt.Errorf("add partitions to %s in %s: %w", name, r.Name, err)
	}
	return nil
}

// SetTopic gives a topic in the region's Kafka a setting.
func (r *Region) SetTopic(name, key, value string) error {
	ctx, cancel := r.w.context()
	defer cancel()
	done, err := r.admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: key, Value: &value}}, name)
	if err == nil {
		_, err = done.On(name, func(r *kadm.AlterConfigsResponse) error { return r.Err })
	}
	return err
}

// TrimTopic deletes records of a topic in the region's Kafka, as retention does: all but the
// last offsets of each partition.
func (r *Region) TrimTopic(name string, keep int64) error {
	ctx, cancel := r.w.context()
	defer cancel()
	ends, err := r.admin.ListEndOffsets(ctx, name)
	if err != nil {
		return err
	}
	var to kadm.Offsets
	ends.Each(func(o kadm.ListedOffset) { to.AddOffset(name, o.Partition, max(0, o.Offset-keep), -1) })
	done, err := r.admin.DeleteRecords(ctx, to)
	if err == nil {
		err = done.Error()
	}
	return err
}
