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

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/txn"
)

// TailConfig of a Tail.
type TailConfig struct {
	// Opts reach the own region's cluster.
	Opts []kgo.Opt
	// PartitionBytes is what one fetch takes of a partition at most (a larger
	// batch comes whole all the same); default 256 KiB.
	PartitionBytes int32
	// QueueBytes is how much of a partition waits for its seat, as it lies in the log,
	// before fetching it pauses; default 512 KiB. What it unfolds to is seen when the
	// seat takes it, a batch at a time.
	QueueBytes int
	// TotalBytes is how much of all partitions waits before each of them gets a little
	// at a time; default 64 MiB.
	TotalBytes int
	// Decoder opens batches; nil: one with default limits.
	Decoder *txn.Decoder
	// HandoverBytes is how much of a partition that the tail has read waits for its
	// fold; what is older is read again. Default 4 MiB; all partitions together have 16
	// times as much at most.
	HandoverBytes int
	// Control wakes seats whose records wait to be described.
	Control *control.Follower
	Logger  *slog.Logger
}

// Tail owns the two consumers that all seats of an instance share: one reads the
// local partitions uncommitted (answers and dedupe do not wait for foreign
// transactions), one reads remote partitions committed, and of local ones what the fold
// does not get from the first ([Handover]).
type Tail struct {
	local  *feed
	inputs *feed
	follow *control.Follower

	handoverBytes int
	handovers     *handoverBudget

	mu      sync.Mutex               // guards what follows
	seats   map[*Seat][]control.Copy // with the copies that they read
	readers map[control.Copy]map[*Seat]struct{}
}

// NewTail makes the consumers; they fetch nothing before Run.
func NewTail(cfg TailConfig) (*Tail, error) {
	cfg.PartitionBytes = cmp.Or(cfg.PartitionBytes, 256<<10)
	cfg.QueueBytes = cmp.Or(cfg.QueueBytes, 512<<10)
	cfg.TotalBytes = cmp.Or(cfg.TotalBytes, 64<<20)
	cfg.HandoverBytes = cmp.Or(cfg.HandoverBytes, 4<<20)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.Decoder == nil {
		cfg.Decoder = txn.NewDecoder(txn.Limits{})
	}
	waiting := &waitingBytes{limit: cfg.TotalBytes, held: make(map[*inbox]struct{})}
	local, err := newFeed(cfg, waiting, false)
	if err != nil {
		return nil, err
	}
	inputs, err := newFeed(cfg, waiting, true)
	if err != nil {
		local.close()
		return nil, err
	}
	return &Tail{
		local: local, inputs: inputs, follow: cfg.Control,
		seats: make(map[*Seat][]control.Copy), readers: make(map[control.Copy]map[*Seat]struct{}),
		handoverBytes: cfg.HandoverBytes, handovers: &handoverBudget{limit: 16 * int64(cfg.HandoverBytes)},
	}, nil
}

// Run reads for all seats until the context ends, which it returns as nil. It
// owns the consumers' goroutines and connections.
func (t *Tail) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { t.local.run(ctx) })
	wg.Go(func() { t.inputs.run(ctx) })
	wg.Go(func() { t.watch(ctx) })
	wg.Wait()
	return nil
}

// watch wakes the seats that news of control concern.
func (t *Tail) watch(ctx context.Context) {
	sub := t.follow.Subscribe()
	defer sub.Close()
	t.poke(control.News{All: true})
	for {
		select {
		case <-ctx.Done():
			return
		case <-sub.Wake():
		}
		t.poke(sub.Take())
	}
}

// poke wakes seats: all, or those that read a copy of which there is news.
func (t *Tail) poke(news control.News) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if news.All {
		for s := range t.seats {
			s.pokeInputs()
		}
		return
	}
	for c := range news.Copies {
		for s := range t.readers[c] {
			s.pokeInputs()
		}
	}
}

func (t *Tail) join(s *Seat) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seats[s] = nil
}

// subscribe has watch wake a seat when there is news of its copy in a remote topic.
func (t *Tail) subscribe(s *Seat, remote event.TopicID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := control.Copy{Topic: remote, Partition: s.cfg.Partition}
	if t.readers[c] == nil {
		t.readers[c] = make(map[*Seat]struct{})
	}
	if _, known := t.readers[c][s]; !known {
		t.readers[c][s] = struct{}{}
		t.seats[s] = append(t.seats[s], c)
	}
}

func (t *Tail) leave(s *Seat) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.seats[s] {
		if delete(t.readers[c], s); len(t.readers[c]) == 0 {
			delete(t.readers, c)
		}
	}
	delete(t.seats, s)
}

