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

	"github.com/geogate/geogate/internal/event"
)

// Config of a Follower.
type Config struct {
	// Region is the own region; Regions names every region, the own included.
	Region  event.RegionID
	Regions map[event.RegionID]string
	// Opts reach the own region's cluster: seeds, dialling, client id, logger.
	Opts []kgo.Opt
	// Logger receives what could not be read; nil discards.
	Logger *slog.Logger
	// ListEvery is the least time between two listings of what makes link
	// positions usable; default 20 ms.
	ListEvery time.Duration
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

// historyLen is how many progress records of a partition are kept, because the
// newest is usable only once a reader's vector has come to its end: at two a
// second, about eight seconds of lag still find a usable one.
const historyLen = 16

// Follower holds what control topics say, in memory. All methods are safe for
// concurrent use while Run runs.
type Follower struct {
	cfg  Config
	log  *slog.Logger
	own  *consumer // own control topic, uncommitted: barriers
	rest *consumer // everything, committed

	listNeeded chan struct{} // holds one: a position waits for a listing
	ready      chan struct{}

	mu           sync.Mutex
	changed      chan struct{} // closed and replaced at every change
	barriers     Barriers
	bounds       map[progressKey]event.Stamp // own region's, committed or not
	progress     map[progressKey][]Progress  // newest last, at most historyLen
	incarnations map[incarnationKey][]Incarnation
	topics       map[string]Topic
	restricted   map[string]uint16 // by topic, bit r: records of origin r may be denied to the own region
	links        map[event.RegionID]*Links
	malformed    uint64
}

type progressKey struct {
	region    event.RegionID
	topic     string
	partition int32
}

type incarnationKey = progressKey

// New makes a follower; it does nothing before Run.
func New(cfg Config) (*Follower, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.ListEvery = cmp.Or(cfg.ListEvery, 20*time.Millisecond)
	f := &Follower{
		cfg: cfg, log: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)),
		listNeeded: make(chan struct{}, 1), ready: make(chan struct{}), changed: make(chan struct{}),
		bounds:       make(map[progressKey]event.Stamp),
		progress:     make(map[progressKey][]Progress),
		incarnations: make(map[incarnationKey][]Incarnation),
		topics:       make(map[string]Topic),
		restricted:   make(map[string]uint16),
		links:        make(map[event.RegionID]*Links),
	}
	wanted := []string{TopicControl, TopicTopics, TopicIncarnations}
	for id, name := range cfg.Regions {
		if id != cfg.Region {
			f.links[id] = NewLinks()
			wanted = append(wanted, ControlFrom(name), PositionsFrom(name), RunsFrom(name))
		}
	}
	slices.Sort(wanted)
	var err error
	if f.own, err = newConsumer(cfg.Opts, BarriersCommitted, []string{TopicControl}, f.log); err != nil {
		return nil, err
	}
	if f.rest, err = newConsumer(cfg.Opts, true, wanted, f.log); err != nil {
		f.own.client.Close()
		return nil, err
	}
	f.own.take, f.own.moved = f.takeOwn, f.movedOwn
	routes := f.routes()
	f.rest.take = func(r *kgo.Record) { f.takeRest(routes[r.Topic], r) }
	f.rest.moved = func(p place, next int64) { f.movedRest(routes[p.topic], p, next) }
	return f, nil
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
	g.Go(func() error { return f.own.run(ctx) })
	g.Go(func() error { return f.rest.run(ctx) })
	g.Go(func() error { f.list(ctx); return nil })
	g.Go(func() error { f.start(ctx); return nil })
	return g.Wait()
}

// start closes ready once everything that exists has been read.
func (f *Follower) start(ctx context.Context) {
	for ctx.Err() == nil {
		err := f.Sync(ctx)
		if err == nil {
			close(f.ready)
			return
		}
		f.log.Warn("read control topics", "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(discoverEvery):
		}
	}
}

// Ready is closed when every control topic that existed at the start has been
// read to a high watermark listed after it.
func (f *Follower) Ready() <-chan struct{} { return f.ready }

