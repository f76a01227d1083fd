package control

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Record is a record of a control topic: Barrier, Progress, Incarnation, Restriction,
// Settings, Incident, Acceptance, Judged or Topic.
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
	return write(ctx, cl, &kgo.Record{Topic: topic, Partition: 0, Key: x.AppendKey(nil), Value: x.AppendValue(nil)})
}

// Deregister takes a record out of the registry. The topic must be gone before: whoever
// sees it without a record could take it for a local one.
func Deregister(ctx context.Context, cl *kgo.Client, x Topic) error {
	if err := write(ctx, cl, &kgo.Record{Topic: TopicTopics, Key: x.AppendKey(nil)}); err != nil {
		return fmt.Errorf("deregister topic %s: %w", x.Name, err)
	}
	return nil
}

func write(ctx context.Context, cl *kgo.Client, rec *kgo.Record) error {
	done := make(chan error, 1)
	cl.Produce(ctx, rec, func(_ *kgo.Record, err error) { done <- err })
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("write to %s: %w", rec.Topic, err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("write to %s: %w", rec.Topic, ctx.Err())
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
