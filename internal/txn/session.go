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
// What the fields hold is that of the goroutine that runs it, one at a time.
type session struct {
	c       *Consumer
	broker  int32
	running bool // guarded by Consumer.mu

	id    int32
	epoch int32
	told  map[*Cursor]int64 // what the broker knows, with its offset; nil: nothing
	bytes int32             // of a partition
	wait  time.Duration     // of the next fetch, if the consumer is brief
	slow  bool              // something went wrong; do not hurry
}

// run fetches until ctx ends or nothing is left to fetch from the broker.
func (s *session) run(ctx context.Context) {
	for {
		req, ok := s.request(ctx)
		if !ok {
			return
		}
		kresp, err := s.c.cl.Broker(int(s.broker)).Request(ctx, req)
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
func (s *session) drop() { s.id, s.epoch, s.told = 0, 0, nil }

// failed drops the session after a request failed, and has leaders looked up again.
func (s *session) failed(ctx context.Context, err error) {
	s.drop()
	s.slow = true
	if ctx.Err() != nil {
		return
	}
	s.c.mu.Lock()
	for k := range s.c.open {
		if k.leader == s.broker && k.resolved {
			k.resolved = false
			s.c.complain(k, fmt.Errorf("broker %d: %w", s.broker, err))
		}
	}
	s.c.mu.Unlock()
	s.c.signal()
}

// noSession in a request's SessionEpoch asks the broker to keep none.
const noSession = -1

// request builds the next fetch: what has changed since the last one, or everything.
// ok is false when nothing is left to fetch here, or the context has ended.
func (s *session) request(ctx context.Context) (req *kmsg.FetchRequest, ok bool) {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	want := make(map[*Cursor]bool)
	for k := range c.open {
		if k.resolved && !k.paused && k.leader == s.broker {
			want[k] = true
		}
	}
	if len(want) == 0 || ctx.Err() != nil {
		s.running = false
		return nil, false
	}
	if s.told == nil {
		s.told = make(map[*Cursor]int64, len(want))
	}
	req = kmsg.NewPtrFetchRequest()
	req.ReplicaID = -1
	req.MaxWaitMillis, req.MinBytes = int32(s.maxWait().Milliseconds()), 1
	// Every partition at its own limit fits: an answer that a broker cuts inside a
	// partition may lack its aborted transactions.
	n := int32(len(want))
	s.bytes = min(c.cfg.PartitionBytes, max(consumerBytes/n, leastPartBytes))
	req.MaxBytes = max(consumerBytes, s.bytes*n)
	if c.cfg.Committed {
		req.IsolationLevel = int8(committed)
	}
	if req.SessionID, req.SessionEpoch = s.id, s.epoch; c.cfg.Brief {
		req.SessionEpoch = noSession
	}
	s.partitions(req, want)
	return req, true
}

// briefWait is how long the first fetch waits after one that brought nothing, for a
// brief consumer: twice as long the next time.
const briefWait = 10 * time.Millisecond

// maxWait is how long the next fetch may wait. A brief consumer waits the longer the
// longer nothing has come: whoever has the client next waits for what is under way.
func (s *session) maxWait() time.Duration {
	if !s.c.cfg.Brief {
		return s.c.cfg.Wait
	}
	now := s.wait
	s.wait = min(max(2*now, briefWait), s.c.cfg.Wait)
	return now
}

// partitions adds to a request what the broker does not know yet; the caller holds
// the consumer's mu.
func (s *session) partitions(req *kmsg.FetchRequest, want map[*Cursor]bool) {
	topics := make(map[string]int)
	wanted := make(map[TopicPartition]bool, len(want))
	var changed []*Cursor
	for k := range want {
		wanted[k.at] = true
		if told, was := s.told[k]; !was || told != k.next {
			changed = append(changed, k)
		}
	}
	slices.SortFunc(changed, inOrder) // the answer keeps the order
	for _, k := range changed {
		s.told[k] = k.next
		n, ok := topics[k.at.Topic]
		if !ok {
			rt := kmsg.NewFetchRequestTopic()
			rt.Topic, rt.TopicID = k.at.Topic, k.id
			n = len(req.Topics)
			topics[k.at.Topic] = n
			req.Topics = append(req.Topics, rt)
		}
		rp := kmsg.NewFetchRequestTopicPartition()
		rp.Partition, rp.FetchOffset, rp.CurrentLeaderEpoch, rp.PartitionMaxBytes = k.at.Partition, k.next, k.epoch, s.bytes
		req.Topics[n].Partitions = append(req.Topics[n].Partitions, rp)
	}
	for k := range s.told {
		if want[k] {
			continue
		}
		delete(s.told, k)
		if !wanted[k.at] { // else it is told of the one that took its place
			rf := kmsg.NewFetchRequestForgottenTopic()
			rf.Topic, rf.TopicID, rf.Partitions = k.at.Topic, k.id, []int32{k.at.Partition}
			req.ForgottenTopics = append(req.ForgottenTopics, rf)
		}
	}
}

func inOrder(a, b *Cursor) int {
	return cmp.Or(cmp.Compare(a.at.Topic, b.at.Topic), cmp.Compare(a.at.Partition, b.at.Partition))
}

// answer delivers what came.
func (s *session) answer(resp *kmsg.FetchResponse) {
	asked, names := make(map[TopicPartition]*Cursor, len(s.told)), make(map[[16]byte]string)
	s.c.mu.Lock()
	for k := range s.told {
		asked[k.at], names[k.id] = k, k.at.Topic
	}
	s.c.mu.Unlock()
	for t := range resp.Topics {
		rt := &resp.Topics[t]
		name := rt.Topic
		if resp.Version >= 13 {
			name = names[rt.TopicID]
		}
		for i := range rt.Partitions {
			rp := &rt.Partitions[i]
			if k := asked[TopicPartition{name, rp.Partition}]; k != nil {
				s.take(k, rp)
			}
		}
	}
}

// take delivers what came of one partition, and moves its cursor.
func (s *session) take(k *Cursor, rp *kmsg.FetchResponseTopicPartition) {
	from := s.told[k]
	f, lastEpoch := Fetched{Next: from, Err: kerr.ErrorForCode(rp.ErrorCode)}, int32(-1)
	if f.Err == nil {
		f, lastEpoch = unread(rp, from)
	}
	c := s.c
	c.mu.Lock()
	if !c.open[k] || k.next != from {
		c.mu.Unlock()
		return
	}
	k.next = f.Next
	if lastEpoch >= 0 {
		k.lastEpoch = lastEpoch
	}
	if f.Err != nil {
		s.slow = true
		k.resolved = false
		c.complain(k, f.Err)
		if k.outside = errors.Is(f.Err, kerr.OffsetOutOfRange); k.outside && !c.cfg.Earliest {
			delete(c.open, k)
		}
	}
	c.mu.Unlock()
	if f.Err != nil {
		c.signal()
	}
	if len(f.Batches) > 0 || f.Err != nil || f.Next > from {
		s.wait = 0
		k.deliver(f)
	}
}
