package view

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/semaphore"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/defect"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/judged"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/internal/sleep"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/internal/warning"
)

// Fetcher gives an event from its origin's log, or from the copy of that log in
// this region: a refold that makes an event live again needs its value.
type Fetcher interface {
	Fetch(ctx context.Context, at event.Dot) (event.Event, error)
}

// Config of a View.
type Config struct {
	Topic     string        // local topic
	ID        event.TopicID // of it, in the own cluster
	Partition int32
	Merged    string // name of the merged topic
	// ConflictPartition is the partition of _geogate.conflicts for this one.
	ConflictPartition int32

	Region event.RegionID // own
	Names  event.RegionNames
	Fold   conflict.Config

	Client *kgo.Client // shared, not closed here
	Topics *txn.Topics // shared cache of the client; nil makes one
	// Producer is that of the view before this one in the same process, over the same
	// client, so that this one takes nothing from another instance; nil makes one.
	Producer *txn.Producer
	Decoder  *txn.Decoder // nil: one with default limits
	DB       *badger.DB   // shared store
	Fetcher  Fetcher
	// Place is where an event lies in this region's cluster; nil: that is not known.
	Place func(at event.Dot) (topic string, offset int64, err error)
	// Widen gives the derived topics the limits that they need, and tells whether they
	// had others. It is asked when one of them refuses a record; nil: nothing is done.
	Widen func(ctx context.Context) (changed bool, err error)
	// Claims is what the seat's progress may say now; ok is false while there is
	// nothing to say. Nil: no progress is written.
	Claims func() (cl seat.Claims, ok bool)

	// Restricted is what control says of restricted origins (bit r: origin r),
	// beyond what comes with the items. Nil: nothing.
	Restricted func() uint16

	// Sight fills in what the frontier needs to know of other regions: the Regions and what
	// each has Told. The rest is set, which is what this region knows itself. Nil: there is no
	// frontier.
	Sight func(*conflict.Sight)

	// Published is what control last said of the partition, as far as it is known here;
	// nil, or ok false: nothing.
	Published func() (p control.Progress, ok bool)

	ProgressEvery time.Duration // default 500 ms
	// IdleProgressEvery is for progress that has nothing to tell but a later closed
	// stamp, for which only the expiry of idempotency keys waits; default 10 minutes.
	IdleProgressEvery time.Duration
	// TidyEvery is the least time between two passes that drop what nobody needs below the
	// frontier; default 10 s. NeededEvery is the least time between two passes that also move
	// every base to the frontier, so that no log is needed below it, and then forget deleted
	// entities. That may read the log once for each entity that is always in use; default the
	// window, but 1 minute at least and 10 at most.
	TidyEvery, NeededEvery time.Duration
	QueueBytes             int   // of items that wait to be folded, beyond which Fold blocks; default 8 MiB
	Room                   *Room // shared by the partitions of an instance; nil: not bounded together
	// Transactions bounds how many partitions of an instance have a transaction at a time;
	// nil: nothing does.
	Transactions *semaphore.Weighted
	Wall         func() time.Time
	// Skipped remembers records of the state topic that cannot be used; nil: nobody does.
	Skipped      *warning.Skipped
	Logger       *slog.Logger
	Uncompressed bool // the batches that the view writes
}

func (c Config) withDefaults() Config {
	c.ProgressEvery = cmp.Or(c.ProgressEvery, 500*time.Millisecond)
	c.IdleProgressEvery = cmp.Or(c.IdleProgressEvery, 10*time.Minute)
	c.TidyEvery = cmp.Or(c.TidyEvery, 10*time.Second)
	// What is kept of keys follows the window: less often would keep several windows of them.
	c.NeededEvery = cmp.Or(c.NeededEvery, min(10*time.Minute, max(c.Fold.Window, time.Minute)))
	c.QueueBytes = cmp.Or(c.QueueBytes, 8<<20)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	if c.Wall == nil {
		c.Wall = time.Now
	}
	if c.Decoder == nil {
		c.Decoder = txn.NewDecoder(txn.Limits{})
	}
	if c.Topics == nil && c.Client != nil {
		c.Topics = txn.NewTopics(c.Client)
	}
	return c
}

