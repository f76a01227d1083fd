package seat

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/sleep"
	"github.com/geogate/geogate/internal/txn"
)

// TailConfig of a Tail.
type TailConfig struct {
	// Opts reach the own region's cluster.
	Opts []kgo.Opt
	// PartitionBytes is what one fetch takes of a partition at most (a larger
	// batch comes whole all the same); default 256 KiB. Together with QueueBytes
	// it bounds the memory of a seat.
	PartitionBytes int32
	// QueueBytes is how much of a partition waits for its seat before fetching it
	// pauses; default 512 KiB.
	QueueBytes int
	// Control wakes seats whose records wait to be described.
	Control *control.Follower
	Logger  *slog.Logger
}

// Tail owns the two consumers that all seats of an instance share: one reads the
// local partitions uncommitted (answers and dedupe do not wait for foreign
// transactions), one reads local and remote partitions committed (the fold).
type Tail struct {
	local  *feed
	inputs *feed
	follow *control.Follower

	mu    sync.Mutex
	seats map[*Seat]struct{}
}

// NewTail makes the consumers; they fetch nothing before Run.
func NewTail(cfg TailConfig) (*Tail, error) {
	cfg.PartitionBytes = cmp.Or(cfg.PartitionBytes, 256<<10)
	cfg.QueueBytes = cmp.Or(cfg.QueueBytes, 512<<10)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	local, err := newFeed(cfg, kgo.ReadUncommitted())
	if err != nil {
		return nil, err
	}
	inputs, err := newFeed(cfg, kgo.ReadCommitted())
	if err != nil {
		local.client.Close()
		return nil, err
	}
	return &Tail{local: local, inputs: inputs, follow: cfg.Control, seats: make(map[*Seat]struct{})}, nil
}

// Run polls for all seats until the context ends, which it returns as nil. It
// owns the consumers' goroutines and connections.
func (t *Tail) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return t.local.run(ctx) })
	g.Go(func() error { return t.inputs.run(ctx) })
	g.Go(func() error { t.watch(ctx); return nil })
	return g.Wait()
}

// watch wakes the seats when control has news.
func (t *Tail) watch(ctx context.Context) {
	for {
		changed := t.follow.Changed()
		t.mu.Lock()
		for s := range t.seats {
			s.pokeInputs()
		}
		t.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// Forget drops what the consumers know of a topic that was deleted and recreated:
// they would hold on to its old id for ever. Seats of the old topic read nothing
// more. It is called before the first seat of the new one runs.
func (t *Tail) Forget(topic string) {
	t.local.client.PurgeTopicsFromConsuming(topic)
	t.inputs.client.PurgeTopicsFromConsuming(topic)
}

func (t *Tail) join(s *Seat) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seats[s] = struct{}{}
}

func (t *Tail) leave(s *Seat) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.seats, s)
}

// feed is one consumer and the inboxes it fills.
type feed struct {
	client *kgo.Client
	admin  *kadm.Client
	limit  int
	log    *slog.Logger
	quiet  map[txn.TopicPartition]time.Time // run's own: no complaint about the partition before

	mu      sync.Mutex
	inboxes map[txn.TopicPartition]*inbox
}

func newFeed(cfg TailConfig, level kgo.IsolationLevel) (*feed, error) {
	all := append(append([]kgo.Opt(nil), cfg.Opts...),
		kgo.FetchIsolationLevel(level),
		kgo.KeepControlRecords(),
		kgo.FetchMaxPartitionBytes(cfg.PartitionBytes),
		// Never less than all partitions at their own limit: against a broker that
		// cuts an answer inside a partition, aborted records could leak.
		kgo.FetchMaxBytes(64<<20),
		kgo.FetchMaxWait(500*time.Millisecond),
		kgo.MetadataMinAge(100*time.Millisecond),
	)
	cl, err := kgo.NewClient(all...)
	if err != nil {
		return nil, fmt.Errorf("make tail client: %w", err)
	}
	return &feed{
		client: cl, admin: kadm.NewClient(cl), limit: cfg.QueueBytes, log: cfg.Logger,
		quiet: make(map[txn.TopicPartition]time.Time), inboxes: make(map[txn.TopicPartition]*inbox),
	}, nil
}

