package seats

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/conflict/view"
	"github.com/geogate/geogate/dedupe"
	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/defect"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/internal/sleep"
	"github.com/geogate/geogate/internal/topics"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/internal/warning"
	"github.com/geogate/geogate/residency"
	"github.com/geogate/geogate/router"
	"github.com/geogate/geogate/router/ownership"
)

const (
	retryAfter   = 2 * time.Second        // a seat whose store or log failed is tried again
	prepareAfter = 500 * time.Millisecond // the seats that run from the start are tried again
	openRequests = 64
)

// runningSeat is one seat with what belongs to it.
type runningSeat struct {
	txn.TopicPartition
	id     event.TopicID // of the topic as it was when the seat was made
	noLog  bool          // the region's own topic has no such partition
	span   int32         // partitions of the topic's view when its seat was first made
	view   *view.View
	seat   *seat.Seat
	opener *seat.Opener
	index  *dedupe.Index
	fetch  topicFetcher
	// caught is closed when the view shows what the log held at the start.
	caught  chan struct{}
	stopped chan struct{} // closed when the partition is held
	// forget is closed to end the seat for good, ended when nothing of it runs any more.
	forget, ended chan struct{}
}

// Write implements gateway.Seat.
func (h *runningSeat) Write(ctx context.Context, q *seat.Request) (seat.Answer, error) {
	return h.seat.Write(ctx, q)
}

// Submit implements gateway.Seat.
func (h *runningSeat) Submit(ws []seat.Submission) { h.seat.Submit(ws) }

// Cancel implements gateway.Seat.
func (h *runningSeat) Cancel(ws []seat.Submission) { h.seat.Cancel(ws) }

// Fetch implements gateway.Seat.
func (h *runningSeat) Fetch(ctx context.Context, at event.Dot) (event.Event, error) {
	return h.fetch.Fetch(ctx, at)
}

// Complete implements gateway.Seat.
func (h *runningSeat) Complete() bool {
	st := h.seat.Status()
	return len(st.Unread) == 0 && len(st.Gaps) == 0
}

// View implements gateway.Seat.
func (h *runningSeat) View() gateway.View { return h.view }

// Config of Seats.
type Config struct {
	// Region and ID are the own region's, Instance is the name of the instance.
	Region   string
	ID       event.RegionID
	Instance string
	Topology *router.Topology
	Policy   *ownership.Policy
	Topics   *topics.Catalogue
	Control  *control.Follower
	// Client carries transactions and what reads single records.
	Client *kgo.Client
	// Opts reach the own region's Kafka; purpose is for the broker's logs.
	Opts func(purpose string) []kgo.Opt
	// Store holds the indexes and views: a cache.
	Store *badger.DB
	// Decoder opens batches.
	Decoder *txn.Decoder
	// Guard has the residency policy in force; nil without one.
	Guard *residency.Guard
	// Incidents keeps what was deleted before it was read.
	Incidents *control.Incidents
	// Window is how long an idempotency key is remembered.
	Window time.Duration
	// MaxRecord is the largest record that the edge lets in, in bytes.
	MaxRecord int
	// WriteBytes bounds the bytes of writes that all seats hold at a time, until they are
	// settled; what four records of the largest size take is there whatever it says.
	WriteBytes int64
	// Admit says whether the instance may run with its settings. It is asked once control
	// was read, before anything is opened; nil: it may.
	Admit func(ctx context.Context) error
	// Uncompressed writes batches as they are.
	Uncompressed bool
	// Transactions bounds how many partitions begin a term at a time, and how many have a
	// transaction of their fold; 0: no bound. At a broker that does one thing after the other
	// all of a thousand would time out.
	Transactions int
	// Defects counts panics of partitions, Skipped the records of state topics that cannot
	// be used; nil: nobody does.
	Defects *defect.Log
	Skipped *warning.Skipped
	Logger  *slog.Logger
}

