package txn

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// PartitionBatch is a batch and where it goes.
type PartitionBatch struct {
	Topic     string
	TopicID   [16]byte // refuse another topic of that name; zero takes any
	Partition int32
	Batch     Batch // format 2, without holes, no control batch; Produce rewrites its header
}

// Produced says where a batch came to lie.
type Produced struct {
	Topic     string
	Partition int32
	Base      int64 // offset of its first record
	Count     int32
}

// Produce writes the batches, in the order given in each partition, and returns
// where they lie, in the same order. Partitions not yet in the transaction are
// added. It may take any number of batches of one partition: they go in requests
// one after the other without waiting for answers.
//
// "No leader here" and its like are asked again for RetryFor, then a
// *NotWritableError. A batch that the broker refuses is a *RefusedError. A missing
// or odd answer is ErrUnclear, a fenced producer ErrFenced. After any of them
// only Init or an abort may follow.
func (p *Producer) Produce(ctx context.Context, batches []PartitionBatch) ([]Produced, error) {
	if p.state != stateIdle && p.state != stateOpen {
		return nil, fmt.Errorf("produce for %s: %w", p.id, ErrState)
	}
	wanted := map[string][]int32{}
	seen := map[TopicPartition]bool{}
	for i := range batches {
		b := &batches[i]
		if len(b.Batch) <= HeaderSize || b.Batch.Magic() != 2 || b.Batch.Control() || b.Batch.Holes() || b.Batch.Count() == 0 {
			return nil, fmt.Errorf("produce for %s: %w: batch %d cannot be passed on", p.id, ErrMalformed, i)
		}
		if tp := (TopicPartition{b.Topic, b.Partition}); !seen[tp] {
			seen[tp] = true
			wanted[b.Topic] = append(wanted[b.Topic], b.Partition)
		}
	}
	if err := p.add(ctx, wanted); err != nil {
		return nil, err
	}
	for i := range batches {
		tp := TopicPartition{batches[i].Topic, batches[i].Partition}
		seq := p.sequences[tp]
		batches[i].Batch.stamp(identity{p.producer.id, p.producer.epoch, seq})
		p.sequences[tp] = int32((int64(seq) + int64(batches[i].Batch.Count())) & math.MaxInt32)
	}
	f := flight{p: p, batches: batches, results: make([]result, len(batches))}
	if err := f.run(ctx); err != nil {
		p.state = stateBroken
		p.failed(err)
		return nil, fmt.Errorf("produce for %s: %w", p.id, err)
	}
	out := make([]Produced, len(batches))
	for i, b := range batches {
		out[i] = Produced{b.Topic, b.Partition, f.results[i].base, b.Batch.Count()}
	}
	return out, nil
}

// result is what a broker said to one batch.
type result struct {
	base    int64
	code    int16
	message string
	err     error // no answer
}

// flight is the sending of one Produce call's batches.
type flight struct {
	p       *Producer
	batches []PartitionBatch
	results []result
}

// run sends until every batch has a final answer.
func (f *flight) run(ctx context.Context) error {
	pending := make([]int, len(f.batches))
	for i := range pending {
		pending[i] = i
	}
	deadline := time.Now().Add(f.p.opts.RetryFor)
	wait := retryWait{}
	for {
		f.send(ctx, pending)
		var err error
		if pending, err = f.sortAnswers(pending); err != nil {
			return err
		}
		if len(pending) == 0 {
			return nil
		}
		first := pending[0]
		b := &f.batches[first]
		for _, i := range pending {
			f.p.topics.Forget(f.batches[i].Topic)
		}
		if time.Now().After(deadline) || !wait.next(ctx) {
			return &NotWritableError{b.Topic, b.Partition, errors.Join(f.results[first].cause(), ctx.Err())}
		}
	}
}

func (r *result) cause() error {
	if r.err != nil {
		return r.err
	}
	return kerr.ErrorForCode(r.code)
}

// notSentError marks a batch that was not sent because its leader is not known.
type notSentError struct{ err error }

// Error implements error.
func (e *notSentError) Error() string { return e.err.Error() }

// Unwrap is why the leader is not known.
func (e *notSentError) Unwrap() error { return e.err }

// ErrTopicChanged is the cause in a NotWritableError when a topic of the name
// exists but is not the one that the batch was for: it was deleted and created
// again.
var ErrTopicChanged = errors.New("txn: the topic is another than it was")

