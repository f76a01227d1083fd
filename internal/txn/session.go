package txn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/geogate/geogate/internal/sleep"
)

// session is the fetching from one broker: incremental, if the broker keeps sessions.
// A request is sent as soon as the answer before has been delivered, and takes as much
// work as partitions have moved, however many the broker knows.
type session struct {
	c      *Consumer
	broker int32

	// Guarded by Consumer.mu.
	running  bool
	inFlight bool              // a request is under way, with all of told
	told     map[*Cursor]int64 // what the broker knows, with its offset; nil: nothing
	hurries  bool              // hurry runs

	// Owned by the goroutine that runs it.
	id      int32
	epoch   int32
	version uint64                     // of the consumer when told was compared with all that is open
	moved   []*Cursor                  // since then, of what is told
	gone    []*Cursor                  // what the broker is to forget
	asked   map[TopicPartition]*Cursor // what is told, by place
	names   map[[16]byte]string        // of its topics
	bytes   int32                      // of a partition
	wait    time.Duration              // of the next fetch
	slow    bool                       // a request failed; do not hurry
}

// run fetches until ctx ends or nothing is left to fetch from the broker.
func (s *session) run(ctx context.Context) {
	for {
		req, ok := s.request(ctx)
		if !ok {
			return
		}
		kresp, err := s.c.cl.Broker(int(s.broker)).Request(ctx, req)
		s.c.mu.Lock()
		s.inFlight = false
		s.c.mu.Unlock()
		resp, isFetch := kresp.(*kmsg.FetchResponse)
		switch {
		case err != nil:
			s.failed(ctx, err)
		case !isFetch:
			s.failed(ctx, fmt.Errorf("answer %T", kresp))
		case resp.ErrorCode == kerr.FetchSessionIDNotFound.Code, resp.ErrorCode == kerr.InvalidFetchSessionEpoch.Code:
			s.drop()
		case resp.ErrorCode != 0:
			s.failed(ctx, kerr.ErrorForCode(resp.ErrorCode))
		default:
			s.id = resp.SessionID
			s.epoch++
			s.answer(resp)
			if s.id == 0 {
				s.drop() // the broker keeps none
			}
		}
		if s.slow {
			s.slow = false
			_ = sleep.For(ctx, consumerRetry) // request looks at the context
		}
	}
}

// drop makes the next request ask for everything.
func (s *session) drop() {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.id, s.epoch, s.told = 0, 0, nil
}

// failed drops the session after a request failed, and has leaders looked up again.
func (s *session) failed(ctx context.Context, err error) {
	s.drop()
	s.slow = true
	if ctx.Err() != nil {
		return
	}
	c := s.c
	c.mu.Lock()
	for k := range c.open {
		if k.leader == s.broker && k.resolved {
			k.resolved = false
			c.complain(k, fmt.Errorf("broker %d: %w", s.broker, err))
		}
	}
	c.version++
	c.mu.Unlock()
	c.signal()
}

// noSession in a request's SessionEpoch asks the broker to keep none.
const noSession = -1

// request builds the next fetch: what has changed since the last one, or everything.
// ok is false when nothing is left to fetch here, or the context has ended.
func (s *session) request(ctx context.Context) (req *kmsg.FetchRequest, ok bool) {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	changed := s.moved
	if s.told == nil || s.version != c.version {
		if s.version != c.version && !c.cfg.Brief {
			s.wait = 0
		}
		changed = s.compare()
	}
	s.moved = nil
	if len(s.told) == 0 || ctx.Err() != nil {
		s.running = false
		return nil, false
	}
	n := int32(len(s.told))
	s.bytes = min(c.cfg.PartitionBytes, max(consumerBytes/n, leastPartBytes))
	req = c.fetch(s.maxWait(), s.bytes, n)
	if req.SessionID, req.SessionEpoch = s.id, s.epoch; c.cfg.Brief {
		req.SessionEpoch = noSession
	}
	s.inFlight = true
	for _, k := range changed {
		s.told[k] = k.next
	}
	slices.SortFunc(changed, inOrder) // the answer keeps the order
	addPartitions(req, changed, s.bytes)
	for _, k := range s.gone {
		if s.asked[k.at] != nil {
			continue // the broker is told of the one that took its place
		}
		rf := kmsg.NewFetchRequestForgottenTopic()
		rf.Topic, rf.TopicID, rf.Partitions = k.at.Topic, k.id, []int32{k.at.Partition}
		req.ForgottenTopics = append(req.ForgottenTopics, rf)
	}
	s.gone = nil
	return req, true
}

// compare brings told in line with all that is to be fetched from the broker, and gives
// what that does not know yet. The caller holds the consumer's mu.
func (s *session) compare() (changed []*Cursor) {
	c := s.c
	if s.told == nil {
		s.gone = nil
		s.told = make(map[*Cursor]int64, len(c.open))
	}
	s.version = c.version
	s.asked, s.names = make(map[TopicPartition]*Cursor, len(c.open)), make(map[[16]byte]string)
	for k := range c.open {
		if !k.wanted(s.broker) || k.held {
			continue
		}
		s.asked[k.at], s.names[k.id] = k, k.at.Topic
		if told, was := s.told[k]; !was || told != k.next {
			changed = append(changed, k)
			s.told[k] = k.next
		}
	}
	for k := range s.told {
		if s.asked[k.at] == k {
			continue
		}
		delete(s.told, k)
		s.gone = append(s.gone, k)
	}
	return changed
}

