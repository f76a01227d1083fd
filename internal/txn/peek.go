package txn

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// peekBytes is what Peek fetches at most; only headers of batches are looked at.
const peekBytes = 128 << 10

// Peek returns the first offset at or above offset that a reader may yet get
// something from, markers included. It differs from offset where a hole lies there:
// batches that compaction has emptied, for a committed reader records of aborted
// transactions, or nothing at all up to the end of what may be read (the last
// stable offset for a committed reader, else the high watermark). A consuming
// client passes over such holes without telling its user how far it has come; and
// the marker behind aborted records may lie above the last stable offset, held up
// by another open transaction, so that nothing else tells it either.
func Peek(ctx context.Context, cl *kgo.Client, topic string, partition int32, offset int64, committed bool) (int64, error) {
	all, err := Describe(ctx, cl, topic)
	if err != nil {
		return offset, err
	}
	found := all[topic]
	if int(partition) >= len(found.Leaders) || found.Leaders[partition] < 0 {
		return offset, fmt.Errorf("peek at %s/%d: %w", topic, partition, kerr.LeaderNotAvailable)
	}
	req := kmsg.NewPtrFetchRequest()
	req.ReplicaID, req.MinBytes, req.MaxBytes, req.SessionEpoch = -1, 0, peekBytes, -1
	if committed {
		req.IsolationLevel = 1
	}
	rt := kmsg.NewFetchRequestTopic()
	rt.Topic, rt.TopicID = topic, found.ID
	rp := kmsg.NewFetchRequestTopicPartition()
	rp.Partition, rp.FetchOffset, rp.PartitionMaxBytes = partition, offset, peekBytes
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	kresp, err := cl.Broker(int(found.Leaders[partition])).Request(ctx, req)
	if err != nil {
		return offset, fmt.Errorf("peek at %s/%d: %w", topic, partition, err)
	}
	resp, ok := kresp.(*kmsg.FetchResponse)
	if !ok || len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return offset, fmt.Errorf("peek at %s/%d: answer %T", topic, partition, kresp)
	}
	p := &resp.Topics[0].Partitions[0]
	if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
		return offset, fmt.Errorf("peek at %s/%d: %w", topic, partition, err)
	}
	readable := p.HighWatermark
	if committed {
		readable = p.LastStableOffset
	}
	return afterHole(p.RecordBatches, newAborts(p.AbortedTransactions), offset, readable)
}

// afterHole is Peek's answer, given what a fetch at offset returned, with the
// aborted transactions in it, and the end of what it may return.
func afterHole(raw []byte, aborted *aborts, offset, readable int64) (int64, error) {
	if len(raw) == 0 {
		return max(offset, readable), nil
	}
	batches, err := Split(raw)
	if err != nil {
		return offset, err
	}
	for _, b := range batches {
		if b.Magic() != 2 {
			return offset, nil // older formats are never emptied in place
		}
		skip, err := aborted.skips(b)
		if err != nil {
			return offset, err
		}
		if b.NextOffset() <= offset {
			continue
		}
		if b.Count() != 0 && (b.Control() || !skip) {
			return offset, nil
		}
		offset = b.NextOffset()
	}
	return offset, nil
}
