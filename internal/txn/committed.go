package txn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	fetchPartitionBytes = 1 << 20
	fetchBytes          = 64 << 20 // above the partition's limit: an answer must not be cut by its total
	fetchWait           = 500 * time.Millisecond
	fetchRetries        = 40
)

// ReadCommitted gives every committed record of a partition from one offset up to
// another, which must not lie above the high watermark, in order. It reads to that
// offset whatever lies there: markers, aborted records and holes end no reading.
// It asks again while the partition has no leader, for a few seconds; an error of
// each ends it. Records share the memory of the answer, which is not used again.
func ReadCommitted(ctx context.Context, cl *kgo.Client, topics *Topics, tp TopicPartition, from, to int64, each func(*Record) error) error {
	rd := committedReader{client: cl, topics: topics, topic: tp.Topic, partition: tp.Partition}
	return rd.read(ctx, from, to, each)
}

// committedReader reads one partition over a shared client.
type committedReader struct {
	client    *kgo.Client
	topics    *Topics
	topic     string
	partition int32
}

func (rd *committedReader) read(ctx context.Context, from, to int64, each func(*Record) error) error {
	failures, wait := 0, retryWait{}
	for next := from; next < to; {
		p, err := rd.fetch(ctx, next)
		if err != nil {
			rd.topics.Forget(rd.topic)
			if failures++; failures > fetchRetries || ctx.Err() != nil || !rereadable(err) {
				return fmt.Errorf("read %s/%d at %d: %w", rd.topic, rd.partition, next, err)
			}
			wait.next(ctx)
			continue
		}
		failures, wait = 0, retryWait{}
		if next, err = rd.take(p, next, to, each); err != nil {
			return fmt.Errorf("read %s/%d: %w", rd.topic, rd.partition, err)
		}
	}
	return nil
}

// take goes through one answer and returns the next offset to read.
func (rd *committedReader) take(p *kmsg.FetchResponseTopicPartition, next, to int64, each func(*Record) error) (int64, error) {
	batches, err := Split(p.RecordBatches)
	if err != nil {
		return next, err
	}
	if len(batches) == 0 {
		return max(next, p.LastStableOffset), nil // compaction has emptied the rest
	}
	aborted := newAborts(p.AbortedTransactions)
	for _, b := range batches {
		if b.Magic() == 2 {
			if err := b.Check(); err != nil {
				return next, err
			}
		}
		if b.NextOffset() <= next {
			continue
		}
		if skip, err := aborted.skips(b); err != nil {
			return next, err
		} else if !skip {
			err := b.Each(func(r Record) error {
				if r.Offset < next || r.Offset >= to {
					return nil
				}
				return each(&r)
			})
			if err != nil {
				return next, err
			}
		}
		next = b.NextOffset()
	}
	return next, nil
}

// aborts are the aborted transactions that overlap one answer, as the broker lists
// them: by producer and first offset, which may lie before the answer.
type aborts struct {
	listed []kmsg.FetchResponseTopicPartitionAbortedTransaction // not begun yet, by first offset
	open   map[int64]bool                                       // producers inside one
}

func newAborts(listed []kmsg.FetchResponseTopicPartitionAbortedTransaction) *aborts {
	a := &aborts{listed: slices.Clone(listed), open: map[int64]bool{}}
	slices.SortFunc(a.listed, func(x, y kmsg.FetchResponseTopicPartitionAbortedTransaction) int {
		return cmp.Compare(x.FirstOffset, y.FirstOffset)
	})
	return a
}

// skips tells whether a batch, asked in the order of the log, is to be left out: a
// marker, or records of a transaction that was aborted. An abort marker ends one.
func (a *aborts) skips(b Batch) (bool, error) {
	for len(a.listed) > 0 && a.listed[0].FirstOffset < b.NextOffset() {
		a.open[a.listed[0].ProducerID] = true
		a.listed = a.listed[1:]
	}
	if b.Magic() < 2 || !b.Transactional() {
		return false, nil
	}
	if !b.Control() {
		return a.open[b.ProducerID()], nil
	}
	commit, ok, err := b.Marker()
	if ok && !commit {
		delete(a.open, b.ProducerID())
	}
	return true, err
}

func (rd *committedReader) fetch(ctx context.Context, next int64) (*kmsg.FetchResponseTopicPartition, error) {
	t, err := rd.topics.Lookup(ctx, rd.topic)
	if err != nil {
		return nil, err
	}
	if int(rd.partition) >= len(t.Leaders) || t.Leaders[rd.partition] < 0 {
		return nil, kerr.LeaderNotAvailable
	}
	req := kmsg.NewPtrFetchRequest()
	req.ReplicaID, req.SessionEpoch, req.IsolationLevel = -1, -1, 1
	req.MinBytes, req.MaxBytes, req.MaxWaitMillis = 1, fetchBytes, int32(fetchWait.Milliseconds())
	rt := kmsg.NewFetchRequestTopic()
	rt.Topic, rt.TopicID = t.Name, t.ID
	rp := kmsg.NewFetchRequestTopicPartition()
	rp.Partition, rp.FetchOffset, rp.PartitionMaxBytes = rd.partition, next, fetchPartitionBytes
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	kresp, err := rd.client.Broker(int(t.Leaders[rd.partition])).Request(ctx, req)
	if err != nil {
		return nil, err
	}
	resp, ok := kresp.(*kmsg.FetchResponse)
	if !ok {
		return nil, fmt.Errorf("fetch: answer %T", kresp)
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return nil, err
	}
	for i := range resp.Topics {
		for k := range resp.Topics[i].Partitions {
			p := &resp.Topics[i].Partitions[k]
			return p, kerr.ErrorForCode(p.ErrorCode)
		}
	}
	return nil, kerr.UnknownTopicOrPartition
}

// rereadable: the broker has moved the partition, or the connection broke.
func rereadable(err error) bool {
	var code *kerr.Error
	return !errors.As(err, &code) || code.Retriable
}