// wanted tells whether a cursor is to be fetched from a broker; the caller holds mu.
func (k *Cursor) wanted(broker int32) bool { return k.resolved && !k.paused && k.leader == broker }

// fetch is a request for n partitions, without them. Every partition at its own limit
// fits: an answer that a broker cuts inside a partition may lack its aborted transactions.
func (c *Consumer) fetch(wait time.Duration, bytes, n int32) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.ReplicaID = -1
	req.MaxWaitMillis, req.MinBytes = int32(wait.Milliseconds()), 1
	req.MaxBytes = max(consumerBytes, bytes*n)
	if c.cfg.Committed {
		req.IsolationLevel = int8(committed)
	}
	return req
}

// addPartitions adds cursors, in order, to a request; the caller holds the consumer's mu.
func addPartitions(req *kmsg.FetchRequest, of []*Cursor, bytes int32) {
	for _, k := range of {
		n := len(req.Topics) - 1
		if n < 0 || req.Topics[n].Topic != k.at.Topic || req.Topics[n].TopicID != k.id {
			rt := kmsg.NewFetchRequestTopic()
			rt.Topic, rt.TopicID = k.at.Topic, k.id
			n++
			req.Topics = append(req.Topics, rt)
		}
		rp := kmsg.NewFetchRequestTopicPartition()
		rp.Partition, rp.FetchOffset, rp.CurrentLeaderEpoch, rp.PartitionMaxBytes = k.at.Partition, k.next, k.epoch, bytes
		req.Topics[n].Partitions = append(req.Topics[n].Partitions, rp)
	}
}

func inOrder(a, b *Cursor) int {
	return cmp.Or(cmp.Compare(a.at.Topic, b.at.Topic), cmp.Compare(a.at.Partition, b.at.Partition))
}

// How long a fetch waits at the broker after one that brought something. The wait doubles
// with each fetch that brings nothing, up to ConsumerConfig.Wait.
const (
	firstWait = 500 * time.Millisecond
	briefWait = 10 * time.Millisecond // for a brief consumer, whose first fetch does not wait
)

// maxWait is how long the next fetch may wait: the longer, the longer nothing has come. A
// partition that is opened meanwhile waits for it, unless there is Hurry, and so does the
// next user of a brief consumer's client.
func (s *session) maxWait() time.Duration {
	if s.c.cfg.Brief {
		now := s.wait
		s.wait = min(max(2*now, briefWait), s.c.cfg.Wait)
		return now
	}
	now := min(max(s.wait, firstWait), s.c.cfg.Wait)
	s.wait = 2 * now
	return now
}

// answer delivers what came.
func (s *session) answer(resp *kmsg.FetchResponse) {
	eachPartition(resp, s.asked, s.names, func(k *Cursor, rp *kmsg.FetchResponseTopicPartition) {
		s.c.mu.Lock()
		from := s.told[k]
		s.c.mu.Unlock()
		if s.take(k, rp, from) {
			s.moved = append(s.moved, k)
			s.wait = 0
		}
	})
}

// eachPartition calls fn for every partition of an answer that was asked for.
func eachPartition(resp *kmsg.FetchResponse, asked map[TopicPartition]*Cursor, names map[[16]byte]string, fn func(*Cursor, *kmsg.FetchResponseTopicPartition)) {
	for t := range resp.Topics {
		rt := &resp.Topics[t]
		name := rt.Topic
		if resp.Version >= 13 {
			name = names[rt.TopicID]
		}
		for i := range rt.Partitions {
			rp := &rt.Partitions[i]
			if k := asked[TopicPartition{name, rp.Partition}]; k != nil {
				fn(k, rp)
			}
		}
	}
}

// take delivers what came of one partition, of which records from an offset on were asked
// for, and moves its cursor. It tells whether anything came that counts.
func (s *session) take(k *Cursor, rp *kmsg.FetchResponseTopicPartition, from int64) bool {
	f, lastEpoch := Fetched{Next: from, Err: kerr.ErrorForCode(rp.ErrorCode)}, int32(-1)
	if f.Err == nil {
		f, lastEpoch = unread(rp, from)
	}
	c := s.c
	c.mu.Lock()
	if !c.open[k] || k.next != from {
		c.mu.Unlock()
		return false
	}
	k.next = f.Next
	if lastEpoch >= 0 {
		k.lastEpoch = lastEpoch
	}
	if f.Err != nil {
		k.resolved, k.notBefore = false, time.Now().Add(consumerRetry)
		c.version++
		c.complain(k, f.Err)
		if k.outside = errors.Is(f.Err, kerr.OffsetOutOfRange); k.outside && !c.cfg.Earliest {
			delete(c.open, k)
		}
	}
	c.mu.Unlock()
	if f.Err != nil {
		c.signal()
	}
	if len(f.Batches) == 0 && f.Err == nil && f.Next <= from {
		return false
	}
	k.deliver(f)
	return true
}
