package conflict

import (
	"cmp"
	"fmt"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/judged"
)

// Kind says what a topic's records are.
type Kind uint8

// The kinds of topics.
const (
	// Events are facts, each of which stays: the merged view is their union.
	Events Kind = iota + 1
	// Entities are states of the thing that a record's key names: the merged view
	// has the state that the conflict policy chooses.
	Entities
)

// String is the kind's name in the ownership file.
func (k Kind) String() string {
	switch k {
	case Events:
		return "events"
	case Entities:
		return "entity"
	}
	return fmt.Sprintf("kind-%d", uint8(k))
}

// Config is what a topic's declaration says about the fold of its partitions. It
// must be the same in every region.
type Config struct {
	Kind   Kind
	Rule   event.Rule    // on entity topics
	Window time.Duration // idempotency window; default 24 h
	// Unstamped accepts records that came without a gateway on an entity topic:
	// right only where one region writes, because such a record claims to have
	// seen nothing of the others. Events topics always accept them.
	Unstamped bool
	// Holds tells whether a key belongs into this partition; asked on entity
	// topics. Nil: every key does.
	Holds func(key []byte) bool
}

func (c Config) withDefaults() Config {
	c.Window = cmp.Or(c.Window, 24*time.Hour)
	c.Rule = cmp.Or(c.Rule, event.LWW)
	return c
}

// The reasons for which the fold quarantines records.
const (
	QuarantinedByLog = "log"             // the log's judge did: foreign or malformed
	NoKey            = "no-key"          // entity topic, null key
	Unstamped        = "unstamped"       // entity topic that several regions write, no envelope
	WrongPartition   = "wrong-partition" // entity topic, the key belongs elsewhere
)

// QuarantineReason says why a valid event is quarantined all the same, or "". It depends on
// nothing but the event and the configuration, so all regions agree, and so do
// fold and journal.
func (c Config) QuarantineReason(ev *event.Event) string {
	switch {
	case c.Kind == Events:
		return ""
	case ev.Key == nil:
		return NoKey
	case !ev.Stamped && !c.Unstamped:
		return Unstamped
	case c.Holds != nil && !c.Holds(ev.Key):
		return WrongPartition
	}
	return ""
}

// Position is how far a partition is folded.
type Position struct {
	Vector   event.Vector
	Barriers [event.MaxRegion + 1]int64 // last barrier of each origin's log within the vector; -1: none
	Stamp    hlc.Stamp                  // highest stamp folded that a gateway made; a new term stamps above it
	// Restricted has bit r set once records of origin r may have been denied to
	// this region; it stays set.
	Restricted uint16
	// Validity is the table of the last Cuts folded: no event that it calls an
	// orphan counts. Nil: there was none.
	Validity *event.ValidityTable
	// Revoking is the revision of the newest table under which events were revoked
	// while its Cuts is still to come; 0: none.
	Revoking uint64
	// Frontier: no event at or below it is revoked any more, and no copy of a key that lies
	// there has another one above it within the window. It never falls. Zero: there is none.
	Frontier event.Vector
	// Needed: no refold needs an event at or below it, neither meta nor value: all of that is
	// in states and bases. It is a frontier of before.
	Needed event.Vector
	// NeededBarriers is the last barrier of each origin's log at or below Needed; -1: none.
	NeededBarriers [event.MaxRegion + 1]int64
}

// Start is the position of a partition of which nothing is folded.
func Start() Position {
	p := Position{}
	for r := range p.Barriers {
		p.Barriers[r], p.NeededBarriers[r] = -1, -1
	}
	return p
}

// Counts are the numbers of one step.
type Counts struct {
	Folded      int // events folded, twins included
	Void        int // fenced
	Skipped     int // places without an event
	Twins       int // copies that lost their standing or never had it
	Corrections int // merged records and conflict records that correct earlier ones
	Refolds     int
	Orphans     int            // events found to be orphans, folded before or not
	BasesMoved  int            // of entities that do not rest
	Gone        int            // entities that were deleted and are forgotten
	Quarantined map[string]int // by reason
}

// Change is an entity's state after a step; a zero Entity takes the record out.
type Change struct {
	Key    []byte
	Entity Entity
}