// Validate says what is missing.
func (c Config) Validate() error {
	switch {
	case c.Topic == "" || c.Merged == "" || c.Partition < 0 || c.ConflictPartition < 0:
		return fmt.Errorf("view: partition %q/%d merged into %q is none", c.Topic, c.Partition, c.Merged)
	case !c.Region.Valid():
		return fmt.Errorf("view: region id %d is not valid", c.Region)
	case c.Fold.Kind != conflict.Events && c.Fold.Kind != conflict.Entities:
		return fmt.Errorf("view: topic kind %d is not known", c.Fold.Kind)
	case c.Client == nil || c.DB == nil || c.Names == nil:
		return errors.New("view: a dependency is missing")
	}
	return nil
}

// A step takes what waits, up to stepBytes: few items while little comes, so that nobody
// waits for others, and many at once while the fold is behind, as a transaction costs the
// same for one record as for thousands. Where transactions are slow it takes fewer.
const (
	stepBytes = 8 << 20
	leastStep = 64 << 10
	slowStep  = 3 * time.Second        // a transaction that takes longer makes the next steps smaller
	fastStep  = 500 * time.Millisecond // one that takes less, larger again
)

// View is the fold of one partition. Run folds; the other methods may be called
// from any goroutine.
type View struct {
	cfg      Config
	producer *txn.Producer
	store    *store
	journal  *Journal
	ready    chan struct{} // closed after the first restore
	wake     chan struct{} // holds one: there may be something to fold
	urgent   chan struct{} // holds one: the next step is not to wait for more

	// Owned by Run's goroutine.
	fold     *conflict.Partition
	at       vectorRecord
	stateID  event.TopicID     // of the state topic
	taken    itemParts         // taken from the queue, not committed
	schedule *progressSchedule // when progress is written
	settled  frontierState
	cache    cacheState
	refusals refusals // of the items taken
	tidying  tidier
	limit    int   // bytes of a step
	mem      arena // for the state records of the step in hand
	headers  []event.Header
	values   []byte        // of headers
	foldedAt time.Time     // when the last step was committed; zero: memory is let go
	began    time.Time     // of the last step
	took     time.Duration // of its transaction
	// pauseEnds is the timer of pause.
	pauseEnds *time.Timer

	mu           sync.Mutex // guards what follows
	restored     bool
	queue        itemParts
	held         int   // bytes of the queue and of the step in hand
	waiters      int   // in Wait or Confirm, or in Fold for room
	ended        error // set when Run has ended
	committed    conflict.Position
	frontier     event.Vector // that was set
	vectorOffset int64        // merged records below it are those up to committed, but for corrections that cuts have made since
	mergedEnd    int64        // of the merged partition, as far as it is written
	chain        checkpoints
	moved        chan struct{} // closed and replaced when committed moves, or the queue gets room
	confirms     confirms
	status       Status
	judged       judgedLog
}

// Status is a view's state for people and metrics.
type Status struct {
	Ready     bool
	Journaled bool // the journal has all that is folded; nothing is folded before
	Queued    int  // items
	Steps     uint64
	Restarts  uint64 // transactions whose outcome had to be read
	// Failing is why the latest step, or the restore, failed; "" once folding goes on.
	Failing string
	Counts  conflict.Counts
	// Orphans is how many orphans of each origin this region has met, ever.
	Orphans [event.MaxRegion + 1]int
	// NativeOrphans is how many of the own region's came without a gateway and were met
	// since the start, and NativeOrphan the latest: whoever wrote them was told nothing.
	NativeOrphans uint64
	NativeOrphan  event.Dot
	Merged        uint64 // records written
	Conflicts     uint64 // records written
	// Replaced is what was written in place of records that a derived topic refused, by
	// the topic.
	Replaced   map[string]Replaced
	ReplacedBy map[ReplacedKind]uint64
	Frontier   FrontierStatus
	// Needed is from where on the logs are needed to fill a store that was lost; the state
	// topic has everything below. Zero: they are needed from their beginnings.
	Needed event.Vector
	// Unmoved is why Needed does not rise: a value below the frontier that the state has to
	// have cannot be read from the log; "" once all could.
	Unmoved string
}

