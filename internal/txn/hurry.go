package txn

import (
	"context"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/geogate/geogate/internal/sleep"
)

// hurryWait is how long a hurried fetch waits at the broker that found nothing before:
// so long may another partition wait that comes meanwhile.
const hurryWait = 20 * time.Millisecond

// leftOut tells whether a cursor is not in the request that is under way: that may wait at
// the broker for long. The caller holds the consumer's mu.
func (s *session) leftOut(k *Cursor) bool {
	if !s.inFlight || k.held || !k.wanted(s.broker) {
		return false
	}
	told, is := s.told[k]
	return !is || told != k.next
}

// hurry fetches what is left out of the session's request, by requests of their own that
// no broker keeps anything of, until the session has taken it over.
func (s *session) hurry(ctx context.Context) {
	wait := time.Duration(0)
	for {
		req, asked, names := s.hurried(ctx, wait)
		if req == nil {
			return
		}
		kresp, err := s.c.cfg.Hurry.Broker(int(s.broker)).Request(ctx, req)
		resp, isFetch := kresp.(*kmsg.FetchResponse)
		if ok := err == nil && isFetch && resp.ErrorCode == 0; !ok {
			s.release(asked)
			_ = sleep.For(ctx, consumerRetry) // what is wrong with the broker the session finds out
			continue
		}
		wait = hurryWait
		eachPartition(resp, asked, names, func(k *Cursor, rp *kmsg.FetchResponseTopicPartition) {
			from := askedOffset(req, k)
			s.c.mu.Lock()
			next, told := s.told[k]
			mine := !told || next != k.next
			k.held = mine // until it is delivered
			s.c.mu.Unlock()
			if mine && s.take(k, rp, from) {
				wait = 0
			}
		})
		s.release(asked)
	}
}

// hurried builds the next hurried fetch; nil when nothing is left out any more, or the
// context has ended. What is asked for without waiting is held: the answer comes at once,
// and the session need not ask for the same.
func (s *session) hurried(ctx context.Context, wait time.Duration) (req *kmsg.FetchRequest, asked map[TopicPartition]*Cursor, names map[[16]byte]string) {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	var of []*Cursor
	for k := range c.open {
		if s.leftOut(k) {
			of = append(of, k)
		}
	}
	if len(of) == 0 || ctx.Err() != nil {
		s.hurries = false
		return nil, nil, nil
	}
	slices.SortFunc(of, inOrder)
	asked, names = make(map[TopicPartition]*Cursor, len(of)), make(map[[16]byte]string)
	for _, k := range of {
		asked[k.at], names[k.id] = k, k.at.Topic
		k.held = wait == 0
	}
	n := int32(len(of))
	bytes := min(c.cfg.PartitionBytes, max(consumerBytes/n, leastPartBytes))
	req = c.fetch(wait, bytes, n)
	req.SessionEpoch = noSession
	addPartitions(req, of, bytes)
	return req, asked, names
}

// release gives cursors back to the session, which may have ended meanwhile.
func (s *session) release(asked map[TopicPartition]*Cursor) {
	s.c.mu.Lock()
	for _, k := range asked {
		k.held = false
	}
	s.c.version++
	s.c.mu.Unlock()
	s.c.signal()
}

// askedOffset is the offset from which on a request asks for the partition of a cursor.
func askedOffset(req *kmsg.FetchRequest, k *Cursor) int64 {
	for i := range req.Topics {
		if req.Topics[i].Topic != k.at.Topic {
			continue
		}
		for j := range req.Topics[i].Partitions {
			if rp := &req.Topics[i].Partitions[j]; rp.Partition == k.at.Partition {
				return rp.FetchOffset
			}
		}
	}
	return k.next
}
