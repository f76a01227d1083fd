package seat

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/incident"
	"github.com/geogate/geogate/internal/judged"
)

// takeMax bounds how many places of one log are judged before the indexes hear of
// them.
const takeMax = 512

// An InputEvent is something that happened to what a seat reads.
type InputEvent interface{ isInputEvent() }

// The input events.
type (
	// Fetched: entries of an origin's log have been read, behind those before: of
	// the own partition, or of the remote one that holds the origin's copy. The slice is
	// the receiver's.
	Fetched struct {
		Origin  event.RegionID
		Entries []Entry
	}

	// Judged: places of the own log that its Readback judged and a Handover gave, behind
	// those before.
	Judged struct{ Places []Read }

	// BarrierKnown answers AskBarrier.
	BarrierKnown struct {
		Offset  int64
		Barrier bool
	}

	// EpochEnd answers AskEpochEnd: where the leader epoch ends in the remote
	// partition. OK is false if nobody could tell.
	EpochEnd struct {
		Origin event.RegionID
		Epoch  int32
		End    int64
		OK     bool
	}

	// Reread: records of the stretch that ReadAgain with this number asked for, in
	// order.
	Reread struct {
		Number  uint64
		Entries []Entry
	}

	// RereadEnded: the stretch has been read to its end, or could not be.
	RereadEnded struct {
		Number uint64
		Err    error
	}

	// EndListed: the log's high watermark, listed after the start.
	EndListed struct{ End int64 }

	// Look: something else may have changed: what control says, how far the own
	// log is indexed, the ownership register, the wall.
	Look struct{}
)

func (Fetched) isInputEvent()      {}
func (Judged) isInputEvent()       {}
func (BarrierKnown) isInputEvent() {}
func (EpochEnd) isInputEvent()     {}
func (Reread) isInputEvent()       {}
func (RereadEnded) isInputEvent()  {}
func (EndListed) isInputEvent()    {}
func (Look) isInputEvent()         {}

// An InputEffect is what the adapter has to do, in order. Answers may come later.
type InputEffect interface{ isInputEffect() }

// The input effects.
type (
	// AskBarrier: is the commit marker at an offset of the own log a barrier? The
	// answer is BarrierKnown. More are markers that will be asked about next: they were
	// read, too, so one look at the control topic decides them all.
	AskBarrier struct {
		Offset   int64
		Producer int64
		Epoch    int16
		More     []ProducerEpoch
	}

	// AskEpochEnd: where does a leader epoch of the origin's remote partition end?
	// The answer is EpochEnd.
	AskEpochEnd struct {
		Origin event.RegionID
		Epoch  int32
	}

	// ReadAgain: read the committed records of a stretch of the origin's log in
	// this region once more. The answers are Reread, any number of times, and
	// RereadEnded. What was deleted at or above Needed is an incident: it may hold an event
	// that has to be taken out again. What was deleted below Needed is not.
	ReadAgain struct {
		Number   uint64
		Origin   event.RegionID
		From, To int64 // offsets in the partition that is read
		Needed   int64
	}

	// IndexKeys: store this in the index of keys (KeyIndex.Apply). Other indexes may take
	// the stretch of the own log with it.
	IndexKeys struct {
		Copies   []event.Copy
		Barriers []event.Dot
		Applied  event.Vector
		Stretch  Stretch
	}

	// AddToSinks: give items to the other indexes (Sink.Add).
	AddToSinks struct{ Items []judged.Item }

	// FoldItems: give items to the fold (Folder.Fold).
	FoldItems struct{ Items []judged.Item }

	// HandOver: let the Inputs have these (Handover.Put).
	HandOver struct{ Stretch }

	// ReadPlaces: tell the Core what was read of the own log.
	ReadPlaces struct{ Places []Read }

	// BeReady: tell the Core that the own log has been read far enough.
	BeReady struct{}

	// ReportGap: records were deleted that a reader needs: incident.Fold, whose origin waits
	// until that is accepted; incident.Keys; incident.History.
	ReportGap struct {
		Kind        incident.Kind
		Origin      event.RegionID
		Log         event.TopicID // of the topic that has lost them
		From, Until int64
	}

	// ReportForeign: a remote topic has a record that no link wrote.
	ReportForeign struct {
		Origin event.RegionID
		Offset int64
	}

	// ReportCutPending: what lies past a cut that has become known cannot be read
	// now. The table before it stays in force; it is tried again.
	ReportCutPending struct {
		Origin event.RegionID
		From   event.Point
		Err    error
	}
)

