package world

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/testbench/client"
)

// Read reads a topic of the region's Kafka, past all proxies.
func (r *Region) Read(ctx context.Context, topic string, committed bool) ([]*kgo.Record, error) {
	all, err := client.ReadTopic(ctx, r.seeds, topic, committed)
	if err != nil {
		return nil, fmt.Errorf("region %s: %w", r.Name, err)
	}
	return all, nil
}

// Origin reads the region's own log of a topic with the log's verdict on each
// record.
func (r *Region) Origin(ctx context.Context, topic string) ([]client.Logged, error) {
	log, _, err := client.Origin(ctx, r.seeds, r.ID, topic)
	if err != nil {
		return nil, fmt.Errorf("region %s: %w", r.Name, err)
	}
	return log, nil
}

// Produce writes a record into the region's Kafka as a native producer does.
func (r *Region) Produce(ctx context.Context, rec *kgo.Record) error {
	if err := r.client.ProduceSync(ctx, rec).FirstErr(); err != nil {
		return fmt.Errorf("produce to %s in %s: %w", rec.Topic, r.Name, err)
	}
	return nil
}
