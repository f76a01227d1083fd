package replicate

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/offsets"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/residency"
	"github.com/geogate/geogate/router"
)

// Part names a partition of a topic at the source.
type Part struct {
	Topic  string
	Number int32
}

// Stream is a partition that a link copies.
type Stream struct {
	Part
	Source      event.TopicID
	Incarnation uint16
	Registered  event.TopicID // the source that the remote topic was made for
	Remote      string        // topic at the target
	Target      event.TopicID // its id when it was made
	// Control marks the control topic: records are carried by an allow-list, and
	// no runs are written, because nobody maps its offsets.
	Control bool
	// Facts are those that cross from the control topic; nil: none.
	Facts *Facts
	// Ruling is what the residency policy says about the topic: it is not Deny,
	// for then there is no stream. Nil without a policy.
	Ruling *residency.Ruling
}

// Slot is the partition of the positions and runs topics for the stream.
func (s *Stream) Slot() int32 { return router.Slot(s.Remote, s.Number) }

// CoreConfig configures a Core.
type CoreConfig struct {
	Generation Generation
	Shard      int
	Positions  string // topic names at the target
	Runs       string
	// IdleAdvance is how long covered offsets without records may stay unwritten.
	IdleAdvance time.Duration
	// Timeout is the transactions' time-out: an id that was lost after it is not
	// a sign of another instance.
	Timeout time.Duration
	// HoldFor is how long a partition that cannot be written or listed waits
	// before it is tried again.
	HoldFor time.Duration
	// Sweep is how often the ends of quiet remote partitions are looked at, so
	// that a foreign writer is found there too.
	Sweep time.Duration
	// Decoder opens batches; nil: one with default limits.
	Decoder *txn.Decoder
	// Origin is the source's region, whose logs the streams are.
	Origin event.RegionID
	// Target is the target's region.
	Target event.RegionID
	// HasRegister: an ownership register says which parts of the data logs count. A stream that
	// IntervalsChanged has not named does not move.
	HasRegister bool
}

// Defaults of CoreConfig.
const (
	defaultIdleAdvance = 250 * time.Millisecond
	defaultHoldFor     = 5 * time.Second
	defaultSweep       = 5 * time.Second
	firstBackoff       = 50 * time.Millisecond
	maxBackoff         = 5 * time.Second
	maxBarriersWaiting = 1 << 10 // in memory, of a partition without records
	foldAfter          = 512     // records of runs that are folded into one
)

// Core is the protocol of one shard. It is pure: Step takes what happened and
// returns what to do, in order. The events that tell of an effect's end must be
// given in the order in which the effects were carried out. Core is not safe for
// use by several goroutines.
//
//	start ─ Init ─ ReadGeneration ─ ReadPositions ─ List ─┐
//	  ▲        (stop when it has changed)                 ▼
//	  │                                       ┌──────── idle ◄───────┐
//	  └── backoff ◄── anything odd ◄── Produce (records, runs, positions)
//	                                          └──────── End ─────────┘
//
// Invariant: what is fetched begins where the committed position ends, because
// reading restarts (with another number) whenever positions were read.
type Core struct {
	cfg               CoreConfig
	phase             phase
	streams           map[Part]*stream
	order             []Part // of streams, sorted: decisions do not depend on map order
	assigned          []Stream
	assignmentChanged bool // assigned differs from streams
	positions         map[posKey]offsets.Position
	unplaced          map[posKey]bool // whose only position record cannot be read
	recorded          map[string]bool // keys of incidents that are recorded already
	reading           int             // number of the current reading
	plan              *plan
	goneCounts        Counts // of streams that are no longer there
	rules             map[RuleKey]int64
	policyVersion     uint64 // of the policy in force; rulings of another one are not used
	intervals         map[Part]*event.ValidityTable
	wake              time.Time
	tries             int
}

type posKey struct {
	id  event.TopicID
	num int32
}

type phase uint8

const (
	phaseNew phase = iota
	phaseInit
	phaseGeneration
	phasePositions
	phaseList
	phaseIdle
	phaseAudit
	phaseProduce
	phaseSecondFlight // second flight of a transaction whose offsets come from the answers
	phaseEnd
	phaseBackoff
	phaseStopped
)