// Output is what a step puts out, to be committed as one.
type Output struct {
	Merged    []Merged     // in order
	Conflicts []Conflict   // in order
	Entities  []Change     // each entity once
	Twins     []Twin       // each key once; one without copies takes the record out
	Orphans   []Orphaned   // each dot once; one that is known already replaces it
	Bases     []BaseChange // each entity once; a zero Base takes the record out
	Dropped   []Dropped    // of Tidy
	Deleted   [][]byte     // of Tidy: entities that go once more is not needed any more
	Unmoved   error        // of Tidy: why a base could not be moved
	Position  Position
	Counts    Counts

	refolds refolds // of this step
}

// Partition is the fold of one partition of a topic in one region. It is not safe
// for concurrent use.
type Partition struct {
	cfg   Config
	store Store
	at    Position

	frontier event.Vector // that was last given
	refolds  refolds      // of the steps committed
}

// NewPartition makes the fold of a partition that goes on from a committed
// position with what the store has of it.
func NewPartition(cfg Config, store Store, at Position) *Partition {
	return &Partition{cfg: cfg.withDefaults(), store: store, at: at}
}

// Position is the committed position.
func (p *Partition) Position() Position { return p.at }

// Step folds items, in log order for each origin, and gives what is to be
// committed. It changes nothing: until Commit the same step can be asked for
// again. Items at or below the committed vector are passed over. An error comes
// from the store, or says that an item has no verdict. The items may come in several
// parts, which are not to be changed while the output is in use: it shares their events.
//
// How the items of a partition are cut into steps changes nothing of what all of them
// together put out.
func (p *Partition) Step(parts ...[]judged.Item) (*Output, error) {
	n := 0
	for _, items := range parts {
		n += len(items)
	}
	s := p.newStep(n)
	for _, items := range parts {
		for i := range items {
			if err := s.foldItem(&items[i]); err != nil {
				return nil, fmt.Errorf("fold item before %v of region %d: %w", items[i].Next, items[i].Origin, err)
			}
		}
	}
	s.finish()
	return s.out, nil
}

// newStep begins a step of so many items.
func (p *Partition) newStep(n int) *step {
	s := &step{Partition: p, out: &Output{Position: p.at, Merged: make([]Merged, 0, n)}, entities: map[string]*Entity{}, twins: map[event.IdempotencyKey]*Twin{}}
	s.out.Position.Frontier = p.raised()
	return s
}

// finish puts out what has changed.
func (s *step) finish() {
	s.out.Entities = make([]Change, 0, len(s.changedEntities))
	for _, key := range s.changedEntities {
		e := s.entities[key]
		e.trim(&s.out.Position)
		s.out.Entities = append(s.out.Entities, Change{Key: []byte(key), Entity: *e})
	}
	for _, k := range s.changedTwins {
		s.out.Twins = append(s.out.Twins, *s.twins[k])
	}
	for _, d := range s.foundOrphans {
		s.out.Orphans = append(s.out.Orphans, *s.orphans[d])
	}
	for _, key := range s.changedBases {
		s.out.Bases = append(s.out.Bases, BaseChange{Key: []byte(key), Base: s.bases[key]})
	}
}

// Commit goes on from the position of an output that was committed.
func (p *Partition) Commit(out *Output) {
	p.at = out.Position
	p.refolds.join(&out.refolds)
}

// step is one call of Step under way.
type step struct {
	*Partition
	out             *Output
	entities        map[string]*Entity // loaded or changed in this step
	changedEntities []string           // keys of those changed, in order
	bases           map[string]Base    // changed in this step; nil: none
	changedBases    []string           // keys of those, in order
	twins           map[event.IdempotencyKey]*Twin
	changedTwins    []event.IdempotencyKey  // of those changed, in order
	orphans         map[event.Dot]*Orphaned // found or changed in this step; nil: none
	foundOrphans    []event.Dot             // of those, in order
	item            *judged.Item            // the item in hand
	ev              *event.Event            // the event in hand, which is folded now; nil while one is revoked
	table           *event.ValidityTable    // that refolds use
}