// feed is one consumer, which fills the inboxes of partitions.
type feed struct {
	client   *kgo.Client
	hurry    *kgo.Client // for partitions that must not wait for a fetch of others
	admin    *kadm.Client
	consumer *txn.Consumer
	decoder  *txn.Decoder
	limit    int // bytes of an inbox
	waiting  *waitingBytes
}

func newFeed(cfg TailConfig, waiting *waitingBytes, committed bool) (*feed, error) {
	opts := append(append([]kgo.Opt(nil), cfg.Opts...), kgo.MetadataMinAge(100*time.Millisecond))
	cl, err := txn.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("make tail client: %w", err)
	}
	hurry, err := txn.NewClient(opts...)
	if err != nil {
		cl.Close()
		return nil, fmt.Errorf("make tail client: %w", err)
	}
	return &feed{
		client: cl, hurry: hurry, admin: kadm.NewClient(cl), decoder: cfg.Decoder, limit: cfg.QueueBytes, waiting: waiting,
		consumer: txn.NewConsumer(cl, txn.ConsumerConfig{
			Committed: committed, PartitionBytes: cfg.PartitionBytes, Wait: feedWait, Hurry: hurry, Earliest: true, Logger: cfg.Logger,
		}),
	}, nil
}

func (f *feed) run(ctx context.Context) {
	defer f.close()
	f.consumer.Run(ctx)
}

func (f *feed) close() {
	f.client.Close()
	f.hurry.Close()
}

// feedWait is how long a fetch waits where nothing is written. It may be long: what must not
// wait for it is fetched by hurry.
const feedWait = 2 * time.Second

// bounds lists where a partition's log begins and ends now (high watermark). Errors of
// other partitions of the topic do not count.
func (f *feed) bounds(ctx context.Context, p txn.TopicPartition) (start, end int64, err error) {
	if start, err = f.offsetOf(ctx, p, txn.LogStart, f.admin.ListStartOffsets); err != nil {
		return 0, 0, fmt.Errorf("list start of %s/%d: %w", p.Topic, p.Partition, err)
	}
	if end, err = f.offsetOf(ctx, p, txn.LogEnd, f.admin.ListEndOffsets); err != nil {
		return 0, 0, fmt.Errorf("list end of %s/%d: %w", p.Topic, p.Partition, err)
	}
	return start, end, nil
}

// lastOffset lists where a partition's log ends now, also above the high watermark: where the
// epoch of its leader ends.
func (f *feed) lastOffset(ctx context.Context, p txn.TopicPartition) (int64, error) {
	meta, err := f.admin.Metadata(ctx, p.Topic)
	if err != nil {
		return 0, fmt.Errorf("look up leader of %s/%d: %w", p.Topic, p.Partition, err)
	}
	leader, ok := meta.Topics[p.Topic].Partitions[p.Partition]
	if leader.Err != nil {
		return 0, fmt.Errorf("look up leader of %s/%d: %w", p.Topic, p.Partition, leader.Err)
	}
	if !ok || leader.LeaderEpoch < 0 {
		return 0, fmt.Errorf("look up leader of %s/%d: the broker does not say its epoch", p.Topic, p.Partition)
	}
	var req kadm.OffsetForLeaderEpochRequest
	req.Add(p.Topic, p.Partition, leader.LeaderEpoch)
	got, err := f.admin.OffsetForLeaderEpoch(ctx, req)
	at, ok := got[p.Topic][p.Partition]
	switch {
	case err == nil && ok && at.Err != nil:
		err = at.Err
	case err == nil && (!ok || at.EndOffset < 0):
		err = errors.New("the broker does not say")
	}
	if err != nil {
		return 0, fmt.Errorf("list the end of the leader's epoch in %s/%d: %w", p.Topic, p.Partition, err)
	}
	return at.EndOffset, nil
}

// offsetOf asks about one partition; where that fails, about its topic, of which the answer
// tells whether there is such a partition.
func (f *feed) offsetOf(ctx context.Context, p txn.TopicPartition, place txn.Place, list txn.Listing) (int64, error) {
	if offset, err := txn.OffsetOf(ctx, f.client, p, place); err == nil {
		return offset, nil
	}
	return offsetOf(ctx, p, list)
}

func offsetOf(ctx context.Context, p txn.TopicPartition, list txn.Listing) (int64, error) {
	all, err := list(ctx, p.Topic)
	at, ok := all.Lookup(p.Topic, p.Partition)
	switch {
	case ok:
		return at.Offset, at.Err
	case err != nil:
		return 0, err
	case all.Error() != nil:
		return 0, all.Error()
	}
	return 0, errNoPartition
}

// errNoPartition: the topic exists and has fewer partitions.
var errNoPartition = errors.New("no such partition")

// open begins to read a partition of the topic that id names; poke is called when its
// inbox gets batches.
func (f *feed) open(p txn.TopicPartition, id event.TopicID, from int64, poke func()) *inbox {
	b := &inbox{feed: f, TopicPartition: p, poke: poke}
	b.mu.Lock() // before the first batch there is a cursor to pause
	defer b.mu.Unlock()
	b.cursor = f.consumer.Open(p, id, from, b.push)
	return b
}

