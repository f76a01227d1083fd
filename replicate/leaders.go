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

	"github.com/geogate/geogate/internal/sleep"
	"github.com/geogate/geogate/internal/txn"
)

const (
	earliest = -2 // timestamps that ListOffsets takes for the ends of a log
	latest   = -1

	askTries = 5
	askPause = 50 * time.Millisecond
)

// leaderClient asks the leaders of partitions for offsets and epochs, and reads from
// them.
type leaderClient struct {
	cl      *kgo.Client
	topics  *txn.Topics
	decoder *txn.Decoder
}

func newLeaderClient(cl *kgo.Client, d *txn.Decoder) *leaderClient {
	return &leaderClient{cl, txn.NewTopics(cl), d}
}

// topicPartition is a partition of a cluster.
type topicPartition = txn.TopicPartition

// offsetAnswer is an offset with the leader epoch that goes with it.
type offsetAnswer struct {
	offset int64
	epoch  int32
	err    error
}

// ask sends one request to each leader and collects what it says of its
// partitions; those that say "later" are asked again a few times.
func (a *leaderClient) ask(ctx context.Context, parts []topicPartition, one func(ctx context.Context, leader int32, parts []topicPartition) (map[topicPartition]offsetAnswer, error)) map[topicPartition]offsetAnswer {
	out := make(map[topicPartition]offsetAnswer, len(parts))
	left := parts
	for try := 0; len(left) > 0; try++ {
		if try > 0 {
			_ = sleep.For(ctx, askPause) // with ctx ended the next try fails at once
		}
		a.askOnce(ctx, left, one, out)
		var again []topicPartition
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

// errShorter is why a partition waits a moment.
var errShorter = errors.New("replicate: the source's log ends below what was fetched; what was committed is looked at again")

var errNoAnswer = errors.New("replicate: no answer from the leader")

func (a *leaderClient) askOnce(ctx context.Context, parts []topicPartition, one func(context.Context, int32, []topicPartition) (map[topicPartition]offsetAnswer, error), out map[topicPartition]offsetAnswer) {
	byLeader := map[int32][]topicPartition{}
	for _, p := range parts {
		t, err := a.topics.Lookup(ctx, p.Topic)
		var leader int32
		if err == nil {
			leader, err = t.Leader(p.Partition)
		}
		if err != nil {
			out[p] = offsetAnswer{err: err}
			continue
		}
		byLeader[leader] = append(byLeader[leader], p)
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

// listOffsets lists the ends of partitions: timestamp is earliest or latest,
// committed lists the last stable offset instead of the high watermark.
func (a *leaderClient) listOffsets(ctx context.Context, timestamp int64, committed bool, parts []topicPartition) map[topicPartition]offsetAnswer {
	return a.ask(ctx, parts, func(ctx context.Context, leader int32, parts []topicPartition) (map[topicPartition]offsetAnswer, error) {
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
		out := map[topicPartition]offsetAnswer{}
		if resp, ok := kresp.(*kmsg.ListOffsetsResponse); ok {
			for _, t := range resp.Topics {
				for _, p := range t.Partitions {
					out[topicPartition{Topic: t.Topic, Partition: p.Partition}] = offsetAnswer{p.Offset, p.LeaderEpoch, kerr.ErrorForCode(p.ErrorCode)}
				}
			}
		}
		return out, nil
	})
}

// epochEnds asks where leader epochs ended; an epoch that the leader does not
// know has offset -1.
func (a *leaderClient) epochEnds(ctx context.Context, epochs map[topicPartition]int32) map[topicPartition]offsetAnswer {
	parts := make([]topicPartition, 0, len(epochs))
	for p := range epochs {
		parts = append(parts, p)
	}
	return a.ask(ctx, parts, func(ctx context.Context, leader int32, parts []topicPartition) (map[topicPartition]offsetAnswer, error) {
		req := kmsg.NewPtrOffsetForLeaderEpochRequest()
		req.ReplicaID = -1
		for topic, nums := range byTopic(parts) {
			rt := kmsg.NewOffsetForLeaderEpochRequestTopic()
			rt.Topic = topic
			for _, n := range nums {
				rp := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
				rp.Partition, rp.LeaderEpoch = n, epochs[topicPartition{Topic: topic, Partition: n}]
				rt.Partitions = append(rt.Partitions, rp)
			}
			req.Topics = append(req.Topics, rt)
		}
		kresp, err := a.cl.Broker(int(leader)).Request(ctx, req)
		if err != nil {
			return nil, fmt.Errorf("ask for the end of an epoch: %w", err)
		}
		out := map[topicPartition]offsetAnswer{}
		if resp, ok := kresp.(*kmsg.OffsetForLeaderEpochResponse); ok {
			for _, t := range resp.Topics {
				for _, p := range t.Partitions {
					out[topicPartition{Topic: t.Topic, Partition: p.Partition}] = offsetAnswer{p.EndOffset, p.LeaderEpoch, kerr.ErrorForCode(p.ErrorCode)}
				}
			}
		}
		return out, nil
	})
}

func byTopic(parts []topicPartition) map[string][]int32 {
	out := map[string][]int32{}
	for _, p := range parts {
		out[p.Topic] = append(out[p.Topic], p.Partition)
	}
	return out
}

// readToEnd calls fn for every committed record of a partition from an offset to
// the high watermark, which is listed first. It waits for transactions that are
// open below that to end, for as long as ctx lives. It returns the offset read to.
func (a *leaderClient) readToEnd(ctx context.Context, p topicPartition, from int64, fn func(*txn.Record) error) (int64, error) {
	end := a.listOffsets(ctx, latest, false, []topicPartition{p})[p]
	if end.err != nil {
		return from, fmt.Errorf("list end of %s/%d: %w", p.Topic, p.Partition, end.err)
	}
	return a.read(ctx, txn.ReadCommitted, p, from, end.offset, fn)
}

// readWithoutWaiting is readToEnd for records of which matters says that they count. It
// does not wait for a transaction that is open at the end of the partition, of a
// killed process perhaps, unless a record that counts lies after its beginning.
func (a *leaderClient) readWithoutWaiting(ctx context.Context, p topicPartition, matters func(*txn.Record) bool, fn func(*txn.Record) error) error {
	stable := a.listOffsets(ctx, latest, true, []topicPartition{p})[p]
	end := a.listOffsets(ctx, latest, false, []topicPartition{p})[p]
	if err := errors.Join(stable.err, end.err); err != nil {
		return fmt.Errorf("list end of %s/%d: %w", p.Topic, p.Partition, err)
	}
	next, err := a.read(ctx, txn.ReadCommitted, p, 0, stable.offset, fn)
	if err != nil {
		return err
	}
	wait := false
	if _, err := a.read(ctx, txn.ReadUncommitted, p, next, end.offset, func(r *txn.Record) error {
		wait = wait || matters(r)
		return nil
	}); err != nil {
		return err
	}
	if wait {
		_, err = a.read(ctx, txn.ReadCommitted, p, next, end.offset, fn)
	}
	return err
}

// readFunc is txn.ReadCommitted or txn.ReadUncommitted.
type readFunc func(ctx context.Context, topics *txn.Topics, d *txn.Decoder, p topicPartition, from, end int64, fn func(*txn.Record) error) (int64, error)

// read reads up to an offset that the high watermark has reached, from the
// beginning of the log where the records before that were deleted. It passes over what
// was refused: no link wrote it.
func (a *leaderClient) read(ctx context.Context, read readFunc, p topicPartition, from, end int64, fn func(*txn.Record) error) (int64, error) {
	each := func(r *txn.Record) error {
		if r.Refused != nil {
			return nil
		}
		return fn(r)
	}
	next, err := read(ctx, a.topics, a.decoder, p, from, end, each)
	if errors.Is(err, kerr.OffsetOutOfRange) {
		if start := a.listOffsets(ctx, earliest, false, []topicPartition{p})[p]; start.err == nil && start.offset > next {
			return read(ctx, a.topics, a.decoder, p, start.offset, end, each)
		}
	}
	return next, err
}
