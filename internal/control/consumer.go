package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/txn"
)

const (
	fetchPartitionBytes = 128 << 10

	discoverEvery = 250 * time.Millisecond // while a wanted topic does not exist
	stallAfter    = 250 * time.Millisecond // without progress, before a hole is looked for
)

// consumer reads whole topics from their beginnings and knows how far it has
// come, markers, holes and aborted records included. Topics that do not exist yet
// are picked up when they do.
type consumer struct {
	client    *kgo.Client
	admin     *kadm.Client
	topics    *txn.Topics
	fetches   *txn.Consumer
	fetched   chan fetched
	decoder   *txn.Decoder
	committed bool
	wanted    []string
	log       *slog.Logger

	// take gets each record that is not a control record, in order for each
	// partition, also what was refused; readTo gets the new position after the records
	// below it were taken. Both run in run's goroutine.
	take   func(*txn.Record)
	readTo func(p txn.TopicPartition, next int64)
	// resume, if not nil, tells where to begin in a topic whose partitions begin at starts.
	resume func(ctx context.Context, topic string, starts map[int32]int64) (map[int32]int64, error)

	mu       sync.Mutex
	next     map[txn.TopicPartition]int64 // read below it
	epoch    map[txn.TopicPartition]int32 // leader epoch of the last batch that was taken
	consumed map[string]bool              // topics that are consumed
	advanced chan struct{}                // closed and replaced at every move
}

// fetched is what one answer brought of a partition.
type fetched struct {
	txn.TopicPartition
	txn.Fetched
}

func newConsumer(cfg *Config, committed bool, wanted []string, log *slog.Logger) (*consumer, error) {
	cl, err := txn.NewClient(append(append([]kgo.Opt(nil), cfg.Opts...), kgo.MetadataMinAge(100*time.Millisecond))...)
	if err != nil {
		return nil, fmt.Errorf("make client for control topics: %w", err)
	}
	return &consumer{
		client: cl, admin: kadm.NewClient(cl), topics: txn.NewTopics(cl), committed: committed, wanted: wanted, log: log,
		fetches: txn.NewConsumer(cl, txn.ConsumerConfig{
			Committed: committed, PartitionBytes: fetchPartitionBytes, Earliest: true, Logger: log,
		}),
		fetched: make(chan fetched), decoder: cfg.Decoder,
		next: make(map[txn.TopicPartition]int64), epoch: make(map[txn.TopicPartition]int32), consumed: make(map[string]bool), advanced: make(chan struct{}),
	}, nil
}

// run polls until the context ends, which it returns as nil.
func (c *consumer) run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer c.client.Close()
	defer wg.Wait()
	wg.Go(func() { c.discover(ctx) })
	wg.Go(func() { c.fetches.Run(ctx) })
	for {
		select {
		case <-ctx.Done():
			return nil
		case f := <-c.fetched:
			c.takeAll(f)
		}
	}
}

// takeAll takes what was fetched of a partition.
func (c *consumer) takeAll(f fetched) {
	for _, u := range f.Batches {
		w := c.decoder.Walk(u.Batch, u.From)
		for e, ok := w.Next(); ok; e, ok = w.Next() {
			if !e.Control {
				e.Topic, e.Partition = f.Topic, f.Partition
				c.take(&e.Record)
			}
		}
	}
	if n := len(f.Batches); n > 0 {
		c.mu.Lock()
		c.epoch[f.TopicPartition] = f.Batches[n-1].Batch.LeaderEpoch()
		c.mu.Unlock()
	}
	c.advance(f.TopicPartition, f.Next)
}

// epochOf is the leader epoch of the last batch that was taken of a partition, -1 if there
// was none.
func (c *consumer) epochOf(p txn.TopicPartition) int32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if epoch, ok := c.epoch[p]; ok {
		return epoch
	}
	return -1
}

// open begins to read a partition; what comes of it is handed over until the context
// ends.
func (c *consumer) open(ctx context.Context, p txn.TopicPartition, from int64) {
	c.fetches.Open(p, [16]byte{}, from, func(f txn.Fetched) {
		select {
		case c.fetched <- fetched{p, f}:
		case <-ctx.Done():
		}
	})
}

// advance advances a position and wakes who waits for it.
func (c *consumer) advance(p txn.TopicPartition, next int64) {
	c.mu.Lock()
	if next <= c.next[p] {
		c.mu.Unlock()
		return
	}
	c.next[p] = next
	close(c.advanced)
	c.advanced = make(chan struct{})
	c.mu.Unlock()
	c.readTo(p, next)
}

func (c *consumer) position(p txn.TopicPartition) (next int64, wake <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.next[p], c.advanced
}