func (s *step) foldItem(it *judged.Item) error {
	at := &s.out.Position
	s.item, s.ev, s.table = it, nil, at.Validity
	switch {
	case it.Verdict == judged.Cuts:
		at.putInForce(it.Validity)
		s.out.refolds.forget()
		return nil
	case it.Next.Compare(at.Vector[it.Origin]) > 0:
	case it.Verdict == judged.Orphan && it.Validity != nil:
		return s.revokeOrphan()
	default:
		return nil
	}
	at.Vector[it.Origin] = it.Next
	at.Barriers[it.Origin] = it.Barrier
	if it.Restricted {
		at.Restricted |= 1 << it.Origin
	}
	n := &s.out.Counts
	switch it.Verdict {
	case judged.Skip:
		n.Skipped++
		return nil
	case judged.Void:
		n.Void++
		return nil
	case judged.Quarantined:
		why := QuarantinedByLog
		if it.Event.At != (event.Dot{}) {
			why = cmp.Or(s.cfg.QuarantineReason(&it.Event), why) // the log's judge may have asked the same
		}
		s.quarantine(why)
		return nil
	case judged.Valid, judged.Orphan:
	default:
		return fmt.Errorf("the item's verdict is %v: nobody has decided on it", it.Verdict)
	}
	if why := s.cfg.QuarantineReason(&it.Event); why != "" {
		s.quarantine(why)
		return nil
	}
	if it.Verdict == judged.Orphan || at.Validity.Judge(it.Event.At, it.Event.Epoch) == event.Orphan {
		s.noteOrphan()
		return nil
	}
	n.Folded++
	s.out.refolds.forget()
	if it.Event.Stamped { // the stamp of another record is its producer's clock
		at.Stamp = max(at.Stamp, it.Event.Stamp)
	}
	s.ev = &it.Event
	if s.cfg.Kind == Events {
		return s.foldEvent()
	}
	return s.upsert()
}

func (s *step) quarantine(why string) {
	if s.out.Counts.Quarantined == nil {
		s.out.Counts.Quarantined = map[string]int{}
	}
	s.out.Counts.Quarantined[why]++
}

// otherCopies is copies for the event in hand, nil if its key has no other: the usual case.
func (s *step) otherCopies() ([]Copy, error) {
	k := s.ev.Envelope.Key
	if k.IsZero() || s.store.Sole(k, s.ev.At) {
		return nil, nil
	}
	return s.copies(k, s.table)
}

// copies gives the copies of a key that the vector has reached and that are no
// orphans by a table, the copy in hand among them.
func (s *step) copies(k event.IdempotencyKey, table *event.ValidityTable) ([]Copy, error) {
	all, err := s.store.Copies(k)
	if err != nil {
		return nil, fmt.Errorf("read copies of a key: %w", err)
	}
	if len(all) == 1 && s.ev != nil && all[0].At == s.ev.At {
		return all, nil
	}
	copies := make([]Copy, 0, len(all))
	for i := range all {
		c := &all[i]
		if !s.out.Position.Vector.Covers(c.At) || s.out.Position.Needed.Covers(c.At) {
			continue // not folded yet, or of a group that is settled
		}
		orphan, err := s.isOrphan(c.At, c.Epoch, table)
		if err != nil {
			return nil, err
		}
		if !orphan {
			copies = append(copies, *c)
		}
	}
	return copies, nil
}

// reportTwins adds what a settlement says to the feed.
func (s *step) reportTwins(t *settlement) {
	rule := s.cfg.Rule
	if s.cfg.Kind == Events {
		rule = 0
	}
	for _, o := range t.lost {
		s.out.Counts.Twins++
		s.out.Conflicts = append(s.out.Conflicts, Conflict{Key: o.lost.Entity, Reason: o.reason(), Rule: rule, Lost: o.lost.party(), Won: o.won.party()})
	}
	for _, o := range t.back {
		s.out.Counts.Corrections++
		s.out.Conflicts = append(s.out.Conflicts, Conflict{Key: o.won.Entity, Reason: Revoked, Rule: rule, Lost: o.lost.party(), Won: o.won.party()})
	}
}
