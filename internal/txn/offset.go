package txn

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Place is an offset of a log, by its meaning.
type Place int8

// The places.
const (
	LogStart  Place = iota
	LogEnd          // the high watermark
	StableEnd       // below it no transaction is open
)

// OffsetOf asks the leader of one partition for an offset. [List], like kadm, asks for the
// leaders and offsets of all partitions of a topic: a thousand seats that each need their
// own would ask about a million. After an error the offset is not known; List tells why.
func OffsetOf(ctx context.Context, cl *kgo.Client, p TopicPartition, at Place) (int64, error) {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	rp := kmsg.NewListOffsetsRequestTopicPartition()
	rp.Partition, rp.Timestamp = p.Partition, -1
	switch at {
	case LogStart:
		rp.Timestamp = -2
	case StableEnd:
		req.IsolationLevel = int8(committed)
	}
	rt := kmsg.NewListOffsetsRequestTopic()
	rt.Topic, rt.Partitions = p.Topic, append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	kresp, err := cl.Request(ctx, req)
	if err != nil {
		return 0, fmt.Errorf("list offset of %s/%d: %w", p.Topic, p.Partition, err)
	}
	resp, ok := kresp.(*kmsg.ListOffsetsResponse)
	if !ok || len(resp.Topics) != 1 || resp.Topics[0].Topic != p.Topic || len(resp.Topics[0].Partitions) != 1 || resp.Topics[0].Partitions[0].Partition != p.Partition {
		return 0, fmt.Errorf("list offset of %s/%d: the answer is about something else: %w", p.Topic, p.Partition, kerr.UnknownServerError)
	}
	sp := &resp.Topics[0].Partitions[0]
	if err := kerr.ErrorForCode(sp.ErrorCode); err != nil {
		return 0, fmt.Errorf("list offset of %s/%d: %w", p.Topic, p.Partition, err)
	}
	return sp.Offset, nil
}