// sortAnswers sorts the answers: it returns what must be sent again, or the error that
// ends the flight; fenced and unclear go before refused.
func (f *flight) sortAnswers(sent []int) (again []int, err error) {
	failed := map[TopicPartition]bool{}
	var refused, unclear error
	for _, i := range sent {
		b, r := &f.batches[i], &f.results[i]
		tp := TopicPartition{b.Topic, b.Partition}
		var notSent *notSentError
		f.p.unreached(r.err)
		switch {
		case r.err != nil && errors.As(r.err, &notSent):
			if errors.Is(r.err, ErrTopicChanged) {
				return nil, &NotWritableError{b.Topic, b.Partition, notSent.err}
			}
			failed[tp] = true
			again = append(again, i)
		case r.err != nil:
			unclear = fmt.Errorf("%w: %s/%d: %w", ErrUnclear, b.Topic, b.Partition, r.err)
		case r.code == 0 && failed[tp]:
			// The one before it will be written after it.
			unclear = fmt.Errorf("%w: %s/%d: batches out of order", ErrUnclear, b.Topic, b.Partition)
		case r.code == 0:
			// it is stored
		case r.code == kerr.InvalidProducerEpoch.Code || r.code == kerr.ProducerFenced.Code:
			return nil, fmt.Errorf("%w: %s/%d: %w", ErrFenced, b.Topic, b.Partition, r.cause())
		case notLeader(r.code), failed[tp] && r.code == kerr.OutOfOrderSequenceNumber.Code:
			failed[tp] = true
			again = append(again, i)
		case isRefusal(r.code):
			failed[tp] = true
			if refused == nil {
				refused = &RefusedError{b.Topic, b.Partition, i, r.code, r.message}
			}
		default:
			unclear = errors.Join(unclear, fmt.Errorf("%w: %s/%d: %w %s", ErrUnclear, b.Topic, b.Partition, r.cause(), r.message))
		}
	}
	if refused != nil {
		return nil, refused // it explains any sequence error after it
	}
	return again, unclear
}

// notLeader: nothing was stored, and the partition may be writable soon.
func notLeader(code int16) bool {
	switch code {
	case kerr.NotLeaderForPartition.Code, kerr.UnknownTopicOrPartition.Code, kerr.LeaderNotAvailable.Code,
		kerr.UnknownTopicID.Code, kerr.FencedLeaderEpoch.Code, kerr.UnknownLeaderEpoch.Code,
		kerr.ReplicaNotAvailable.Code, kerr.NotEnoughReplicas.Code, kerr.KafkaStorageError.Code:
		return true
	}
	return false
}

// isRefusal: the batch is not acceptable, now or later.
func isRefusal(code int16) bool {
	switch code {
	case kerr.MessageTooLarge.Code, kerr.RecordListTooLarge.Code, kerr.InvalidRecord.Code, kerr.InvalidTimestamp.Code,
		kerr.CorruptMessage.Code, kerr.InvalidTopicException.Code, kerr.TopicAuthorizationFailed.Code,
		kerr.UnsupportedForMessageFormat.Code, kerr.UnsupportedCompressionType.Code, kerr.PolicyViolation.Code:
		return true
	}
	return false
}

// send sends the batches with these indexes, all leaders at once, and returns
// when every request has its answer.
func (f *flight) send(ctx context.Context, pending []int) {
	byLeader := map[int32][]int{}
	for _, i := range pending {
		b := &f.batches[i]
		leader, err := f.leader(ctx, b)
		if err != nil {
			f.results[i] = result{err: &notSentError{err}}
			continue
		}
		byLeader[leader] = append(byLeader[leader], i)
	}
	var wg sync.WaitGroup
	for leader, indexes := range byLeader {
		wg.Go(func() { f.sendTo(ctx, leader, indexes) })
	}
	wg.Wait()
}

func (f *flight) leader(ctx context.Context, b *PartitionBatch) (int32, error) {
	t, err := f.p.topics.Lookup(ctx, b.Topic)
	if err != nil {
		return 0, err
	}
	if b.TopicID != ([16]byte{}) && t.ID != ([16]byte{}) && b.TopicID != t.ID {
		return 0, ErrTopicChanged
	}
	return t.Leader(b.Partition)
}