// Seats opens and keeps the seats of an instance: of all partitions, for the
// instance is the only one of its region. Those of declared topics, and of topics
// that were used before, run from the start; others from their first use on.
type Seats struct {
	cfg      Config
	client   *ownership.Client    // nil: there is no register
	tables   *ownership.Intervals // with it
	producer *seat.Producer
	admin    *kadm.Client
	ids      *txn.Topics
	terms    *semaphore.Weighted // nil: not bounded, as folds
	folds    *semaphore.Weighted
	tail     *seat.Tail
	clock    *hlc.Clock
	fetcher  *fetcher
	room     *view.Room // for what all folds have in hand
	writes   *seat.Room // for the writes of all seats
	lags     lags
	absences absences
	phases   *prometheus.HistogramVec // of writes, by topic and phase

	requests chan *runningSeat // to be run
	ended    chan struct{}     // closed when Run runs no more seats
	admitted chan struct{}     // closed when Admit has said yes
	started  atomic.Bool       // the seats that run from the start were ready once, or had their time

	mu         sync.Mutex
	held       map[txn.TopicPartition]*runningSeat
	pending    map[txn.TopicPartition]*pendingSeat
	troubles   map[txn.TopicPartition]*trouble
	current    map[string]event.TopicID // by name, of topics that were recreated
	usedBefore map[event.TopicID]bool   // whether a topic was in use before this process
	stopped    bool                     // no new ones
	preparedAt time.Time                // when declared topics were there and their seats had been asked for once
	unprepared error                    // why they are not
	unopened   map[string]error         // by topic, why its seats are not all open
}

// New makes the seats' shared parts. No seat opens before Run. Where there is an
// ownership register, UseRegister comes before Run.
func New(cfg Config) (*Seats, error) {
	tail, err := seat.NewTail(seat.TailConfig{Opts: cfg.Opts("seats"), Control: cfg.Control, Decoder: cfg.Decoder, Logger: cfg.Logger})
	if err != nil {
		return nil, err
	}
	producer, err := seat.NewProducer(BatchBytes(cfg.MaxRecord), cfg.Uncompressed, cfg.Opts("writes")...)
	if err != nil {
		return nil, err
	}
	ids := txn.NewTopics(cfg.Client)
	var terms, folds *semaphore.Weighted
	if n := int64(cfg.Transactions); n > 0 {
		terms, folds = semaphore.NewWeighted(n), semaphore.NewWeighted(n)
	}
	return &Seats{
		terms: terms, folds: folds,
		cfg: cfg, producer: producer, admin: kadm.NewClient(cfg.Client), ids: ids, tail: tail, clock: hlc.NewClock(time.Now, hlc.Bounds{}),
		room: view.NewRoom(foldBytes), writes: seat.NewRoom(max(cfg.WriteBytes, 4*int64(BatchBytes(cfg.MaxRecord)))),
		fetcher: &fetcher{own: cfg.ID, control: cfg.Control, topics: ids, decoder: cfg.Decoder},
		lags:    lags{asked: make(chan struct{}, 1)}, phases: newPhases(),
		requests: make(chan *runningSeat, openRequests), ended: make(chan struct{}), admitted: make(chan struct{}),
		troubles: make(map[txn.TopicPartition]*trouble),
		held:     make(map[txn.TopicPartition]*runningSeat), pending: make(map[txn.TopicPartition]*pendingSeat), current: make(map[string]event.TopicID), usedBefore: make(map[event.TopicID]bool),
	}, nil
}

// UseRegister has writes ask the ownership register's client, and folds judge
// records by its tables.
func (s *Seats) UseRegister(client *ownership.Client, tables *ownership.Intervals) {
	s.client, s.tables = client, tables
}

// BatchBytes is the largest batch that seats send: one record of the largest size
// that the edge lets in, with its envelope.
func BatchBytes(maxRecord int) int32 { return int32(maxRecord) + recordRoom + batchRoom }

// Run runs all seats until the context ends. It returns an error that wraps
// seat.ErrSuperseded as soon as one seat is lost to another instance; every other
// trouble of a seat is its own.
func (s *Seats) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.tail.Run(ctx) })
	g.Go(func() error { return s.prepare(ctx) })
	g.Go(func() error { s.openUsedElsewhere(ctx); return nil })
	g.Go(func() error { s.sweep(ctx); return nil })
	g.Go(func() error { s.openAdded(ctx); return nil })
	g.Go(func() error { s.watchLags(ctx); return nil })
	g.Go(func() error { s.tellJudged(ctx); return nil })
	g.Go(func() error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case h := <-s.requests:
				g.Go(func() error {
					defer close(h.ended)
					return s.keep(ctx, h)
				})
			}
		}
	})
	err := g.Wait()
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	close(s.ended)
	s.producer.Close()
	return err
}

