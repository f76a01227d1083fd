package replicate

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/geogate/geogate/internal/txn"
)

const (
	earliest = -2 // timestamps that ListOffsets takes for the ends of a log
	latest   = -1

	askTries = 5
	askPause = 50 * time.Millisecond
	askFetch = 4 << 20
)

// asker puts questions about partitions to their leaders.
type asker struct {
	cl     *kgo.Client
	topics *txn.Topics
}

func newAsker(cl *kgo.Client) *asker { return &asker{cl, txn.NewTopics(cl)} }

// place is a partition of a cluster.
type place = txn.TopicPartition

// offsetAnswer is an offset with the leader epoch that goes with it.
type offsetAnswer struct {
	offset int64
	epoch  int32
	err    error
}

// ask sends one request to each leader and collects what it says of its
// partitions; those that say "later" are asked again a few times.
func (a *asker) ask(ctx context.Context, parts []place, one func(ctx context.Context, leader int32, parts []place) (map[place]offsetAnswer, error)) map[place]offsetAnswer {
	out := make(map[place]offsetAnswer, len(parts))
	left := parts
	for try := 0; len(left) > 0; try++ {
		if try > 0 {
			pause(ctx, askPause)
		}
		a.askOnce(ctx, left, one, out)
		var again []place
		for _, p := range left {
			err := out[p].err
			if err == nil || ctx.Err() != nil || try+1 >= askTries || !kerr.IsRetriable(err) && !errors.Is(err, errNoAnswer) {
				continue
			}
			a.topics.Forget(p.Topic)
			again = append(again, p)
		}
		left = again
	}
	return out
}

var errNoAnswer = errors.New("replicate: no answer from the leader")