// sendTo sends one leader's batches in as many requests as they need. Each is
// written to the connection before the next is handed over, so that they arrive
// in order; answers are not waited for in between.
func (f *flight) sendTo(ctx context.Context, leader int32, indexes []int) {
	var wg sync.WaitGroup
	for _, part := range f.requests(indexes) {
		g := writeSignal{ProduceRequest: f.build(ctx, part), written: make(chan struct{}), once: new(sync.Once)}
		answered := make(chan struct{})
		wg.Go(func() {
			defer close(answered)
			f.answer(ctx, part, g, leader)
		})
		select {
		case <-g.written:
		case <-answered:
		}
	}
	wg.Wait()
}

// requests groups indexes so that no request holds two batches of one partition
// and each stays below the size bound, keeping the order in each partition.
func (f *flight) requests(indexes []int) [][]int {
	var out [][]int
	var sizes []int
	next := map[TopicPartition]int{}
	for _, i := range indexes {
		b := &f.batches[i]
		tp := TopicPartition{b.Topic, b.Partition}
		n := next[tp]
		for n < len(out) && sizes[n]+len(b.Batch) > f.p.opts.RequestBytes {
			n++
		}
		if n == len(out) {
			out, sizes = append(out, nil), append(sizes, 0)
		}
		out[n] = append(out[n], i)
		sizes[n] += len(b.Batch)
		next[tp] = n + 1
	}
	return out
}

// writeSignal tells when it has been written: kgo calls AppendTo when it writes a
// request, one request of a broker after the other.
type writeSignal struct {
	*kmsg.ProduceRequest
	written chan struct{}
	once    *sync.Once
}

// AppendTo implements kmsg.Request.
func (g writeSignal) AppendTo(dst []byte) []byte {
	g.once.Do(func() { close(g.written) })
	return g.ProduceRequest.AppendTo(dst)
}

func (f *flight) build(ctx context.Context, part []int) *kmsg.ProduceRequest {
	req := kmsg.NewPtrProduceRequest()
	req.TransactionID = &f.p.id
	req.Acks = -1
	req.TimeoutMillis = int32(f.p.opts.RetryFor.Milliseconds())
	at := map[string]int{}
	for _, i := range part {
		b := &f.batches[i]
		n, ok := at[b.Topic]
		if !ok {
			rt := kmsg.NewProduceRequestTopic()
			rt.Topic = b.Topic
			if t, err := f.p.topics.Lookup(ctx, b.Topic); err == nil {
				rt.TopicID = t.ID
			}
			n = len(req.Topics)
			at[b.Topic] = n
			req.Topics = append(req.Topics, rt)
		}
		rp := kmsg.NewProduceRequestTopicPartition()
		rp.Partition, rp.Records = b.Partition, b.Batch
		req.Topics[n].Partitions = append(req.Topics[n].Partitions, rp)
	}
	return req
}

// answer sends one request and notes what was said to each of its batches.
func (f *flight) answer(ctx context.Context, part []int, g writeSignal, leader int32) {
	kresp, err := f.p.cl.Broker(int(leader)).Request(ctx, g)
	if err != nil {
		for _, i := range part {
			f.results[i] = result{err: err}
		}
		return
	}
	type place struct {
		name      string
		id        [16]byte
		partition int32
	}
	said := map[place]*kmsg.ProduceResponseTopicPartition{}
	if resp, ok := kresp.(*kmsg.ProduceResponse); ok {
		for t := range resp.Topics {
			rt := &resp.Topics[t]
			for q := range rt.Partitions {
				at := place{rt.Topic, rt.TopicID, rt.Partitions[q].Partition}
				if g.Version >= 13 {
					at.name = ""
				}
				said[at] = &rt.Partitions[q]
			}
		}
	}
	for _, i := range part {
		b := &f.batches[i]
		at := place{name: b.Topic, partition: b.Partition}
		if g.Version >= 13 {
			at.name = ""
			for t := range g.Topics {
				if g.Topics[t].Topic == b.Topic {
					at.id = g.Topics[t].TopicID
				}
			}
		}
		r := said[at]
		if r == nil {
			f.results[i] = result{err: fmt.Errorf("no answer for %s/%d", b.Topic, b.Partition)}
			continue
		}
		f.results[i] = result{base: r.BaseOffset, code: r.ErrorCode}
		if r.ErrorMessage != nil {
			f.results[i].message = *r.ErrorMessage
		}
	}
}
