package conflict

import (
	"fmt"
	"slices"

	"github.com/geogate/geogate/internal/event"
)

// manyBelow is how many events of an entity that does not rest may lie between its base and
// the frontier before the base is moved.
const manyBelow = 64

// Tidying is what one call of Tidy looks at.
type Tidying struct {
	Keys [][]byte // of entities
	// All moves every base to the frontier, not only those of entities that have many
	// events below it. Once that was done for all entities that have metas in the journal at
	// or below a frontier, nothing at or below it is Needed. The first time it must be done
	// for all that have any metas.
	All bool
	// Needed is put in force as Position.Needed, if it is higher: a frontier for which All was
	// done without an entity left. Zero: nothing changes. Barriers are the last of each log
	// at or below it.
	Needed   event.Vector
	Barriers [event.MaxRegion + 1]int64
}

// Dropped says of which events no refold of an entity needs the metas any more: of those
// at or below a vector.
type Dropped struct {
	Key   []byte
	Below event.Vector
}

// Tidy takes out what nobody needs below the frontier: bases of entities that rest, deleted
// entities, and it moves the bases of entities that are always in use. It emits nothing, and
// like Step it changes nothing before Commit. What may be taken out of the journal once its
// output is committed stands in Output.Dropped.
func (p *Partition) Tidy(t Tidying) (*Output, error) {
	s := p.newStep(0)
	s.table = s.out.Position.Validity
	at := &s.out.Position
	for _, key := range t.Keys {
		if err := s.tidy(key, t.All); err != nil {
			return nil, fmt.Errorf("tidy entity: %w", err)
		}
	}
	if at.Frontier.CoversAll(&t.Needed) && t.Needed.CoversAll(&at.Needed) && t.Needed != at.Needed {
		at.Needed, at.NeededBarriers = t.Needed, t.Barriers
	}
	s.finish()
	return s.out, nil
}

func (s *step) tidy(key []byte, all bool) error {
	at := &s.out.Position
	stored, found, err := s.store.Entity(key)
	if err != nil {
		return fmt.Errorf("read entity: %w", err)
	}
	e := stored.clone()
	if err := s.track(key, e); err != nil {
		return err
	}
	base, has, err := s.store.Base(key)
	if err != nil {
		return fmt.Errorf("read base: %w", err)
	}
	if at.Frontier.CoversAll(&e.Latest) {
		return s.tidyResting(key, e, &stored, found, has)
	}
	if !stored.Tracked && all {
		name := entityKey(key)
		s.entities[name], s.changedEntities = e, append(s.changedEntities, name)
	}
	since := at.Needed
	since.Join(&base.Since)
	metas, err := s.store.Metas(key, &since)
	if err != nil {
		return fmt.Errorf("read metas: %w", err)
	}
	below := slices.DeleteFunc(slices.Clone(metas), func(m Meta) bool { return since.Covers(m.At) || !at.Frontier.Covers(m.At) })
	if len(below) == 0 || !all && len(below) < manyBelow {
		s.out.Dropped = append(s.out.Dropped, Dropped{key, since})
		return nil
	}
	return s.moveBase(key, e, base, below, since)
}

// tidyResting is tidy of an entity whose state is its base.
func (s *step) tidyResting(key []byte, e, stored *Entity, found, has bool) error {
	at := &s.out.Position
	if has {
		s.setBase(key, Base{})
	}
	if found && isDeleted(e) {
		metas, err := s.store.Metas(key, &at.Needed)
		if err != nil {
			return fmt.Errorf("read metas: %w", err)
		}
		if s.isGone(e, metas) {
			s.out.Counts.Gone++
			name := entityKey(key)
			s.entities[name], s.changedEntities = &Entity{}, append(s.changedEntities, name)
		} else {
			s.out.Deleted = append(s.out.Deleted, key)
		}
	}
	if stored.Tracked || !at.Needed.IsZero() { // else the journal is all that says what it rests on
		s.out.Dropped = append(s.out.Dropped, Dropped{key, at.Frontier})
	}
	return nil
}

// isDeleted tells whether nothing of an entity is live but perhaps a deletion.
func isDeleted(e *Entity) bool {
	return len(e.Live) == 0 || len(e.Live) == 1 && e.Live[0].Event.Op == event.Delete
}

// isGone is the rule by which an entity goes: nothing of it is live but perhaps a deletion,
// nothing that its events have seen is still to come, and no event of it, void ones included,
// is needed.
func (s *step) isGone(e *Entity, metas []Meta) bool {
	at := &s.out.Position
	switch {
	case !isDeleted(e):
		return false
	case !at.Vector.CoversAll(&e.Cover):
		return false
	case len(e.Live) == 1 && !at.Needed.Covers(e.Live[0].Event.At):
		return false
	}
	return !slices.ContainsFunc(metas, func(m Meta) bool { return !at.Needed.Covers(m.At) })
}

// moveBase folds what lies between an entity's base and the frontier into the base. A value
// that is live there and has been replaced since comes from the log; if it cannot be read the
// base stays where it is, and the log below the frontier is still needed.
func (s *step) moveBase(key []byte, e *Entity, base Base, below []Meta, since event.Vector) error {
	counted, err := s.counted(below)
	if err != nil {
		return err
	}
	live, cover, err := s.foldOn(&base, counted)
	if err != nil {
		return err
	}
	state, err := s.stateOf(e, &base, live, cover)
	if err != nil {
		s.out.Unmoved = fmt.Errorf("move base: %w", err)
		s.out.Dropped = append(s.out.Dropped, Dropped{key, since})
		return nil
	}
	moved := Base{State: state, Since: s.out.Position.Frontier}
	moved.Trim(&moved.Since)
	if base.IsZero() && len(moved.Live) == 0 && moved.Cover.IsZero() {
		return nil // none of them stands; they go once nothing below is needed
	}
	s.out.Counts.BasesMoved++
	s.setBase(key, moved)
	s.out.Dropped = append(s.out.Dropped, Dropped{key, moved.Since})
	return nil
}