func (a *asker) askOnce(ctx context.Context, parts []place, one func(context.Context, int32, []place) (map[place]offsetAnswer, error), out map[place]offsetAnswer) {
	byLeader := map[int32][]place{}
	for _, p := range parts {
		t, err := a.topics.Lookup(ctx, p.Topic)
		switch {
		case err != nil:
			out[p] = offsetAnswer{err: err}
		case int(p.Partition) >= len(t.Leaders):
			out[p] = offsetAnswer{err: kerr.UnknownTopicOrPartition}
		case t.Leaders[p.Partition] < 0:
			out[p] = offsetAnswer{err: kerr.LeaderNotAvailable}
		default:
			byLeader[t.Leaders[p.Partition]] = append(byLeader[t.Leaders[p.Partition]], p)
		}
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for leader, mine := range byLeader {
		wg.Go(func() {
			got, err := one(ctx, leader, mine)
			mu.Lock()
			defer mu.Unlock()
			for _, p := range mine {
				answer, ok := got[p]
				switch {
				case err != nil:
					answer.err = fmt.Errorf("%w: %w", errNoAnswer, err)
				case !ok:
					answer.err = errNoAnswer
				}
				out[p] = answer
			}
		})
	}
	wg.Wait()
}

// offsets lists the ends of partitions: timestamp is earliest or latest,
// committed lists the last stable offset instead of the high watermark.
func (a *asker) offsets(ctx context.Context, timestamp int64, committed bool, parts []place) map[place]offsetAnswer {
	return a.ask(ctx, parts, func(ctx context.Context, leader int32, parts []place) (map[place]offsetAnswer, error) {
		req := kmsg.NewPtrListOffsetsRequest()
		req.ReplicaID = -1
		if committed {
			req.IsolationLevel = readCommitted
		}
		for topic, nums := range byTopic(parts) {
			rt := kmsg.NewListOffsetsRequestTopic()
			rt.Topic = topic
			for _, n := range nums {
				rp := kmsg.NewListOffsetsRequestTopicPartition()
				rp.Partition, rp.Timestamp = n, timestamp
				rt.Partitions = append(rt.Partitions, rp)
			}
			req.Topics = append(req.Topics, rt)
		}
		kresp, err := a.cl.Broker(int(leader)).Request(ctx, req)
		if err != nil {
			return nil, fmt.Errorf("list offsets: %w", err)
		}
		out := map[place]offsetAnswer{}
		if resp, ok := kresp.(*kmsg.ListOffsetsResponse); ok {
			for _, t := range resp.Topics {
				for _, p := range t.Partitions {
					out[place{Topic: t.Topic, Partition: p.Partition}] = offsetAnswer{p.Offset, p.LeaderEpoch, kerr.ErrorForCode(p.ErrorCode)}
				}
			}
		}
		return out, nil
	})
}

// epochEnds asks where leader epochs ended; an epoch that the leader does not
// know has offset -1.
func (a *asker) epochEnds(ctx context.Context, epochs map[place]int32) map[place]offsetAnswer {
	parts := make([]place, 0, len(epochs))
	for p := range epochs {
		parts = append(parts, p)
	}
	return a.ask(ctx, parts, func(ctx context.Context, leader int32, parts []place) (map[place]offsetAnswer, error) {
		req := kmsg.NewPtrOffsetForLeaderEpochRequest()
		req.ReplicaID = -1
		for topic, nums := range byTopic(parts) {
			rt := kmsg.NewOffsetForLeaderEpochRequestTopic()
			rt.Topic = topic
			for _, n := range nums {
				rp := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
				rp.Partition, rp.LeaderEpoch = n, epochs[place{Topic: topic, Partition: n}]
				rt.Partitions = append(rt.Partitions, rp)
			}
			req.Topics = append(req.Topics, rt)
		}
		kresp, err := a.cl.Broker(int(leader)).Request(ctx, req)
		if err != nil {
			return nil, fmt.Errorf("ask for the end of an epoch: %w", err)
		}
		out := map[place]offsetAnswer{}
		if resp, ok := kresp.(*kmsg.OffsetForLeaderEpochResponse); ok {
			for _, t := range resp.Topics {
				for _, p := range t.Partitions {
					out[place{Topic: t.Topic, Partition: p.Partition}] = offsetAnswer{p.EndOffset, p.LeaderEpoch, kerr.ErrorForCode(p.ErrorCode)}
				}
			}
		}
		return out, nil
	})
}

func byTopic(parts []place) map[string][]int32 {
	out := map[string][]int32{}
	for _, p := range parts {
		out[p.Topic] = append(out[p.Topic], p.Partition)
	}
	return out
}

// readToEnd calls fn for every committed record of a partition from an offset to
// the high watermark, which is listed first. It waits for transactions that are
// open below that to end, for as long as ctx lives. It returns the offset read to.
func (a *asker) readToEnd(ctx context.Context, p place, from int64, fn func(txn.Record) error) (int64, error) {
	end := a.offsets(ctx, latest, false, []place{p})[p]
	if end.err != nil {
		return from, fmt.Errorf("list end of %s/%d: %w", p.Topic, p.Partition, end.err)
	}
	return a.readTo(ctx, p, from, end.offset, readCommitted, fn)
}

// readSettled is readToEnd for records of which matters says that they count. It
// does not wait for a transaction that is open at the end of the partition, of a
// killed process perhaps, unless a record that counts lies behind its beginning.
func (a *asker) readSettled(ctx context.Context, p place, matters func(txn.Record) bool, fn func(txn.Record) error) error {
	stable := a.offsets(ctx, latest, true, []place{p})[p]
	end := a.offsets(ctx, latest, false, []place{p})[p]
	if err := errors.Join(stable.err, end.err); err != nil {
		return fmt.Errorf("list end of %s/%d: %w", p.Topic, p.Partition, err)
	}
	next, err := a.readTo(ctx, p, 0, stable.offset, readCommitted, fn)
	if err != nil {
		return err
	}
	wait := false
	if _, err := a.readTo(ctx, p, next, end.offset, readUncommitted, func(r txn.Record) error {
		wait = wait || matters(r)
		return nil
	}); err != nil {
		return err
	}
	if wait {
		_, err = a.readTo(ctx, p, next, end.offset, readCommitted, fn)
	}
	return err
}

// readTo reads under an isolation level up to an offset that the high watermark
// has reached.
func (a *asker) readTo(ctx context.Context, p place, from, end int64, level int8, fn func(txn.Record) error) (int64, error) {
	for failed := 0; from < end; {
		next, err := a.readSome(ctx, p, from, end, level, fn)
		var unreadable *SourceError
		var record *recordError
		switch {
		case err == nil:
			from, failed = next, 0
			continue
		case ctx.Err() != nil || errors.As(err, &unreadable) || errors.As(err, &record) || !kerr.IsRetriable(err) && failed >= askTries:
			return next, fmt.Errorf("read %s/%d: %w", p.Topic, p.Partition, err)
		}
		from = next
		failed++
		a.topics.Forget(p.Topic)
		pause(ctx, askPause)
	}
	return from, nil
}

// recordError marks an error of the caller's function.
type recordError struct{ err error }

func (e *recordError) Error() string { return e.err.Error() }
func (e *recordError) Unwrap() error { return e.err }

// readSome fetches once and returns how far it read.
func (a *asker) readSome(ctx context.Context, p place, from, end int64, level int8, fn func(txn.Record) error) (int64, error) {
	rp, err := a.fetch(ctx, p, from, level)
	if errors.Is(err, kerr.OffsetOutOfRange) {
		// Records below were deleted; the log begins later.
		start := a.offsets(ctx, earliest, false, []place{p})[p]
		if start.err == nil && start.offset > from {
			return start.offset, nil
		}
	}
	if err != nil {
		return from, err
	}
	items, _, err := scan(rp.RecordBatches, rp.AbortedTransactions, from)
	for i := range items {
		if items[i].Kind == ItemData {
			base := from
			rerr := items[i].Batch.Each(func(r txn.Record) error {
				if r.Offset < base {
					return nil
				}
				return fn(r)
			})
			if rerr != nil {
				return from, &recordError{rerr}
			}
		}
		from = items[i].Next
	}
	readable := rp.LastStableOffset
	if level == readUncommitted {
		readable = rp.HighWatermark
	}
	if len(items) == 0 && err == nil && readable >= end {
		return end, nil // compaction took what lay there
	}
	return from, err
}

func (a *asker) fetch(ctx context.Context, p place, from int64, level int8) (*kmsg.FetchResponseTopicPartition, error) {
	t, err := a.topics.Lookup(ctx, p.Topic)
	if err != nil {
		return nil, err
	}
	if int(p.Partition) >= len(t.Leaders) || t.Leaders[p.Partition] < 0 {
		return nil, kerr.LeaderNotAvailable
	}
	req := kmsg.NewPtrFetchRequest()
	req.MaxWaitMillis, req.MinBytes, req.MaxBytes, req.IsolationLevel = 50, 1, askFetch, level
	req.SessionEpoch = -1
	rt := kmsg.NewFetchRequestTopic()
	rt.Topic, rt.TopicID = p.Topic, t.ID
	rp := kmsg.NewFetchRequestTopicPartition()
	rp.Partition, rp.FetchOffset, rp.PartitionMaxBytes = p.Partition, from, askFetch
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	kresp, err := a.cl.Broker(int(t.Leaders[p.Partition])).Request(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("fetch: %w", err)
	}
	resp, ok := kresp.(*kmsg.FetchResponse)
	switch {
	case !ok:
		return nil, fmt.Errorf("fetch: answer %T", kresp)
	case resp.ErrorCode != 0:
		return nil, kerr.ErrorForCode(resp.ErrorCode)
	case len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1:
		return nil, fmt.Errorf("fetch: answer for %d topics", len(resp.Topics))
	}
	out := &resp.Topics[0].Partitions[0]
	return out, kerr.ErrorForCode(out.ErrorCode)
}
