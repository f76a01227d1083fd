package txn

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Place is a place of a log that its leader knows.
type Place int8

// The places.
const (
	LogStart  Place = iota
	LogEnd          // the high watermark
	StableEnd       // below it no transaction is open
)

// OffsetOf asks the leader of one partition for an offset. [List], as the client library's
// administration does, asks for those of all partitions of a topic and for their leaders
// first: a thousand seats that each want to know about their own would ask about a million.
// An error says that it is not known; why, List tells.
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
