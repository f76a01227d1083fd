package txn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// ConsumerConfig of a Consumer.
type ConsumerConfig struct {
	// Committed: records of open and aborted transactions are left out.
	Committed bool
	// PartitionBytes is what one answer takes of a partition at most; a larger batch
	// comes whole all the same. Default 256 KiB.
	PartitionBytes int32
	// Wait is how long a broker may wait for something to come, after nothing has come for a
	// while. Default 2 s.
	Wait time.Duration
	// Hurry, if not nil, has connections of its own: over them a partition is read that
	// was opened, or goes on, while a fetch of others waits at its broker. Without it
	// such a partition waits as long.
	Hurry *kgo.Client
	// Earliest: a partition whose next offset lies outside its log is read from the
	// log's start, and its reader is told what was deleted (Fetched.Lost); else its
	// reading ends.
	Earliest bool
	// Brief: the consumer lives for one read, and leaves nothing behind at the
	// brokers.
	Brief  bool
	Logger *slog.Logger // nil discards
}

const (
	consumerBytes    = 64 << 20 // of one answer
	leastPartBytes   = 16 << 10 // of a partition, however many there are
	consumerRetry    = 100 * time.Millisecond
	consumerResolve  = 250 * time.Millisecond
	consumerWait     = 2 * time.Second
	consumerPart     = 256 << 10
	complainInterval = 10 * time.Second // of one partition
)

// Consumer reads partitions from given offsets on and gives what it got as batches
// that are not opened yet: a client library's own consumer decompresses and decodes
// whatever comes, and goes no further where it cannot. A partition whose log
// has lost its tail under a new leader is read again from where it diverges.
//
// The methods are safe for concurrent use while Run runs.
type Consumer struct {
	cl  *kgo.Client
	cfg ConsumerConfig
	log *slog.Logger

	wake chan struct{} // holds one signal: leaders are to be looked up

	mu       sync.Mutex
	open     map[*Cursor]bool   // guarded by mu, as everything below and in the cursors
	sessions map[int32]*session // by broker
	version  uint64             // rises when what is to be fetched from any broker may be another
}

// Fetched is what one answer brought of a partition.
type Fetched struct {
	Batches []Unread
	// Next is the first offset that has not been read: above the last of Batches where
	// aborted records follow.
	Next int64
	// Lost, if not nil, is what was deleted before it was read. It lies below all that is
	// delivered from now on, and Batches is empty.
	Lost *Lost
	// Err, if not nil, says why the partition is not read now. It is tried again, but
	// for kerr.OffsetOutOfRange, which ends the reading, unless Earliest is set.
	Err error
}

// Lost is a stretch of offsets that a log had and that were deleted.
type Lost struct{ From, Until int64 }

// Unread is a batch that is not opened yet, and the offset from which on it is to be
// read.
type Unread struct {
	Batch Batch
	From  int64
}

// NewConsumer makes a consumer over a client, which must be its own, as that of Hurry: a
// client has one connection to a broker for fetches, which serves one request at a time.
// It fetches nothing before Run.
func NewConsumer(cl *kgo.Client, cfg ConsumerConfig) *Consumer {
	cfg.PartitionBytes = cmp.Or(cfg.PartitionBytes, consumerPart)
	cfg.Wait = cmp.Or(cfg.Wait, consumerWait)
	return &Consumer{
		cl: cl, cfg: cfg, log: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)), wake: make(chan struct{}, 1),
		open: make(map[*Cursor]bool), sessions: make(map[int32]*session),
	}
}

// Cursor is a partition that is being read.
type Cursor struct {
	c       *Consumer
	at      TopicPartition
	id      [16]byte // of the topic; zero: not known yet
	deliver func(Fetched)

	// Guarded by Consumer.mu.
	next      int64 // to fetch
	lastEpoch int32 // leader epoch of the last batch delivered, -1 none
	paused    bool
	leader    int32
	epoch     int32 // the leader's, -1 unknown
	resolved  bool
	notBefore time.Time // after an error: when the leader is looked up again
	held      bool      // a hurried fetch has it: no other may take it
	check     bool      // the leader is another: what was read may not be in its log
	outside   bool      // next lies outside the log
	complains time.Time
}

// Open begins to read a partition at an offset. What is read is given to deliver, in
// order, by one goroutine at a time, which waits for it to return. A topic that is
// deleted and created again is not read on; id, if not zero, says which one is meant
// from the start. A partition may be open once at a time.
func (c *Consumer) Open(at TopicPartition, id [16]byte, from int64, deliver func(Fetched)) *Cursor {
	k := &Cursor{c: c, at: at, id: id, deliver: deliver, next: from, lastEpoch: -1, epoch: -1}
	c.mu.Lock()
	c.open[k] = true
	c.version++
	c.mu.Unlock()
	c.signal()
	return k
}