func (AskBarrier) isInputEffect()       {}
func (AskEpochEnd) isInputEffect()      {}
func (ReadAgain) isInputEffect()        {}
func (IndexKeys) isInputEffect()        {}
func (AddToSinks) isInputEffect()       {}
func (FoldItems) isInputEffect()        {}
func (HandOver) isInputEffect()         {}
func (ReadPlaces) isInputEffect()       {}
func (BeReady) isInputEffect()          {}
func (ReportGap) isInputEffect()        {}
func (ReportForeign) isInputEffect()    {}
func (ReportCutPending) isInputEffect() {}

// InputsConfig configures an Inputs.
type InputsConfig struct {
	Region      event.RegionID
	Incarnation uint16 // of the own partition's log
	Partition   int32
	Topic       event.TopicID           // the own partition's
	Rule        func(*event.Event) bool // Log.Rule
	// History: the sinks keep what a fold needs again when a cut becomes known.
	History bool
	NoLog   bool // there is no own partition, whatever there was before
}

// InputsSurroundings is what an Inputs asks while it steps. All answer from memory,
// at once.
type InputsSurroundings struct {
	Copies Copies
	Clock  Clock
	// Indexed is how far the own log has been indexed by its Readback.
	Indexed func() event.Point
	// Ready tells whether the Readback has come to a high watermark listed after the
	// start: the BeReady effect.
	Ready func() bool
	// LastBarrier is the own log's last barrier below an offset, as far as its
	// Readback has come.
	LastBarrier func(offset int64) int64
	// Table is the newest that is known of which records count; nil: there is no
	// ownership register, and all do.
	Table func() *event.ValidityTable
	// Hold is how long an event must wait for the wall, 0 for not at all; nil:
	// nothing ever waits.
	Hold func(*event.Event) time.Duration
	// Missing is what a reader still lacks of the offsets from up to until of a log, all of
	// which were deleted: without the parts that somebody has accepted as lost. Nil: nothing
	// was accepted.
	Missing func(kind incident.Kind, log event.TopicID, from, until int64) (int64, int64)
}

// Inputs is the pure core of what a seat reads, committed, of every origin's log:
// it judges each place once, lets the indexes have it, then the fold. It has no
// clock, goroutine or socket, and is not safe for concurrent use.
//
// Invariants:
//   - Each origin's items come in log order, to every sink and to the fold, and to
//     a sink before the fold.
//   - The fold gets nothing new until every sink has what the fold had committed.
//   - The fold gets nothing of an origin behind records that were deleted before it had
//     them, until somebody has accepted that.
//   - No record counts before the ownership register has said that it does.
//   - table is that of the last Cuts item that the fold was given, or had committed
//     before the start. Before a Cuts item the fold has been given, as orphans, all
//     events that count under table and do not under the item's.
type Inputs struct {
	cfg InputsConfig
	env InputsSurroundings

	local   localLog
	remotes [event.MaxRegion + 1]*remoteLog
	pending [event.MaxRegion + 1][]judged.Item // judged, not passed on yet
	start   event.Vector                       // where each origin begins
	last    Barriers                           // last barrier of each log there
	gate    event.Vector                       // the fold begins when all sinks have reached it
	open    bool                               // they have
	folded  event.Vector                       // passed to the fold

	table     *event.ValidityTable
	takeover  *takeover // nil: no newer table is being taken over
	revoked   revoked
	rereads   uint64    // counts ReadAgain
	retryAt   time.Time // no other attempt to take the newest table before
	pendCause string    // why the last attempt did not succeed; "" when it did
	unsettled map[event.RegionID]event.Epoch

	logStarts [event.MaxRegion + 1]logStart
	gaps      map[event.RegionID]Gap // of origins that are held
	used      bool                   // the partition was in use before the start
	sinks     event.Vector           // how far the sinks were
	keys      event.Vector           // how far the index of keys was
	reports   []InputEffect          // of what was found outside a step

	out []InputEffect
}

