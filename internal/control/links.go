package control

import (
	"fmt"
	"strings"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/offsets"
)

// State says what is known of a record in a remote topic.
type State uint8

// The states.
const (
	Pending State = iota // not described yet: wait
	Mapped               // copied by the link; the other members say from where
	Foreign              // the link did not write it: never to be taken for the origin's
)

// Location is where a remote record comes from.
type Location struct {
	State       State
	Incarnation uint16 // of the source partition
	Source      int64  // offset at the origin
	Barrier     int64  // last barrier of the origin's log below it, or offsets.NoBarrier
	// Restricted: records of the origin's log below it may have been denied.
	Restricted bool
}

// Covered says that everything of a source partition below Source has been dealt
// with, in the remote partition below Target.
type Covered struct {
	Source  event.Point
	Barrier int64 // last barrier of the origin's log below Source
	Target  int64
	// Epoch is the remote partition's leader epoch that the position names, -1
	// unknown. What was read under an older one may have been lost since.
	Epoch int32
	// Restricted: what was dealt with may have been denied.
	Restricted bool
}

// LinkIndex is the pure index of what one link wrote down: positions and runs of all
// its partitions. It is fed records in the order of each slot (the partition
// number that positions and runs of a source partition share).
//
// Invariant: that a target offset lies in no run counts only below a
// target-covered whose position was read before a high watermark of the runs slot
// was listed, and the slot was read to it.
type LinkIndex struct {
	runs      *runTable                        // by target topic id
	positions map[partition]*position          // by source topic id
	byTarget  map[partition]*position          // the newest position that names the target
	waiting   map[int32]map[*position]struct{} // by slot: positions not usable yet
	runsNext  map[int32]int64                  // by slot: runs read below it
	changed   map[partition]struct{}           // by target topic id: what has been said since takeChanged
}

// position of one source partition. A position becomes usable in two steps so
// that a fast link cannot keep it from ever becoming so: newest may be replaced at
// any time, listing only once it has become usable.
type position struct {
	slot    int32
	num     int32 // of the partition
	newest  offsets.Position
	listing *pendingListing
	usable  *offsets.Position
	lowered bool // target-covered fell: the remote log was truncated
}

type pendingListing struct {
	pos  offsets.Position
	upTo int64 // high watermark of the runs slot listed after pos was read; -1 not listed
}

// NewLinkIndex makes an index that keeps everything in memory.
func NewLinkIndex() *LinkIndex { return NewLinkIndexOver(NewMemoryRuns()) }

// NewLinkIndexOver makes an index of the runs that are in a store, and of those to come.
func NewLinkIndexOver(store RunStore) *LinkIndex {
	return &LinkIndex{
		runs:      newRunTable(store),
		positions: make(map[partition]*position),
		byTarget:  make(map[partition]*position),
		waiting:   make(map[int32]map[*position]struct{}),
		runsNext:  make(map[int32]int64),
		changed:   make(map[partition]struct{}),
	}
}

// ApplyRuns takes one record of the runs topic; a nil value is a tombstone. An
// error says that the record does not parse; it changes nothing.
func (l *LinkIndex) ApplyRuns(key, value []byte) error {
	topic, num, first, err := offsets.ParseKey(key)
	if err != nil {
		return fmt.Errorf("apply runs record: %w", err)
	}
	l.changed[partition{topic, num}] = struct{}{}
	c := Copy{topic, num}
	if value == nil {
		l.runs.tombstone(c, first)
		return nil
	}
	runs, err := offsets.ParseRuns(first, value)
	if err != nil {
		return fmt.Errorf("apply runs record: %w", err)
	}
	l.runs.put(c, first, runs)
	return nil
}

// RunsReadTo notes that the runs records of a slot below next were applied.
func (l *LinkIndex) RunsReadTo(slot int32, next int64) {
	l.runsNext[slot] = max(l.runsNext[slot], next)
	l.runs.store.ReadTo(slot, l.runsNext[slot])
	for p := range l.waiting[slot] {
		l.promote(p)
	}
}

// What a link keeps in its positions topic beside positions.
const (
	// GenerationKey is the key of the record of the link's generation.
	GenerationKey = "generation"
	// IncidentKey is how the keys of its incidents begin.
	IncidentKey = "incident"
)

// ApplyPosition takes one record of the positions topic; what else a link keeps there is
// passed over with ok false. An error says that the record does not parse; it changes
// nothing.
func (l *LinkIndex) ApplyPosition(slot int32, key, value []byte) (ok bool, err error) {
	if string(key) == GenerationKey || strings.HasPrefix(string(key), IncidentKey) {
		return false, nil // the link's own
	}
	topic, num, err := offsets.ParsePositionKey(key)
	if err != nil {
		return false, fmt.Errorf("apply position record: %w", err)
	}
	if value == nil {
		return false, nil
	}
	pos, err := offsets.ParsePosition(value)
	if err != nil {
		return false, fmt.Errorf("apply position record: %w", err)
	}
	k := partition{topic, num}
	p := l.positions[k]
	if p == nil {
		p = &position{slot: slot, num: num}
		l.positions[k] = p
	}
	switch old := p.newest; {
	case old.Target != pos.Target:
		p.listing, p.usable, p.lowered = nil, nil, false
		delete(l.byTarget, partition{old.Target, num})
	case pos.TargetCovered < old.TargetCovered:
		p.listing, p.usable, p.lowered = nil, nil, true
	}
	p.newest = pos
	l.changed[partition{pos.Target, num}] = struct{}{}
	l.byTarget[partition{pos.Target, num}] = p
	if p.listing == nil {
		p.listing = &pendingListing{pos: pos, upTo: -1}
	}
	if l.waiting[slot] == nil {
		l.waiting[slot] = make(map[*position]struct{})
	}
	l.waiting[slot][p] = struct{}{}
	return true, nil
}

