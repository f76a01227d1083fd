package node

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/conflict/view"
	"github.com/geogate/geogate/dedupe"
	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/router"
	"github.com/geogate/geogate/router/ownership"
)

// ErrSuperseded is returned by an instance's components when another instance of
// the region has taken its seats: it has stopped them and must not take them back.
var ErrSuperseded = seat.ErrSuperseded

const (
	sweepEvery   = 10 * time.Minute
	retryAfter   = 2 * time.Second        // a seat whose store or log failed is tried again
	prepareAfter = 500 * time.Millisecond // the seats that run from the start are tried again
	openRequests = 64
)

// place is one partition of a local topic.
type place struct {
	topic     string
	partition int32
}

// holding is one seat with what belongs to it.
type holding struct {
	place
	id    control.TopicID // of the topic as it was when the seat was made
	view  *view.View
	seat  *seat.Seat
	index *dedupe.Index
	fetch topicFetcher
	// caught is closed when the view shows what the log held at the start.
	caught chan struct{}
}

// Write implements gateway.Seat.
func (h *holding) Write(ctx context.Context, q *seat.Request) (seat.Answer, error) {
	return h.seat.Write(ctx, q)
}

// Fetch implements gateway.Seat.
func (h *holding) Fetch(ctx context.Context, at event.Dot) (event.Event, error) {
	return h.fetch.Fetch(ctx, at)
}

// View implements gateway.Seat.
func (h *holding) View() gateway.View { return h.view }

// seats holds the seats of the instance: all that there are, for the instance is
// the only one of its region. Those of declared topics, and of topics that were
// used before, run from the start; others from their first use on.
type seats struct {
	cfg      Config
	own      event.RegionID
	topology *router.Topology
	log      *slog.Logger

	uncompressed bool // batches

	topics    *topics
	control   *control.Follower
	authority *ownership.Client    // nil: there is no register
	tables    *ownership.Intervals // with it
	producer  *seat.Producer
	client    *kgo.Client // transactions
	ids       *txn.Topics
	tail      *seat.Tail
	clock     *hlc.Clock
	store     *badger.DB
	fetcher   *fetcher

	requests chan *holding // to be run
	prepared chan struct{} // closed when declared topics are there and their seats are asked for

	mu      sync.Mutex
	held    map[place]*holding
	present map[string]control.TopicID // by name, of topics that were made anew
	stopped bool                       // no new ones
}

// Run runs all seats until the context ends. It returns an error that wraps
// ErrSuperseded as soon as one seat is lost to another instance; every other
// trouble of a seat is its own.
func (s *seats) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.tail.Run(ctx) })
	g.Go(func() error { return s.prepare(ctx) })
	g.Go(func() error { s.sweep(ctx); return nil })
	g.Go(func() error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case h := <-s.requests:
				g.Go(func() error { return s.keep(ctx, h) })
			}
		}
	})
	err := g.Wait()
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	s.producer.Close()
	return err
}

// prepare waits for control, makes the declared topics, and opens the seats that
// run from the start.
func (s *seats) prepare(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.control.Ready():
	}
	for {
		err := s.openAll(ctx)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return nil
		}
		if final(err) {
			return refused(err) // only an operator can help
		}
		s.log.Warn("open seats, will try again", "err", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(prepareAfter):
		}
	}
	close(s.prepared)
	return nil
}

