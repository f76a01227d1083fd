package control

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

	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/geogate/geogate/internal/defect"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/incident"
	"github.com/geogate/geogate/internal/sleep"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/internal/warning"
)

// Config of a Follower.
type Config struct {
	// Region is the own region; Regions names every region, the own included.
	Region  event.RegionID
	Regions map[event.RegionID]string
	// Names checks the names in the registry's records; nil: nobody does.
	Names Names
	// Ahead tells whether a stamp lies further ahead of the wall clock than any seat
	// stamps; nil: none does.
	Ahead func(event.Stamp) bool
	// Opts reach the own region's cluster: seeds, dialling, client id, logger.
	Opts []kgo.Opt
	// Logger receives what could not be read; nil discards.
	Logger *slog.Logger
	// Secret is the deployment's idempotency secret, which proves records of incidents and
	// of judged logs; nil: the public one.
	Secret []byte
	// ListEvery is the least time between two listings of what makes link
	// positions usable; default 20 ms.
	ListEvery time.Duration
	// Skipped remembers records that cannot be used; nil: nobody does.
	Skipped *warning.Skipped
	// Defects remembers panics; nil: nobody does.
	Defects *defect.Log
	// Decoder opens batches; nil: one with default limits.
	Decoder *txn.Decoder
	// Runs gives the store for the runs of the link from a region, so that a start reads on
	// where the last process ended and memory does not grow with them; nil: they are in memory.
	Runs func(from event.RegionID) SavedRuns
}

// Validate says what is missing.
func (c Config) Validate() error {
	switch {
	case !c.Region.Valid():
		return fmt.Errorf("control: region id %d is not valid", c.Region)
	case c.Regions[c.Region] == "":
		return fmt.Errorf("control: own region %d is not among the regions", c.Region)
	}
	return nil
}

// Follower holds what control topics say, in memory. All methods are safe for
// concurrent use while Run runs.
type Follower struct {
	cfg        Config
	log        *slog.Logger
	ownControl *consumer // own control topic, read uncommitted
	committed  *consumer // all topics, read committed

	listingWanted chan struct{} // holds one: a position waits for a listing
	broken        chan error    // holds one: the error of a store of runs
	ready         chan struct{}
	syncs         *coalescer[struct{}] // callers that want everything read to its end
	decisions     *coalescer[int64]    // callers that want the own control topic read to its end, which it gives

	mu            sync.Mutex
	changed       chan struct{} // closed and replaced at every change
	barriers      BarrierIndex
	ownOpened     bool                        // the own control topic is being read
	ownBegins     bool                        // at its first record ever: no barrier is missing
	highestClosed map[progressKey]event.Stamp // own region's, committed or not
	progress      map[progressKey][]Progress  // newest last, at most historyLen
	heard         map[progressKey]time.Time   // when the newest came
	started       time.Time
	incarnations  map[incarnationKey][]Incarnation
	topics        *Registry
	restricted    map[string]uint16           // by topic, bit r: records of origin r may be denied to the own region
	settings      map[event.RegionID]Settings // by the region that wrote them
	links         map[event.RegionID]*LinkIndex
	saved         map[event.RegionID]SavedRuns // of the links, where runs outlive the process
	runsTopics    map[event.RegionID]event.TopicID
	incidents     incident.Set // of the own region
	judged        map[progressKey]Judged
	restore       map[string]bool // keys of records of incidents that were written over
	restoring     chan struct{}   // holds one: restore has some
	topicsChanged bool            // the registry, or the incarnations, have since the last news
	subscriptions map[*Subscription]struct{}
}

