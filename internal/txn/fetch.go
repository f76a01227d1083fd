package txn

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// fetchBytes covers an answer of one partition at any limit of its own: against a
// broker that cuts an answer inside a partition the list of aborted transactions
// may be missing, so the total must never be what cuts it.
const fetchBytes = 64 << 20

// isolation is what a read may return.
type isolation int8

const (
	uncommitted isolation = 0
	committed   isolation = 1
)

// readable is the end of what a fetch may return.
func (l isolation) readable(p *kmsg.FetchResponseTopicPartition) int64 {
	if l == committed {
		return p.LastStableOffset
	}
	return p.HighWatermark
}

// fetchOptions is how a partition is asked for.
type fetchOptions struct {
	level isolation
	bytes int32         // of the answer
	wait  time.Duration // for something to come; 0: answer at once
}

// fetch asks the leader of one partition what lies there from an offset on. The
// topic is forgotten after an error, so that the next try looks its leader up again.
func fetch(ctx context.Context, topics *Topics, tp TopicPartition, offset int64, how fetchOptions) (*kmsg.FetchResponseTopicPartition, error) {
	p, err := fetchOnce(ctx, topics, tp, offset, how)
	if err != nil {
		topics.Forget(tp.Topic)
		return nil, fmt.Errorf("fetch %s/%d at %d: %w", tp.Topic, tp.Partition, offset, err)
	}
	return p, nil
}

func fetchOnce(ctx context.Context, topics *Topics, tp TopicPartition, offset int64, how fetchOptions) (*kmsg.FetchResponseTopicPartition, error) {
	t, err := topics.Lookup(ctx, tp.Topic)
	if err != nil {
		return nil, err
	}
	leader, err := t.Leader(tp.Partition)
	if err != nil {
		return nil, err
	}
	req := kmsg.NewPtrFetchRequest()
	req.ReplicaID, req.SessionEpoch, req.IsolationLevel = -1, -1, int8(how.level)
	req.MaxBytes, req.MaxWaitMillis = fetchBytes, int32(how.wait.Milliseconds())
	if how.wait > 0 {
		req.MinBytes = 1
	}
	rt := kmsg.NewFetchRequestTopic()
	rt.Topic, rt.TopicID = t.Name, t.ID
	rp := kmsg.NewFetchRequestTopicPartition()
	rp.Partition, rp.FetchOffset, rp.PartitionMaxBytes = tp.Partition, offset, how.bytes
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	kresp, err := topics.cl.Broker(int(leader)).Request(ctx, req)
	if err != nil {
		return nil, err
	}
	resp, ok := kresp.(*kmsg.FetchResponse)
	switch {
	case !ok:
		return nil, fmt.Errorf("answer %T", kresp)
	case resp.ErrorCode != 0:
		return nil, kerr.ErrorForCode(resp.ErrorCode)
	case len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1:
		return nil, fmt.Errorf("answer for %d topics", len(resp.Topics))
	}
	p := &resp.Topics[0].Partitions[0]
	return p, kerr.ErrorForCode(p.ErrorCode)
}