// New opens a view over the shared store; it does nothing before Run.
func New(cfg Config) (*View, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	v := &View{
		cfg:   cfg,
		ready: make(chan struct{}), wake: make(chan struct{}, 1), urgent: make(chan struct{}, 1), moved: make(chan struct{}),
		committed: conflict.Start(), limit: stepBytes,
		schedule: newProgressSchedule(cfg.Topic, cfg.Partition, cfg.ProgressEvery, cfg.IdleProgressEvery),
	}
	if v.producer = cfg.Producer; v.producer == nil {
		id := fmt.Sprintf("geogate.fold.%s.%d", cfg.Topic, cfg.Partition)
		codec := txn.Codec
		if cfg.Uncompressed {
			codec = kgo.CodecNone
		}
		v.producer = txn.New(cfg.Client, id, txn.Options{Topics: cfg.Topics, Codec: codec})
	}
	sp := space(storePrefix(cfg.ID, cfg.Partition))
	var err error
	if v.journal, err = openJournal(cfg.DB, sp, cfg.Fold, v.wakeUp); err != nil {
		return nil, fmt.Errorf("view of %s/%d: %w", cfg.Topic, cfg.Partition, err)
	}
	v.store = newStore(cfg.DB, sp, v.journal)
	v.store.decoded.room = cfg.Room
	return v, nil
}

// Producer is for the view that follows this one; Run must have returned.
func (v *View) Producer() *txn.Producer { return v.producer }

// Journal is the index that the seat feeds before it calls Fold.
func (v *View) Journal() *Journal { return v.journal }

// Ready is closed once the committed vector is known.
func (v *View) Ready() <-chan struct{} { return v.ready }

func (v *View) wakeUp() {
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

const (
	restartMin = 50 * time.Millisecond
	restartMax = 2 * time.Second
)

// Run folds until the context ends, and then returns nil. It returns an error that
// wraps seat.ErrSuperseded when another instance of the region folds the
// partition, or a *defect.Error after a panic; it must not be run again in this process.
// Every other error ends in reading the committed state again and going on.
func (v *View) Run(ctx context.Context) error {
	defer v.cfg.Room.join()()
	wait := restartMin
	for {
		before := v.Status().Steps
		err := defect.Guard(func() error { return v.runTerm(ctx) })()
		var broken *defect.Error
		switch {
		case errors.As(err, &broken):
			err = fmt.Errorf("view of %s/%d: %w: %w", v.cfg.Topic, v.cfg.Partition, seat.ErrHeld, err)
			v.stopWith(err)
			return err
		case ctx.Err() != nil:
			v.stopWith(ctx.Err())
			return nil
		case errors.Is(err, errTaken):
			err = fmt.Errorf("view of %s/%d: %w: %w", v.cfg.Topic, v.cfg.Partition, seat.ErrSuperseded, err)
			v.stopWith(err)
			return err
		}
		v.cfg.Logger.Warn("fold step failed; will read the state topic again and go on", "topic", v.cfg.Topic, "partition", v.cfg.Partition, "err", err)
		v.damaged(err)
		v.mu.Lock()
		v.status.Restarts++
		v.status.Failing = err.Error()
		v.mu.Unlock()
		if v.Status().Steps > before {
			wait = restartMin
		}
		if sleep.For(ctx, wait) != nil {
			v.stopWith(ctx.Err())
			return nil
		}
		wait = min(2*wait, restartMax)
	}
}

// stopWith makes Fold and Wait return.
func (v *View) stopWith(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.ended = err
	v.leaveRoom(v.held)
	v.notify()
}

// leaveRoom says that so many bytes of items are not kept any more; the caller holds mu.
func (v *View) leaveRoom(bytes int) {
	v.held -= bytes
	v.cfg.Room.leave(bytes)
}

// notify wakes all that wait for the view; the caller holds mu.
func (v *View) notify() {
	close(v.moved)
	v.moved = make(chan struct{})
}

// runTerm folds from a restore to the first error.
func (v *View) runTerm(ctx context.Context) error {
	if err := v.restore(ctx); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	look := time.NewTimer(0)
	defer look.Stop()
	v.pauseEnds = time.NewTimer(stepEvery)
	defer v.pauseEnds.Stop()
	for {
		v.pause(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if _, waits := v.asked(); waits { // not behind a step, which may fail for reasons of its own
			if err := v.publish(ctx); err != nil {
				return err
			}
		}
		if v.take(); v.taken.items > 0 {
			v.began = time.Now()
			if err := v.step(ctx); err != nil {
				return err
			}
			v.works()
			v.schedule.changed(v.cfg.Wall())
			if _, err := v.tidy(ctx); err != nil {
				return err
			}
			continue
		}
		if err := v.publish(ctx); err != nil {
			return err
		}
		v.works()
		if more, err := v.tidy(ctx); err != nil {
			return err
		} else if more {
			continue
		}
		look.Reset(min(v.schedule.wait(v.cfg.Wall()), v.tidyWait(v.cfg.Wall())))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-v.wake:
			v.schedule.changed(v.cfg.Wall())
		case <-look.C:
			v.rest()
		}
	}
}

// restAfter is how long after a step its partition is said to rest.
const restAfter = 20 * time.Second

// rest lets go of the memory that only makes steps faster: an instance may have many
// partitions, of which few are written.
func (v *View) rest() {
	if v.foldedAt.IsZero() || time.Since(v.foldedAt) < restAfter {
		return
	}
	v.foldedAt = time.Time{}
	v.store.decoded.clear()
	v.journal.forget()
	v.headers, v.values = nil, nil
}

// works takes back what the status says of a failed step.
func (v *View) works() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.status.Failing = ""
}

