package txn

import (
	"context"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Topic is what a cluster says about a topic.
type Topic struct {
	Name     string
	ID       [16]byte
	Internal bool
	Leaders  []int32 // by partition: broker id, -1 where there is none
	Epochs   []int32 // by partition: leader epoch
}

// Leader is the broker that leads a partition: kerr.UnknownTopicOrPartition if
// there is no such partition, kerr.LeaderNotAvailable if none leads it now.
func (t *Topic) Leader(partition int32) (int32, error) {
	switch {
	case partition < 0 || int(partition) >= len(t.Leaders):
		return 0, fmt.Errorf("look up leader: %w", kerr.UnknownTopicOrPartition)
	case t.Leaders[partition] < 0:
		return 0, fmt.Errorf("look up leader: %w", kerr.LeaderNotAvailable)
	}
	return t.Leaders[partition], nil
}

// Topics caches ids and leaders of a cluster's topics. It is safe for use by
// several goroutines; an answer that proves an entry wrong must be reported with
// Forget, for entries do not age.
type Topics struct {
	cl *kgo.Client

	mu     sync.Mutex
	byName map[string]Topic // guarded by mu
}

// NewTopics makes an empty cache over cl.
func NewTopics(cl *kgo.Client) *Topics {
	return &Topics{cl: cl, byName: map[string]Topic{}}
}

// Lookup returns the topic, from the cache if it is there. A topic that does not
// exist is kerr.UnknownTopicOrPartition; it is never created by asking.
func (t *Topics) Lookup(ctx context.Context, name string) (Topic, error) {
	t.mu.Lock()
	found, ok := t.byName[name]
	t.mu.Unlock()
	if ok {
		return found, nil
	}
	all, err := Describe(ctx, t.cl, name)
	if err != nil {
		return Topic{}, err
	}
	found, ok = all[name]
	if !ok {
		return Topic{}, fmt.Errorf("look up topic %s: %w", name, kerr.UnknownTopicOrPartition)
	}
	t.mu.Lock()
	t.byName[name] = found
	t.mu.Unlock()
	return found, nil
}

// Forget drops a topic, so that the next Lookup asks the cluster.
func (t *Topics) Forget(name string) {
	t.mu.Lock()
	delete(t.byName, name)
	t.mu.Unlock()
}

// Describe asks the cluster about the named topics, or about all there are.
// Topics that do not exist are missing from the answer; any other error of a
// topic is returned.
func Describe(ctx context.Context, cl *kgo.Client, names ...string) (map[string]Topic, error) {
	req := kmsg.NewPtrMetadataRequest()
	for _, n := range names {
		rt := kmsg.NewMetadataRequestTopic()
		rt.Topic = kmsg.StringPtr(n)
		req.Topics = append(req.Topics, rt)
	}
	kresp, err := cl.Request(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("describe topics: %w", err)
	}
	resp, ok := kresp.(*kmsg.MetadataResponse)
	if !ok {
		return nil, fmt.Errorf("describe topics: answer %T", kresp)
	}
	out := make(map[string]Topic, len(resp.Topics))
	for i := range resp.Topics {
		rt := &resp.Topics[i]
		if rt.Topic == nil || rt.ErrorCode == kerr.UnknownTopicOrPartition.Code {
			continue
		}
		if err := kerr.ErrorForCode(rt.ErrorCode); err != nil {
			if len(names) == 0 {
				continue // one odd topic must not hide the others
			}
			return nil, fmt.Errorf("describe topic %s: %w", *rt.Topic, err)
		}
		out[*rt.Topic] = topicFrom(rt)
	}
	return out, nil
}

func topicFrom(rt *kmsg.MetadataResponseTopic) Topic {
	t := Topic{Name: *rt.Topic, ID: rt.TopicID, Internal: rt.IsInternal}
	t.Leaders = make([]int32, len(rt.Partitions))
	t.Epochs = make([]int32, len(rt.Partitions))
	for i := range t.Leaders {
		t.Leaders[i], t.Epochs[i] = -1, -1
	}
	for _, p := range rt.Partitions {
		if p.Partition < 0 || int(p.Partition) >= len(t.Leaders) {
			continue
		}
		t.Epochs[p.Partition] = p.LeaderEpoch
		if p.ErrorCode == 0 || p.ErrorCode == kerr.ReplicaNotAvailable.Code {
			t.Leaders[p.Partition] = p.Leader
		}
	}
	return t
}
