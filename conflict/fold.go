package conflict

import (
	"fmt"
	"slices"

	"github.com/geogate/geogate/internal/event"
)

// upsert folds the event in hand into its entity.
func (s *step) upsert() error {
	copies, err := s.otherCopies()
	if err != nil {
		return err
	}
	if len(copies) <= 1 {
		return s.apply(nil)
	}
	t := settle(copies, s.ev.At, s.cfg.Window)
	s.reportTwins(&t)
	switch {
	case len(t.moved) > 0:
		return s.revoke(s.ev.Key, &revision{}, &t)
	case t.leader.At == s.ev.At: // begins a group
		return s.apply(nil)
	case sameKey(t.leader.Entity, s.ev.Key): // void, and a writer that has seen it has seen the one that stands
		return s.updateEntity(s.ev.Key, nil, func(e *Entity) error {
			e.addCopy(t.leader.At, s.ev.At)
			return nil
		})
	}
	return nil
}

// apply is the plain case: the event stands, and nothing else changes standing.
func (s *step) apply(copies []event.Dot) error {
	return s.updateEntity(s.ev.Key, nil, func(e *Entity) error {
		e.Apply(s.ev, copies)
		return nil
	})
}

// revoke refolds every entity that lost an event or has one back: that of the
// copy that came or went, and after it, in the order of the copies, those of all
// copies whose leader changed. r says what else is revoked.
func (s *step) revoke(own []byte, r *revision, t *settlement) error {
	keys := [][]byte{own}
	for _, o := range t.lost {
		r.gone = append(r.gone, o.lost.At)
	}
	for _, o := range t.back {
		r.back = append(r.back, o.won.At)
	}
	for _, c := range t.moved {
		if !slices.ContainsFunc(keys, func(k []byte) bool { return sameKey(k, c.Entity) }) {
			keys = append(keys, c.Entity)
		}
	}
	for _, key := range keys {
		err := s.updateEntity(key, r, func(e *Entity) error { return s.refoldOnce(key, e) })
		if err != nil {
			return fmt.Errorf("refold entity: %w", err)
		}
	}
	return nil
}

// updateEntity loads an entity, lets fold alter its state, and puts out what follows
// for the merged topic and the feed. r is nil but for a refold.
func (s *step) updateEntity(key []byte, r *revision, fold func(*Entity) error) error {
	e, loaded := s.entities[string(key)]
	if !loaded {
		name := entityKey(key)
		stored, found, err := s.store.Entity(key)
		if err != nil {
			return fmt.Errorf("read entity: %w", err)
		}
		e = &Entity{}
		if found {
			e = stored.clone()
		}
		if err := s.leaveRest(key, e); err != nil {
			return err
		}
		s.entities[name] = e
		s.changedEntities = append(s.changedEntities, name)
	}
	shownAt := s.item.Event.Timestamp
	for i := range e.Live {
		if e.Live[i].Event.At == e.Shown {
			shownAt = e.Live[i].Event.Timestamp
		}
	}
	if err := fold(e); err != nil {
		return err
	}
	if e.Tracked && s.ev != nil && sameKey(s.ev.Key, key) {
		e.Latest.Advance(s.ev.At)
	}
	policy := PolicyOf(s.cfg.Rule)
	win := policy.Winner(e.Live)
	for _, c := range e.report(&policy, key, win, r) {
		if c.Reason == Revoked {
			s.out.Counts.Corrections++
		}
		s.out.Conflicts = append(s.out.Conflicts, c)
	}
	if m, ok := s.nextMerged(key, e, win, shownAt); ok {
		// An update by the event in hand corrects nothing, unless what was shown
		// had to go.
		update := s.ev != nil && m.Event.At == s.ev.At
		m.Corrects = r != nil && e.Shown != event.Dot{} && (!update || slices.Contains(r.gone, e.Shown))
		if m.Corrects {
			s.out.Counts.Corrections++
		}
		e.Shown = event.Dot{}
		if win >= 0 {
			e.Shown = m.Event.At
		}
		s.out.Merged = append(s.out.Merged, m)
	}
	return nil
}