// openAll makes the declared topics and opens the seats that run from the start.
// It may be called again after an error.
func (s *seats) openAll(ctx context.Context) error {
	if err := s.topics.prepareDeclared(ctx); err != nil {
		return err
	}
	declared := make(map[string]bool)
	for _, d := range s.topics.policy.Declared() {
		declared[d.Topic] = true
	}
	for _, name := range s.used() {
		err := s.openTopic(ctx, name)
		if !declared[name] && (errors.Is(err, gateway.ErrTopicUnknown) || errors.Is(err, errBlocked)) {
			s.log.Warn("a topic that was used before cannot be opened", "topic", name, "err", err)
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *seats) openTopic(ctx context.Context, name string) error {
	topic, err := s.topics.Topic(ctx, name)
	if err != nil {
		return fmt.Errorf("open topic %s: %w", name, err)
	}
	for p := range topic.Partitions {
		if _, err := s.hold(ctx, place{name, p}); err != nil {
			return fmt.Errorf("open seat %s/%d: %w", name, p, err)
		}
	}
	return nil
}

// used are the declared topics and those of which something was derived before.
func (s *seats) used() []string {
	var names []string
	for _, d := range s.topics.policy.Declared() {
		names = append(names, d.Topic)
	}
	for _, x := range s.control.Topics() {
		if x.Kind == control.KindDerived && x.Use == control.UseState {
			names = append(names, x.Of)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// keep runs one seat with its view, again after trouble that is its own.
func (s *seats) keep(ctx context.Context, h *holding) error {
	said := "" // a topic that stays deleted is not worth a line every two seconds
	for {
		err := s.run(ctx, h)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, ErrSuperseded) {
			s.log.Error("another instance of the region has taken a seat; this instance stops", "topic", h.topic, "partition", h.partition)
			return err
		}
		s.log.Error("seat ended, will run again", "topic", h.topic, "partition", h.partition, "err", err)
		var fresh *holding
		for fresh == nil {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(retryAfter):
			}
			if fresh, err = s.make(ctx, h.place); err != nil && err.Error() != said {
				said = err.Error()
				s.log.Error("open seat again", "topic", h.topic, "partition", h.partition, "err", err)
			}
		}
		s.forget(h, fresh)
		s.mu.Lock()
		s.held[h.place] = fresh
		s.mu.Unlock()
		h, said = fresh, ""
	}
}

// forget has the clients forget a topic, once, when the first of its seats finds
// another topic of that name.
func (s *seats) forget(old, fresh *holding) {
	if old.id == fresh.id {
		return
	}
	s.mu.Lock()
	done := s.present[old.topic] == fresh.id
	s.present[old.topic] = fresh.id
	s.mu.Unlock()
	if !done {
		s.tail.Forget(old.topic)
		s.producer.Forget(old.topic)
		s.ids.Forget(old.topic)
	}
}

// errReplaced ends a seat whose topic is not the one it was made for.
var errReplaced = errors.New("the topic was deleted or made anew")

// watch ends when the seat's topic has gone or another has its name: offsets,
// index and view would be those of a log that is no more. A topic that is missing
// from one list may come with the next.
func (s *seats) watch(ctx context.Context, h *holding) error {
	tick := time.NewTicker(discoverEvery)
	defer tick.Stop()
	for missing := 0; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		id, ok := s.topics.present(h.topic)
		if ok && id == h.id {
			missing = 0
			continue
		}
		if missing++; ok || missing > 1 {
			return errReplaced
		}
	}
}

// run runs a seat and its view once.
func (s *seats) run(ctx context.Context, h *holding) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.watch(ctx, h) })
	g.Go(func() error { return s.catchUp(ctx, h) })
	g.Go(func() error { return ended(ctx, "view", h.view.Run(ctx)) })
	g.Go(func() error {
		select {
		case <-ctx.Done():
			return nil
		case <-h.view.Ready():
		}
		s.clock.Restore(h.view.Stamp())
		return ended(ctx, "seat", h.seat.Run(ctx))
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
func (s *seats) Open(ctx context.Context, topic string, partition int32) (gateway.Seat, error) {
	h, err := s.hold(ctx, place{topic, partition})
	if err != nil {
		return nil, err
	}
	select {
	case <-h.view.Ready():
		return h, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("open seat: the state is being read: %w", seat.ErrNotReady)
	}
}

// hold finds the seat of a partition, or makes it and has it run.
func (s *seats) hold(ctx context.Context, at place) (*holding, error) {
	s.mu.Lock()
	h, ok := s.held[at]
	s.mu.Unlock()
	if ok {
		return h, nil
	}
	select {
	case <-s.control.Ready():
	default:
		return nil, fmt.Errorf("open seat: control is being read: %w", seat.ErrNotReady)
	}
	h, err := s.make(ctx, at)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if other, ok := s.held[at]; ok {
		return other, nil
	}
	if s.stopped {
		return nil, fmt.Errorf("open seat: %w", seat.ErrDraining)
	}
	select {
	case s.requests <- h:
	case <-ctx.Done():
		return nil, fmt.Errorf("open seat: %w", seat.ErrNotReady)
	}
	s.held[at] = h
	return h, nil
}

// make builds a seat without running it.
func (s *seats) make(ctx context.Context, at place) (*holding, error) {
	topic, err := s.topics.Topic(ctx, at.topic)
	if err != nil {
		return nil, err
	}
	if at.partition < 0 || at.partition >= topic.Partitions {
		return nil, fmt.Errorf("open seat: topic %s has %d partitions, no %d", at.topic, topic.Partitions, at.partition)
	}
	if err := s.topics.derive(ctx, topic); err != nil {
		return nil, fmt.Errorf("open seat: %w", err)
	}
	if err := s.topics.identify(ctx, topic, at.partition); err != nil {
		return nil, fmt.Errorf("open seat: %w", err)
	}
	h := &holding{place: at, id: topic.ID, caught: make(chan struct{}), fetch: topicFetcher{s.fetcher, topic, at.partition}}
	fold := s.fold(topic, at.partition)
	if h.index, err = s.openIndex(topic, at.partition); err != nil {
		return nil, err
	}
	h.view, err = view.New(view.Config{
		Topic: at.topic, ID: topic.ID, Partition: at.partition, Merged: router.Merged(at.topic),
		ConflictPartition: router.ConflictsPartition(at.topic, at.partition),
		Region:            s.own, Names: s.topology, Fold: fold,
		Client: s.client, Topics: s.ids, DB: s.store,
		Fetcher: h.fetch,
		Claims:  func() (seat.Claims, bool) { return h.seat.Claims() },

		Restricted:   func() uint16 { return s.control.Restricted(at.topic) },
		Logger:       s.log,
		Uncompressed: s.uncompressed,
	})
	if err != nil {
		return nil, err
	}
	h.seat, err = seat.New(seat.Config{
		Topic: at.topic, ID: topic.ID, Partition: at.partition,
		Region: s.own, Regions: s.regionIDs(), Epoch: event.FirstEpoch(s.own),
		Permit:  s.seatAuthority(topic, at.partition),
		Rule:    func(ev *event.Event) bool { return fold.Admit(ev) == "" },
		Hold:    topic.Domain.Kind == ownership.Entity,
		Control: s.control, Tail: s.tail, Producer: s.producer,
		Opener: seat.NewOpener(s.producer, at.topic, topic.ID, at.partition, s.cfg.Instance, txn.Options{Topics: s.ids}, s.log),
		Index:  h.index, Sinks: []seat.Sink{h.view.Journal()}, Folder: h.view, Clock: s.clock,
		Core:   seat.CoreConfig{MaxRecord: int(s.cfg.HTTP.MaxRecord) + recordRoom, IdleTerm: idleTerm},
		Logger: s.log,
	})
	if err != nil {
		return nil, err
	}
	return h, nil
}

const (
	// recordRoom is what the envelope may add to a record that the edge let in.
	recordRoom = 4 << 10
	// idleTerm is when a seat that nobody writes opens its term all the same, so
	// that its partition's closed stamp, and with it the expiry of keys, goes on.
	idleTerm = 30 * time.Second
)

func (s *seats) fold(topic gateway.Topic, partition int32) conflict.Config {
	c := conflict.Config{Kind: conflict.Events, Window: s.cfg.Idempotency.Window}
	if topic.Domain.Kind == ownership.Entity {
		c.Kind, c.Rule = conflict.Entities, topic.Domain.Rule
		c.Holds = func(key []byte) bool { return router.Partition(key, topic.Partitions) == partition }
	}
	return c
}

func (s *seats) regionIDs() []event.RegionID {
	var ids []event.RegionID
	for _, r := range s.topology.Regions() {
		ids = append(ids, r.ID)
	}
	return ids
}

// openIndex opens the index of a partition. Its keys begin with the topic's id:
// a topic that was made anew begins anew.
func (s *seats) openIndex(topic gateway.Topic, partition int32) (*dedupe.Index, error) {
	prefix := append([]byte("dedupe/"), topic.ID[:]...)
	prefix = binary.BigEndian.AppendUint32(prefix, uint32(partition))
	return dedupe.New(dedupe.Config{Region: s.own, Window: s.cfg.Idempotency.Window},
		dedupe.NewBadger(s.store, prefix, s.own, partition))
}

// sweep removes expired keys now and then.
func (s *seats) sweep(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, h := range s.list() {
			closed := s.control.LowestClosed(h.topic, h.partition, h.index.Applied())
			if n, err := h.index.Sweep(closed, s.tables.Table(h.topic, h.partition)); err != nil {
				s.log.Warn("remove expired keys", "topic", h.topic, "partition", h.partition, "err", err)
			} else if n > 0 {
				s.log.Debug("removed expired keys", "topic", h.topic, "partition", h.partition, "copies", n)
			}
		}
	}
}

// find gives the seat of a partition, nil if it is not held.
func (s *seats) find(at place) *holding {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held[at]
}

func (s *seats) list() []*holding {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*holding, 0, len(s.held))
	for _, h := range s.held {
		out = append(out, h)
	}
	slices.SortFunc(out, func(a, b *holding) int {
		if c := slices.Compare([]byte(a.topic), []byte(b.topic)); c != 0 {
			return c
		}
		return int(a.partition - b.partition)
	})
	return out
}

