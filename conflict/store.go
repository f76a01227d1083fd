package conflict

import (
	"fmt"
	"maps"
	"slices"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/judged"
)

// Meta is what a refold needs of an event.
type Meta struct {
	At      event.Dot
	ID      event.ID
	Stamp   hlc.Stamp
	Context event.Vector         // full: with the own entry
	Key     event.IdempotencyKey // zero: none
	Epoch   event.Epoch          // 0: came without a gateway
	Twins   bool                 // the store may know more than one copy of Key
}

// MetaOf is the meta of an event.
func MetaOf(ev *event.Event) Meta {
	return Meta{At: ev.At, ID: ev.ID, Stamp: ev.Stamp, Context: ev.FullContext(), Key: ev.Envelope.Key, Epoch: ev.Epoch}
}

// Twin is what an events topic remembers of a key with several copies: which of
// them this region has put into the merged view. The others are aliases.
type Twin struct {
	Key    event.IdempotencyKey
	Copies []TwinCopy // in the total order of events, an orphan after the copy that its record stands for
}

// TwinCopy is one copy of a Twin.
type TwinCopy struct {
	At      event.Dot
	Stamp   hlc.Stamp
	Group   int  // number of the write that it is to readers
	Emitted bool // has a record in the merged topic
	// Orphan: the copy does not count any more. It is kept because its record in the
	// merged topic stands for another one now (Orphaned.Instead).
	Orphan bool
}

// Aliases are the dots that are, to a reader, the same write as the one at d.
// Orphans are none: a reader that has come past one need not have been shown it.
func (t *Twin) Aliases(d event.Dot) []event.Dot {
	at := slices.IndexFunc(t.Copies, func(c TwinCopy) bool { return c.At == d })
	if at < 0 {
		return nil
	}
	var out []event.Dot
	for _, c := range t.Copies {
		if c.Group == t.Copies[at].Group && c.At != d && !c.Orphan {
			out = append(out, c.At)
		}
	}
	return out
}

// Store is what a partition's fold reads. Entities, twins and orphans are what
// earlier steps have put out and the caller has committed. Metas and copies come from
// the journal, which must hold every admitted event (Config.QuarantineReason) of the items
// of a step before the step is asked for; it may hold later ones, which the fold
// leaves aside. Results are not changed by the fold and may be shared.
type Store interface {
	Entity(key []byte) (Entity, bool, error)
	Twin(event.IdempotencyKey) (Twin, bool, error)
	Orphan(event.Dot) (Orphaned, bool, error)
	// Sole tells whether the event at a dot is known to be the only copy of its key. It
	// answers from memory; what it does not know is in Copies.
	Sole(k event.IdempotencyKey, at event.Dot) bool
	Base(key []byte) (Base, bool, error) // of one entity
	// Metas are those of one entity; those at or below the vector may be left out.
	Metas(key []byte, above *event.Vector) ([]Meta, error)
	Copies(event.IdempotencyKey) ([]Copy, error) // of one idempotency key
	Fetch(event.Dot) (event.Event, error)        // an event that a refold makes live again
}

// Memory is a Store in memory, journal and committed outputs, for simulation and
// tests. The zero Memory is not ready; use NewMemory.
type Memory struct {
	cfg      Config
	entities map[string]Entity
	twins    map[event.IdempotencyKey]Twin
	orphans  map[event.Dot]Orphaned
	bases    map[string]Base
	metas    map[string][]Meta
	copies   map[event.IdempotencyKey][]Copy
	events   map[event.Dot]event.Event
	applied  event.Vector
	needed   event.Vector // that was last dropped
}

// NewMemory makes an empty store for a partition of that configuration.
func NewMemory(cfg Config) *Memory {
	return &Memory{
		cfg: cfg, entities: map[string]Entity{}, twins: map[event.IdempotencyKey]Twin{}, orphans: map[event.Dot]Orphaned{}, bases: map[string]Base{},
		metas: map[string][]Meta{}, copies: map[event.IdempotencyKey][]Copy{}, events: map[event.Dot]event.Event{},
	}
}