// New makes a follower; it does nothing before Run.
func New(cfg Config) (*Follower, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.ListEvery = cmp.Or(cfg.ListEvery, 20*time.Millisecond)
	if cfg.Decoder == nil {
		cfg.Decoder = txn.NewDecoder(txn.Limits{})
	}
	f := newFollower(cfg)
	var err error
	if f.ownControl, err = newConsumer(&cfg, BarriersCommitted, []string{TopicControl}, f.log); err != nil {
		return nil, err
	}
	if f.committed, err = newConsumer(&cfg, true, slices.Sorted(maps.Keys(f.routes())), f.log); err != nil {
		f.ownControl.client.Close()
		return nil, err
	}
	f.ownControl.take, f.ownControl.readTo = f.takeUncommitted, f.uncommittedReadTo
	f.committed.resume = f.resumeRuns
	routes := f.routes()
	f.committed.take = func(r *txn.Record) { f.takeCommitted(routes[r.Topic], r) }
	f.committed.readTo = func(p txn.TopicPartition, next int64) { f.committedReadTo(routes[p.Topic], p, next) }
	return f, nil
}

// newFollower makes a follower without clients.
func newFollower(cfg Config) *Follower {
	f := &Follower{
		cfg: cfg, log: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)),
		listingWanted: make(chan struct{}, 1), broken: make(chan error, 1), ready: make(chan struct{}), changed: make(chan struct{}),
		syncs: newCoalescer[struct{}](), decisions: newCoalescer[int64](),
		highestClosed: make(map[progressKey]event.Stamp),
		progress:      make(map[progressKey][]Progress),
		heard:         make(map[progressKey]time.Time),
		started:       time.Now(),
		incarnations:  make(map[incarnationKey][]Incarnation),
		topics:        NewRegistry(cfg.Names),
		restricted:    make(map[string]uint16),
		settings:      make(map[event.RegionID]Settings),
		restore:       make(map[string]bool),
		restoring:     make(chan struct{}, 1),
		links:         make(map[event.RegionID]*LinkIndex),
		saved:         make(map[event.RegionID]SavedRuns),
		runsTopics:    make(map[event.RegionID]event.TopicID),
		judged:        make(map[progressKey]Judged),
		subscriptions: make(map[*Subscription]struct{}),
	}
	for id := range cfg.Regions {
		switch {
		case id == cfg.Region:
		case cfg.Runs == nil:
			f.links[id] = NewLinkIndex()
		default:
			f.saved[id] = cfg.Runs(id)
			f.links[id] = NewLinkIndexOver(f.saved[id])
		}
	}
	return f
}

// route says what a topic's records are.
type route struct {
	kind routeKind
	from event.RegionID
}

type routeKind uint8

const (
	routeControl routeKind = iota + 1
	routeTopics
	routeIncarnations
	routePositions
	routeRuns
)

func (f *Follower) routes() map[string]route {
	rs := map[string]route{
		TopicControl:      {routeControl, f.cfg.Region},
		TopicTopics:       {kind: routeTopics},
		TopicIncarnations: {kind: routeIncarnations},
	}
	for id, name := range f.cfg.Regions {
		if id != f.cfg.Region {
			rs[ControlFrom(name)] = route{routeControl, id}
			rs[PositionsFrom(name)] = route{routePositions, id}
			rs[RunsFrom(name)] = route{routeRuns, id}
		}
	}
	return rs
}

// Run follows until the context ends, and then returns nil. It owns all of the
// follower's goroutines and its connections.
func (f *Follower) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return f.ownControl.run(ctx) })
	g.Go(func() error { return f.committed.run(ctx) })
	g.Go(func() error { f.listRuns(ctx); return nil })
	g.Go(func() error {
		f.syncs.run(ctx, func(ctx context.Context) (struct{}, error) { return struct{}{}, f.syncNow(ctx) })
		return nil
	})
	g.Go(func() error { f.decisions.run(ctx, f.readBarriers); return nil })
	g.Go(func() error { f.awaitReady(ctx); return nil })
	g.Go(func() error {
		select {
		case <-ctx.Done():
			return nil
		case err := <-f.broken:
			return err
		}
	})
	return g.Wait()
}

// awaitReady closes ready once everything that exists has been read.
func (f *Follower) awaitReady(ctx context.Context) {
	for ctx.Err() == nil {
		err := f.Sync(ctx)
		if err == nil {
			close(f.ready)
			return
		}
		f.log.Warn("cannot read control topics to their ends; will try again", "err", err)
		_ = sleep.For(ctx, discoverEvery) // the loop looks at the context
	}
}