// InputsStart is what was there before a seat began.
type InputsStart struct {
	Committed event.Vector         // by the fold
	Barriers  Barriers             // last barrier of each log there
	Table     *event.ValidityTable // of the last Cuts committed; nil: none
	Sinks     []SinkStart
	Keys      event.Vector // how far each origin's log is in the index of keys
	// UsedBefore: the partition was in use before, also if nothing of it was folded. What its
	// logs lack now was deleted since.
	UsedBefore bool
}

// SinkStart is what Sink.Applied says at the start.
type SinkStart struct {
	Applied  event.Vector
	Barriers Barriers
}

// NewInputs makes the inputs of a seat, which begin for each origin at the least
// advanced of fold and indexes.
func NewInputs(cfg InputsConfig, env InputsSurroundings, at InputsStart) *Inputs {
	in := &Inputs{
		cfg: cfg, env: env, gate: at.Committed, folded: at.Committed, start: at.Committed, last: at.Barriers,
		table: at.Table, unsettled: make(map[event.RegionID]event.Epoch), gaps: make(map[event.RegionID]Gap),
		used: at.UsedBefore || at.Table != nil || at.Committed != event.Vector{}, sinks: at.Committed, keys: at.Keys,
	}
	for _, k := range at.Sinks {
		in.lower(k.Applied, k.Barriers)
		for r, p := range k.Applied {
			if p.Compare(in.sinks[r]) < 0 {
				in.sinks[r] = p
			}
		}
	}
	own, keys := cfg.Region, at.Keys
	keys[own] = in.start[own] // the Readback feeds it the own log
	in.lower(keys, NoBarriers())
	here := event.Point{Incarnation: cfg.Incarnation, Next: offsetIn(in.start[own], cfg.Incarnation)}
	in.last[own] = max(in.last[own], env.LastBarrier(here.Next))
	in.local = localLog{partition: cfg.Partition, log: in.newLog(own, cfg.Incarnation, in.last[own]), at: here}
	return in
}

// lower moves the start of each origin down to what an index has.
func (in *Inputs) lower(v event.Vector, last Barriers) {
	for r := range v {
		if v[r].Compare(in.start[r]) < 0 {
			in.start[r], in.last[r] = v[r], last[r]
		}
	}
}

func (in *Inputs) newLog(r event.RegionID, incarnation uint16, last int64) *Log {
	log := NewLog(r, incarnation, last)
	log.Rule = in.cfg.Rule
	return log
}

// target is where in a remote partition to read on from a place in the origin's
// log: at the first record at or above it, or behind everything described.
func (in *Inputs) target(r event.RegionID, topic event.TopicID, start event.Point) int64 {
	if start.Next == 0 && start.Incarnation == 0 {
		return 0
	}
	if t, ok := in.env.Copies.TargetOffsetFrom(r, topic, in.cfg.Partition, start.Incarnation, start.Next); ok {
		return t
	}
	if cov, ok := in.env.Copies.Covered(r, topic, in.cfg.Partition); ok && start.Compare(cov.Source) >= 0 {
		return cov.Target
	}
	return 0
}

// Wants tells whether the next entries of an origin's log may be given. Until then
// they wait outside.
func (in *Inputs) Wants(r event.RegionID) bool {
	switch st := in.remotes[r]; {
	case in.takeover != nil || len(in.pending[r]) > 0 || in.isHeld(r):
		return false
	case r == in.cfg.Region:
		return len(in.local.rest) == 0
	default:
		return st != nil && len(st.rest) == 0
	}
}

// Step takes one event and returns what is to be done, in order. The slice is valid
// until the next Step. Events that an effect leads to are given after all of them
// have been carried out.
func (in *Inputs) Step(now time.Time, ev InputEvent) []InputEffect {
	in.out = append(in.out[:0], in.reports...)
	in.reports = nil
	mayAsk := true
	switch ev := ev.(type) {
	case Fetched:
		in.fetched(ev)
	case Judged:
		in.judged(ev)
	case BarrierKnown:
		in.local.told(ev)
	case EpochEnd:
		mayAsk = in.epochEnds(ev) // what could not be answered is asked again at the next Look
	case Reread:
		in.reread(now, ev)
	case RereadEnded:
		in.rereadEnded(now, ev)
	}
	in.round(now, mayAsk)
	return in.out
}