// Status says how many seats are ready.
func (s *seats) Status() string {
	ready, all := 0, s.list()
	for _, h := range all {
		if h.seat.Status().Ready {
			ready++
		}
	}
	return fmt.Sprintf("%d of %d seats ready", ready, len(all))
}

// Ready is the readiness of the seats that run from the start.
func (s *seats) Ready(context.Context) error {
	select {
	case <-s.prepared:
	default:
		return errors.New("declared topics are being prepared")
	}
	for _, h := range s.list() {
		if !h.seat.Status().Ready {
			return fmt.Errorf("seat %s/%d reads its log", h.topic, h.partition)
		}
	}
	return nil
}

var (
	seatInFlight    = prometheus.NewDesc("geogate_seat_in_flight", "Writes accepted and not yet answered.", []string{"topic"}, nil)
	seatRecords     = prometheus.NewDesc("geogate_seat_records_total", "Records judged by verdict since the start.", []string{"topic", "verdict"}, nil)
	foldSteps       = prometheus.NewDesc("geogate_fold_steps_total", "Fold transactions committed.", []string{"topic"}, nil)
	foldRestarts    = prometheus.NewDesc("geogate_fold_restarts_total", "Fold transactions whose outcome had to be read back.", []string{"topic"}, nil)
	foldMerged      = prometheus.NewDesc("geogate_fold_merged_records_total", "Records written to the merged topic.", []string{"topic"}, nil)
	foldConflicts   = prometheus.NewDesc("geogate_fold_conflict_records_total", "Records written to the conflict feed.", []string{"topic"}, nil)
	foldTwins       = prometheus.NewDesc("geogate_fold_twins_total", "Copies of an idempotency key that have no effect.", []string{"topic"}, nil)
	foldOrphans     = prometheus.NewDesc("geogate_fold_orphans_total", "Events that lie behind a cut, folded before it was known or not.", []string{"topic"}, nil)
	foldWaiting     = prometheus.NewDesc("geogate_fold_waiting_logs", "Logs of origins, by partition, whose fold waits for the ownership register.", []string{"topic"}, nil)
	foldQuarantined = prometheus.NewDesc("geogate_fold_quarantined_total", "Records that are never folded, by reason.", []string{"topic", "reason"}, nil)
	clockCarries    = prometheus.NewDesc("geogate_clock_carries_total", "Times that the clock's counter ran over.", nil, nil)
)

