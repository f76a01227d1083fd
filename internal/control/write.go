package control

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Record is a record of a control topic: Barrier, Progress, Incarnation, Restriction or
// Topic.
type Record interface {
	AppendKey(b []byte) []byte
	AppendValue(b []byte) []byte
}

// Write writes an entry to a topic of one partition and returns once it is
// acknowledged, or ctx ends.
//
// HAZARD: after an error the record may land all the same. The client gives up
// nothing that it has sent, and waiting for it could last as long as the broker is
// away. An entry must therefore be true, or harmless, whenever it comes.
func Write(ctx context.Context, cl *kgo.Client, topic string, x Record) error {
	rec := &kgo.Record{Topic: topic, Partition: 0, Key: x.AppendKey(nil), Value: x.AppendValue(nil)}
	done := make(chan error, 1)
	cl.Produce(ctx, rec, func(_ *kgo.Record, err error) { done <- err })
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("write to %s: %w", topic, err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("write to %s: %w", topic, ctx.Err())
	}
}

// Register writes a record of the registry. It must be there before the topic
// itself exists: whoever sees the topic then knows that it is not local.
func Register(ctx context.Context, cl *kgo.Client, x Topic) error {
	if err := Write(ctx, cl, TopicTopics, x); err != nil {
		return fmt.Errorf("register topic %s: %w", x.Name, err)
	}
	return nil
}
