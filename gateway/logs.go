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

	"github.com/geogate/geogate/internal/seat"
)

// maxIdle bounds the clients that wait, connected, for the next read.
const maxIdle = 8

// pool lends clients that read partitions from given offsets, committed, without
// a group. A read is stateless, so any client serves any read; they are kept only
// because connecting is what takes longest.
type pool struct {
	opts  []kgo.Opt
	slots chan struct{} // one for each read that is open
	open  atomic.Int64

	mu     sync.Mutex
	closed bool
	admin  *kadm.Client
	idle   []*readClient
}

// readClient is a client that one read has for itself.
type readClient struct {
	*kgo.Client
	answers atomic.Int64 // of brokers to fetches
}

// OnBrokerRead implements kgo.HookBrokerRead.
func (l *readClient) OnBrokerRead(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	const fetch = 1 // api key
	if key == fetch && err == nil {
		l.answers.Add(1)
	}
}

func newPool(opts []kgo.Opt, readers int) *pool {
	return &pool{opts: opts, slots: make(chan struct{}, readers)}
}

func (p *pool) client() (*readClient, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, newProblem(codeDraining, "the instance is stopping; send the request to another instance, or again later")
	}
	if n := len(p.idle); n > 0 {
		cl := p.idle[n-1]
		p.idle = p.idle[:n-1]
		return cl, nil
	}
	l := &readClient{}
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
		kgo.FetchMaxPartitionBytes(256<<10),
		kgo.MetadataMinAge(100*time.Millisecond),
	)...)
	if err != nil {
		return nil, fmt.Errorf("make reading client: %w", err)
	}
	l.Client = cl
	return l, nil
}

func (p *pool) lister() (*kadm.Client, error) {
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
		p.admin = kadm.NewClient(cl)
	}
	return p.admin, nil
}

// close ends the clients that nobody has; those lent end when they come back.
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

// span is what of a partition is in its log: offsets from start, up to end, where
// end is the last stable offset.
type span struct{ start, end int64 }

// spans lists a topic's partitions; none if the topic does not exist.
func (p *pool) spans(ctx context.Context, topic string) (map[int32]span, error) {
	adm, err := p.lister()
	if err != nil {
		return nil, err
	}
	starts, err := adm.ListStartOffsets(ctx, topic)
	if err != nil {
		return nil, upstream(ctx, "list start offsets", err)
	}
	ends, err := adm.ListCommittedOffsets(ctx, topic)
	if err != nil {
		return nil, upstream(ctx, "list end offsets", err)
	}
	out := make(map[int32]span)
	for part, end := range ends[topic] {
		start := starts[topic][part]
		for _, err := range []error{start.Err, end.Err} {
			if errors.Is(err, kerr.UnknownTopicOrPartition) {
				return nil, nil
			}
			if err != nil {
				return nil, upstream(ctx, "list offsets", err)
			}
		}
		if part >= 0 {
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

// read opens partitions at offsets. It fails with OVERLOADED when as many reads
// are open as there may be.
func (p *pool) read(topic string, at map[int32]int64) (*reader, error) {
	select {
	case p.slots <- struct{}{}:
	default:
		return nil, newProblem(codeOverloaded, "%d reads are open, as many as there may be", cap(p.slots))
	}
	cl, err := p.client()
	if err != nil {
		<-p.slots
		return nil, err
	}
	p.open.Add(1)
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

// resume takes pause back.
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
	r.p.open.Add(-1)
	<-r.p.slots
}

// barrierCache remembers which stretches of local logs were searched for barriers
// and what was found, so that a reader that begins inside a log needs not search
// the same stretch again. Barriers are few (one for each process and partition);
// one stretch for each partition is kept, the last one used.
type barrierCache struct {
	mu   sync.Mutex
	logs map[logKey]*stretch
}

type logKey struct {
	topic     [16]byte
	partition int32
}

// stretch is a searched part of a log: offsets from from, up to to.
type stretch struct {
	from, to int64
	barriers []int64 // ascending
}

// add tells what was found between two offsets.
func (b *barrierCache) add(k logKey, from, to int64, barriers []int64) {
	if from >= to {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.logs == nil {
		b.logs = make(map[logKey]*stretch)
	}
	s := b.logs[k]
	if s == nil || from > s.to || to < s.from {
		b.logs[k] = &stretch{from, to, slices.Clone(barriers)}
		return
	}
	s.from, s.to = min(s.from, from), max(s.to, to)
	s.barriers = append(s.barriers, barriers...)
	slices.Sort(s.barriers)
	s.barriers = slices.Compact(s.barriers)
}

// last is the last barrier below to; known is false unless everything from from
// on was searched. A log's beginning is as good as any from.
func (b *barrierCache) last(k logKey, from, to int64) (barrier int64, known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.logs[k]
	if s == nil || s.from > from || s.to < to {
		return seat.NoBarrier, false
	}
	i, _ := slices.BinarySearch(s.barriers, to)
	if i == 0 {
		return seat.NoBarrier, true
	}
	return s.barriers[i-1], true
}
