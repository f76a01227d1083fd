package txn

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

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
	found, failed := t.LookupAll(ctx, name)
	return found[name], failed[name]
}

// LookupAll is Lookup for several topics. Those that are not in the cache are asked for
// with one request, however many there are. Each name is in one of the two answers.
func (t *Topics) LookupAll(ctx context.Context, names ...string) (found map[string]Topic, failed map[string]error) {
	found, failed = make(map[string]Topic, len(names)), map[string]error{}
	var ask []string
	asked := map[string]struct{}{}
	t.mu.Lock()
	for _, name := range names {
		if topic, ok := t.byName[name]; ok {
			found[name] = topic
		} else if _, twice := asked[name]; !twice {
			asked[name] = struct{}{}
			ask = append(ask, name)
		}
	}
	t.mu.Unlock()
	if len(ask) == 0 {
		return found, failed
	}
	answer, err := describe(ctx, t.cl, ask)
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range ask {
		topic, ok := answer.found[name]
		switch {
		case err != nil:
			failed[name] = err
		case answer.refused[name] != nil:
			failed[name] = answer.refused[name]
		case !ok:
			failed[name] = fmt.Errorf("look up topic %s: %w", name, kerr.UnknownTopicOrPartition)
		default:
			found[name], t.byName[name] = topic, topic
		}
	}
	return found, failed
}

// Remember puts topics that a caller has just looked up into the cache.
func (t *Topics) Remember(topics map[string]Topic) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.Copy(t.byName, topics)
}

// Forget drops topics, so that the next Lookup asks the cluster.
func (t *Topics) Forget(names ...string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range names {
		delete(t.byName, name)
	}
}

// Describe asks the cluster about the named topics, or about all there are.
// Topics that do not exist are missing from the answer; any other error of a
// topic is returned.
func Describe(ctx context.Context, cl *kgo.Client, names ...string) (map[string]Topic, error) {
	_, found, err := DescribeCluster(ctx, cl, names...)
	return found, err
}

// DescribeCluster is Describe, and gives the cluster's id with the same request; "" if the
// cluster does not say it.
func DescribeCluster(ctx context.Context, cl *kgo.Client, names ...string) (id string, found map[string]Topic, err error) {
	answer, err := describe(ctx, cl, names)
	if err != nil {
		return "", nil, err
	}
	for _, name := range names {
		if answer.refused[name] != nil {
			return "", nil, answer.refused[name]
		}
	}
	return answer.cluster, answer.found, nil // where all were asked for, one odd topic must not hide the others
}

// metadata is what the cluster says of the named topics, or of all there are.
//
// A client keeps what it is told of topics, partition by partition, which costs it several
// times as much as reading that does. All topics are asked for every few seconds, and nobody
// needs the client to keep them, so that goes past it: to a broker by its id.
func metadata(ctx context.Context, cl *kgo.Client, names []string) (*kmsg.MetadataResponse, error) {
	req := kmsg.NewPtrMetadataRequest()
	for _, n := range names {
		rt := kmsg.NewMetadataRequestTopic()
		rt.Topic = kmsg.StringPtr(n)
		req.Topics = append(req.Topics, rt)
	}
	if len(names) == 0 {
		for _, b := range cl.DiscoveredBrokers() {
			if resp, err := req.RequestWith(ctx, b); err == nil {
				return resp, nil
			}
			if ctx.Err() != nil {
				break
			}
		}
	}
	resp, err := req.RequestWith(ctx, cl) // from any broker, again if that fails
	if err != nil {
		return nil, fmt.Errorf("describe topics: %w", err)
	}
	return resp, nil
}

// DescribeAll is Describe of all topics, and gives those with an error of their own, too. Each
// topic is in one of the two answers.
func DescribeAll(ctx context.Context, cl *kgo.Client) (found map[string]Topic, refused map[string]error, err error) {
	answer, err := describe(ctx, cl, nil)
	return answer.found, answer.refused, err
}

const (
	// lookPartitions is of how many partitions a look at all topics may come as often as it is
	// wanted, and mostLookFactor how many times as long it takes at most to the next one.
	lookPartitions = 1000
	mostLookFactor = 3
)

// LookEvery is how long to wait from one look at all topics to the next, if it should come
// after every: the answer costs gateway and broker some microseconds a partition, so it is
// longer in proportion where there are thousands of them.
func LookEvery(every time.Duration, found ...map[string]Topic) time.Duration {
	n := 0
	for _, topics := range found {
		for _, t := range topics {
			n += len(t.Leaders)
		}
	}
	return every * time.Duration(min(max(n, lookPartitions), mostLookFactor*lookPartitions)) / lookPartitions
}

// description is what a cluster answers about topics. One that does not exist is in neither
// map.
type description struct {
	cluster string
	found   map[string]Topic
	refused map[string]error
}

// describe is Describe with an error for each topic.
func describe(ctx context.Context, cl *kgo.Client, names []string) (d description, err error) {
	resp, err := metadata(ctx, cl, names)
	if err != nil {
		return d, err
	}
	d.found, d.refused = make(map[string]Topic, len(resp.Topics)), map[string]error{}
	if resp.ClusterID != nil {
		d.cluster = *resp.ClusterID
	}
	for i := range resp.Topics {
		rt := &resp.Topics[i]
		if rt.Topic == nil || rt.ErrorCode == kerr.UnknownTopicOrPartition.Code {
			continue
		}
		if err := kerr.ErrorForCode(rt.ErrorCode); err != nil {
			d.refused[*rt.Topic] = fmt.Errorf("describe topic %s: %w", *rt.Topic, err)
			continue
		}
		d.found[*rt.Topic] = topicFrom(rt)
	}
	return d, nil
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
