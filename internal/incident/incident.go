// Package incident is what a region knows of records that it needed and that were deleted
// from its Kafka: which, what that means, and whether somebody has accepted it.
//
// A reader that needs offsets below the start of a log has found an incident. It does not
// skip them by itself. The identity of an incident is where it begins, so whoever finds it,
// and however often, finds the same one; it grows while retention goes on. An acceptance
// ends it: the reader goes on past what was accepted, and what is missing past that is
// another incident.
//
// The package is pure. It is not safe for concurrent use.
package incident

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/geogate/geogate/internal/event"
)

// Kind is which reader lacks records. Numbers are fixed.
type Kind uint8

// The kinds.
const (
	// Fold: the fold has not had them, so no view of the region has.
	Fold Kind = 1
	// Keys: the index of idempotency keys was lost and cannot be rebuilt from them.
	Keys Kind = 2
	// History: the journal was lost and cannot be rebuilt from them. The fold has had them.
	History Kind = 3
	// Cut: the fold has had them, and a cut may have made orphans of some.
	Cut Kind = 4
	// Internal: an internal topic, which is read from its beginning, has lost it.
	Internal Kind = 5
	// Link: a link has not copied them, so the region Place.To has not got them.
	Link Kind = 6
	// Truncated: the log has lost its end, which the region has read and told others of. What
	// is written at those offsets now would be taken for what was there.
	Truncated Kind = 7
)

// Kinds are all kinds.
func Kinds() []Kind { return []Kind{Fold, Keys, History, Cut, Internal, Link, Truncated} }

// String is the kind's name in answers and commands.
func (k Kind) String() string {
	switch k {
	case Fold:
		return "fold"
	case Keys:
		return "keys"
	case History:
		return "history"
	case Cut:
		return "cut"
	case Internal:
		return "internal"
	case Link:
		return "link"
	case Truncated:
		return "truncated"
	}
	return fmt.Sprintf("kind-%d", uint8(k))
}

// Place is where an incident begins. It is the incident's identity.
type Place struct {
	Kind      Kind
	Log       event.TopicID // of the topic that has lost records, in the region's own Kafka
	Partition int32
	To        event.RegionID // the target region of a link; else 0
	From      int64          // the first offset that was lost
}

// ID names an incident: 12 hex digits of a digest of its place.
type ID [6]byte

// String is the ID in hex.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// ParseID reads what String has written.
func ParseID(s string) (id ID, err error) {
	if len(s) != hex.EncodedLen(len(id)) {
		return id, fmt.Errorf("%w: an incident's id has %d hex digits", event.ErrMalformed, hex.EncodedLen(len(id)))
	}
	if _, err := hex.Decode(id[:], []byte(s)); err != nil {
		return id, fmt.Errorf("%w: an incident's id is of hex digits", event.ErrMalformed)
	}
	return id, nil
}