// Sync returns when everything that was committed before the call is known here.
// A topic is read to its last stable offset, not to its high watermark: behind an
// open transaction nothing is committed, and its producer may be a killed process
// that only time, or the seat that waits for this call, can end. Barriers are read
// uncommitted and so to the high watermark.
func (f *Follower) Sync(ctx context.Context) error {
	ends, err := f.own.ends(ctx, f.own.wanted...)
	if err == nil {
		err = f.own.awaitAll(ctx, ends)
	}
	if err != nil {
		return fmt.Errorf("sync control: %w", err)
	}
	if ends, err = f.rest.stable(ctx, f.rest.wanted...); err == nil {
		err = f.rest.awaitAll(ctx, ends)
	}
	if err != nil {
		return fmt.Errorf("sync control: %w", err)
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
}

// complain counts and logs a record that does not parse. It is passed over: one
// bad record must not stop the rest.
func (f *Follower) complain(r *kgo.Record, err error) {
	f.malformed++
	f.log.Error("control record is malformed", "topic", r.Topic, "partition", r.Partition, "offset", r.Offset, "err", err)
}

// Malformed counts the records that did not parse.
func (f *Follower) Malformed() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.malformed
}

// takeOwn takes a record of the own control topic, committed or not.
func (f *Follower) takeOwn(r *kgo.Record) {
	if r.Value == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var err error
	switch t, _ := TypeOf(r.Key); t {
	case TypeBarrier:
		var b Barrier
		if b, err = ParseBarrierKey(r.Key); err == nil {
			f.barriers.Learn(b)
		}
	case TypeProgress:
		var x Progress
		if x, err = ParseProgress(r.Key, r.Value); err == nil {
			k := progressKey{f.cfg.Region, x.Topic, x.Partition}
			f.bounds[k] = max(f.bounds[k], x.Closed)
		}
	}
	if err != nil {
		f.complain(r, err)
	}
}

func (f *Follower) movedOwn(_ place, next int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.barriers.ReadTo(next)
	f.notify()
}

func (f *Follower) takeRest(rt route, r *kgo.Record) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var err error
	switch rt.kind {
	case routeControl:
		err = f.takeControl(rt.from, r)
	case routeTopics:
		err = f.takeTopic(r)
	case routeIncarnations:
		err = f.takeIncarnation(r)
	case routeRuns:
		err = f.links[rt.from].TakeRuns(r.Key, r.Value)
	case routePositions:
		var ok bool
		if ok, err = f.links[rt.from].TakePosition(r.Partition, r.Key, r.Value); ok {
			select {
			case f.listNeeded <- struct{}{}:
			default:
			}
		}
	}
	if err != nil {
		f.complain(r, err)
	}
}

func (f *Follower) movedRest(rt route, p place, next int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if rt.kind == routeRuns {
		f.links[rt.from].RunsRead(p.partition, next)
	}
	f.notify()
}

func (f *Follower) takeControl(from event.RegionID, r *kgo.Record) error {
	if r.Value == nil {
		return nil
	}
	switch t, _ := TypeOf(r.Key); t {
	case TypeProgress:
		x, err := ParseProgress(r.Key, r.Value)
		if err != nil {
			return err
		}
		k := progressKey{from, x.Topic, x.Partition}
		h := append(f.progress[k], x)
		if len(h) > historyLen {
			h = slices.Delete(h, 0, len(h)-historyLen)
		}
		f.progress[k] = h
	case TypeIncarnation:
		return f.takeIncarnation(r)
	case TypeRestriction:
		x, err := ParseRestriction(r.Key, r.Value)
		if err != nil {
			return err
		}
		if x.To == f.cfg.Region {
			f.restricted[x.Topic] |= 1 << x.Origin
		}
	}
	return nil
}

// Restricted tells of which origins (bit r: region r) single records of a topic
// may be denied to the own region, as far as control says so yet. What positions
// and runs say comes with the records that it is about.
func (f *Follower) Restricted(topic string) uint16 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.restricted[topic]
}