// keep runs one seat with its view, again after trouble that is its own.
func (s *Seats) keep(ctx context.Context, h *runningSeat) error {
	said := "" // a topic that stays deleted is not worth a line every two seconds
	for {
		err := s.run(ctx, h)
		if s.stopAt(h.TopicPartition, err) || ctx.Err() != nil || errors.Is(err, errForgotten) {
			return nil
		}
		if errors.Is(err, seat.ErrSuperseded) {
			s.cfg.Logger.Error("another instance of the region has taken a seat; this instance stops", "topic", h.Topic, "partition", h.Partition)
			return err
		}
		if errors.Is(err, errGrown) {
			s.cfg.Logger.Info("a partition was added to the topic and takes writes now", "topic", h.Topic, "partition", h.Partition)
		} else {
			s.note(h.TopicPartition, err)
			s.cfg.Logger.Error("seat ended; running it again", "topic", h.Topic, "partition", h.Partition, "err", err)
		}
		var fresh *runningSeat
		for fresh == nil {
			if sleep.For(ctx, retryAfter) != nil || h.isForgotten() {
				return nil
			}
			if fresh, err = s.newSeat(ctx, h.TopicPartition, h); err == nil {
				break
			}
			if s.stopAt(h.TopicPartition, err) {
				return nil
			}
			s.note(h.TopicPartition, err)
			if err.Error() != said {
				said = err.Error()
				s.cfg.Logger.Error("cannot open the seat again; will try again", "topic", h.Topic, "partition", h.Partition, "err", err)
			}
		}
		s.forget(h, fresh)
		fresh.forget, fresh.ended, fresh.span = h.forget, h.ended, h.span
		s.mu.Lock()
		s.held[h.TopicPartition] = fresh
		s.mu.Unlock()
		h, said = fresh, ""
	}
}

// forget has the clients forget a topic, once, when the first of its seats finds
// another topic of that name.
func (s *Seats) forget(old, fresh *runningSeat) {
	if old.id == fresh.id {
		return
	}
	s.mu.Lock()
	done := s.current[old.Topic] == fresh.id
	s.current[old.Topic] = fresh.id
	s.mu.Unlock()
	if !done {
		s.producer.Forget(old.Topic)
		s.ids.Forget(old.Topic)
	}
}

// errReplaced ends a seat whose topic is not the one it was made for.
var errReplaced = errors.New("the topic was deleted or recreated")

// errGrown ends a seat without a log when its partition has been added to the topic.
var errGrown = errors.New("the partition was added to the region's own topic")

// watch ends when the seat's topic has gone, has got the seat's partition, or another has
// its name: offsets, index and view would be those of a log that is no more. A topic that
// is missing from one list may come with the next.
func (s *Seats) watch(ctx context.Context, h *runningSeat) error {
	for missing := false; ; {
		changed := s.cfg.Topics.Changed()
		var again <-chan time.Time
		switch id, ok := s.cfg.Topics.ID(h.Topic); {
		case ok && id == h.id:
			missing = false
			if h.noLog && s.cfg.Topics.HasPartition(h.Topic, h.Partition) {
				return errGrown
			}
		case ok || missing:
			return errReplaced
		default:
			missing, changed, again = true, nil, time.After(2*topics.DiscoverEvery)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-again:
		}
	}
}

// run runs a seat and its view once.
func (s *Seats) run(ctx context.Context, h *runningSeat) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(defect.Guard(func() error { return s.watch(ctx, h) }))
	g.Go(defect.Guard(func() error { return s.catchUp(ctx, h) }))
	g.Go(defect.Guard(func() error { return ended(ctx, "view", h.view.Run(ctx)) }))
	g.Go(defect.Guard(func() error {
		select {
		case <-ctx.Done():
			return nil
		case <-h.view.Ready():
		}
		s.clock.Restore(h.view.Stamp())
		return ended(ctx, "seat", h.seat.Run(ctx))
	}))
	g.Go(func() error {
		select {
		case <-ctx.Done():
			return nil
		case <-h.stopped:
			return errHeld(h.TopicPartition)
		case <-h.forget:
			return errForgotten
		}
	})
	return g.Wait()
}