// stream is what a Core knows of a partition.
type stream struct {
	Stream
	known              bool // pos is a committed position, not a beginning
	listed             bool
	pos                offsets.Position
	end                int64 // the offset that the next batch will get
	epoch              int32 // leader epoch of the remote partition, -1 unknown
	offsetsFromAnswers bool  // a foreign writer is active: take offsets from the answers
	lowBase            int64 // an answer below the predicted offset, -1 none
	limit              int   // batch size that the target takes, 0 no limit met
	parked             *Incident
	held               error // why it waits until heldUntil
	heldUntil          time.Time
	unplaced           bool // its position is not known: nothing is done

	pending         []Item
	since           time.Time // when the first pending item came
	hasData         bool
	barriers        []int64 // since the last run
	stable          int64   // last stable offset of the source, -1 unknown
	oldestTimestamp int64   // least timestamp of what is pending, Unix ms, 0 none
	revalidate      bool    // the source's leader or log changed: validate before reading on
	sourceErr       error   // of the source; dealt with once what is pending is copied
	listedEnd       int64   // end of the remote partition, listed under epoch
	coverDue        bool    // target-covered is to be written though nothing is copied
	sweptAt         time.Time

	runRecordKeys    []int64       // keys of the runs' records that are not folded yet
	unfoldedRuns     []offsets.Run // what they hold
	coveredWhenAsked int64         // nextOffset when the last listing was asked for
	coveredInEpoch   int64         // first offset behind what the stream had got by then of the epoch that was asked about
	unrecorded       []Incident
	foreignAt        time.Time // when a foreign writer was last recorded
	counts           Counts

	lapses        []lapse // of the log, in order; see intervals.go
	lapsesVersion int     // rises whenever lapses change
	stopped       bool    // at a cut, and so not fetched
}

// Counts are what a stream or a shard has done since it was made.
type Counts struct {
	Copied  int64 // records of data
	Control int64 // control records that were copied
	Passed  int64 // batches of data as they were
	Opened  int64 // batches of data that were decoded
	Denied  int64 // records held back by a rule or allow-list
	Foreign int64 // offsets in remote topics that others have taken
	Orphans int64 // offsets of data passed over because they lie past a cut
}

func (c *Counts) add(o Counts) {
	c.Copied += o.Copied
	c.Control += o.Control
	c.Passed += o.Passed
	c.Opened += o.Opened
	c.Denied += o.Denied
	c.Foreign += o.Foreign
	c.Orphans += o.Orphans
}

// NewCore makes a Core that waits for Start.
func NewCore(cfg CoreConfig) *Core {
	cfg.IdleAdvance = cmp.Or(cfg.IdleAdvance, defaultIdleAdvance)
	cfg.Timeout = cmp.Or(cfg.Timeout, txn.DefaultTimeout)
	cfg.HoldFor = cmp.Or(cfg.HoldFor, defaultHoldFor)
	cfg.Sweep = cmp.Or(cfg.Sweep, defaultSweep)
	if cfg.Decoder == nil {
		cfg.Decoder = txn.NewDecoder(txn.Limits{})
	}
	return &Core{cfg: cfg, streams: map[Part]*stream{}, recorded: map[string]bool{}, rules: map[RuleKey]int64{}}
}

// RuleKey names a count of records: the rule that decided, and how.
type RuleKey struct {
	Rule string
	Code residency.Code
}

// Step takes an event. now only decides when something is due.
func (c *Core) Step(now time.Time, ev any) []any {
	if c.phase == phaseStopped {
		return nil
	}
	switch ev := ev.(type) {
	case Start:
		return c.beginTakeOver()
	case Assigned:
		c.assigned, c.assignmentChanged = ev.Streams, true
		return c.next(now)
	case Inited:
		return c.inited(now, ev)
	case GenerationRead:
		return c.generationRead(now, ev)
	case PositionsRead:
		return c.positionsRead(now, ev)
	case Listed:
		return c.listed(now, ev)
	case Fetched:
		return c.fetched(now, ev)
	case PolicyChanged:
		c.policyVersion = ev.Version
		return c.leaveOutdated()
	case IntervalsChanged:
		return c.intervalsKnown(ev)
	case Audited:
		return c.audited(now, ev)
	case Produced:
		return c.produced(now, ev)
	case Ended:
		return c.ended(now, ev)
	case Tick:
		if c.phase == phaseBackoff && !now.Before(c.wake) {
			return c.beginTakeOver()
		}
		return c.next(now)
	}
	panic(fmt.Sprintf("replicate: event %T", ev))
}

// beginTakeOver is the start and the one recovery: the producer first, so that nobody
// else can commit under the shard's id; then the generation; then the positions.
func (c *Core) beginTakeOver() []any {
	c.phase, c.plan = phaseInit, nil
	return []any{Init{}}
}

func (c *Core) inited(now time.Time, ev Inited) []any {
	if ev.Err != nil {
		return c.recover(now, ev.Err)
	}
	c.phase = phaseGeneration
	return []any{ReadGeneration{}}
}