func (f *Follower) takeIncarnation(r *kgo.Record) error {
	if r.Value == nil {
		return nil
	}
	x, err := ParseIncarnation(r.Key, r.Value)
	if err != nil {
		return err
	}
	k := incarnationKey{x.Origin, x.Topic, x.Partition}
	list := f.incarnations[k]
	at, found := slices.BinarySearchFunc(list, x.Number, func(o Incarnation, n uint16) int { return int(o.Number) - int(n) })
	if found {
		list[at] = x
		return nil
	}
	f.incarnations[k] = slices.Insert(list, at, x)
	return nil
}

func (f *Follower) takeTopic(r *kgo.Record) error {
	if r.Value == nil {
		delete(f.topics, string(r.Key))
		return nil
	}
	x, err := ParseTopic(r.Key, r.Value)
	if err == nil {
		f.topics[x.Name] = x
	}
	return err
}

// list makes link positions usable: it lists the ends of the runs topics after
// positions were read.
func (f *Follower) list(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.listNeeded:
		}
		if again := f.listOnce(ctx); again {
			select {
			case f.listNeeded <- struct{}{}:
			default:
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(f.cfg.ListEvery):
		}
	}
}

func (f *Follower) listOnce(ctx context.Context) (again bool) {
	marks := make(map[event.RegionID]func(map[int32]int64))
	var topics []string
	f.mu.Lock()
	for id, l := range f.links {
		if len(l.Unlisted()) > 0 {
			marks[id] = l.Mark()
			topics = append(topics, RunsFrom(f.cfg.Regions[id]))
		}
	}
	f.mu.Unlock()
	if len(topics) == 0 {
		return false
	}
	ends, err := f.rest.ends(ctx, topics...)
	if err != nil {
		if ctx.Err() == nil {
			f.log.Warn("list runs", "err", err)
		}
		return true
	}
	bySlot := make(map[event.RegionID]map[int32]int64)
	routes := f.routes()
	for p, end := range ends {
		from := routes[p.topic].from
		if bySlot[from] == nil {
			bySlot[from] = make(map[int32]int64)
		}
		bySlot[from][p.partition] = end
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, done := range marks {
		done(bySlot[id])
	}
	f.notify()
	for _, l := range f.links {
		again = again || len(l.Unlisted()) > 0
	}
	return again
}

// Barrier tells whether a commit marker is a barrier. It returns from memory
// once a verdict is known; else it reads the own control topic, uncommitted, to
// the high watermark listed after the call. The verdict holds for ever. The only
// error is that of the context.
func (f *Follower) Barrier(ctx context.Context, topic TopicID, num int32, producer int64, epoch int16) (bool, error) {
	m := Marker{topic, num, producer, epoch}
	f.mu.Lock()
	verdict, ok := f.barriers.Known(m)
	f.mu.Unlock()
	p := place{TopicControl, 0}
	for !ok {
		ends, err := f.own.ends(ctx, TopicControl)
		end, exists := ends[p]
		if err == nil && !exists {
			err = errors.New("topic does not exist")
		}
		if err == nil {
			err = f.own.await(ctx, p, end)
		}
		if err != nil {
			if ctx.Err() != nil {
				return false, fmt.Errorf("ask for a barrier: %w", ctx.Err())
			}
			f.log.Warn("read control for a barrier", "err", err)
			select {
			case <-ctx.Done():
			case <-time.After(discoverEvery):
			}
			continue
		}
		f.mu.Lock()
		verdict, ok = f.barriers.Resolve(m, end)
		f.mu.Unlock()
	}
	return verdict, nil
}

// Locate says where a remote record comes from: the region it was copied from,
// the remote topic's id in the own cluster, its partition and offset, and the
// leader epoch of its batch (-1 unknown).
func (f *Follower) Locate(from event.RegionID, remote TopicID, num int32, target int64, epoch int32) Location {
	f.mu.Lock()
	defer f.mu.Unlock()
	if l := f.links[from]; l != nil {
		return l.Locate(remote, num, target, epoch)
	}
	return Location{State: Pending}
}

// Find is the offset in a remote partition of a source offset, if it was copied.
func (f *Follower) Find(from event.RegionID, remote TopicID, num int32, incarnation uint16, source int64) (target int64, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if l := f.links[from]; l != nil {
		return l.Find(remote, num, incarnation, source)
	}
	return 0, false
}

// FindFrom is the first offset in a remote partition whose record lies at or
// after a source offset, if there is one yet.
func (f *Follower) FindFrom(from event.RegionID, remote TopicID, num int32, incarnation uint16, source int64) (target int64, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if l := f.links[from]; l != nil {
		return l.FindFrom(remote, num, incarnation, source)
	}
	return 0, false
}

// Confirmed tells whether a reader may move over what lies in a remote partition
// under a leader epoch.
func (f *Follower) Confirmed(from event.RegionID, remote TopicID, num int32, epoch int32) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.links[from]
	return l != nil && l.Confirmed(remote, num, epoch)
}