// nextMerged is the merged record of an entity whose winner is another one than was
// shown last. shownAt is the timestamp of that one.
func (s *step) nextMerged(key []byte, e *Entity, win int, shownAt int64) (m Merged, changed bool) {
	switch {
	case win >= 0 && e.Live[win].Event.At == e.Shown || win < 0 && e.Shown == event.Dot{}:
		return m, false
	case win >= 0:
		m = Merged{Event: s.ev, Siblings: len(e.Live) - 1, Rule: s.cfg.Rule}
		if shown := &e.Live[win].Event; s.ev == nil || s.ev.At != shown.At {
			other := *shown // the entity's own changes with what comes next
			m.Event = &other
		}
		return m, true
	}
	gone := &event.Event{Key: key, At: e.Shown, Timestamp: shownAt, Envelope: event.Envelope{Op: event.Delete}}
	return Merged{Event: gone, Rule: s.cfg.Rule}, true // nothing is left of the entity
}

// refoldOnce refolds an entity, unless that was done while orphans of the same
// table are revoked: the first time has left them all out.
func (s *step) refoldOnce(key []byte, e *Entity) error {
	if s.ev == nil {
		name := entityKey(key)
		if s.out.refolds.has(&s.refolds, s.table, name) {
			return nil
		}
		defer s.out.refolds.add(s.table, name)
	}
	s.out.Counts.Refolds++
	return s.refold(key, e)
}

// refold folds an entity again: its base and the metas of all its events above that within
// the vector, leaving out those that do not stand.
func (s *step) refold(key []byte, e *Entity) error {
	base, since, err := s.base(key)
	if err != nil {
		return err
	}
	metas, err := s.metas(key, e, &since)
	if err != nil {
		return err
	}
	live, cover, err := s.foldOn(&base, metas)
	if err != nil {
		return err
	}
	if e.State, err = s.stateOf(e, &base, live, cover); err != nil {
		return err
	}
	if e.Tracked {
		e.Latest = event.Vector{}
		for i := range metas {
			e.Latest.Advance(metas[i].At)
		}
	}
	return nil
}

// metas are those of the journal within the vector and above the base, and those of the live
// values that a log cut by retention no longer gives the journal, orphans left out.
func (s *step) metas(key []byte, e *Entity, since *event.Vector) ([]Meta, error) {
	all, err := s.store.Metas(key, since)
	if err != nil {
		return nil, fmt.Errorf("read metas: %w", err)
	}
	metas := slices.DeleteFunc(slices.Clone(all), func(m Meta) bool { return since.Covers(m.At) || !s.out.Position.Vector.Covers(m.At) })
	for _, l := range e.Live {
		if !since.Covers(l.Event.At) && !slices.ContainsFunc(metas, func(m Meta) bool { return m.At == l.Event.At }) {
			m := MetaOf(&l.Event)
			m.Twins = !m.Key.IsZero()
			metas = append(metas, m)
		}
	}
	return s.counted(metas)
}

// counted are the metas without those of orphans.
func (s *step) counted(metas []Meta) ([]Meta, error) {
	if s.table == nil && s.out.Position.Revoking == 0 {
		return metas, nil
	}
	counted := metas[:0]
	for _, m := range metas {
		orphan, err := s.isOrphan(m.At, m.Epoch, s.table)
		if err != nil {
			return nil, err
		}
		if !orphan {
			counted = append(counted, m)
		}
	}
	return counted, nil
}

// groupOf finds a copy in the groups of its key; a copy that the journal does not
// know (its log was cut) stands alone.
func groupOf(groups [][]Copy, at event.Dot) (group []Copy, c Copy, stands bool) {
	for _, g := range groups {
		for i := range g {
			if g[i].At == at {
				return g, g[i], i == 0
			}
		}
	}
	return nil, Copy{At: at}, true
}

// liveEvent gives an event that is live after a refold: it was live before or is in the
// base, it is the one in hand, or it comes from the log.
func (s *step) liveEvent(e *Entity, base *Base, at event.Dot) (event.Event, error) {
	if s.ev != nil && s.ev.At == at {
		return *s.ev, nil
	}
	for _, lives := range [][]Live{e.Live, base.Live} {
		for i := range lives {
			if lives[i].Event.At == at {
				return lives[i].Event, nil
			}
		}
	}
	ev, err := s.store.Fetch(at)
	if err != nil {
		return ev, fmt.Errorf("fetch event that is live again: %w", err)
	}
	return ev, nil
}