// Add puts items into the journal, in log order for each origin; items already
// there are passed over.
func (m *Memory) Add(items []judged.Item) {
	for i := range items {
		it := &items[i]
		if it.Next.Compare(m.applied[it.Origin]) <= 0 {
			continue
		}
		m.applied[it.Origin] = it.Next
		// Orphans too: a fold that restarts under the table before folds them.
		if it.Verdict != judged.Valid && it.Verdict != judged.Orphan || m.cfg.QuarantineReason(&it.Event) != "" {
			continue
		}
		ev := it.Event
		m.events[ev.At] = ev
		if m.cfg.Kind == Entities {
			m.metas[entityKey(ev.Key)] = append(m.metas[entityKey(ev.Key)], MetaOf(&ev))
		}
		if k := ev.Envelope.Key; !k.IsZero() {
			m.copies[k] = append(m.copies[k], CopyOf(&ev))
		}
	}
}

// Commit keeps a step's outputs as committed.
func (m *Memory) Commit(out *Output) {
	for _, c := range out.Entities {
		if c.Entity.IsZero() {
			delete(m.entities, entityKey(c.Key))
		} else {
			m.entities[entityKey(c.Key)] = c.Entity
		}
	}
	for _, t := range out.Twins {
		if len(t.Copies) == 0 {
			delete(m.twins, t.Key)
		} else {
			m.twins[t.Key] = t
		}
	}
	for _, o := range out.Orphans {
		m.orphans[o.At] = o
	}
	for _, b := range out.Bases {
		if b.Base.IsZero() {
			delete(m.bases, entityKey(b.Key))
		} else {
			m.bases[entityKey(b.Key)] = b.Base
		}
	}
	m.Drop(out)
}

// Drop takes out of the journal, and out of the log that is beside it, what nobody needs after
// a step that was committed.
func (m *Memory) Drop(out *Output) {
	for _, d := range out.Dropped {
		name := entityKey(d.Key)
		m.metas[name] = slices.DeleteFunc(m.metas[name], func(x Meta) bool { return d.Below.Covers(x.At) })
	}
	needed := &out.Position.Needed
	if m.needed == *needed {
		return
	}
	m.needed = *needed
	for k, copies := range m.copies {
		if left := slices.DeleteFunc(copies, func(c Copy) bool { return needed.Covers(c.At) }); len(left) > 0 {
			m.copies[k] = left
		} else {
			delete(m.copies, k)
		}
	}
	maps.DeleteFunc(m.events, func(at event.Dot, _ event.Event) bool { return needed.Covers(at) })
}

// Begin has the journal of a store that was lost begin at a vector: the items below are
// passed over.
func (m *Memory) Begin(needed event.Vector) { m.applied.Join(&needed) }

// Keys are the entities of which the journal has metas.
func (m *Memory) Keys() (keys [][]byte) {
	for name, metas := range m.metas {
		if len(metas) > 0 {
			keys = append(keys, []byte(name))
		}
	}
	return keys
}

// Entity implements Store.
func (m *Memory) Entity(key []byte) (Entity, bool, error) {
	e, ok := m.entities[entityKey(key)]
	return e, ok, nil
}

// Base implements Store.
func (m *Memory) Base(key []byte) (Base, bool, error) {
	b, ok := m.bases[entityKey(key)]
	return b, ok, nil
}

// Twin implements Store.
func (m *Memory) Twin(k event.IdempotencyKey) (Twin, bool, error) {
	t, ok := m.twins[k]
	return t, ok, nil
}

// Orphan implements Store.
func (m *Memory) Orphan(d event.Dot) (Orphaned, bool, error) {
	o, ok := m.orphans[d]
	return o, ok, nil
}

// Metas implements Store.
func (m *Memory) Metas(key []byte, above *event.Vector) ([]Meta, error) {
	ms := slices.DeleteFunc(slices.Clone(m.metas[entityKey(key)]), func(x Meta) bool { return above.Covers(x.At) })
	for i := range ms {
		ms[i].Twins = len(m.copies[ms[i].Key]) > 1
	}
	return ms, nil
}

// Sole implements Store.
func (m *Memory) Sole(k event.IdempotencyKey, at event.Dot) bool {
	c := m.copies[k]
	return len(c) == 1 && c[0].At == at
}

// Copies implements Store.
func (m *Memory) Copies(k event.IdempotencyKey) ([]Copy, error) { return m.copies[k], nil }

// Fetch implements Store.
func (m *Memory) Fetch(d event.Dot) (event.Event, error) {
	ev, ok := m.events[d]
	if !ok {
		return event.Event{}, fmt.Errorf("fetch event %v: not in memory", d)
	}
	return ev, nil
}

// entityKey is the map key of a record key. Entity topics have no null keys.
func entityKey(key []byte) string { return string(key) }