func (c *Core) generationRead(now time.Time, ev GenerationRead) []any {
	if ev.Err != nil {
		return c.recover(now, ev.Err)
	}
	if !ev.Found.Exists {
		return c.stop(errGenerationLost)
	}
	if ev.Found.Record != c.cfg.Generation || !ev.Found.Record.Fenced {
		return c.stop(ErrGeneration)
	}
	c.phase = phasePositions
	return []any{ReadPositions{}}
}

func (c *Core) positionsRead(now time.Time, ev PositionsRead) []any {
	if ev.Err != nil {
		return c.recover(now, ev.Err)
	}
	c.positions, c.unplaced = make(map[posKey]offsets.Position, len(ev.Positions)), make(map[posKey]bool)
	for _, p := range ev.Positions {
		if p.Malformed {
			c.unplaced[posKey{p.Source, p.Number}] = true
			continue
		}
		c.positions[posKey{p.Source, p.Number}] = p.Position
	}
	for i := range ev.Incidents {
		c.recorded[string(ev.Incidents[i].AppendKey(nil))] = true
	}
	for _, s := range c.streams {
		s.reset()
		c.restorePosition(s)
	}
	c.reading++ // whatever is on its way was read for another beginning
	c.adopt(now)
	c.phase = phaseIdle
	return c.list(now)
}

// reset forgets everything that is not committed.
func (s *stream) reset() {
	s.listed, s.known, s.revalidate, s.coverDue = false, false, false, false
	s.barriers, s.runRecordKeys, s.unfoldedRuns = nil, nil, nil
	s.drop()
}

// drop forgets what was fetched.
func (s *stream) drop() {
	s.pending, s.hasData, s.oldestTimestamp, s.sourceErr = nil, false, 0, nil
}

// restorePosition gives a stream its committed position.
func (c *Core) restorePosition(s *stream) {
	s.pos, s.known = c.positions[posKey{s.Source, s.Number}]
	s.unplaced = c.unplaced[posKey{s.Source, s.Number}]
	if !s.known {
		s.pos = offsets.Position{Incarnation: s.Incarnation, SourceEpoch: -1, TargetEpoch: -1, Barrier: offsets.NoBarrier, Target: s.Target}
	}
}

// adopt makes the streams those that were assigned, and keeps what is known of
// those that stay. It tells whether any went.
func (c *Core) adopt(time.Time) (gone []Part) {
	if !c.assignmentChanged {
		return nil
	}
	c.assignmentChanged = false
	want := make(map[Part]Stream, len(c.assigned))
	for _, s := range c.assigned {
		want[s.Part] = s
	}
	for part, s := range c.streams {
		if w, ok := want[part]; !ok || w != s.Stream {
			delete(c.streams, part)
			c.goneCounts.add(s.counts)
			gone = append(gone, part)
		}
	}
	for part, w := range want {
		if c.streams[part] == nil {
			s := &stream{Stream: w, epoch: -1, lowBase: -1, stable: -1}
			c.restorePosition(s)
			c.setLapses(s)
			c.streams[part] = s
		}
	}
	c.order = slices.SortedFunc(maps.Keys(c.streams), Part.compare)
	slices.SortFunc(gone, Part.compare)
	return gone
}

func (p Part) compare(o Part) int {
	return cmp.Or(cmp.Compare(p.Topic, o.Topic), cmp.Compare(p.Number, o.Number))
}

// list asks about every stream that has not been listed or must be looked at
// again, or goes on.
func (c *Core) list(now time.Time) []any {
	if !slices.ContainsFunc(c.order, func(p Part) bool { return c.mustList(now, c.streams[p], c.cfg.Sweep) }) {
		return c.begin(now)
	}
	var ask []ListStream
	for _, part := range c.order {
		s := c.streams[part]
		// Also those whose turn comes soon: a thousand quiet streams are one question
		// each sweep, not a thousand.
		if !c.mustList(now, s, c.cfg.Sweep/2) {
			continue
		}
		s.coveredWhenAsked = s.nextOffset()
		var epoch int32
		epoch, s.coveredInEpoch = s.lastEpoch()
		ask = append(ask, ListStream{s.Stream, epoch, s.pos.TargetEpoch, s.coveredWhenAsked})
	}
	c.phase = phaseList
	return []any{List{ask}}
}

// mustList tells whether a stream's ends are asked for: they never were, it must be looked
// at again, or it was looked at a sweep ago.
func (c *Core) mustList(now time.Time, s *stream, sweep time.Duration) bool {
	if s.parked != nil && !s.parked.Kind.mayEnd() || s.unplaced || !c.rulingCurrent(s) || now.Before(s.heldUntil) {
		return false
	}
	return !s.listed && s.parked == nil || s.revalidate || now.Sub(s.sweptAt) >= sweep
}