func (f *feed) run(ctx context.Context) error {
	defer f.client.Close()
	for {
		fs := f.client.PollFetches(ctx)
		if ctx.Err() != nil || fs.IsClientClosed() {
			return nil
		}
		f.complain(fs)
		if fs.Err() != nil && fs.NumRecords() == 0 && sleep.For(ctx, complainPause) != nil {
			return nil
		}
		fs.EachPartition(func(p kgo.FetchTopicPartition) {
			f.mu.Lock()
			b := f.inboxes[txn.TopicPartition{Topic: p.Topic, Partition: p.Partition}]
			f.mu.Unlock()
			if b != nil && len(p.Records) > 0 {
				b.push(p.Records)
			}
		})
	}
}

const (
	complainEvery = 10 * time.Second      // of one partition
	complainPause = 20 * time.Millisecond // a topic that is gone answers at once, again and again
)

// complain logs what could not be fetched, now and then.
func (f *feed) complain(fs kgo.Fetches) {
	fs.EachError(func(topic string, partition int32, err error) {
		at, now := txn.TopicPartition{Topic: topic, Partition: partition}, time.Now()
		if errors.Is(err, context.Canceled) || now.Before(f.quiet[at]) {
			return
		}
		for p, until := range f.quiet {
			if now.After(until) {
				delete(f.quiet, p)
			}
		}
		f.quiet[at] = now.Add(complainEvery)
		f.log.Warn("cannot fetch from a partition; will try again", "topic", topic, "partition", partition, "err", err)
	})
}

// bounds lists where a partition's log begins and ends now (high watermark).
func (f *feed) bounds(ctx context.Context, p txn.TopicPartition) (start, end int64, err error) {
	starts, err := f.admin.ListStartOffsets(ctx, p.Topic)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		return 0, 0, fmt.Errorf("list start of %s/%d: %w", p.Topic, p.Partition, err)
	}
	ends, err := f.admin.ListEndOffsets(ctx, p.Topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return 0, 0, fmt.Errorf("list end of %s/%d: %w", p.Topic, p.Partition, err)
	}
	s, ok1 := starts.Lookup(p.Topic, p.Partition)
	e, ok2 := ends.Lookup(p.Topic, p.Partition)
	if !ok1 || !ok2 {
		return 0, 0, fmt.Errorf("list offsets of %s/%d: no such partition", p.Topic, p.Partition)
	}
	return s.Offset, e.Offset, nil
}

// open begins to consume a partition; poke is called when its inbox gets records.
func (f *feed) open(p txn.TopicPartition, from int64, poke func()) *inbox {
	b := &inbox{feed: f, TopicPartition: p, poke: poke}
	f.mu.Lock()
	f.inboxes[p] = b
	f.mu.Unlock()
	f.client.AddConsumePartitions(map[string]map[int32]kgo.Offset{p.Topic: {p.Partition: kgo.NewOffset().At(from)}})
	return b
}

// shut stops consuming a partition.
func (f *feed) shut(b *inbox) {
	f.mu.Lock()
	if f.inboxes[b.TopicPartition] == b {
		delete(f.inboxes, b.TopicPartition)
	}
	f.mu.Unlock()
	f.client.RemoveConsumePartitions(map[string][]int32{b.Topic: {b.Partition}})
	// A pause outlives the partition's removal; the next to open it is not meant.
	f.client.ResumeFetchPartitions(map[string][]int32{b.Topic: {b.Partition}})
}

// inbox is what one partition has waiting for its seat. It is bounded: above the
// limit its partition pauses, so at most one fetch more comes in.
type inbox struct {
	feed *feed
	txn.TopicPartition
	poke func()

	mu     sync.Mutex
	queue  [][]*kgo.Record
	bytes  int
	paused bool
}

func (b *inbox) push(rs []*kgo.Record) {
	b.mu.Lock()
	b.queue = append(b.queue, rs)
	b.bytes += size(rs)
	if b.bytes > b.feed.limit && !b.paused {
		b.paused = true
		b.feed.client.PauseFetchPartitions(map[string][]int32{b.Topic: {b.Partition}})
	}
	b.mu.Unlock()
	b.poke()
}

// pop takes what one fetch brought, nil when nothing waits.
func (b *inbox) pop() []*kgo.Record {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) == 0 {
		return nil
	}
	rs := b.queue[0]
	b.queue[0] = nil
	b.queue = b.queue[1:]
	b.bytes -= size(rs)
	if b.bytes <= b.feed.limit/2 && b.paused {
		b.paused = false
		b.feed.client.ResumeFetchPartitions(map[string][]int32{b.Topic: {b.Partition}})
	}
	return rs
}

func size(rs []*kgo.Record) int {
	n := 0
	for _, r := range rs {
		n += 128 + len(r.Key) + len(r.Value)
		for _, h := range r.Headers {
			n += 48 + len(h.Key) + len(h.Value)
		}
	}
	return n
}
