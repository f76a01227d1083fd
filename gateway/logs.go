package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/txn"
)

// maxIdle bounds the connected clients that are kept for the next read.
const maxIdle = 8

// fetchBytes is how much a fetch of a topic with some partitions may give of each: little
// where there are many, and where there are few so much that the fetch is worth its while.
func fetchBytes(partitions int) int32 {
	const few, most, least, all = 128, 64 << 10, 8 << 10, 384 << 10
	if partitions > few {
		return least
	}
	return int32(max(most, all/max(1, partitions)))
}

// maxBuffered bounds what is reckoned for a read of very many partitions.
const maxBuffered = 16 << 20

// buffered is what a reading client may have in memory: the fetch that is being read, the
// next one, and one more that waits to be taken. A batch larger than fetchBytes comes alone.
func buffered(partitions int) int64 {
	return min(3*int64(partitions)*int64(fetchBytes(partitions)), maxBuffered)
}

// pool has clients that read partitions from given offsets, committed, without
// a group. A read is stateless, so any client serves any read; they are kept only
// because connecting takes longest.
type pool struct {
	opts    []kgo.Opt
	decoder *txn.Decoder
	log     *slog.Logger

	mu     sync.Mutex
	closed bool
	admin  *kgo.Client
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

func newPool(deps *Deps, log *slog.Logger) *pool {
	return &pool{opts: deps.Kafka, decoder: deps.Decoder.ForReads(), log: log}
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
	cl, err := txn.NewClient(append(slices.Clone(p.opts), kgo.WithHooks(l), kgo.MetadataMinAge(100*time.Millisecond))...)
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
		cl, err := txn.NewClient(p.opts...)
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
	p        *pool
	cl       *readClient
	decoder  *txn.Decoder
	topic    string
	consumer *txn.Consumer
	cursors  map[int32]*txn.Cursor
	fetched  chan fetched
	stop     context.CancelFunc
	stopping <-chan struct{}
	running  sync.WaitGroup

	partition int32
	unread    []txn.Unread // of partition, not opened yet
	walk      txn.Walk     // through a batch of partition, if walking
	walking   bool
	head      txn.Entry // the next record, if has
	has       bool
	err       error // instead of it
}

// fetched is what one answer brought of a partition.
type fetched struct {
	partition int32
	txn.Fetched
}

// read opens partitions at offsets. A derived topic is one that the fold writes.
func (p *pool) read(topic string, derived bool, at map[int32]int64) (*reader, error) {
	cl, err := p.client()
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background()) // until close
	decoder := p.decoder
	if derived {
		decoder = decoder.Derived()
	}
	r := &reader{
		p: p, cl: cl, decoder: decoder, topic: topic, cursors: make(map[int32]*txn.Cursor), fetched: make(chan fetched, len(at)), stop: stop, stopping: ctx.Done(),
		consumer: txn.NewConsumer(cl.Client, txn.ConsumerConfig{
			Committed: true, PartitionBytes: fetchBytes(len(at)), Wait: fetchWait, Brief: true, Logger: p.log,
		}),
	}
	r.add(at) // first: one fetch asks for all partitions, and is answered in their order
	r.running.Go(func() { r.consumer.Run(ctx) })
	return r, nil
}

// fetchWait is how long a broker waits for something to come; the next read with the
// same client may have to wait for it, too.
const fetchWait = 250 * time.Millisecond

// add opens more partitions of the topic.
func (r *reader) add(at map[int32]int64) {
	for part, o := range at {
		where := txn.TopicPartition{Topic: r.topic, Partition: part}
		r.cursors[part] = r.consumer.Open(where, event.TopicID{}, o, func(f txn.Fetched) {
			select {
			case r.fetched <- fetched{part, f}:
			case <-r.stopping:
			}
		})
	}
}

// await blocks until poll would not wait, or ctx is done.
func (r *reader) await(ctx context.Context) error {
	for !r.ready() {
		r.walk = txn.Walk{} // the next fetch may take long, and the memory would lie idle
		select {
		case <-ctx.Done():
			return ctx.Err()
		case f := <-r.fetched:
			r.take(f)
		}
	}
	if errors.Is(r.err, txn.ErrBusy) {
		return newProblem(codeOverloaded, "other reads use all of the memory for large batches; retry")
	}
	return r.err
}

// take takes what was fetched of a partition, once all that was fetched before is read.
func (r *reader) take(f fetched) {
	switch {
	case f.Err == nil:
		r.partition, r.unread = f.partition, f.Batches
	case errors.Is(f.Err, kerr.OffsetOutOfRange):
		r.err = fmt.Errorf("read %s: %w", r.topic, errExpired)
	case !kerr.IsRetriable(f.Err):
		r.err = fmt.Errorf("read %s: %w: %w", r.topic, ErrUpstream, f.Err)
	}
}

// poll gives the next record, control records included, in order for each
// partition. It waits for one until ctx is done. The record is valid until the next call
// of a method.
func (r *reader) poll(ctx context.Context) (*txn.Entry, error) {
	if err := r.await(ctx); err != nil {
		return nil, err
	}
	r.has = false
	return &r.head, nil
}

// pause stops fetching a partition; what was fetched already still comes.
func (r *reader) pause(p int32) { r.cursors[p].Pause() }

// resume fetches a paused partition again.
func (r *reader) resume(p int32) { r.cursors[p].Resume() }

// ready tells whether poll would not wait. It opens batches one at a time, and takes one
// record at a time out of them.
func (r *reader) ready() bool {
	for r.err == nil && !r.has {
		switch {
		case r.walking:
			if r.has = r.walk.NextInto(&r.head); r.has {
				r.head.Topic, r.head.Partition = r.topic, r.partition
			} else {
				r.walking, r.head = false, txn.Entry{}
			}
		case len(r.unread) > 0:
			u := r.unread[0]
			r.unread[0] = txn.Unread{}
			r.unread = r.unread[1:]
			r.err = r.walk.Reuse(r.decoder, u.Batch, u.From)
			r.walking = r.err == nil
		default:
			select {
			case f := <-r.fetched:
				r.take(f)
			default:
				return false
			}
		}
	}
	return true
}

func (r *reader) close() {
	r.stop()
	r.running.Wait()
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