func (c *Core) listed(now time.Time, ev Listed) []any {
	if ev.Err != nil {
		return c.recover(now, ev.Err)
	}
	c.phase, c.tries = phaseIdle, 0
	var out []any
	read := false
	for _, part := range c.order {
		l, ok := ev.Listings[part]
		s := c.streams[part]
		if !ok || s.parked != nil && !s.parked.Kind.mayEnd() || !c.rulingCurrent(s) {
			continue
		}
		s.sweptAt = now
		if s.parked != nil && (l.Err != nil || !s.mayGoOn(&l)) {
			out = append(out, c.grown(now, s, &l)...)
			continue
		}
		if s.parked != nil {
			out = append(out, Report{Incident: *s.parked, Ended: true})
			s.parked, s.listed = nil, false
		}
		if l.Err != nil {
			out = append(out, c.hold(now, s, l.Err)...)
			continue
		}
		read = read || !s.listed || s.revalidate
		out = append(out, c.check(now, s, &l)...)
	}
	if read {
		out = append(out, c.restartReading())
	}
	if c.assignmentChanged { // streams were assigned meanwhile; no time is set at which they would be looked at
		return append(out, c.next(now)...)
	}
	out = append(out, c.stopAtCuts()...)
	return append(out, c.begin(now)...)
}

// restartReading has everything that may be sent fetched from where it was left.
func (c *Core) restartReading() Read {
	c.reading++
	from := map[Part]ReadFrom{}
	for part, s := range c.streams {
		if !s.listed || s.parked != nil {
			continue
		}
		if s.stopped = s.atCut(); s.stopped {
			s.drop()
			continue
		}
		from[part] = ReadFrom{s.Stream, s.nextOffset()}
	}
	return Read{c.reading, from}
}

// nextOffset is the first source offset that the stream has not got.
func (s *stream) nextOffset() int64 {
	if n := len(s.pending); n > 0 {
		return s.pending[n-1].Next
	}
	return s.pos.SourceCovered
}

// check compares the committed position with what both clusters say, and begins
// the stream if they agree.
func (c *Core) check(now time.Time, s *stream, l *Listing) []any {
	first := !s.listed
	if !s.known && (first || s.atCut()) { // nothing of it has been sent
		s.pos.SourceCovered = l.SourceStart // a beginning, not a gap
		s.coveredWhenAsked, s.coveredInEpoch = l.SourceStart, l.SourceStart
		s.pos.Target, s.pos.TargetEpoch = l.Target, l.TargetEpoch
	}
	if x, bad := s.incident(l); bad {
		if x.Kind == RetentionGap && len(s.pending) > 0 {
			// What was fetched is copied first: then the incident begins where it does.
			s.sourceErr, s.listed, s.revalidate = new(SourceError), true, false
			return nil
		}
		if x.Kind == SourceTruncated && len(s.pending) > 0 {
			// Perhaps only what was fetched and not committed is gone, which is no loss:
			// the committed position is looked at.
			s.drop()
			s.listed, s.held, s.heldUntil = false, errShorter, now.Add(firstBackoff)
			return []any{Leave{s.Part}}
		}
		return c.park(now, s, x)
	}
	out := c.goneAt(now, s, l)
	switch {
	case first:
		s.end, s.epoch = l.TargetEnd, l.TargetEpoch
		// A position of a partition that has none tells from now on what is a gap; or there is
		// more than our last commit marker, or another leader.
		s.coverDue = !s.known && !s.atCut() || s.known && (s.end > s.pos.TargetCovered+1 || s.epoch != s.pos.TargetEpoch)
	case l.TargetEpoch >= 0 && l.TargetEpoch != s.epoch:
		// Readers judge nothing of the new leader's before a position names it.
		s.epoch, s.coverDue = l.TargetEpoch, true
	case l.TargetEnd > s.end:
		out = append(out, c.foreign(now, s, s.end, l.TargetEnd)...)
		s.end, s.coverDue = l.TargetEnd, true
	}
	s.listedEnd = l.TargetEnd
	if s.coverDue && len(s.pending) == 0 {
		s.since = now
	}
	s.listed, s.revalidate, s.held = true, false, nil
	return out
}

// hold leaves a stream alone for HoldFor.
func (c *Core) hold(now time.Time, s *stream, why error) []any {
	s.held, s.heldUntil = why, now.Add(c.cfg.HoldFor)
	s.listed = false
	s.drop()
	return []any{Leave{s.Part}}
}

