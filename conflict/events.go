package conflict

import (
	"fmt"
	"slices"

	"github.com/geogate/geogate/internal/event"
)

// foldEvent folds the event in hand on an events topic: it is emitted unless the
// merged topic has a record of its key for each write that its copies make. Nothing but the
// event in hand is ever emitted, so that the records of an origin lie in its order:
// a cursor depends on that. The feed says by stamp what would stand.
func (s *step) foldEvent() error {
	copies, err := s.otherCopies()
	if err != nil {
		return err
	}
	if len(copies) <= 1 {
		s.out.Merged = append(s.out.Merged, Merged{Event: s.ev})
		return nil
	}
	k := s.ev.Envelope.Key
	shown, _, err := s.shownCopies(k, copies)
	if err != nil {
		return err
	}
	t := settle(copies, s.ev.At, s.cfg.Window)
	s.reportTwins(&t)
	// One more copy makes at most one more group, so one emission is enough.
	if len(shown) < len(t.groups) {
		shown[s.ev.At] = s.ev.At
		s.out.Merged = append(s.out.Merged, Merged{Event: s.ev})
	}
	return s.setTwin(twinOf(k, t.groups, shown))
}

// shownCopies says of which copies of a key the merged topic has the write, and in
// whose record: the copy's own, or that of an orphan which stands for it now. found tells
// whether the key has a record; without one it had one copy, and that was emitted.
func (s *step) shownCopies(k event.IdempotencyKey, copies []Copy) (shown map[event.Dot]event.Dot, found bool, err error) {
	shown = map[event.Dot]event.Dot{}
	t := s.twins[k]
	if t == nil {
		stored, found, err := s.store.Twin(k)
		if err != nil {
			return nil, false, fmt.Errorf("read twins of a key: %w", err)
		}
		if found {
			t = &stored
		}
	}
	if t != nil { // a group that is settled has no part in another one
		above := *t
		_, above.Copies = splitTwin(t.Copies, &s.out.Position.Needed)
		t = &above
	}
	if t == nil || len(t.Copies) == 0 {
		for _, c := range copies {
			if s.ev == nil || c.At != s.ev.At {
				shown[c.At] = c.At
			}
		}
		return shown, false, nil
	}
	for _, c := range t.Copies {
		standsFor := c.At
		if c.Orphan {
			o, _, err := s.findOrphan(c.At)
			if err != nil {
				return nil, false, err
			}
			standsFor = o.Instead
		}
		if c.Emitted && standsFor != (event.Dot{}) {
			shown[standsFor] = c.At
		}
	}
	return shown, true, nil
}

// twinOf is the record of a key whose copies make those groups, and of which the
// merged topic shows those.
func twinOf(k event.IdempotencyKey, groups [][]Copy, shown map[event.Dot]event.Dot) *Twin {
	t := &Twin{Key: k}
	write := 0
	for n, g := range groups {
		for _, c := range g {
			x := TwinCopy{At: c.At, Stamp: c.Stamp, Group: n}
			in, ok := shown[c.At]
			if ok { // the n-th that was emitted stands for the n-th write
				x.Group, x.Emitted = write, in == c.At
				write++
			}
			t.Copies = append(t.Copies, x)
			if ok && in != c.At {
				t.Copies = append(t.Copies, TwinCopy{At: in, Stamp: c.Stamp, Group: x.Group, Emitted: true, Orphan: true})
			}
		}
	}
	return t
}

// setTwin notes what is known of a key now. Groups that are settled stay beside it, for they
// are what readers know the write by.
func (s *step) setTwin(t *Twin) error {
	if needed := &s.out.Position.Needed; !needed.IsZero() {
		before := s.twins[t.Key]
		if before == nil {
			stored, _, err := s.store.Twin(t.Key)
			if err != nil {
				return fmt.Errorf("read twins of a key: %w", err)
			}
			before = &stored
		}
		t = besideSettled(before, t, needed)
	}
	if _, dirty := s.twins[t.Key]; !dirty {
		s.changedTwins = append(s.changedTwins, t.Key)
	}
	s.twins[t.Key] = t
	return nil
}

