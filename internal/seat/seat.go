package seat

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/defect"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/incident"
	"github.com/geogate/geogate/internal/sleep"
	"github.com/geogate/geogate/internal/txn"
)

// KeyIndex is the index of idempotency keys that a seat feeds and asks
// (dedupe.Index). It is safe for concurrent use.
type KeyIndex interface {
	Index
	// Applied is how far each origin's log is indexed.
	Applied() event.Vector
	// Barriers lists the own log's barriers that were applied, in log order.
	Barriers() []event.Dot
	// Apply stores copies, the own log's barriers among them, and applied, of
	// which only the entries that are higher than before count, in one atomic
	// step. What was stored before is stored again without effect.
	Apply(copies []event.Copy, barriers []event.Dot, applied event.Vector) error
	// ApplyWith is Apply, and has another index store what it has of the same in the
	// same step; it is used if there is a Config.Joint.
	ApplyWith(copies []event.Copy, barriers []event.Dot, applied event.Vector, with StoreWith) error
}

// Incidents is where a seat reports what was deleted before it had read it. It answers from
// memory, at once.
type Incidents interface {
	Report(x incident.Incident)
	// Missing is what a reader still lacks of the offsets from a place up to until, all of
	// which were deleted: without the parts that somebody has accepted as lost.
	Missing(at incident.Place, until int64) (from, to int64)
	// KeysLost is the open incident of lost idempotency keys of a topic's partition, nil if
	// there is none.
	KeysLost(topic string, partition int32) *incident.Entry
	// Truncated is the open incident of a log that has lost its end, nil if there is none.
	Truncated(log event.TopicID, partition int32) *incident.Entry
}

// Config of a Seat.
type Config struct {
	Topic     string
	ID        event.TopicID // in the own cluster
	Partition int32

	Region  event.RegionID
	Regions []event.RegionID // all, the own included
	Epoch   event.Epoch      // of the unit where there is no Permit; default event.FirstEpoch
	// Permit says whether the region may write; nil: it always may.
	Permit WritePermit
	// Incidents keeps what was deleted before the seat had read it, and says what somebody
	// has accepted as lost; nil: nothing is accepted.
	Incidents Incidents
	// UsedBefore is InputsStart.UsedBefore.
	UsedBefore bool
	// History is InputsConfig.History.
	History bool
	// Window is how long an idempotency key is remembered.
	Window time.Duration
	// LastStamp is the highest stamp that was folded; nil: not known.
	LastStamp func() event.Stamp
	// NoLog: the own region's topic has no such partition, only others' have. The seat
	// folds theirs and takes no writes.
	NoLog bool
	// Reads tells whether the fold gets the log of another region; nil: of every one.
	Reads func(event.RegionID) bool
	// Absent has bit r set if nothing of region r's log comes here, so that nobody waits for
	// what it says of it; nil: something of every region's may come.
	Absent func() uint16
	// Rule is Log.Rule for this topic.
	Rule func(*event.Event) bool
	// Hold keeps back remote events whose stamp lies further ahead than the
	// clock's bounds allow (never on events topics).
	Hold bool

	Control  *control.Follower
	Tail     *Tail
	Producer *Producer
	Opener   *Opener
	// Room is what all seats of the instance have for writes; nil: there is no limit.
	Room *Room
	// Terms bounds how many seats of an instance write a barrier at a time; nil: nothing
	// does.
	Terms *semaphore.Weighted
	Index KeyIndex
	Sinks []Sink // fed before the fold
	// Joint, if not nil, is the one of Sinks that lies in the database of Index.
	Joint  JointSink
	Folder Folder
	Clock  *hlc.Clock
	Phases Phases           // observe how long phases of writes last
	Wall   func() time.Time // of the clock; default time.Now

	// TermTaken is called when the seat has a term: it may claim more than before. Nil: it
	// is not called.
	TermTaken func()

	Timeout     time.Duration // of a write without an earlier deadline; default 10 s
	OpenTimeout time.Duration // of one attempt to write a barrier; default 10 s
	// UnreadAfter is how long the copy of a log cannot be read before the status says that
	// the view lacks it, for one that was just registered is there in a moment; default 10 s.
	UnreadAfter time.Duration
	Core        CoreConfig // limits; identity is filled in

	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	c.Epoch = cmp.Or(c.Epoch, event.FirstEpoch(c.Region))
	c.Timeout = cmp.Or(c.Timeout, 10*time.Second)
	c.OpenTimeout = cmp.Or(c.OpenTimeout, 10*time.Second)
	c.UnreadAfter = cmp.Or(c.UnreadAfter, 10*time.Second)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	if c.Wall == nil {
		c.Wall = time.Now
	}
	return c
}