func (in *Inputs) do(e InputEffect) { in.out = append(in.out, e) }

func (in *Inputs) fetched(ev Fetched) {
	if ev.Origin == in.cfg.Region {
		in.local.add(ev.Entries)
	} else if st := in.remotes[ev.Origin]; st != nil {
		st.rest = append(st.rest, ev.Entries...)
	}
}

// judged takes places of the own log that were judged by the rule of local. What judges
// the places behind them knows the barriers among them.
func (in *Inputs) judged(ev Judged) {
	own := in.cfg.Region
	n := len(ev.Places)
	if n == 0 {
		return
	}
	last := &ev.Places[n-1].Item
	in.local.at = last.Next
	in.local.log.Marker(last.Barrier, true)
	in.pending[own] = slices.Grow(in.pending[own], n)
	for i := range ev.Places {
		in.pending[own] = append(in.pending[own], ev.Places[i].Item)
	}
}

func (in *Inputs) epochEnds(ev EpochEnd) (counts bool) {
	st := in.remotes[ev.Origin]
	return st != nil && st.epochEnds(ev)
}

// round takes what is there of every origin, for the indexes first, then the fold.
func (in *Inputs) round(now time.Time, mayAsk bool) {
	in.lookAtGaps()
	if !in.open && in.reached() {
		in.open = true
	}
	if in.open {
		in.followTable(now)
	}
	if in.takeover != nil {
		return // nothing is folded between what a table revokes and the table
	}
	items := in.takeLocal(nil)
	own := len(items)
	for r := range in.remotes {
		st := in.remotes[r]
		if st == nil || in.isHeld(event.RegionID(r)) {
			continue // what a position covers may have been deleted, too
		}
		if len(in.pending[r]) == 0 {
			in.pending[r] = st.take(nil, takeMax)
		}
		items = in.release(event.RegionID(r), st.at, items)
	}
	if len(items) > 0 {
		in.index(items[own:])
		in.do(AddToSinks{items})
		in.fold(items)
	}
	if q, ok := in.local.ask(); ok {
		in.do(q)
	}
	for _, st := range in.remotes {
		if st == nil || !mayAsk {
			continue
		}
		if q, ok := st.ask(); ok {
			in.do(q)
		}
	}
}

// takeLocal takes the own log as far as its Readback has indexed it.
func (in *Inputs) takeLocal(items []judged.Item) []judged.Item {
	own := in.cfg.Region
	if len(in.pending[own]) == 0 && len(in.local.rest) > 0 {
		j := new(localItem)
		for range takeMax {
			if !in.local.next(j) {
				break
			}
			in.pending[own] = append(in.pending[own], j.Item)
		}
	}
	return in.release(own, in.env.Indexed(), items)
}

// release passes on an origin's pending items up to a point, or to the first about
// which only the register can tell. While the sinks catch up with the fold, an
// origin that has caught up waits for the others.
func (in *Inputs) release(r event.RegionID, upTo event.Point, items []judged.Item) []judged.Item {
	if !in.open && in.gate[r].Compare(upTo) < 0 {
		upTo = in.gate[r]
	}
	n := 0
	delete(in.unsettled, r)
	for n < len(in.pending[r]) && in.pending[r][n].Next.Compare(upTo) <= 0 {
		if it := &in.pending[r][n]; !in.settle(it) {
			in.unsettled[r] = it.Event.Epoch
			break
		}
		n++
	}
	items = append(items, in.pending[r][:n]...)
	in.pending[r] = in.pending[r][n:]
	return items
}

// settle judges by the register an item that its log calls valid. settled is false
// where only the register, as it is not known here yet, can tell: the origin waits.
// What was folded once was settled then.
func (in *Inputs) settle(it *judged.Item) (settled bool) {
	if in.env.Table == nil || it.Verdict != judged.Valid {
		return true
	}
	folded := it.Next.Compare(in.folded[it.Origin]) <= 0
	if in.table == nil {
		return folded
	}
	switch in.table.Judge(it.Event.At, it.Event.Epoch) {
	case event.Orphan:
		it.Verdict = judged.Orphan
	case event.Unsettled:
		return folded
	}
	return true
}