// Close ends the reading; one call of deliver may be under way still.
func (k *Cursor) Close() {
	k.c.mu.Lock()
	defer k.c.mu.Unlock()
	delete(k.c.open, k)
	k.c.version++
}

// Pause stops fetching until Resume; what is under way still comes.
func (k *Cursor) Pause() { k.setPaused(true) }

// Resume takes Pause back.
func (k *Cursor) Resume() { k.setPaused(false) }

func (k *Cursor) setPaused(p bool) {
	k.c.mu.Lock()
	k.paused = p
	k.c.version++
	k.c.mu.Unlock()
	if !p {
		k.c.signal()
	}
}

func (c *Consumer) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Run fetches until the context ends. It owns the consumer's goroutines.
func (c *Consumer) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		again := c.resolve(ctx)
		c.mu.Lock()
		for k := range c.open {
			if k.resolved && !k.paused {
				c.start(ctx, &wg, k)
			}
		}
		c.mu.Unlock()
		var retry <-chan time.Time
		if again > 0 {
			retry = time.After(again)
		}
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		case <-retry:
		}
	}
}

// start has a cursor fetched that may not be fetched yet; the caller holds mu.
func (c *Consumer) start(ctx context.Context, wg *sync.WaitGroup, k *Cursor) {
	s := c.sessions[k.leader]
	if s == nil {
		s = &session{c: c, broker: k.leader}
		c.sessions[k.leader] = s
	}
	if !s.running {
		s.running = true
		wg.Go(func() { s.run(ctx) })
	}
	if c.cfg.Hurry != nil && !s.hurries && s.leftOut(k) {
		s.hurries = true
		wg.Go(func() { s.hurry(ctx) })
	}
}

// resolve looks up leaders that are not known. Where some are missing still, it tells when
// to try again.
func (c *Consumer) resolve(ctx context.Context) (again time.Duration) {
	ask := make(map[string]bool)
	now := time.Now()
	c.mu.Lock()
	for k := range c.open {
		switch {
		case k.resolved:
		case now.Before(k.notBefore):
			again = consumerRetry
		default:
			ask[k.at.Topic] = true
		}
	}
	c.mu.Unlock()
	if len(ask) == 0 {
		return again
	}
	found, failed := c.describe(ctx, slices.Collect(maps.Keys(ask)))
	var changed []*Cursor
	missing := false
	c.mu.Lock()
	for k := range c.open {
		if k.resolved || !ask[k.at.Topic] || now.Before(k.notBefore) {
			continue
		}
		if cause := k.resolve(found, failed[k.at.Topic]); cause != nil {
			missing = true
			c.complain(k, cause)
		} else if k.check || k.outside {
			changed = append(changed, k)
		}
	}
	c.version++
	c.mu.Unlock()
	for _, k := range changed {
		missing = !k.validate(ctx) || missing
	}
	if missing && again == 0 {
		again = consumerResolve
	}
	return again
}

// describe asks about topics, one by one where one of them spoils the answer for all.
func (c *Consumer) describe(ctx context.Context, names []string) (found map[string]Topic, failed map[string]error) {
	found, err := Describe(ctx, c.cl, names...)
	if err == nil {
		return found, nil
	}
	if len(names) == 1 {
		return nil, map[string]error{names[0]: err}
	}
	found, failed = make(map[string]Topic), make(map[string]error)
	for _, n := range names {
		one, err := Describe(ctx, c.cl, n)
		maps.Copy(found, one)
		if err != nil {
			failed[n] = err
		}
	}
	return found, failed
}

// resolve takes the leader of a cursor from a description of its topic, or what went
// wrong with that; the caller holds mu.
func (k *Cursor) resolve(found map[string]Topic, err error) error {
	if err != nil {
		return err
	}
	t, ok := found[k.at.Topic]
	if !ok {
		return kerr.UnknownTopicOrPartition
	}
	if k.id == ([16]byte{}) {
		k.id = t.ID
	} else if t.ID != k.id && t.ID != ([16]byte{}) {
		return fmt.Errorf("%w: it was deleted and created again", kerr.UnknownTopicID)
	}
	leader, err := t.Leader(k.at.Partition)
	if err != nil {
		return err
	}
	epoch := t.Epochs[k.at.Partition]
	k.check = k.check || k.lastEpoch >= 0 && epoch != k.epoch
	k.leader, k.epoch = leader, epoch
	k.resolved = !k.check && !k.outside
	return nil
}