// take moves items from the queue to taken: those that the journal has, as many
// as one step takes. While the journal lags the committed vector it
// takes none.
func (v *View) take() {
	if v.taken.items > 0 {
		return // the step before failed
	}
	applied, _ := v.journal.Applied()
	v.mu.Lock()
	defer v.mu.Unlock()
	most := min(v.queue.items, v.refusals.most())
	for _, v.status.Journaled = conflict.Foldable(nil, &applied, &v.committed.Vector); v.taken.items < most && v.taken.bytes < v.limit; {
		part := v.queue.list[0]
		n, _ := conflict.Foldable(part[:min(len(part), most-v.taken.items)], &applied, &v.committed.Vector)
		if !v.queue.move(&v.taken, n, v.limit) {
			break
		}
	}
	if v.taken.items > 0 {
		v.notify()
	}
}

// Fold implements seat.Folder: it queues the items, which are not to be changed any more, and
// blocks while too much is queued. What it was given is folded some time later, in order for
// each origin; Wait says when. It returns an error only when Run or the context has ended.
func (v *View) Fold(ctx context.Context, items []judged.Item) error {
	for {
		v.mu.Lock()
		if v.ended != nil {
			defer v.mu.Unlock()
			return v.ended
		}
		// A journal that catches up is fed by the caller, so it must not wait; what
		// comes meanwhile is the backlog above the committed vector.
		must, room := !v.status.Journaled, (<-chan struct{})(nil)
		if must || v.queue.bytes <= v.cfg.QueueBytes {
			var part itemParts
			part.add(withoutUnread(items))
			var ok bool
			if ok, room = v.cfg.Room.enter(part.bytes, must || v.held <= ownRoom); ok {
				v.queue.append(part)
				v.held += part.bytes
				enough := v.queue.bytes >= pauseBelow
				v.mu.Unlock()
				v.wakeUp()
				if enough {
					v.hurry()
				}
				return nil
			}
		}
		moved := v.moved
		v.waiters++
		v.mu.Unlock()
		v.hurry()
		var gone error
		select {
		case <-ctx.Done():
			gone = ctx.Err()
		case <-moved:
		case <-room:
		}
		v.mu.Lock()
		v.waiters--
		v.mu.Unlock()
		if gone != nil {
			return gone
		}
	}
}

// Committed implements seat.Folder: the committed vector and the last barrier of
// each origin's log there. Before Ready it is the start.
func (v *View) Committed() (event.Vector, seat.Barriers) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.committed.Vector, v.committed.Barriers
}

// Frontier is the frontier that is in force, and the vector from which on the logs are needed.
func (v *View) Frontier() (frontier, needed event.Vector) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.committed.Frontier, v.committed.Needed
}