// inbox is what one partition has waiting for its seat: batches that are not
// opened yet. It is bounded: above the limit its partition pauses, so at most one fetch more
// comes in.
type inbox struct {
	feed *feed
	txn.TopicPartition
	poke func()

	walk *txn.Walk // through the batch at hand; pop's own

	mu     sync.Mutex
	cursor *txn.Cursor
	queue  []txn.Unread
	bytes  int
	paused bool
	closed bool
	lost   bool // what follows the queue was deleted; nothing more comes
}

func (b *inbox) close() {
	b.mu.Lock()
	left := b.bytes
	b.closed, b.queue, b.bytes = true, nil, 0
	b.cursor.Close()
	b.mu.Unlock()
	b.feed.waiting.leave(b, left)
}

// push takes what was fetched.
func (b *inbox) push(f txn.Fetched) {
	if len(f.Batches) == 0 && f.Lost == nil {
		return
	}
	b.mu.Lock()
	if b.lost = b.lost || f.Lost != nil; b.lost || b.closed {
		b.mu.Unlock()
		b.poke()
		return
	}
	came := 0
	for _, u := range f.Batches {
		b.queue = append(b.queue, u)
		came += weight(u)
	}
	b.bytes += came
	if full := b.feed.waiting.enter(b, came); (full || b.bytes > b.feed.limit) && !b.paused {
		b.paused = true
		b.cursor.Pause()
	}
	b.mu.Unlock()
	b.poke()
}

// ended tells whether all that was fetched has been taken and what follows was deleted
// before it was fetched.
func (b *inbox) ended() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lost && len(b.queue) == 0 && b.walk == nil
}

// next takes a batch; ok is false when none waits.
func (b *inbox) next() (u txn.Unread, ok bool) {
	b.mu.Lock()
	if len(b.queue) == 0 {
		b.mu.Unlock()
		return u, false
	}
	u = b.queue[0]
	b.queue[0] = txn.Unread{}
	b.queue = b.queue[1:]
	b.bytes -= weight(u)
	b.mu.Unlock()
	b.feed.waiting.leave(b, weight(u))
	return u, true
}

// resume has the partition fetched again if little of it waits: half an inbox, or nothing
// while all inboxes together are full.
func (b *inbox) resume(full bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	enough := b.feed.limit / 2
	if full {
		enough = 0
	}
	if b.paused && b.bytes <= enough && !b.closed {
		b.paused = false
		b.cursor.Resume()
	}
}

// waitingBytes bounds what lies in all inboxes of an instance: once that is too much, a
// partition is fetched again when nothing of it waits. So each goes on, and a thousand
// partitions that are behind at once do not take a thousand inboxes of memory.
type waitingBytes struct {
	limit int

	mu    sync.Mutex
	bytes int
	held  map[*inbox]struct{} // paused, or were, while it was too much
}

// enter counts what came into an inbox, and tells whether all of them are full.
func (w *waitingBytes) enter(b *inbox, n int) (full bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.bytes += n; w.bytes <= w.limit {
		return false
	}
	w.held[b] = struct{}{}
	return true
}

// leave counts what was taken from an inbox, and has those fetched again that may be.
func (w *waitingBytes) leave(b *inbox, n int) {
	w.mu.Lock()
	w.bytes -= n
	full := w.bytes > w.limit
	if full {
		w.held[b] = struct{}{} // it may rest because it was full itself
	}
	var all map[*inbox]struct{}
	if w.bytes <= w.limit/2 && len(w.held) > 0 {
		all, w.held = w.held, make(map[*inbox]struct{})
	}
	w.mu.Unlock()
	b.resume(full)
	for other := range all {
		if other != b {
			other.resume(false)
		}
	}
}

// popBytes is how much pop gives at once, but for a larger record.
const popBytes = 256 << 10

// pop gives some of what lies in the batches that wait, and opens them; nil when nothing
// waits.
func (b *inbox) pop() (out []Entry) {
	for bytes := 0; len(out) < takeMax && bytes < popBytes; {
		if b.walk == nil {
			u, ok := b.next()
			if !ok {
				break
			}
			b.walk = b.feed.decoder.Walk(u.Batch, u.From)
		}
		if out == nil {
			out = make([]Entry, 0, min(takeMax, 1+b.walk.Left()))
		}
		e, ok := b.walk.Next()
		if !ok {
			b.walk = nil
			continue
		}
		out = append(out, entryOf(&e))
		bytes += len(e.Key) + len(e.Value)
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// weight is what a batch that waits keeps in memory.
func weight(u txn.Unread) int { return 128 + len(u.Batch) }