// ended makes an early end without an error one, so that the other half stops.
func ended(ctx context.Context, what string, err error) error {
	if err == nil && ctx.Err() == nil {
		return fmt.Errorf("%s ended", what)
	}
	return err
}

// Open implements gateway.Seats.
func (s *Seats) Open(ctx context.Context, topic string, partition int32) (gateway.Seat, error) {
	h, err := s.hold(ctx, txn.TopicPartition{Topic: topic, Partition: partition})
	if err != nil {
		return nil, err
	}
	select {
	case <-h.view.Ready():
		return h, nil
	case <-h.stopped:
		return nil, errHeld(h.TopicPartition)
	case <-ctx.Done():
		return nil, fmt.Errorf("open seat: its state is still being read: %w", seat.ErrNotReady)
	}
}

// hold finds the seat of a partition, or makes it and has it run.
func (s *Seats) hold(ctx context.Context, at txn.TopicPartition) (*runningSeat, error) {
	if s.isHeld(at) {
		return nil, errHeld(at)
	}
	s.mu.Lock()
	h, ok := s.held[at]
	s.mu.Unlock()
	if ok {
		return h, nil
	}
	if err := s.awaitAdmission(ctx); err != nil {
		return nil, err
	}
	return s.openOnce(ctx, at)
}

// admissionWait bounds how long somebody waits for what comes before the first seat.
const admissionWait = 5 * time.Second

// awaitAdmission waits, for a bounded time, until control has been read and the instance
// may run.
func (s *Seats) awaitAdmission(ctx context.Context) error {
	late := time.NewTimer(admissionWait)
	defer late.Stop()
	for _, step := range []struct {
		done <-chan struct{}
		what string
	}{
		{s.cfg.Control.Ready(), "control topics are still being read"},
		{s.admitted, "settings are still being compared"},
	} {
		select {
		case <-step.done:
			continue
		default:
		}
		select {
		case <-step.done:
			continue
		case <-ctx.Done():
		case <-late.C:
		}
		return fmt.Errorf("open seat: %s: %w", step.what, seat.ErrNotReady)
	}
	return nil
}

// pendingSeat is a seat that is being made; callers that want it meanwhile wait.
type pendingSeat struct {
	done chan struct{}
	seat *runningSeat
	err  error
}

// makeTime bounds the making of a seat, for all who wait for it.
const makeTime = 30 * time.Second

// openOnce makes the seat of a partition and has it run, once for all who ask meanwhile.
func (s *Seats) openOnce(ctx context.Context, at txn.TopicPartition) (*runningSeat, error) {
	s.mu.Lock()
	if h, ok := s.held[at]; ok {
		s.mu.Unlock()
		return h, nil
	}
	m, begun := s.pending[at]
	if !begun {
		m = &pendingSeat{done: make(chan struct{})}
		s.pending[at] = m
	}
	s.mu.Unlock()
	if begun {
		select {
		case <-m.done:
			return m.seat, m.err
		case <-ctx.Done():
			return nil, fmt.Errorf("open seat: it is being made: %w", seat.ErrNotReady)
		}
	}
	// That the first of them goes is no reason for the others to fail.
	mctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), makeTime)
	defer cancel()
	m.seat, m.err = s.makeSeat(mctx, at)
	s.mu.Lock()
	delete(s.pending, at)
	s.mu.Unlock()
	close(m.done)
	return m.seat, m.err
}

// makeSeat makes a seat and has it run.
func (s *Seats) makeSeat(ctx context.Context, at txn.TopicPartition) (*runningSeat, error) {
	h, err := s.newSeat(ctx, at, nil)
	if s.stopAt(at, err) {
		return nil, errHeld(at)
	}
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	stopped := s.stopped
	if !stopped {
		s.held[at] = h
	}
	s.mu.Unlock()
	if stopped {
		return nil, fmt.Errorf("open seat: %w", seat.ErrDraining)
	}
	select {
	case s.requests <- h:
		return h, nil
	case <-s.ended:
		err = seat.ErrDraining
	case <-ctx.Done():
		err = seat.ErrNotReady
	}
	s.mu.Lock()
	delete(s.held, at)
	s.mu.Unlock()
	return nil, fmt.Errorf("open seat: %w", err)
}