// discover begins to consume each wanted topic once it exists, then ends.
func (c *consumer) discover(ctx context.Context) {
	tick := time.NewTicker(discoverEvery)
	defer tick.Stop()
	for {
		missing, err := c.discoverOnce(ctx)
		if err != nil && ctx.Err() == nil {
			c.log.Warn("cannot list control topics; will try again", "err", err)
		}
		if err == nil && missing == 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (c *consumer) discoverOnce(ctx context.Context) (missing int, err error) {
	var ask []string
	c.mu.Lock()
	for _, t := range c.wanted {
		if !c.consumed[t] {
			ask = append(ask, t)
		}
	}
	c.mu.Unlock()
	if len(ask) == 0 {
		return 0, nil
	}
	starts, err := c.admin.ListStartOffsets(ctx, ask...)
	if err != nil {
		return len(ask), fmt.Errorf("list start offsets: %w", err)
	}
	add := make(map[string]map[int32]int64)
	for _, t := range ask {
		parts, ok := starts[t]
		if !ok || len(parts) == 0 {
			missing++
			continue
		}
		froms := make(map[int32]int64, len(parts))
		for p, o := range parts {
			if o.Err != nil {
				froms = nil
				if !errors.Is(o.Err, kerr.UnknownTopicOrPartition) {
					err = errors.Join(err, fmt.Errorf("list start of %s/%d: %w", t, p, o.Err))
				}
				break
			}
			froms[p] = o.Offset
		}
		if froms == nil {
			missing++
			continue
		}
		if c.resume != nil {
			var failed error
			if froms, failed = c.resume(ctx, t, froms); failed != nil {
				missing++
				err = errors.Join(err, failed)
				continue
			}
		}
		add[t] = froms
	}
	c.mu.Lock()
	for t, froms := range add {
		c.consumed[t] = true
		for p, from := range froms {
			pl := txn.TopicPartition{Topic: t, Partition: p}
			c.next[pl] = max(c.next[pl], from)
		}
	}
	c.mu.Unlock()
	for t, froms := range add {
		for p, from := range froms {
			pl := txn.TopicPartition{Topic: t, Partition: p}
			c.readTo(pl, from)
			c.open(ctx, pl, from)
		}
	}
	return missing, err
}

// highWatermarks lists the high watermarks of topics now. A topic that does not exist is
// left out.
func (c *consumer) highWatermarks(ctx context.Context, topics ...string) (map[txn.TopicPartition]int64, error) {
	return c.ends(ctx, c.admin.ListEndOffsets, topics)
}

// stableOffsets lists the last stable offsets of topics now, as highWatermarks does.
func (c *consumer) stableOffsets(ctx context.Context, topics ...string) (map[txn.TopicPartition]int64, error) {
	return c.ends(ctx, c.admin.ListCommittedOffsets, topics)
}

func (c *consumer) ends(ctx context.Context, list txn.Listing, topics []string) (map[txn.TopicPartition]int64, error) {
	listed, err := txn.List(ctx, c.client, list, topics...)
	if err != nil {
		return nil, err
	}
	ends := make(map[txn.TopicPartition]int64)
	for t, parts := range listed {
		for p, o := range parts {
			ends[txn.TopicPartition{Topic: t, Partition: p}] = o.Offset
		}
	}
	return ends, nil
}

// awaitAll returns when every partition has been read to its end.
func (c *consumer) awaitAll(ctx context.Context, ends map[txn.TopicPartition]int64) error {
	for p, end := range ends {
		if err := c.await(ctx, p, end); err != nil {
			return err
		}
	}
	return nil
}

// await returns when p has been read to end. Where nothing arrives although the
// log goes on, it looks whether a hole lies there.
func (c *consumer) await(ctx context.Context, p txn.TopicPartition, end int64) error {
	timer := time.NewTimer(stallAfter)
	defer timer.Stop()
	for {
		next, wake := c.position(p)
		if next >= end {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("read %s/%d from %d to %d: %w", p.Topic, p.Partition, next, end, ctx.Err())
		case <-wake:
		case <-timer.C:
			if err := c.skipHole(ctx, p, next); err != nil && ctx.Err() == nil {
				c.log.Warn("cannot find out whether a control topic has a hole; will try again", "topic", p.Topic, "partition", p.Partition, "err", err)
			}
			timer.Reset(stallAfter)
		}
	}
}

// skipHole moves over offsets at next that hold no record for good.
func (c *consumer) skipHole(ctx context.Context, p txn.TopicPartition, next int64) error {
	to, err := txn.Peek(ctx, c.topics, p, next, c.committed)
	if err != nil {
		return err
	}
	if to > next {
		c.advance(p, to)
	}
	return nil
}