// Validate says what is missing.
func (c Config) Validate() error {
	switch {
	case c.Topic == "" || c.Partition < 0:
		return fmt.Errorf("seat: partition %q/%d is none", c.Topic, c.Partition)
	case !c.Region.Valid():
		return fmt.Errorf("seat: region id %d is not valid", c.Region)
	case c.Control == nil, c.Tail == nil, c.Producer == nil, c.Opener == nil, c.Index == nil, c.Folder == nil, c.Clock == nil:
		return errors.New("seat: a dependency is missing")
	}
	return nil
}

// Seat is the adapter of one topic partition: it runs Core against the log.
type Seat struct {
	cfg         Config
	incarnation uint16
	handover    *Handover // from the tail to the inputs; set before they run

	inputsWake chan struct{} // holds one: the inputs have something to look at
	tailWake   chan struct{} // holds one: the tail has records
	coreWake   chan struct{} // holds one: results wait, or the seat has stopped
	attempts   chan uint64   // holds one: a barrier is wanted
	confirms   chan struct{} // holds one: the fold is to be asked whether it holds the partition
	ready      chan struct{} // closed when the tail has caught up

	mu      sync.Mutex // guards core, and with it the order of records
	core    *Core
	ref     uint64
	taking  []Submission          // of acceptSome
	batch   []Write               // that are being accepted
	sent    map[uint64]*sentBatch // by the last of each; until that is answered
	running bool
	broken  error   // a panic of the core, which is not used any more
	ticks   bool    // runCore gives the core time again before long
	marks   []int64 // offsets of the local log's barriers, rising
	status  Status

	submitted submitted

	resultsMu sync.Mutex
	results   []Event // from the producer's goroutine, which must not wait for mu
}

// Status is a seat's state for people and metrics.
type Status struct {
	Ready       bool
	Superseded  bool
	Term        int64 // offset of the own barrier, NoBarrier before the first
	InFlight    int
	Submitted   int    // writes that are not taken yet
	Void        uint64 // local records judged so since the start
	Quarantined uint64
	Foreign     uint64                           // remote records that no link wrote
	Held        map[event.RegionID]time.Duration // origins that wait for the wall
	// Unsettled are origins that wait for the ownership register, with the epoch of
	// the record that waits; 0: it came without a gateway, or nothing is known of
	// the register at all.
	Unsettled map[event.RegionID]event.Epoch
	// Waiting says why the seat cannot begin to read its log, or open its term; "" if
	// nothing is known.
	Waiting string
	// Gaps are what was deleted before it was folded, by origin: nothing of these origins is folded.
	Gaps map[event.RegionID]Gap
	// Unread are origins whose copies cannot be read, and why: the view lacks their records.
	Unread map[event.RegionID]string
	// CutPending says why a cut that is known is not in force, "" if there is none such.
	CutPending string
	// Refused are records beyond limits or malformed since the start, by the topic in which
	// they lie, remote ones included.
	Refused map[string]Refusals
}

// Refusals are records, and whole batches, of one partition that exceed limits or do not
// parse: they count nowhere.
type Refusals struct {
	Entries     int64 // a batch counts as one
	From, Until int64 // offsets of the latest
	Err         error // of the latest

	logged time.Time // when one was logged last
}

// topicPartition is where the seat is.
func (c *Config) topicPartition() txn.TopicPartition {
	return txn.TopicPartition{Topic: c.Topic, Partition: c.Partition}
}

// New makes a seat; it does nothing before Run.
func New(cfg Config) (*Seat, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Seat{
		cfg:        cfg.withDefaults(),
		inputsWake: make(chan struct{}, 1), tailWake: make(chan struct{}, 1), coreWake: make(chan struct{}, 1),
		attempts: make(chan uint64, 1), confirms: make(chan struct{}, 1), ready: make(chan struct{}), sent: make(map[uint64]*sentBatch),
		status: Status{Term: NoBarrier, Held: make(map[event.RegionID]time.Duration), Refused: make(map[string]Refusals)},
	}, nil
}

