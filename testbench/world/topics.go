package world

import (
	"context"
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

// Starts are where the partitions of a topic in the region's Kafka begin and end.
func (r *Region) Starts(name string) (starts, ends map[int32]int64, err error) {
	ctx, cancel := r.w.context()
	defer cancel()
	of := func(list func(context.Context, ...string) (kadm.ListedOffsets, error)) (map[int32]int64, error) {
		out := make(map[int32]int64)
		all, err := list(ctx, name)
		if err == nil {
			err = all.Error()
		}
		all.Each(func(o kadm.ListedOffset) { out[o.Partition] = o.Offset })
		return out, err
	}
	if starts, err = of(r.admin.ListStartOffsets); err == nil {
		ends, err = of(r.admin.ListEndOffsets)
	}
	return starts, ends, err
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