// Ready is closed when every control topic that existed at the start has been
// read to a high watermark listed after it.
func (f *Follower) Ready() <-chan struct{} { return f.ready }

// Sync returns when everything that was committed before the call is known here.
// A topic is read to its last stable offset, not to its high watermark: after the
// start of an open transaction nothing is committed, and its producer may be a killed process
// that only time, or the seat that waits for this call, can end. Barriers are read
// uncommitted and so to the high watermark.
//
// Calls that come at a time share one listing of the ends.
func (f *Follower) Sync(ctx context.Context) error {
	_, err := f.syncs.do(ctx)
	return err
}

func (f *Follower) syncNow(ctx context.Context) error {
	ends, err := f.ownControl.highWatermarks(ctx, f.ownControl.wanted...)
	if err == nil {
		err = f.ownControl.awaitAll(ctx, ends)
	}
	if err != nil {
		return fmt.Errorf("read control topics to their ends: %w", err)
	}
	if ends, err = f.committed.stableOffsets(ctx, f.committed.wanted...); err == nil {
		err = f.committed.awaitAll(ctx, ends)
	}
	if err != nil {
		return fmt.Errorf("read control topics to their ends: %w", err)
	}
	return nil
}

// Changed returns a channel that is closed at the next change of anything the
// follower holds. Take it before reading what is waited for.
func (f *Follower) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

// notify wakes who waits on Changed; the caller holds mu.
func (f *Follower) notify() {
	close(f.changed)
	f.changed = make(chan struct{})
	f.publishNews()
}

// reportSkipped remembers and logs a record that cannot be used. It is passed over: one
// bad record must not stop the rest.
func (f *Follower) reportSkipped(r *txn.Record, err error) {
	var d *defect.Error
	if errors.As(err, &d) {
		f.cfg.Defects.Add(fmt.Sprintf("%s/%d", r.Topic, r.Partition), d, "a record of the topic was passed over")
		f.log.Error("the program has a defect; it met it at a control record", "topic", r.Topic, "partition", r.Partition, "offset", r.Offset, "panic", d.Value, "at", d.Place, "stack", d.Stack)
	}
	if f.cfg.Skipped.Add(r.Topic, r.Partition, r.Offset, err) {
		f.log.Error("control record cannot be used and is skipped", "topic", r.Topic, "partition", r.Partition, "offset", r.Offset, "err", err)
	}
}

// takeUncommitted takes a record of the own control topic, committed or not. One that was
// refused is reported when it is read committed.
func (f *Follower) takeUncommitted(r *txn.Record) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.applyUncommitted(r); err != nil {
		f.reportSkipped(r, err)
	}
}

// applyUncommitted applies a record; the caller holds mu.
func (f *Follower) applyUncommitted(r *txn.Record) (err error) {
	defer defect.Catch(&err)
	if r.Value == nil {
		return nil
	}
	t, _ := TypeOf(r.Key)
	rt, _ := registered(t)
	if rt.applyUncommitted == nil {
		return nil // takeCommitted says what there is to say
	}
	return rt.applyUncommitted(f, r.Key, r.Value)
}

func (f *Follower) uncommittedReadTo(_ txn.TopicPartition, next int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.ownOpened { // compaction leaves a log's start where it is
		f.ownOpened, f.ownBegins = true, next == 0
	}
	f.barriers.ReadTo(next)
	f.notify()
}

func (f *Follower) takeCommitted(rt route, r *txn.Record) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.applyCommitted(rt, r); err != nil {
		f.reportSkipped(r, err)
	}
}

// applyCommitted applies a record; the caller holds mu.
func (f *Follower) applyCommitted(rt route, r *txn.Record) (err error) {
	defer defect.Catch(&err)
	if r.Refused != nil {
		return r.Refused
	}
	switch rt.kind {
	case routeControl:
		return f.applyControl(rt.from, r)
	case routeTopics:
		f.topicsChanged = true
		return f.applyTopic(r)
	case routeIncarnations:
		f.topicsChanged = true
		return f.applyIncarnation(r.Key, r.Value)
	case routeRuns:
		return f.links[rt.from].ApplyRuns(r.Key, r.Value)
	case routePositions:
		ok, err := f.links[rt.from].ApplyPosition(r.Partition, r.Key, r.Value)
		if ok {
			select {
			case f.listingWanted <- struct{}{}:
			default:
			}
		}
		return err
	}
	return nil
}