// newSeat builds a seat without running it. Its error is a *defect.Error after a panic.
// One that follows another of this process does not take the partition from an instance
// that has taken it meanwhile.
func (s *Seats) newSeat(ctx context.Context, at txn.TopicPartition, before *runningSeat) (_ *runningSeat, err error) {
	defer defect.Catch(&err)
	topic, err := s.cfg.Topics.Topic(ctx, at.Topic)
	if err != nil {
		return nil, err
	}
	if at.Partition < 0 || at.Partition >= topic.ViewPartitions() {
		return nil, fmt.Errorf("open seat: topic %s has %d partitions, no %d", at.Topic, topic.ViewPartitions(), at.Partition)
	}
	usedBefore := s.wasUsedBefore(topic)
	if err := s.cfg.Topics.Derive(ctx, topic); err != nil {
		return nil, fmt.Errorf("open seat: %w", err)
	}
	if err := s.cfg.Topics.Incomplete(at.Topic, at.Partition); err != nil {
		return nil, fmt.Errorf("open seat: %w", err)
	}
	noLog := at.Partition >= topic.LocalPartitions()
	if !noLog {
		if err := s.cfg.Topics.Identify(ctx, topic, at.Partition); err != nil {
			return nil, fmt.Errorf("open seat: %w", err)
		}
	}
	h := &runningSeat{TopicPartition: at, id: topic.ID, noLog: noLog, span: s.cfg.Topics.CompletePartitions(topic), caught: make(chan struct{}), stopped: make(chan struct{}), forget: make(chan struct{}), ended: make(chan struct{}), fetch: topicFetcher{s.fetcher, topic, at.Partition}}
	fold := s.fold(topic, at.Partition)
	if h.index, err = s.openIndex(topic, at.Partition); err != nil {
		return nil, err
	}
	var folder *txn.Producer
	if before == nil {
		h.opener = seat.NewOpener(s.producer, at.Topic, topic.ID, at.Partition, s.cfg.Instance, txn.Options{Topics: s.ids}, s.cfg.Logger)
	} else {
		h.opener, folder = before.opener.Next(topic.ID), before.view.Producer()
	}
	h.view, err = view.New(s.viewConfig(h, topic, fold, folder))
	if err != nil {
		return nil, err
	}
	cfg := seat.Config{
		Topic: at.Topic, ID: topic.ID, Partition: at.Partition,
		Region: s.cfg.ID, Regions: s.regionIDs(), Epoch: event.FirstEpoch(s.cfg.ID),
		Permit:     s.permit(topic, at.Partition),
		Rule:       func(ev *event.Event) bool { return fold.QuarantineReason(ev) == "" },
		Hold:       topic.Domain.Kind == conflict.Entities,
		UsedBefore: usedBefore, History: topic.Domain.Kind == conflict.Entities, Window: s.cfg.Window, LastStamp: h.view.Stamp,
		NoLog:   noLog,
		Reads:   s.reads(topic),
		Absent:  func() uint16 { return s.absent(at.Topic) },
		Control: s.cfg.Control, Tail: s.tail, Producer: s.producer,
		Opener: h.opener, Terms: s.terms, Room: s.writes,
		Index: h.index, Sinks: []seat.Sink{h.view.Journal()}, Joint: h.view.Journal(), Folder: h.view, Clock: s.clock, Phases: s.phasesOf(at.Topic),
		TermTaken: h.view.Look,
		Core:      seat.CoreConfig{MaxRecord: s.cfg.MaxRecord + recordRoom, IdleTerm: idleTerm},
		Logger:    s.cfg.Logger,
	}
	if s.cfg.Incidents != nil {
		cfg.Incidents = s.cfg.Incidents
	}
	if h.seat, err = seat.New(cfg); err != nil {
		return nil, err
	}
	return h, nil
}