// Describe implements prometheus.Collector.
func (s *seats) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{seatInFlight, seatRecords, foldSteps, foldRestarts, foldMerged, foldConflicts, foldTwins, foldOrphans, foldWaiting, foldQuarantined, clockCarries} {
		out <- d
	}
}

// Collect implements prometheus.Collector, with the sums of each topic's seats.
func (s *seats) Collect(out chan<- prometheus.Metric) {
	type sums struct {
		inFlight, waiting                         int
		void, quarantined, foreign                uint64
		steps, restarts, merged, conflicts, twins uint64
		orphans                                   uint64
		reasons                                   map[string]uint64
	}
	by := map[string]*sums{}
	for _, h := range s.list() {
		t := by[h.topic]
		if t == nil {
			t = &sums{reasons: map[string]uint64{}}
			by[h.topic] = t
		}
		st, v := h.seat.Status(), h.view.Status()
		t.inFlight, t.waiting = t.inFlight+st.InFlight, t.waiting+len(st.Unsettled)
		t.void, t.quarantined, t.foreign = t.void+st.Void, t.quarantined+st.Quarantined, t.foreign+st.Foreign
		t.steps, t.restarts, t.merged, t.conflicts = t.steps+v.Steps, t.restarts+v.Restarts, t.merged+v.Merged, t.conflicts+v.Conflicts
		t.twins += uint64(v.Counts.Twins)
		t.orphans += uint64(v.Counts.Orphans)
		for reason, n := range v.Counts.Quarantined {
			t.reasons[reason] += uint64(n)
		}
	}
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	for topic, t := range by {
		out <- prometheus.MustNewConstMetric(seatInFlight, prometheus.GaugeValue, float64(t.inFlight), topic)
		out <- prometheus.MustNewConstMetric(foldWaiting, prometheus.GaugeValue, float64(t.waiting), topic)
		count(seatRecords, t.void, topic, "void")
		count(seatRecords, t.quarantined, topic, "quarantined")
		count(seatRecords, t.foreign, topic, "foreign")
		count(foldSteps, t.steps, topic)
		count(foldRestarts, t.restarts, topic)
		count(foldMerged, t.merged, topic)
		count(foldConflicts, t.conflicts, topic)
		count(foldTwins, t.twins, topic)
		count(foldOrphans, t.orphans, topic)
		for reason, n := range t.reasons {
			count(foldQuarantined, n, topic, reason)
		}
	}
	count(clockCarries, s.clock.Carries())
}
