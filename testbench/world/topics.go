package world

import "fmt"

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