// ID is the name of the incident that begins at the place.
func (p Place) ID() (id ID) {
	b := append([]byte("geogate incident v1"), byte(p.Kind))
	b = append(b, p.Log[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(p.Partition))
	b = append(b, byte(p.To))
	sum := sha256.Sum256(binary.BigEndian.AppendUint64(b, uint64(p.From)))
	copy(id[:], sum[:])
	return id
}

// Incident is a stretch of a log that was deleted before a reader had it.
type Incident struct {
	Place
	Topic string // the local topic, also where Name is a copy of another region's
	Name  string // of the topic that has lost records
	// Origin is the region whose records they were; 0 for those of an internal topic.
	Origin event.RegionID
	// Until is the offset after the last one that was lost.
	Until int64
	Found time.Time
}

// Count is how many offsets were lost. Not every one need have held a record.
func (x *Incident) Count() int64 { return x.Until - x.From }

// Acceptance is somebody's decision to go on without what was lost.
type Acceptance struct {
	ID     ID
	Until  int64 // of the incident as it was accepted
	At     time.Time
	By     string // who, as far as is known
	Reason string
}

// State is whether anything is to be done about an incident.
type State string

// The states.
const (
	Open     State = "open"
	Accepted State = "accepted"
	Expired  State = "expired" // nothing can go wrong any more
)

// Entry is an incident with what became of it.
type Entry struct {
	Incident
	Acceptance *Acceptance // nil: nobody has accepted it
}

// State is the entry's state. window is how long idempotency keys are remembered: once it
// has passed, lost keys do not matter any more.
func (e *Entry) State(now time.Time, window time.Duration) State {
	switch {
	case e.Acceptance != nil:
		return Accepted
	case e.Kind == Keys && now.Sub(e.Found) > window:
		return Expired
	}
	return Open
}

// LacksKeys tells whether the lost records may have had idempotency keys that are still
// within the window.
func (e *Entry) LacksKeys(now time.Time, window time.Duration) bool {
	return (e.Kind == Keys || e.Kind == Fold) && e.State(now, window) == Open && now.Sub(e.Found) <= window
}

// maxEntries bounds a Set. Further incidents stay in the control topic, and their readers
// find them again.
const maxEntries = 100_000

// Set is the incidents and acceptances that are known. The zero Set is empty.
type Set struct {
	entries map[ID]*Entry
}

// Found adds an incident, or notes that it has grown. It tells whether that is news.
func (s *Set) Found(x Incident) (changed bool) {
	e := s.entry(x.ID())
	switch {
	case e == nil:
		return false
	case e.Until == 0:
		e.Incident = x
		return true
	}
	if x.Found.Before(e.Found) {
		e.Found, changed = x.Found, true
	}
	if x.Until > e.Until {
		e.Until, changed = x.Until, true
	}
	return changed
}

// Accept adds an acceptance, which may come before the incident. The one that covers most
// counts.
func (s *Set) Accept(a Acceptance) {
	if e := s.entry(a.ID); e != nil && (e.Acceptance == nil || a.Until >= e.Acceptance.Until) {
		e.Acceptance = &a
	}
}

func (s *Set) entry(id ID) *Entry {
	if s.entries == nil {
		s.entries = make(map[ID]*Entry)
	}
	e := s.entries[id]
	if e == nil && len(s.entries) < maxEntries {
		e = new(Entry)
		s.entries[id] = e
	}
	return e
}

// Get is an incident; ok is false if none is known.
func (s *Set) Get(id ID) (e Entry, ok bool) {
	if x := s.entries[id]; x != nil && x.Until > 0 {
		return *x, true
	}
	return Entry{}, false
}

// Find is an incident for which is returns true; nil if there is none.
func (s *Set) Find(is func(*Entry) bool) *Entry {
	for _, e := range s.entries {
		if e.Until > 0 && is(e) {
			found := *e
			return &found
		}
	}
	return nil
}

// All are the incidents, by topic, partition, kind and place.
func (s *Set) All() []Entry {
	out := make([]Entry, 0, len(s.entries))
	for _, e := range s.entries {
		if e.Until > 0 {
			out = append(out, *e)
		}
	}
	slices.SortFunc(out, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Kind, b.Kind),
			cmp.Compare(a.Name, b.Name), cmp.Compare(a.To, b.To), cmp.Compare(a.From, b.From), slices.Compare(a.Log[:], b.Log[:]))
	})
	return out
}

// Missing is what a reader still lacks of the offsets from p.From up to until of a log, all
// of which were deleted: without what somebody has accepted as lost at the beginning and at
// the end. What was accepted for the fold is accepted for the indexes, too. If all was
// accepted, from is not below to.
func (s *Set) Missing(p Place, until int64) (from, to int64) {
	from, to = p.From, until
	for moved := true; moved; {
		moved = false
		for _, e := range s.entries {
			a := e.Acceptance
			if a == nil || e.Until == 0 || e.Kind != p.Kind && e.Kind != Fold || e.Log != p.Log || e.Partition != p.Partition || e.To != p.To {
				continue
			}
			if e.From <= from && from < a.Until {
				from, moved = a.Until, true
			}
			if from < e.From && e.From < to && to <= a.Until {
				to, moved = e.From, true
			}
		}
	}
	return from, to
}