// beginEvery is the pause between two tries to begin.
const beginEvery = 250 * time.Millisecond

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (s *Seat) pokeInputs() { poke(s.inputsWake) }

// Run holds the seat until the context ends, and then returns nil. It returns an
// error that wraps ErrSuperseded when another instance of the region has taken
// the seat; it must not be run again in this process. All of the seat's
// goroutines end before Run returns, and every write that waits is answered.
func (s *Seat) Run(ctx context.Context) error {
	begin := s.beginUntil(ctx)
	if begin == nil {
		return nil
	}
	s.handover = s.cfg.Tail.newHandover(begin.tailFrom)
	defer s.handover.Close()
	s.cfg.Tail.join(s)
	defer s.cfg.Tail.leave(s)
	defer s.end()
	g, gctx := errgroup.WithContext(ctx)
	g.Go(defect.Guard(func() error { return s.runTail(gctx, begin) }))
	g.Go(defect.Guard(func() error { return s.runInputs(gctx, begin) }))
	g.Go(defect.Guard(func() error { return s.runCore(gctx) }))
	g.Go(defect.Guard(func() error { return s.runOpener(gctx) }))
	err := g.Wait()
	if ctx.Err() != nil && !errors.Is(err, ErrSuperseded) {
		return nil
	}
	return fmt.Errorf("seat %s/%d: %w", s.cfg.Topic, s.cfg.Partition, err)
}

// beginUntil tries to begin until it succeeds; nil when the context has ended.
// Meanwhile the seat is not ready: its topic may be missing or the broker away.
func (s *Seat) beginUntil(ctx context.Context) *beginning {
	for {
		b, err := s.begin(ctx)
		s.setWaiting(err)
		if err == nil {
			return b
		}
		if ctx.Err() == nil {
			s.cfg.Logger.Warn("cannot start a seat; will try again", "topic", s.cfg.Topic, "partition", s.cfg.Partition, "err", err)
		}
		if sleep.For(ctx, beginEvery) != nil {
			return nil
		}
	}
}

// setWaiting puts into the status why the seat does not go on.
func (s *Seat) setWaiting(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Waiting = ""
	if err != nil {
		s.status.Waiting = err.Error()
	}
}

// beginning is where a seat starts to read.
type beginning struct {
	committed event.Vector
	table     *event.ValidityTable // not newer than committed
	barriers  Barriers
	tailFrom  int64 // of the local log, uncommitted
	tailLast  int64 // last barrier below it
	end       int64 // high watermark listed at the start
}