// viewConfig configures the view of a seat; producer is that of the view before it, nil
// without one.
func (s *Seats) viewConfig(h *runningSeat, topic gateway.Topic, fold conflict.Config, producer *txn.Producer) view.Config {
	return view.Config{
		Topic: h.Topic, ID: topic.ID, Partition: h.Partition, Merged: router.Merged(h.Topic),
		ConflictPartition: router.ConflictsPartition(h.Topic, h.Partition),
		Region:            s.cfg.ID, Names: s.cfg.Topology, Fold: fold,
		Client: s.cfg.Client, Topics: s.ids, Decoder: s.cfg.Decoder, Producer: producer, DB: s.cfg.Store, Room: s.room, Transactions: s.folds,
		Fetcher: h.fetch, Place: h.fetch.place,
		Widen:  func(ctx context.Context) (bool, error) { return s.cfg.Topics.Widen(ctx, topic) },
		Claims: func() (seat.Claims, bool) { return h.seat.Claims() },
		Sight:  func(x *conflict.Sight) { s.sight(h.TopicPartition, x) },
		Published: func() (control.Progress, bool) {
			return s.cfg.Control.Progress(s.cfg.ID, h.Topic, h.Partition)
		},
		IdleProgressEvery: idleProgress(s.cfg.Window),

		Skipped:      s.cfg.Skipped,
		Restricted:   func() uint16 { return s.cfg.Control.Restricted(h.Topic) },
		Logger:       s.cfg.Logger,
		Uncompressed: s.cfg.Uncompressed,
	}
}

const (
	// foldBytes is what the items keep in memory that all partitions have still to fold.
	foldBytes = 32 << 20
	// recordRoom is what the envelope may add to a record that the edge let in.
	recordRoom = 4 << 10
	// batchRoom is what a batch adds to its only record.
	batchRoom = 256
	// idleProgressMost is how often a partition that rests tells its closed stamp, and
	// idleShare which part of the idempotency window that is at most.
	idleProgressMost = 10 * time.Minute
	idleShare        = 20
	// idleTerm is when a seat that nobody writes opens its term all the same, so
	// that its partition's closed stamp, and with it the expiry of keys, goes on.
	idleTerm = 30 * time.Second
)

// idleProgress is how often a partition that rests tells its closed stamp, for which only
// the expiry of idempotency keys waits: it need not be finer than the window.
func idleProgress(window time.Duration) time.Duration {
	return min(max(window/idleShare, time.Second), idleProgressMost)
}

func (s *Seats) fold(topic gateway.Topic, partition int32) conflict.Config {
	c := conflict.Config{Kind: topic.Domain.Kind, Rule: topic.Domain.Rule, Window: s.cfg.Window}
	if c.Kind == conflict.Entities {
		c.Holds = func(key []byte) bool { return router.Partition(key, topic.Partitions) == partition }
	}
	return c
}

// reads tells of which regions' logs a topic's seats fold; nil: of all. A topic of entities
// has nothing to fold of a region that spreads its keys over another number of partitions:
// they would be in the wrong one.
func (s *Seats) reads(topic gateway.Topic) func(event.RegionID) bool {
	if topic.Domain.Kind != conflict.Entities {
		return nil
	}
	return func(r event.RegionID) bool { return s.cfg.Topics.SameKeys(topic.Name, s.cfg.Topology.Name(r)) }
}

func (s *Seats) regionIDs() []event.RegionID {
	var ids []event.RegionID
	for _, r := range s.cfg.Topology.Regions() {
		ids = append(ids, r.ID)
	}
	return ids
}

// openIndex opens the index of a partition. Its keys begin with the topic's id:
// a recreated topic starts with an empty one.
func (s *Seats) openIndex(topic gateway.Topic, partition int32) (*dedupe.Index, error) {
	prefix := append([]byte("dedupe/"), topic.ID[:]...)
	prefix = binary.BigEndian.AppendUint32(prefix, uint32(partition))
	return dedupe.New(dedupe.Config{Region: s.cfg.ID, Window: s.cfg.Window},
		dedupe.NewBadger(s.cfg.Store, prefix, s.cfg.ID, partition))
}

// find gives the seat of a partition, nil if it is not held.
func (s *Seats) find(at txn.TopicPartition) *runningSeat {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held[at]
}

func (s *Seats) list() []*runningSeat {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*runningSeat, 0, len(s.held))
	for _, h := range s.held {
		out = append(out, h)
	}
	slices.SortFunc(out, func(a, b *runningSeat) int {
		if c := slices.Compare([]byte(a.Topic), []byte(b.Topic)); c != 0 {
			return c
		}
		return int(a.Partition - b.Partition)
	})
	return out
}