// sourceOf is the source topic of which a topic of this region is the copy, by what the link
// wrote down of any of its partitions. A source that was created again was copied under its
// first id; ok is false if that is not certain.
func (l *LinkIndex) sourceOf(target event.TopicID) (source event.TopicID, ok bool) {
	lowest := 0
	for k, p := range l.positions {
		if p.newest.Target != target {
			continue
		}
		switch n := int(p.newest.Incarnation); {
		case source == (event.TopicID{}) || n < lowest:
			source, ok, lowest = k.topic, true, n
		case n == lowest && k.topic != source:
			ok = false
		}
	}
	return source, ok
}

// takeChanged moves the copies of which something has been said since the last call.
func (l *LinkIndex) takeChanged(into map[Copy]struct{}) {
	for p := range l.changed {
		into[Copy{p.topic, p.num}] = struct{}{}
	}
	clear(l.changed)
}

// SlotsToList is the slots of the runs topic whose high watermark must be listed from
// now on: positions there wait for it.
func (l *LinkIndex) SlotsToList() []int32 {
	var slots []int32
	for slot, ps := range l.waiting {
		for p := range ps {
			if p.listing != nil && p.listing.upTo < 0 {
				slots = append(slots, slot)
				break
			}
		}
	}
	return slots
}

// BeginListing remembers which positions wait for a listing now; the function it returns
// is called with what was listed afterwards, by slot.
func (l *LinkIndex) BeginListing() func(upTo map[int32]int64) {
	var marked []*pendingListing
	slots := make(map[*pendingListing]int32)
	for slot, ps := range l.waiting {
		for p := range ps {
			if p.listing != nil && p.listing.upTo < 0 {
				marked = append(marked, p.listing)
				slots[p.listing] = slot
			}
		}
	}
	return func(upTo map[int32]int64) {
		for _, m := range marked {
			if end, ok := upTo[slots[m]]; ok {
				m.upTo = end
			}
		}
		for slot := range upTo {
			for p := range l.waiting[slot] {
				l.promote(p)
			}
		}
	}
}

// promote makes the listed position usable if the runs have been read far enough,
// and lines up the newest.
func (l *LinkIndex) promote(p *position) {
	if p.listing == nil || p.listing.upTo < 0 || l.runsNext[p.slot] < p.listing.upTo {
		return
	}
	pos := p.listing.pos
	p.usable, p.listing = &pos, nil
	l.changed[partition{pos.Target, p.num}] = struct{}{}
	if pos == p.newest {
		delete(l.waiting[p.slot], p)
		return
	}
	p.listing = &pendingListing{pos: p.newest, upTo: -1}
}

// Confirmed tells whether the link has written a position under a leader epoch of
// the remote partition, or a later one; epoch is -1 if unknown. What lies there
// under a later epoch, markers too, may lie where records were lost: a reader
// must not move over it.
func (l *LinkIndex) Confirmed(topic event.TopicID, num int32, epoch int32) bool {
	p := l.byTarget[partition{topic, num}]
	return p != nil && (epoch < 0 || p.newest.TargetEpoch < 0 || p.newest.TargetEpoch >= epoch)
}

// Locate says where a remote record comes from. epoch is the leader epoch of its
// batch, -1 if unknown: a record of a later epoch than the link has confirmed is
// not judged yet.
func (l *LinkIndex) Locate(topic event.TopicID, num int32, target int64, epoch int32) Location {
	p := l.byTarget[partition{topic, num}]
	if !l.Confirmed(topic, num, epoch) {
		return Location{State: Pending}
	}
	if p.lowered && (p.usable == nil || target >= p.usable.TargetCovered) {
		return Location{State: Pending}
	}
	if r, known, ok := l.runs.locate(Copy{topic, num}, target); ok {
		return Location{Mapped, r.Incarnation, r.Source + target - r.Target, r.Barrier, r.Restricted}
	} else if !known {
		return Location{State: Pending}
	}
	if p.usable != nil && target < p.usable.TargetCovered {
		return Location{State: Foreign}
	}
	return Location{State: Pending}
}

// TargetOffset is the target offset of a source offset, if it was copied.
func (l *LinkIndex) TargetOffset(topic event.TopicID, num int32, incarnation uint16, source int64) (target int64, ok bool) {
	return l.runs.target(Copy{topic, num}, incarnation, source)
}

// TargetOffsetFrom is the first target offset whose record lies at or after a source
// offset, if there is one yet.
func (l *LinkIndex) TargetOffsetFrom(topic event.TopicID, num int32, incarnation uint16, source int64) (target int64, ok bool) {
	return l.runs.targetFrom(Copy{topic, num}, incarnation, source)
}

// Covered is the newest position, by its target partition, that a reader may rely
// on: once it has taken every record of the remote partition below Target, it has
// everything of the source below Source.
func (l *LinkIndex) Covered(topic event.TopicID, num int32) (Covered, bool) {
	p := l.byTarget[partition{topic, num}]
	if p == nil || p.usable == nil {
		return Covered{}, false
	}
	u := p.usable
	return Covered{event.Point{Incarnation: u.Incarnation, Next: u.SourceCovered}, u.Barrier, u.TargetCovered, u.TargetEpoch, u.Restricted}, true
}
