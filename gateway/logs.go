package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/txn"
)

// maxIdle bounds the connected clients that are kept for the next read.
const maxIdle = 8

// fetchBytes is how much a fetch of a topic with some partitions may give of each:
// little where there are many.
func fetchBytes(partitions int) int32 {
	const few, most = 128, 64 << 10
	if partitions > few {
		return most / 8
	}
	return most
}

// maxBuffered bounds what is reckoned for a read of very many partitions.
const maxBuffered = 16 << 20

// buffered is what a reading client may have in memory: a fetch that is being read
// and the next one. A batch larger than fetchBytes comes alone.
func buffered(partitions int) int64 {
	return min(2*int64(partitions)*int64(fetchBytes(partitions)), maxBuffered)
}

// pool has clients that read partitions from given offsets, committed, without
// a group. A read is stateless, so any client serves any read; they are kept only
// because connecting takes longest.
type pool struct {
	opts []kgo.Opt

	mu     sync.Mutex
	closed bool
	admin  *kgo.Client
	idle   []*readClient
}

// readClient is a client that one read has for itself.
type readClient struct {
	*kgo.Client
	fetch   int32        // bytes of a partition in one fetch
	answers atomic.Int64 // of brokers to fetches
}

// OnBrokerRead implements kgo.HookBrokerRead.
func (l *readClient) OnBrokerRead(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	const fetch = 1 // api key
	if key == fetch && err == nil {
		l.answers.Add(1)
	}
}

func newPool(opts []kgo.Opt) *pool { return &pool{opts: opts} }

func (p *pool) client(fetch int32) (*readClient, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, newProblem(codeDraining, "the instance is stopping; send the request to another instance, or again later")
	}
	for i, cl := range slices.Backward(p.idle) {
		if cl.fetch == fetch {
			p.idle = slices.Delete(p.idle, i, i+1)
			return cl, nil
		}
	}
	l := &readClient{fetch: fetch}
	cl, err := kgo.NewClient(append(slices.Clone(p.opts),
		kgo.WithHooks(l),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchMaxWait(time.Second),
		// Never less than all partitions at their own limit: an answer that a
		// broker cuts inside a partition may lack its aborted transactions.
		kgo.FetchMaxBytes(64<<20),
		kgo.FetchMaxPartitionBytes(fetch),
		kgo.MetadataMinAge(100*time.Millisecond),
	)...)
	if err != nil {
		return nil, fmt.Errorf("make reading client: %w", err)
	}
	l.Client = cl
	return l, nil
}

func (p *pool) lister() (*kgo.Client, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, newProblem(codeDraining, "the instance is stopping; send the request to another instance, or again later")
	}
	if p.admin == nil {
		cl, err := kgo.NewClient(p.opts...)
		if err != nil {
			return nil, fmt.Errorf("make listing client: %w", err)
		}
		p.admin = cl
	}
	return p.admin, nil
}

// close closes the idle clients; those in use are closed when their read ends.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, cl := range p.idle {
		cl.Close()
	}
	p.idle = nil
	if p.admin != nil {
		p.admin.Close()
	}
}

// span is the part of a partition that can be read: offsets from start up to end,
// the last stable offset.
type span struct{ start, end int64 }

// spans lists a topic's partitions; none if the topic does not exist.
func (p *pool) spans(ctx context.Context, topic string) (map[int32]span, error) {
	cl, err := p.lister()
	if err != nil {
		return nil, err
	}
	admin := kadm.NewClient(cl)
	starts, err := txn.List(ctx, cl, admin.ListStartOffsets, topic)
	if err != nil {
		return nil, upstream(ctx, "list start offsets", err)
	}
	ends, err := txn.List(ctx, cl, admin.ListCommittedOffsets, topic)
	if err != nil {
		return nil, upstream(ctx, "list end offsets", err)
	}
	out := make(map[int32]span)
	for part, end := range ends[topic] {
		if start, ok := starts[topic][part]; ok {
			out[part] = span{start.Offset, end.Offset}
		}
	}
	return out, nil
}

func upstream(ctx context.Context, doing string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("%s: %w: %w", doing, ErrUpstream, err)
}

// reader reads some partitions of one topic. It belongs to one goroutine.
type reader struct {
	p      *pool
	cl     *readClient
	topic  string
	buffer []*kgo.Record
	paused map[int32]bool
}

// read opens partitions at offsets.
func (p *pool) read(topic string, at map[int32]int64) (*reader, error) {
	cl, err := p.client(fetchBytes(len(at)))
	if err != nil {
		return nil, err
	}
	r := &reader{p: p, cl: cl, topic: topic}
	r.add(at)
	return r, nil
}

// add opens more partitions of the topic.
func (r *reader) add(at map[int32]int64) {
	offsets := make(map[int32]kgo.Offset, len(at))
	for part, o := range at {
		offsets[part] = kgo.NewOffset().At(o)
	}
	r.cl.AddConsumePartitions(map[string]map[int32]kgo.Offset{r.topic: offsets})
}

// await blocks until poll would not wait, or ctx is done.
func (r *reader) await(ctx context.Context) error {
	for len(r.buffer) == 0 {
		fetches := r.cl.PollFetches(ctx)
		for _, e := range fetches.Errors() {
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case errors.Is(e.Err, kerr.OffsetOutOfRange):
				return fmt.Errorf("read %s: %w", r.topic, errExpired)
			default:
				return upstream(ctx, "read "+r.topic, e.Err)
			}
		}
		r.buffer = fetches.Records()
		if ctx.Err() != nil && len(r.buffer) == 0 {
			return ctx.Err()
		}
	}
	return nil
}

// poll gives the next record, control records included, in order for each
// partition. It waits for one until ctx is done.
func (r *reader) poll(ctx context.Context) (*kgo.Record, error) {
	if err := r.await(ctx); err != nil {
		return nil, err
	}
	rec := r.buffer[0]
	r.buffer[0] = nil
	r.buffer = r.buffer[1:]
	return rec, nil
}

// pause stops fetching a partition; what was fetched already still comes.
func (r *reader) pause(p int32) {
	if r.paused == nil {
		r.paused = make(map[int32]bool)
	}
	r.paused[p] = true
	r.cl.PauseFetchPartitions(map[string][]int32{r.topic: {p}})
}

// resume fetches a paused partition again.
func (r *reader) resume(p int32) {
	delete(r.paused, p)
	r.cl.ResumeFetchPartitions(map[string][]int32{r.topic: {p}})
}

// ready tells whether poll would not wait.
func (r *reader) ready() bool { return len(r.buffer) > 0 }

func (r *reader) close() {
	for p := range r.paused {
		r.resume(p)
	}
	r.cl.PurgeTopicsFromConsuming(r.topic)
	r.p.mu.Lock()
	keep := !r.p.closed && len(r.p.idle) < maxIdle
	if keep {
		r.p.idle = append(r.p.idle, r.cl)
	}
	r.p.mu.Unlock()
	if !keep {
		r.cl.Close()
	}
}