// Context implements seat.Folder. The entity may be read a step later than the
// vector: what it then holds more was committed, too.
func (v *View) Context(key []byte) (event.Vector, uint16, error) {
	v.mu.Lock()
	at := v.committed
	v.mu.Unlock()
	announced := uint16(0)
	if v.cfg.Restricted != nil {
		announced = v.cfg.Restricted()
	}
	restricted := at.RestrictedOrigins(announced, v.cfg.Region)
	if restricted == 0 {
		return at.Vector, 0, nil
	}
	var e conflict.Entity
	if v.cfg.Fold.Kind == conflict.Entities && key != nil {
		var err error
		if e, _, err = v.store.read(key); err != nil {
			return event.Vector{}, restricted, fmt.Errorf("read entity: %w", err)
		}
	}
	return e.Context(at.Vector, restricted), restricted, nil
}

// Validity implements seat.Folder: the table of the last Cuts folded and
// committed, nil if there was none. It is not to be changed.
func (v *View) Validity() *event.ValidityTable {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.committed.Validity
}

// Orphans calls fn for every orphan that this region has met, in the order of their
// dots, until it returns false. Before Ready they are those of an earlier run.
func (v *View) Orphans(fn func(conflict.Orphaned) bool) error {
	if err := v.store.orphans(fn); err != nil {
		return fmt.Errorf("read orphans: %w", err)
	}
	return nil
}

// Orphan is what is kept of the event at a dot if it is an orphan.
func (v *View) Orphan(at event.Dot) (o conflict.Orphaned, ok bool, err error) {
	if o, ok, err = v.store.Orphan(at); err != nil {
		return o, false, fmt.Errorf("read orphan: %w", err)
	}
	return o, ok, nil
}

// Stamp is the highest stamp folded; a new seat's clock starts above.
func (v *View) Stamp() event.Stamp {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.committed.Stamp
}

// Wait blocks until the committed vector covers want. It returns the context's
// error, or the one with which Run has ended.
func (v *View) Wait(ctx context.Context, want event.Vector) error {
	waits := false
	defer func() {
		if waits {
			v.mu.Lock()
			v.waiters--
			v.mu.Unlock()
		}
	}()
	for {
		v.mu.Lock()
		done, err, moved := v.restored && v.committed.Vector.CoversAll(&want), v.ended, v.moved
		if !done && err == nil && !waits {
			waits = true
			v.waiters++
		}
		v.mu.Unlock()
		switch {
		case done:
			return nil
		case err != nil:
			return err
		}
		v.hurry()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-moved:
		}
	}
}

// Entity is the state of an entity at the committed vector or later; it waits for
// Ready. ok is false if no event of it was ever folded, or a correction has left
// nothing of it. Cover may lack what the committed vector has reached.
func (v *View) Entity(ctx context.Context, key []byte) (s conflict.State, ok bool, err error) {
	select {
	case <-v.ready:
	case <-ctx.Done():
		return s, false, ctx.Err()
	}
	e, ok, err := v.store.read(key)
	if err != nil {
		return s, false, fmt.Errorf("read entity: %w", err)
	}
	return e.State, ok && len(e.Live) > 0, nil
}

// Checkpoints are places of the merged partition with what is folded there, in
// ascending order, last the one at which the present vector was reached: corrections
// that a cut has made since then may lie after it. The start, where nothing is folded, is
// not among them.
func (v *View) Checkpoints() []Checkpoint {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := make([]Checkpoint, 0, len(v.chain.list)+1)
	for _, c := range v.chain.list {
		if c.Offset > 0 && c.Offset < v.vectorOffset {
			out = append(out, c.Checkpoint)
		}
	}
	if v.committed.Vector.IsZero() {
		return out
	}
	return append(out, Checkpoint{v.vectorOffset, v.committed.Vector})
}

// Start is the offset of the merged partition at which a reader that has seen all
// that cursor covers goes on: nothing below is news to it.
func (v *View) Start(cursor event.Vector) int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	if cursor.CoversAll(&v.committed.Vector) {
		return v.vectorOffset
	}
	return v.chain.start(&cursor)
}

// Status is a copy of the view's state.
func (v *View) Status() Status {
	v.mu.Lock()
	defer v.mu.Unlock()
	st := v.status
	st.Ready, st.Queued, st.Needed = v.restored, v.queue.items, v.committed.Needed
	st.Counts.Quarantined = maps.Clone(st.Counts.Quarantined)
	st.Replaced, st.ReplacedBy = maps.Clone(st.Replaced), maps.Clone(st.ReplacedBy)
	return st
}