// reached tells whether every origin has been read to the fold's own place.
func (in *Inputs) reached() bool {
	for r, g := range in.gate {
		at := in.start[r]
		switch st := in.remotes[r]; {
		case event.RegionID(r) == in.cfg.Region && in.cfg.NoLog, in.isHeld(event.RegionID(r)):
			continue
		case event.RegionID(r) == in.cfg.Region:
			at = in.local.at
		case st != nil:
			at = st.at
		}
		if at.Compare(g) < 0 || len(in.pending[r]) > 0 && in.pending[r][0].Next.Compare(g) <= 0 {
			return false
		}
	}
	return true
}

// index tells the index of keys of remote items, and the clock of their stamps.
func (in *Inputs) index(items []judged.Item) {
	if len(items) == 0 {
		return
	}
	var x IndexKeys
	for i := range items {
		it := &items[i]
		if c, ok := keyed(it); ok {
			x.Copies = append(x.Copies, c)
		}
		if it.Verdict == judged.Valid && it.Event.Stamped {
			_ = in.env.Clock.Observe(it.Event.Stamp) // beyond the bound only on events topics
		}
		x.Applied[it.Origin] = it.Next
	}
	in.do(x)
}

// fold passes on what the fold has not folded.
func (in *Inputs) fold(items []judged.Item) {
	fresh, old := items[:0:0], 0
	for i := range items {
		it := &items[i]
		if in.folded[it.Origin].Compare(it.Next) >= 0 {
			if old++; old == 1 {
				fresh = append(fresh, items[:i]...)
			}
			continue
		}
		in.folded[it.Origin] = it.Next
		if old > 0 {
			fresh = append(fresh, *it)
		}
	}
	if old == 0 {
		fresh = items // the usual case
	}
	if len(fresh) > 0 {
		in.do(FoldItems{fresh})
	}
}

// Resting tells whether nothing waits for the wall, or to be asked again: until something
// comes in, or control or the register have news, a Look would find nothing.
func (in *Inputs) Resting() bool {
	if !in.open || in.takeover != nil || in.pendCause != "" || len(in.unsettled) > 0 || len(in.gaps) > 0 || len(in.local.rest) > 0 {
		return false
	}
	for r, st := range in.remotes {
		if len(in.pending[r]) > 0 {
			return false
		}
		if st == nil {
			continue
		}
		if len(st.rest) > 0 || st.held > 0 || st.asked != nil || st.doubt >= 0 || in.isHeld(event.RegionID(r)) {
			return false
		}
		if cov, ok := in.env.Copies.Covered(st.origin, st.topic, in.cfg.Partition); ok && st.at.Compare(cov.Source) < 0 {
			return false
		}
	}
	return true
}

// InputsStatus is what inputs wait for.
type InputsStatus struct {
	Foreign uint64                           // remote records that no link wrote
	Held    map[event.RegionID]time.Duration // origins that wait for the wall
	// Unsettled are origins that wait for the ownership register, with the epoch of
	// the record that waits; 0: it came without a gateway, or nothing is known of
	// the register at all.
	Unsettled map[event.RegionID]event.Epoch
	// CutPending says why a cut that is known is not in force, "" if there is none
	// such.
	CutPending string
	// Gaps are what the fold lacks of origins that are held.
	Gaps map[event.RegionID]Gap
}

// Status is what the inputs wait for now. The maps are the caller's.
func (in *Inputs) Status() InputsStatus {
	s := InputsStatus{
		Held: make(map[event.RegionID]time.Duration), Unsettled: make(map[event.RegionID]event.Epoch), CutPending: in.pendCause,
		Gaps: maps.Clone(in.gaps),
	}
	for r, epoch := range in.unsettled {
		s.Unsettled[r] = epoch
	}
	for r, st := range in.remotes {
		if st == nil {
			continue
		}
		s.Foreign += st.foreign
		if st.held > 0 {
			s.Held[event.RegionID(r)] = st.held
		}
	}
	return s
}

// String says where the inputs are, for traces.
func (in *Inputs) String() string {
	text := fmt.Sprintf("open %v, takes a table over %v", in.open, in.takeover != nil)
	for r := range in.gate {
		if in.folded[r] != (event.Point{}) || len(in.pending[r]) > 0 {
			text += fmt.Sprintf("; region %d: passed on %d, pending %d", r, in.folded[r].Next, len(in.pending[r]))
		}
	}
	return text
}