// Covered is how far a reader of a remote partition may move its place in the
// origin's log once it has read the remote one.
func (f *Follower) Covered(from event.RegionID, remote TopicID, num int32) (Covered, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if l := f.links[from]; l != nil {
		return l.Covered(remote, num)
	}
	return Covered{}, false
}

// Progress is the newest progress of a region's partition, by topic name.
func (f *Follower) Progress(region event.RegionID, topic string, num int32) (Progress, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := f.progress[progressKey{region, topic, num}]
	if len(h) == 0 {
		return Progress{}, false
	}
	return h[len(h)-1], true
}

// ClosedBound is the highest closed stamp that any process of the own region has
// written for a partition, whether its transaction was committed, aborted or is
// still open: whoever stamps above it stamps above what was published. After Sync
// it includes everything written before that call; a transaction that is open does
// not hide it, as it hides Progress.
func (f *Follower) ClosedBound(topic string, num int32) event.Stamp {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bounds[progressKey{f.cfg.Region, topic, num}]
}

// ClosedMin is the lowest closed stamp of all regions for a partition: no record
// that a reader with this vector has not applied has a stamp at or below it. It
// is 0 while any region has said nothing that the vector has reached.
func (f *Follower) ClosedMin(topic string, num int32, applied event.Vector) event.Stamp {
	f.mu.Lock()
	defer f.mu.Unlock()
	closed := ^event.Stamp(0)
	for region := range f.cfg.Regions {
		h := f.progress[progressKey{region, topic, num}]
		i := len(h) - 1
		for i >= 0 && applied[region].Compare(h[i].End) < 0 {
			i--
		}
		if i < 0 {
			return 0
		}
		closed = min(closed, h[i].Closed)
	}
	return closed
}

// Incarnations lists what is known of an origin partition, by number.
func (f *Follower) Incarnations(origin event.RegionID, topic string, num int32) []Incarnation {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.incarnations[incarnationKey{origin, topic, num}])
}

// Incarnation is the number that the own region's partition has in its present
// state, given its topic id: 0 until a change was recorded.
func (f *Follower) Incarnation(topic string, id TopicID, num int32) uint16 {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := f.incarnations[incarnationKey{f.cfg.Region, topic, num}]
	for i := len(list) - 1; i >= 0; i-- {
		if list[i].ID == id {
			return list[i].Number
		}
	}
	return 0
}

// Topic is the registry's record of a topic; ok is false for a local one.
func (f *Follower) Topic(name string) (Topic, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t, ok := f.topics[name]
	return t, ok
}

// Topics is the whole registry, by name.
func (f *Follower) Topics() []Topic {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.SortedFunc(maps.Values(f.topics), func(a, b Topic) int { return cmp.Compare(a.Name, b.Name) })
}

// Remote is the registry's record of the remote topic that holds a region's
// topic.
func (f *Follower) Remote(origin event.RegionID, source string) (Topic, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range f.topics {
		if t.Kind == KindRemote && t.Origin == origin && t.Source == source {
			return t, true
		}
	}
	return Topic{}, false
}
