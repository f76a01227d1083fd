package replicate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"

	"github.com/geogate/geogate/internal/sleep"
	"github.com/geogate/geogate/internal/txn"
)

const (
	earliest = -2 // timestamps that ListOffsets takes for the ends of a log
	latest   = -1

	// readsAtOnce bounds the partitions that are read at a time, and so the memory of
	// their answers: 1 MiB each.
	readsAtOnce = 32

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
	topics, failed := a.topics.LookupAll(ctx, names(parts)...)
	for _, p := range parts {
		var leader int32
		t, err := topics[p.Topic], failed[p.Topic]
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

// names are the topics of partitions, each once.
func names(parts []topicPartition) []string {
	return slices.Collect(maps.Keys(byTopic(parts)))
}

func byTopic(parts []topicPartition) map[string][]int32 {
	out := map[string][]int32{}
	for _, p := range parts {
		out[p.Topic] = append(out[p.Topic], p.Partition)
	}
	return out
}

// readToEnd calls fn for every committed record of a partition from an offset to
// a high watermark that is no older than the call, however much there is. It waits for
// transactions that are open below that to end, but never longer than readWait without
// progress. It returns the offset read to.
func (a *leaderClient) readToEnd(ctx context.Context, p topicPartition, from int64, fn func(*txn.Record) error) (int64, error) {
	next, end, err := a.readStable(ctx, p, from, fn)
	if err != nil || next >= end {
		return next, err
	}
	return a.read(ctx, committed, p, next, end, fn)
}

// readAllToEnd is readToEnd from offset 0 for several partitions at the same time. Calls of
// fn do not overlap.
func (a *leaderClient) readAllToEnd(ctx context.Context, parts []topicPartition, fn func(topicPartition, *txn.Record) error) error {
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readsAtOnce)
	for _, p := range parts {
		g.Go(func() error {
			_, err := a.readToEnd(ctx, p, 0, func(r *txn.Record) error {
				mu.Lock()
				defer mu.Unlock()
				return fn(p, r)
			})
			return err
		})
	}
	return g.Wait()
}

// readStable calls fn for every committed record of a partition from an offset to its last
// stable offset. It returns the offset read to and the high watermark, which is no older
// than the call.
func (a *leaderClient) readStable(ctx context.Context, p topicPartition, from int64, fn func(*txn.Record) error) (next, end int64, err error) {
	each := usable(fn)
	next, end, err = txn.ReadStable(ctx, readWait, a.topics, a.decoder, p, from, each)
	if errors.Is(err, kerr.OffsetOutOfRange) {
		if start := a.listOffsets(ctx, earliest, false, []topicPartition{p})[p]; start.err == nil && start.offset > next {
			return txn.ReadStable(ctx, readWait, a.topics, a.decoder, p, start.offset, each)
		}
	}
	return next, end, err
}

// usable skips records that the decoder refused: no link wrote them.
func usable(fn func(*txn.Record) error) func(*txn.Record) error {
	return func(r *txn.Record) error {
		if r.Refused != nil {
			return nil
		}
		return fn(r)
	}
}

// readWithoutWaiting is readToEnd for records of which matters says that they count. It
// does not wait for a transaction that is open at the end of the partition, of a
// killed process perhaps, unless a record that counts lies after its beginning.
func (a *leaderClient) readWithoutWaiting(ctx context.Context, p topicPartition, matters func(*txn.Record) bool, fn func(*txn.Record) error) error {
	next, end, err := a.readStable(ctx, p, 0, fn)
	if err != nil {
		return err
	}
	wait := false
	if _, err := a.read(ctx, txn.ReadUncommitted, p, next, end, func(r *txn.Record) error {
		wait = wait || matters(r)
		return nil
	}); err != nil {
		return err
	}
	if wait {
		_, err = a.read(ctx, committed, p, next, end, fn)
	}
	return err
}

// committed is ReadCommitted for as long as it makes progress, see readWait.
func committed(ctx context.Context, topics *txn.Topics, d *txn.Decoder, p topicPartition, from, end int64, fn func(*txn.Record) error) (int64, error) {
	return txn.ReadWhileItAdvances(ctx, readWait, topics, d, p, from, end, fn)
}

// readFunc is committed or txn.ReadUncommitted.
type readFunc func(ctx context.Context, topics *txn.Topics, d *txn.Decoder, p topicPartition, from, end int64, fn func(*txn.Record) error) (int64, error)

// read reads up to an offset that the high watermark has reached, from the
// beginning of the log where the records before that were deleted.
func (a *leaderClient) read(ctx context.Context, read readFunc, p topicPartition, from, end int64, fn func(*txn.Record) error) (int64, error) {
	each := usable(fn)
	next, err := read(ctx, a.topics, a.decoder, p, from, end, each)
	if errors.Is(err, kerr.OffsetOutOfRange) {
		if start := a.listOffsets(ctx, earliest, false, []topicPartition{p})[p]; start.err == nil && start.offset > next {
			return read(ctx, a.topics, a.decoder, p, start.offset, end, each)
		}
	}
	return next, err
}
