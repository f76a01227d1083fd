package txn

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/sleep"
)

// relistAfter is the pause while a client does not know a topic yet.
const relistAfter = 25 * time.Millisecond

// A Listing lists offsets of topics, as the methods of *kadm.Client do.
type Listing func(ctx context.Context, topics ...string) (kadm.ListedOffsets, error)

// List asks for offsets of topics. A topic that does not exist is left out; of the
// others every partition is there and has no error, or List returns one.
//
// A client remembers for a while that a topic did not exist. So of a topic that is
// not listed the cluster itself is asked: one that was just created must not be taken
// for one without records.
func List(ctx context.Context, cl *kgo.Client, list Listing, topics ...string) (kadm.ListedOffsets, error) {
	for {
		listed, err := list(ctx, topics...)
		if err != nil {
			return nil, fmt.Errorf("list offsets: %w", err)
		}
		var absent []string
		for _, t := range topics {
			exists, err := listedTopic(listed[t])
			if err != nil {
				return nil, fmt.Errorf("list offsets of %s: %w", t, err)
			}
			if !exists {
				absent = append(absent, t)
				delete(listed, t)
			}
		}
		if len(absent) == 0 {
			return listed, nil
		}
		there, err := Describe(ctx, cl, absent...)
		if err != nil {
			return nil, err
		}
		if len(there) == 0 {
			return listed, nil
		}
		if err := sleep.For(ctx, relistAfter); err != nil {
			return nil, fmt.Errorf("list offsets of topics that were just created: %w", err)
		}
	}
}

func listedTopic(partitions map[int32]kadm.ListedOffset) (exists bool, err error) {
	for p, o := range partitions {
		switch {
		case p < 0 || errors.Is(o.Err, kerr.UnknownTopicOrPartition):
			return false, nil
		case o.Err != nil:
			return false, fmt.Errorf("partition %d: %w", p, o.Err)
		}
	}
	return len(partitions) > 0, nil
}