func (c *Core) fetched(now time.Time, ev Fetched) []any {
	if ev.Reading != c.reading {
		return nil
	}
	var out []any
	for i := range ev.Parts {
		f := &ev.Parts[i]
		s := c.streams[f.Part]
		if s == nil || s.parked != nil || !s.listed || s.revalidate || s.stopped {
			continue
		}
		s.stable = f.Stable
		s.take(now, f.Items)
		if f.Err != nil {
			out = append(out, c.sourceTrouble(now, s, f.Err)...)
		}
	}
	return append(out, c.next(now)...)
}

// take appends items to what is pending.
func (s *stream) take(now time.Time, items []Item) {
	if len(items) > 0 && len(s.pending) == 0 {
		s.since = now
	}
	s.pending = append(s.pending, items...)
	for i := range items {
		if items[i].Kind != ItemData {
			continue
		}
		s.hasData = true
		if b := items[i].Batch; s.oldestTimestamp == 0 && b.Magic() == 2 {
			s.oldestTimestamp = b.BaseTimestamp()
		}
	}
}

// sourceTrouble deals with an error of the source once everything before it is
// copied.
func (c *Core) sourceTrouble(now time.Time, s *stream, err error) []any {
	s.sourceErr = err
	if len(s.pending) > 0 {
		return nil
	}
	s.sourceErr = nil
	var trouble *SourceError
	switch {
	case !errors.As(err, &trouble):
		return c.hold(now, s, err)
	case trouble.Corrupt != nil:
		return c.parkFor(now, s, Incident{Kind: Corrupt, From: trouble.Offset, Until: trouble.Offset + 1, Detail: trouble.Corrupt.Error()}, trouble.Corrupt)
	}
	s.revalidate = true
	return nil
}

// next does whatever the phase allows: with a transaction under way, nothing.
func (c *Core) next(now time.Time) []any {
	if c.phase != phaseIdle {
		return nil
	}
	var out []any
	for _, part := range c.adopt(now) {
		out = append(out, Leave{part})
	}
	out = append(out, c.leaveOutdated()...)
	out = append(out, c.stopAtCuts()...)
	return append(out, c.list(now)...)
}

// leaveOutdated stops the streams whose ruling is of another policy version. What
// was fetched under it is fetched and decided again, from the committed position on, once the stream has
// its new one.
func (c *Core) leaveOutdated() (out []any) {
	if c.phase != phaseIdle {
		return nil
	}
	for _, part := range c.order {
		if s := c.streams[part]; s.listed && !c.rulingCurrent(s) {
			s.listed = false
			s.drop()
			out = append(out, Leave{part})
		}
	}
	return out
}

// rulingCurrent tells whether a stream's ruling is of the policy version in force.
func (c *Core) rulingCurrent(s *stream) bool {
	return s.Ruling == nil || s.Ruling.Version == c.policyVersion
}

// recover goes back to the take-over after a while.
func (c *Core) recover(now time.Time, err error) []any {
	if errors.Is(err, txn.ErrFenced) && !c.timedOut(now) {
		return c.stop(fmt.Errorf("%w: %w", ErrTakenOver, err))
	}
	c.phase, c.plan = phaseBackoff, nil
	c.wake = now.Add(min(firstBackoff<<min(c.tries, 10), maxBackoff))
	c.tries++
	return nil
}

// timedOut tells whether the cluster may have taken the id from us because the
// transaction took too long.
func (c *Core) timedOut(now time.Time) bool {
	return c.plan != nil && now.Sub(c.plan.began) >= c.cfg.Timeout*4/5
}

func (c *Core) stop(err error) []any {
	c.phase = phaseStopped
	return []any{Stop{err}}
}

// Wake is when a Tick is wanted; the zero time is never.
func (c *Core) Wake() time.Time {
	switch c.phase {
	case phaseBackoff:
		return c.wake
	case phaseIdle:
		var first time.Time
		for _, s := range c.streams {
			var at time.Time
			switch {
			case s.parked != nil && !s.parked.Kind.mayEnd(), s.unplaced, !c.rulingCurrent(s):
			case s.parked != nil:
				at = s.sweptAt.Add(c.cfg.Sweep)
			case s.held != nil:
				at = s.heldUntil
			case s.listed && (s.revalidate || s.stopped != s.atCut()):
				at = s.sweptAt // at once
			case len(s.pending) > 0 || s.coverDue:
				at = s.since.Add(c.cfg.IdleAdvance)
			default:
				at = s.sweptAt.Add(c.cfg.Sweep)
			}
			if !at.IsZero() && (first.IsZero() || at.Before(first)) {
				first = at
			}
		}
		return first
	}
	return time.Time{}
}
