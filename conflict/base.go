package conflict

import (
	"fmt"
	"slices"

	"github.com/geogate/geogate/internal/event"
)

// Base is what a refold of an entity begins with: what the events at or below a frontier
// have made of it. Cover may leave out entries that the frontier has reached.
//
// An entity rests while the frontier has reached all events that its state is made of: the
// state is its base then. The step in which another event comes puts the base out, beside
// the new state. An entity that does not rest and has no base record has none: nothing of it
// was live at Position.Needed.
type Base struct {
	State
	Since event.Vector // the frontier: events at or below it are in the base
}

// IsZero tells whether there is no base.
func (b *Base) IsZero() bool { return b.Since.IsZero() }

// BaseChange is an entity's base after a step; a zero Base takes the record out.
type BaseChange struct {
	Key  []byte
	Base Base
}

// Raise has the next steps fold under a frontier. It never falls, and takes no origin
// beyond what was folded of it.
func (p *Partition) Raise(frontier event.Vector) { p.frontier.Join(&frontier) }

// raised is the frontier that the next step puts in force.
func (p *Partition) raised() event.Vector {
	f := p.at.Frontier
	for r := range f {
		to := p.frontier[r]
		if to.Compare(p.at.Vector[r]) > 0 {
			to = p.at.Vector[r]
		}
		if f[r].Compare(to) < 0 {
			f[r] = to
		}
	}
	return f
}

// Frontier is the frontier that the next step puts in force.
func (p *Partition) Frontier() event.Vector { return p.raised() }

// trim leaves out of an entity what nobody needs: of the cover what a base may leave out,
// because the state is the base once the entity rests. Before there is a frontier nothing
// rests, and the vector decides.
func (e *Entity) trim(at *Position) {
	if !e.Tracked {
		e.Trim(&at.Vector)
		return
	}
	e.Trim(&at.Frontier)
	trimVector(&e.Latest, &at.Frontier)
}

func trimVector(v, by *event.Vector) {
	for r := range v {
		if v[r].Compare(by[r]) <= 0 {
			v[r] = event.Point{}
		}
	}
}

// leaveRest is called before an entity changes for the first time in a step: the state of
// one that rests becomes the base of what follows.
func (s *step) leaveRest(key []byte, e *Entity) error {
	f := &s.out.Position.Frontier
	if f.IsZero() {
		return nil
	}
	if err := s.track(key, e); err != nil {
		return err
	}
	if !f.CoversAll(&e.Latest) {
		return nil
	}
	base := Base{State: State{Live: slices.Clone(e.Live), Cover: e.Cover}, Since: *f}
	base.Trim(f)
	if len(base.Live) > 0 || !base.Cover.IsZero() {
		s.setBase(key, base)
	}
	return nil
}

// track finds out which events an entity is made of that was written before there was a
// frontier. Its cover lacks what the vector had reached then, so that also those count which
// do not stand: it does not rest before the frontier has reached them. Since something is
// not needed any more, only entities are left untracked that rested then (Tidy).
func (s *step) track(key []byte, e *Entity) error {
	if e.Tracked {
		return nil
	}
	e.Tracked = true
	if !s.out.Position.Needed.IsZero() {
		return nil
	}
	metas, err := s.store.Metas(key, &event.Vector{})
	if err != nil {
		return fmt.Errorf("read metas: %w", err)
	}
	for i := range metas {
		if at := metas[i].At; s.out.Position.Vector.Covers(at) && (s.ev == nil || s.ev.At != at) {
			e.Latest.Advance(at)
		}
	}
	return nil
}

func (s *step) setBase(key []byte, b Base) {
	if s.bases == nil {
		s.bases = map[string]Base{}
	}
	name := entityKey(key)
	if _, known := s.bases[name]; !known {
		s.changedBases = append(s.changedBases, name)
	}
	s.bases[name] = b
}

// base is what a refold of an entity that does not rest begins with, and the vector up to
// which events are in it.
func (s *step) base(key []byte) (b Base, since event.Vector, err error) {
	since = s.out.Position.Needed
	if s.out.Position.Frontier.IsZero() {
		return b, since, nil
	}
	b, known := s.bases[entityKey(key)]
	if !known {
		if b, _, err = s.store.Base(key); err != nil {
			return b, since, fmt.Errorf("read base: %w", err)
		}
	}
	since.Join(&b.Since)
	return b, since, nil
}

// foldOn folds events on a base: live says which of them and of the base's values are live.
// stateOf has their events.
func (s *step) foldOn(base *Base, metas []Meta) (live []Standing, cover event.Vector, err error) {
	standing := make([]Standing, 0, len(base.Live)+len(metas))
	for i := range base.Live {
		standing = append(standing, Standing{At: base.Live[i].Event.At, Copies: base.Live[i].Copies})
	}
	for i := range metas {
		m := &metas[i]
		st := Standing{At: m.At, Context: m.Context}
		if m.Twins {
			copies, err := s.copies(m.Key, s.table)
			if err != nil {
				return nil, cover, err
			}
			group, c, stands := groupOf(groupCopies(slices.Clone(copies), s.cfg.Window), m.At)
			if !stands {
				continue
			}
			st.Copies = siblingsOf(c, group)
		}
		standing = append(standing, st)
	}
	at, cover := refoldOn(base.Cover, standing)
	for _, i := range at {
		live = append(live, standing[i])
	}
	return live, cover, nil
}

// stateOf has the events of live values that a refold has found.
func (s *step) stateOf(e *Entity, base *Base, live []Standing, cover event.Vector) (State, error) {
	state := State{Cover: cover}
	for i := range live {
		ev, err := s.liveEvent(e, base, live[i].At)
		if err != nil {
			return state, err
		}
		state.insert(Live{Event: ev, Copies: live[i].Copies})
	}
	return state, nil
}