// begin finds out where to read from and what was published.
func (s *Seat) begin(ctx context.Context) (*beginning, error) {
	own := s.cfg.Region
	err := s.cfg.Control.Sync(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.incarnation = s.cfg.Control.Incarnation(s.cfg.Topic, s.cfg.ID, s.cfg.Partition)
	s.mu.Unlock()
	published, _ := s.cfg.Control.Progress(own, s.cfg.Topic, s.cfg.Partition)
	s.cfg.Clock.Restore(s.cfg.Control.HighestClosed(s.cfg.Topic, s.cfg.Partition))

	b := &beginning{table: s.cfg.Folder.Validity()}
	b.committed, b.barriers = s.cfg.Folder.Committed()
	var start, end int64
	if !s.cfg.NoLog {
		if start, end, err = s.cfg.Tail.local.bounds(ctx, s.cfg.topicPartition()); err != nil {
			return nil, err
		}
	}
	b.end = end
	s.loadMarks()
	applied := s.cfg.Index.Applied()
	b.tailFrom, b.tailLast = ReadbackStart(s.incarnation, applied[own], b.committed[own], b.barriers[own], s.LastBarrier)
	if s.cfg.NoLog { // whatever a topic of that name has had before
		b.tailFrom, b.tailLast = 0, NoBarrier
	}
	// Not by what was published: whoever can write to the control topic can have claimed more.
	if err := s.checkEnd(ctx, end, max(b.tailFrom, offsetIn(b.committed[own], s.incarnation))); err != nil {
		return nil, err
	}
	// Where no gateway has written there are no keys. The inputs find what the fold lacks, too.
	keys, until := s.missing(incident.Keys, s.cfg.ID, offsetIn(applied[own], s.incarnation), min(start, offsetIn(b.committed[own], s.incarnation)))
	if keys < until && s.cfg.Control.MayHaveBarrier(s.cfg.ID) {
		if err := s.reportKeys(ctx, s.cfg.topicPartition(), own, s.cfg.ID, keys, until); err != nil {
			return nil, err
		}
	}
	b.tailFrom = max(b.tailFrom, start)
	core := s.cfg.Core
	core.Region, core.Incarnation, core.Partition, core.Epoch, core.NoLog = own, s.incarnation, s.cfg.Partition, s.cfg.Epoch, s.cfg.NoLog
	core.Published = Claims{End: published.End, Closed: min(published.Closed, s.cfg.Clock.Last()), Promised: published.Promised, Counted: published.Counted}.
		Bounded(event.Point{Incarnation: s.incarnation, Next: end}, &b.committed)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.core = NewCore(core, Surroundings{
		Index: s.cfg.Index, Clock: s.cfg.Clock, NewID: event.NewID,
		Committed: func() event.Vector { v, _ := s.cfg.Folder.Committed(); return v },
		Context:   s.cfg.Folder.Context,
		Closed:    func() event.Stamp { return s.Closed().Stamp },
		Permit:    s.cfg.Permit, Indexed: s.cfg.Index.Applied, KeysLost: s.keysLost, Room: s.cfg.Room,
	}, b.tailFrom)
	s.running = true
	return b, nil
}

// Closed is the lowest closed stamp of all regions, as far as the index has read their logs:
// keys of writes that are older by the window are free again.
func (s *Seat) Closed() control.Closed {
	at := control.Standpoint{Applied: s.cfg.Index.Applied(), Table: s.validity()}
	if s.cfg.Absent != nil {
		at.Absent = s.cfg.Absent()
	}
	return s.cfg.Control.LowestClosed(s.cfg.Topic, s.cfg.Partition, at)
}

// validity is the newest table of which records count, nil without a register.
func (s *Seat) validity() *event.ValidityTable {
	if s.cfg.Permit == nil {
		return nil
	}
	return s.cfg.Permit.Intervals()
}

// loadMarks takes over the barriers that the index knows.
func (s *Seat) loadMarks() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.marks = s.marks[:0]
	for _, d := range s.cfg.Index.Barriers() {
		if d.Incarnation == s.incarnation {
			s.marks = append(s.marks, d.Offset)
		}
	}
}

// end answers what still waits when the seat stops running.
func (s *Seat) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = false
	err := error(ErrNotReady)
	if s.broken != nil {
		err = ErrHeld
	}
	s.tellReplies()
	told := make(map[uint64]bool, len(s.core.replies))
	for i := range s.core.replies {
		told[s.core.replies[i].Ref] = true
	}
	for w := s.core.accepted.first; w != nil; w = w.after {
		told[w.Ref] = true
		if w.replied {
			continue
		}
		why := err
		if w.sent {
			why = &OutcomeError{HadKey: !w.Request.Idempotency.IsZero()}
		}
		w.refuse(why)
	}
	for i := range s.batch {
		if w := &s.batch[i]; !told[w.Ref] {
			w.refuse(err) // the core has not come to it
		}
	}
	s.batch = nil
	s.core.leave()
	clear(s.sent)
	s.acceptSome()
}

// Ready is closed once the seat has read its log to where it ended at the start:
// from then on it takes writes.
func (s *Seat) Ready() <-chan struct{} { return s.ready }

// notRunning is why a seat that does not run takes no write; the caller holds mu.
func (s *Seat) notRunning() error {
	switch {
	case s.broken != nil:
		return ErrHeld
	case s.status.Superseded:
		return errSuperseded()
	}
	return ErrNotReady
}

// Admits says why a write would be refused now whatever it is, in an error that Write
// would return; nil if none is known.
func (s *Seat) Admits() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running || s.broken != nil {
		return s.notRunning()
	}
	return s.core.Admits()
}

