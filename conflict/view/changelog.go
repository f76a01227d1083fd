package view

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

	"github.com/geogate/geogate/internal/txn"
)

const (
	fetchPartitionBytes = 1 << 20
	fetchBytes          = 64 << 20 // above the partition's limit: an answer must not be cut by its total
	fetchWait           = 500 * time.Millisecond
	fetchRetries        = 40
	retryWait           = 50 * time.Millisecond
)

// reader reads one partition of a log, committed, over a shared client.
type reader struct {
	client    *kgo.Client
	topics    *txn.Topics
	topic     string
	partition int32
}

// read gives every committed record from one offset up to another, which must not
// lie above the high watermark. It reads to that offset whatever lies there:
// markers, aborted records and holes end no reading.
func (rd *reader) read(ctx context.Context, from, to int64, each func(*txn.Record) error) error {
	failures := 0
	for next := from; next < to; {
		p, err := rd.fetch(ctx, next)
		if err != nil {
			rd.topics.Forget(rd.topic)
			if failures++; failures > fetchRetries || ctx.Err() != nil || !retriable(err) {
				return fmt.Errorf("read %s/%d at %d: %w", rd.topic, rd.partition, next, err)
			}
			if err := pause(ctx, retryWait); err != nil {
				return err
			}
			continue
		}
		failures = 0
		if next, err = rd.take(p, next, to, each); err != nil {
			return fmt.Errorf("read %s/%d: %w", rd.topic, rd.partition, err)
		}
	}
	return nil
}

// take goes through one answer and returns the next offset to read.
func (rd *reader) take(p *kmsg.FetchResponseTopicPartition, next, to int64, each func(*txn.Record) error) (int64, error) {
	batches, err := txn.Split(p.RecordBatches)
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
			err := b.Each(func(r txn.Record) error {
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
func (a *aborts) skips(b txn.Batch) (bool, error) {
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

func (rd *reader) fetch(ctx context.Context, next int64) (*kmsg.FetchResponseTopicPartition, error) {
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

// retriable: the broker has moved the partition, or the connection broke.
func retriable(err error) bool {
	var code *kerr.Error
	return !errors.As(err, &code) || code.Retriable
}

// pause waits, or returns the context's error.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