// splitTwin parts copies into those that are needed no more and the others. An orphan goes with
// the copy that its record stands for, which it follows.
func splitTwin(copies []TwinCopy, needed *event.Vector) (settled, above []TwinCopy) {
	is := false
	for _, c := range copies {
		if !c.Orphan {
			is = needed.Covers(c.At)
		}
		if is {
			settled = append(settled, c)
		} else {
			above = append(above, c)
		}
	}
	return settled, above
}

// besideSettled is a key's record with those copies of the one before that are needed no more.
func besideSettled(before, t *Twin, needed *event.Vector) *Twin {
	out, groups := &Twin{Key: t.Key}, 0
	out.Copies, _ = splitTwin(before.Copies, needed)
	for _, c := range out.Copies {
		groups = max(groups, c.Group+1)
	}
	for _, c := range t.Copies {
		c.Group += groups
		out.Copies = append(out.Copies, c)
	}
	return out
}

// revokeEvent takes an orphan out of an events topic. If its record in the merged
// topic is needed for another copy it stands for that one from now on; else the record
// is taken back.
func (s *step) revokeEvent(o *Orphaned, copies []Copy) error {
	if o.Idempotency.IsZero() {
		s.retract(o.At, o.Key, o.Timestamp)
		return nil
	}
	shown, found, err := s.shownCopies(o.Idempotency, copies)
	if err != nil {
		return err
	}
	t := unsettle(copies, o.At, s.cfg.Window)
	s.reportTwins(&t)
	if in, was := shown[o.At]; was {
		delete(shown, o.At)
		if err := s.reuseRecord(in, t.groups, shown); err != nil {
			return err
		}
	}
	// One copy less can join two groups, so that one write is shown too often.
	if len(shown) > len(t.groups) {
		c := surplus(t.groups, shown)
		in := shown[c.At]
		delete(shown, c.At)
		if err := s.takeBack(in, c); err != nil {
			return err
		}
	}
	switch next := twinOf(o.Idempotency, t.groups, shown); {
	case len(next.Copies) > 1:
		return s.setTwin(next)
	case found: // no copy, or one that stands alone
		return s.setTwin(&Twin{Key: o.Idempotency})
	}
	return nil
}

// reuseRecord gives the record in the merged topic at a dot to a write that is not shown,
// or takes it back if there is none.
func (s *step) reuseRecord(in event.Dot, groups [][]Copy, shown map[event.Dot]event.Dot) error {
	for _, g := range groups {
		if len(shown) >= len(groups) {
			break
		}
		if !slices.ContainsFunc(g, func(c Copy) bool { _, ok := shown[c.At]; return ok }) {
			shown[g[0].At] = in
			return s.reassignRecord(in, g[0].At)
		}
	}
	return s.takeBack(in, Copy{At: in})
}

// reassignRecord notes of an orphan's record in the merged topic which copy it stands for.
func (s *step) reassignRecord(in, instead event.Dot) error {
	o, ok, err := s.findOrphan(in)
	if err != nil || !ok {
		return err
	}
	o.Instead = instead
	s.setOrphan(o)
	return nil
}

// takeBack retracts the record in the merged topic at a dot, which is that of copy
// c or of an orphan.
func (s *step) takeBack(in event.Dot, c Copy) error {
	o, ok, err := s.findOrphan(in)
	if err != nil {
		return err
	}
	if !ok {
		s.retract(in, c.Entity, c.Stamp.Millis())
		return nil
	}
	if o.Instead != (event.Dot{}) {
		o.Instead = event.Dot{}
		s.setOrphan(o)
	}
	s.retract(in, o.Key, o.Timestamp)
	return nil
}

// surplus is the last copy in a group that is shown more than once, or else the
// last that is shown.
func surplus(groups [][]Copy, shown map[event.Dot]event.Dot) (last Copy) {
	for _, g := range groups {
		n := 0
		for _, c := range g {
			if _, ok := shown[c.At]; ok {
				last = c
				n++
			}
		}
		if n > 1 {
			break
		}
	}
	return last
}

// retract appends to the merged topic that the record of the event at a dot does
// not count any more.
func (s *step) retract(at event.Dot, key []byte, timestamp int64) {
	s.out.Counts.Corrections++
	gone := &event.Event{Key: key, At: at, Timestamp: timestamp, Envelope: event.Envelope{Op: event.Delete}}
	s.out.Merged = append(s.out.Merged, Merged{Event: gone, Corrects: true})
}