// Drain refuses new writes and returns when none is in flight any more.
func (s *Seat) Drain(ctx context.Context) error {
	s.mu.Lock()
	if s.running {
		s.step(s.cfg.Wall(), Drain{})
	}
	s.mu.Unlock()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		s.mu.Lock()
		done := !s.running || s.core.InFlight() == 0
		s.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("drain seat %s/%d: %w", s.cfg.Topic, s.cfg.Partition, ctx.Err())
		case <-tick.C:
		}
	}
}

// Settle returns once every answer has been given that was decided before the
// call: what the Permit has taken back by then is answered under no more.
func (s *Seat) Settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
}

// Claims is what the seat's progress record may say now; ok is false while the
// seat does not run.
func (s *Seat) Claims() (cl Claims, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running {
		return Claims{}, false
	}
	return s.core.Claims(), true
}

// LastBarrier is the last barrier of the local log below an offset, NoBarrier if
// there is none: what a reader that starts there gives to NewLog.
func (s *Seat) LastBarrier(offset int64) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.marks) - 1; i >= 0; i-- {
		if s.marks[i] < offset {
			return s.marks[i]
		}
	}
	return NoBarrier
}

// Status is a copy of the seat's state.
func (s *Seat) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.status
	st.Submitted = s.submitted.waiting()
	st.Held, st.Unsettled = maps.Clone(s.status.Held), maps.Clone(s.status.Unsettled)
	st.Gaps, st.Refused = maps.Clone(s.status.Gaps), maps.Clone(s.status.Refused)
	if s.core != nil {
		st.Term, st.InFlight = s.core.Term(), s.core.InFlight()
		st.Superseded = s.core.Stopped()
	}
	return st
}

// step runs the core and does what it asks for; the caller holds mu, so that
// records reach the producer in the order in which they were stamped. A core that
// panicked is not used again: the seat ends.
func (s *Seat) step(now time.Time, ev Event) {
	if s.broken != nil {
		return
	}
	if s.broken = s.tryStep(now, ev); s.broken != nil {
		poke(s.coreWake)
		return
	}
	if _, is := ev.(Tick); !is && !s.ticks && s.core.Busy() {
		s.ticks = true
		poke(s.coreWake)
	}
}

func (s *Seat) tryStep(now time.Time, ev Event) (err error) {
	defer defect.Catch(&err)
	var refused Produced
	for _, e := range s.core.Step(now, ev) {
		switch e := e.(type) {
		case OpenTerm:
			select { // one attempt at a time: the core waits for its outcome
			case s.attempts <- e.Attempt:
			default:
			}
		case ConfirmTerm:
			poke(s.confirms)
		case Produce:
			if err := s.produce(e.Records); err != nil {
				refused = Produced{Refs: refs(e.Records), Err: err}
			}
		case Replies:
			s.tellReplies()
		case Stop:
			s.status.Superseded = true
			poke(s.coreWake)
		}
	}
	if refused.Err != nil { // before anything more is sent
		return s.tryStep(now, refused)
	}
	s.core.release()
	return nil
}

// produce gives records to the producer. An error is the outcome of all of them.
func (s *Seat) produce(sent []Sent) error {
	all := refs(sent) // the core uses sent again
	b := &sentBatch{sent: time.Now()}
	s.sent[all[len(all)-1]] = b
	return s.cfg.Producer.Produce(s.cfg.Topic, s.cfg.Partition, sent, func(i int, err error) {
		s.result(Produced{Refs: all[i : i+1], Err: err}) // of a stored record the read-back tells
	}, func() { b.acknowledged(&s.cfg.Phases) })
}

func refs(sent []Sent) []uint64 {
	out := make([]uint64, len(sent))
	for i := range sent {
		out[i] = sent[i].Ref
	}
	return out
}

// tellReplies passes the core's replies on that were not yet.
func (s *Seat) tellReplies() {
	for c := s.core; c.told < len(c.replies); {
		r := &c.replies[c.told]
		c.told++
		if b := s.sent[r.Ref]; b != nil {
			delete(s.sent, r.Ref)
			if r.Err == nil {
				b.readBack(&s.cfg.Phases)
			}
		}
		r.To.Answered(r.Answer, r.Err)
	}
}

// result hands the core an event from a goroutine that must not wait.
func (s *Seat) result(ev Event) {
	s.resultsMu.Lock()
	s.results = append(s.results, ev)
	s.resultsMu.Unlock()
	poke(s.coreWake)
}