func (f *Follower) committedReadTo(rt route, p txn.TopicPartition, next int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if rt.kind == routeRuns {
		f.runsReadTo(rt.from, p, next)
	}
	f.notify()
}

// applyControl takes a committed record of a region's control topic; the caller
// holds mu.
func (f *Follower) applyControl(from event.RegionID, r *txn.Record) error {
	t, known := TypeOf(r.Key)
	switch rt, _ := registered(t); {
	case len(r.Key) == 0:
		return fmt.Errorf("%w: control record without a key", event.ErrMalformed)
	case !known:
		return fmt.Errorf("control record of type %d: %w", t, warning.ErrUnknown)
	case r.Value == nil || rt.apply == nil:
		if from == f.cfg.Region && (t == TypeIncident || t == TypeAcceptance) {
			f.replaced(r.Key) // nobody deletes one
		}
		return nil
	default:
		return rt.apply(f, from, r.Key, r.Value)
	}
}

func (f *Follower) applyTopic(r *txn.Record) error { return f.topics.Apply(r.Key, r.Value) }

// listRuns makes link positions usable: it lists the ends of the runs topics after
// positions were read.
func (f *Follower) listRuns(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.listingWanted:
		}
		if again := f.listRunsOnce(ctx); again {
			select {
			case f.listingWanted <- struct{}{}:
			default:
			}
		}
		if sleep.For(ctx, f.cfg.ListEvery) != nil {
			return
		}
	}
}

func (f *Follower) listRunsOnce(ctx context.Context) (again bool) {
	marks := make(map[event.RegionID]func(map[int32]int64))
	var topics []string
	f.mu.Lock()
	for id, l := range f.links {
		if len(l.SlotsToList()) > 0 {
			marks[id] = l.BeginListing()
			topics = append(topics, RunsFrom(f.cfg.Regions[id]))
		}
	}
	f.mu.Unlock()
	if len(topics) == 0 {
		return false
	}
	ends, err := f.committed.highWatermarks(ctx, topics...)
	if err != nil {
		if ctx.Err() == nil {
			f.log.Warn("cannot list ends of runs topics; will try again", "err", err)
		}
		return true
	}
	bySlot := make(map[event.RegionID]map[int32]int64)
	routes := f.routes()
	for p, end := range ends {
		from := routes[p.Topic].from
		if bySlot[from] == nil {
			bySlot[from] = make(map[int32]int64)
		}
		bySlot[from][p.Partition] = end
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, done := range marks {
		done(bySlot[id])
	}
	f.notify()
	for _, l := range f.links {
		again = again || len(l.SlotsToList()) > 0
	}
	return again
}

// IsBarrier tells whether a commit marker is a barrier. It returns from memory
// once a verdict is known; else it reads the own control topic, uncommitted, to
// the high watermark listed after the call. The verdict holds for ever. The only
// error is that of the context.
func (f *Follower) IsBarrier(ctx context.Context, topic event.TopicID, num int32, producer int64, epoch int16) (bool, error) {
	m := []Marker{{topic, num, producer, epoch}}
	for {
		f.mu.Lock()
		verdict, ok := f.barriers.Known(m[0])
		f.mu.Unlock()
		if ok {
			return verdict, nil
		}
		if err := f.Decide(ctx, m); err != nil {
			return false, err
		}
	}
}

// Decide returns once IsBarrier can tell about all of these commit markers from memory.
// It reads the control topic once for all of them: a partition that takes hundreds of
// transactions a second has that many markers.
func (f *Follower) Decide(ctx context.Context, markers []Marker) error {
	f.mu.Lock()
	open := slices.DeleteFunc(slices.Clone(markers), func(m Marker) bool { _, ok := f.barriers.Known(m); return ok })
	f.mu.Unlock()
	for len(open) > 0 {
		end, err := f.decisions.do(ctx)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("decide whether a marker is a barrier: %w", ctx.Err())
		case err != nil:
			f.log.Warn("cannot read the control topic to decide whether a marker is a barrier; will try again", "err", err)
			_ = sleep.For(ctx, discoverEvery) // the loop looks at the context
			continue
		}
		f.mu.Lock()
		open = slices.DeleteFunc(open, func(m Marker) bool { _, ok := f.barriers.Resolve(m, end); return ok })
		f.mu.Unlock()
	}
	return nil
}