// validate finds out where a cursor has to go on in the log of a new leader, or in one
// that does not reach as far as it has read: where the leader epoch of the last batch
// ends there, else at the log's start. It tells whether that is known.
func (k *Cursor) validate(ctx context.Context) bool {
	c := k.c
	c.mu.Lock()
	epoch, next, outside := k.lastEpoch, k.next, k.outside
	c.mu.Unlock()
	end, start := next, int64(0)
	var err error
	if epoch >= 0 {
		end, err = epochEnd(ctx, c.cl, k.at, epoch)
	}
	if outside && err == nil {
		start, err = logStart(ctx, c.cl, k.at)
	}
	c.mu.Lock()
	if err != nil {
		c.complain(k, fmt.Errorf("find out where to read on: %w", err))
		c.mu.Unlock()
		return false
	}
	var lost *Lost
	switch {
	case end >= start && end >= 0 && end < next:
		c.log.Warn("a log has lost its tail; reading again from where it diverges", "topic", k.at.Topic, "partition", k.at.Partition, "from", end, "read", next)
		k.next = end
	case outside:
		c.log.Warn("a log does not hold what is to be read; reading from its start", "topic", k.at.Topic, "partition", k.at.Partition, "from", start, "wanted", next)
		if k.next = start; start > next {
			lost = &Lost{next, start}
		}
	}
	open := c.open[k]
	c.mu.Unlock()
	if lost != nil && open {
		k.deliver(Fetched{Next: start, Lost: lost}) // nothing is fetched before it is resolved
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	k.check, k.outside, k.resolved = false, false, true
	c.version++
	return true
}

func epochEnd(ctx context.Context, cl *kgo.Client, at TopicPartition, epoch int32) (int64, error) {
	var req kadm.OffsetForLeaderEpochRequest
	req.Add(at.Topic, at.Partition, epoch)
	got, err := kadm.NewClient(cl).OffsetForLeaderEpoch(ctx, req)
	if err != nil {
		return 0, err
	}
	e, ok := got[at.Topic][at.Partition]
	if !ok {
		return 0, kerr.UnknownTopicOrPartition
	}
	return e.EndOffset, e.Err
}

// complain logs now and then that a partition is not read; the caller holds mu.
func (c *Consumer) complain(k *Cursor, err error) {
	if now := time.Now(); !errors.Is(err, context.Canceled) && now.After(k.complains) {
		k.complains = now.Add(complainInterval)
		c.log.Warn("cannot fetch from a partition; will try again", "topic", k.at.Topic, "partition", k.at.Partition, "err", err)
	}
}

func logStart(ctx context.Context, cl *kgo.Client, at TopicPartition) (int64, error) {
	starts, err := kadm.NewClient(cl).ListStartOffsets(ctx, at.Topic)
	if err != nil {
		return 0, err
	}
	o, ok := starts.Lookup(at.Topic, at.Partition)
	if !ok {
		return 0, kerr.UnknownTopicOrPartition
	}
	return o.Offset, o.Err
}

// unread takes an answer apart, of which records from an offset on were asked for. It
// gives the leader epoch of the last batch, -1 if there is none.
func unread(rp *kmsg.FetchResponseTopicPartition, from int64) (f Fetched, lastEpoch int32) {
	f.Next, lastEpoch = from, -1
	batches, err := Split(rp.RecordBatches)
	aborted := NewAborts(rp.AbortedTransactions)
	for _, b := range batches {
		if b.Magic() == 2 {
			if cerr := b.Check(); errors.Is(cerr, ErrCorrupt) || b.LastOffsetDelta() < 0 {
				f.Err = fmt.Errorf("batch at %d: %w", b.BaseOffset(), errors.Join(cerr, ErrMalformed))
				return f, lastEpoch
			}
		}
		skip, _, merr := aborted.Take(b)
		if merr != nil {
			f.Err = fmt.Errorf("batch at %d: %w", b.BaseOffset(), merr)
			return f, lastEpoch
		}
		if b.NextOffset() <= f.Next {
			continue // a fetch inside a batch brings what lies before it too
		}
		if b.Magic() < 2 || b.Count() != 0 && (b.Control() || !skip) {
			f.Batches = append(f.Batches, Unread{b, f.Next})
		}
		f.Next = b.NextOffset()
		if b.Magic() == 2 {
			lastEpoch = b.LeaderEpoch()
		}
	}
	f.Err = err
	return f, lastEpoch
}