// readBarriers reads the own control topic, uncommitted, to its high watermark, and gives
// that.
func (f *Follower) readBarriers(ctx context.Context) (end int64, err error) {
	p := txn.TopicPartition{Topic: TopicControl}
	ends, err := f.ownControl.highWatermarks(ctx, TopicControl)
	if err != nil {
		return 0, err
	}
	end, exists := ends[p]
	if !exists {
		return 0, errors.New("topic does not exist")
	}
	return end, f.ownControl.await(ctx, p, end)
}

// Locate says where a remote record comes from: the region it was copied from,
// the remote topic's id in the own cluster, its partition and offset, and the
// leader epoch of its batch (-1 unknown).
func (f *Follower) Locate(from event.RegionID, remote event.TopicID, num int32, target int64, epoch int32) Location {
	f.mu.Lock()
	defer f.mu.Unlock()
	if l := f.links[from]; l != nil {
		return l.Locate(remote, num, target, epoch)
	}
	return Location{State: Pending}
}

// TargetOffset is the offset in a remote partition of a source offset, if it was copied.
func (f *Follower) TargetOffset(from event.RegionID, remote event.TopicID, num int32, incarnation uint16, source int64) (target int64, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if l := f.links[from]; l != nil {
		return l.TargetOffset(remote, num, incarnation, source)
	}
	return 0, false
}

// TargetOffsetFrom is the first offset in a remote partition whose record lies at or
// after a source offset, if there is one yet.
func (f *Follower) TargetOffsetFrom(from event.RegionID, remote event.TopicID, num int32, incarnation uint16, source int64) (target int64, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if l := f.links[from]; l != nil {
		return l.TargetOffsetFrom(remote, num, incarnation, source)
	}
	return 0, false
}

// Confirmed tells whether a reader may move over what lies in a remote partition
// under a leader epoch.
func (f *Follower) Confirmed(from event.RegionID, remote event.TopicID, num int32, epoch int32) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.links[from]
	return l != nil && l.Confirmed(remote, num, epoch)
}

// Covered is how far a reader of a remote partition may move its place in the
// origin's log once it has read the remote one.
func (f *Follower) Covered(from event.RegionID, remote event.TopicID, num int32) (Covered, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if l := f.links[from]; l != nil {
		return l.Covered(remote, num)
	}
	return Covered{}, false
}

// Topic is the registry's record of a topic that exists under an id, see
// [Registry.Lookup]; ok is false for a local one.
func (f *Follower) Topic(name string, id event.TopicID) (x Topic, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.topics.Lookup(name, id)
}

// Record is the registry's record of a name, whatever topic there is.
func (f *Follower) Record(name string) (x Topic, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.topics.Record(name)
}

// CopyOf is the id of the topic at a region of which a topic of this region is the copy, as
// that region's link has written it down; ok is false if the link has never written to it.
func (f *Follower) CopyOf(origin event.RegionID, id event.TopicID) (source event.TopicID, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if l := f.links[origin]; l != nil {
		return l.sourceOf(id)
	}
	return source, false
}

// Deleted are the records that a tombstone has deleted, by name.
func (f *Follower) Deleted() []Topic {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.topics.Deleted()
}

// Topics is the whole registry, by name.
func (f *Follower) Topics() []Topic {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.topics.Topics()
}

// Remote is the registry's record of the remote topic that holds a region's
// topic.
func (f *Follower) Remote(origin event.RegionID, source string) (Topic, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range f.topics.records {
		if t.Kind == KindRemote && t.Origin == origin && t.Source == source {
			return t, true
		}
	}
	return Topic{}, false
}
