package conflict

import (
	"fmt"
	"maps"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
)

// Orphaned is what a region keeps of an event that lies past the cut of its
// region's epoch, or that was written under an epoch which had ended: enough to
// list it and to find it in its log.
type Orphaned struct {
	At          event.Dot
	ID          event.ID // zero: came without a gateway
	Stamp       hlc.Stamp
	Timestamp   int64       // of the record, Unix milliseconds
	Epoch       event.Epoch // under which it was written; 0: without a gateway
	Op          event.Op
	Key         []byte               // record key; nil is null
	Idempotency event.IdempotencyKey // zero: none
	// Instead is the copy of the same write that the orphan's record in an events
	// topic's merged topic means now; zero: it means nothing, or was never there.
	Instead event.Dot
}

// OrphanedOf is what is kept of an event.
func OrphanedOf(ev *event.Event) Orphaned {
	return Orphaned{
		At: ev.At, ID: ev.ID, Stamp: ev.Stamp, Timestamp: ev.Timestamp, Epoch: ev.Epoch, Op: ev.Op,
		Key: ev.Key, Idempotency: ev.Envelope.Key,
	}
}

// cut puts a table in force. An older one than is in force changes nothing.
func (p *Position) cut(a *event.ValidityTable) {
	if a == nil || p.Validity != nil && a.Revision <= p.Validity.Revision {
		return
	}
	p.Validity = a
	if p.Revoking <= a.Revision {
		p.Revoking = 0
	}
}

// isOrphan tells whether an event does not count: because the table says so, or
// because it was revoked under a table that is not in force yet.
func (s *step) isOrphan(at event.Dot, epoch event.Epoch, table *event.ValidityTable) (bool, error) {
	if table.Judge(at, epoch) == event.Orphan {
		return true, nil
	}
	if s.out.Position.Revoking == 0 {
		return false, nil
	}
	_, known, err := s.orphaned(at)
	return known, err
}

// orphaned is what is kept of the orphan at a dot, if that is known to be one.
func (s *step) orphaned(at event.Dot) (o Orphaned, ok bool, err error) {
	if o := s.orphans[at]; o != nil {
		return *o, true, nil
	}
	if o, ok, err = s.store.Orphan(at); err != nil {
		return o, false, fmt.Errorf("read orphan: %w", err)
	}
	return o, ok, nil
}

func (s *step) setOrphan(o Orphaned) {
	if s.orphans == nil {
		s.orphans = map[event.Dot]*Orphaned{}
	}
	if s.orphans[o.At] == nil {
		s.found = append(s.found, o.At)
	}
	s.orphans[o.At] = &o
}

// refolds remembers which entities were folded anew while orphans of a table are
// revoked, so that an entity with many of them is folded anew once and not for each:
// a refold leaves out all of them. Any event that is folded ends it.
type refolds struct {
	table *event.ValidityTable
	names map[string]bool
	alone bool // what earlier steps remember counts no more
}

func (m *refolds) has(earlier *refolds, table *event.ValidityTable, name string) bool {
	return m.table == table && m.names[name] || !m.alone && earlier.table == table && earlier.names[name]
}

func (m *refolds) add(table *event.ValidityTable, name string) {
	if m.table != table {
		m.alone = m.alone || m.table != nil
		m.table, m.names = table, map[string]bool{}
	}
	m.names[name] = true
}

func (m *refolds) forget() {
	if !m.alone || m.table != nil {
		*m = refolds{alone: true}
	}
}

// join takes over what a step remembers.
func (m *refolds) join(o *refolds) {
	switch {
	case o.alone || m.table != o.table && o.table != nil:
		m.table, m.names = o.table, o.names
	default:
		maps.Copy(m.names, o.names)
	}
}

// lost notes the event in hand, which was not folded, as an orphan.
func (s *step) lost() {
	s.out.Counts.Orphans++
	s.setOrphan(OrphanedOf(&s.in.Event))
}

// revokeOrphan takes the event in hand, which was folded, out again. One that was
// taken out before, by a step whose Cuts did not follow, changes nothing.
//
// What the feed says of the copies of its key goes by the orphans revoked so far, so
// that each one is told apart; entities are folded by the whole table, so that none
// of the orphans still to be revoked comes back for a while.
func (s *step) revokeOrphan() error {
	ev, at := &s.in.Event, &s.out.Position
	if s.cfg.Admit(ev) != "" {
		return nil // it was quarantined
	}
	if _, known, err := s.orphaned(ev.At); known || err != nil {
		return err
	}
	var copies []Copy
	if k := ev.Envelope.Key; !k.IsZero() {
		var err error
		if copies, err = s.copies(k, at.Validity); err != nil {
			return err
		}
	}
	o := OrphanedOf(ev)
	s.out.Counts.Orphans++
	s.setOrphan(o)
	if a := s.in.Validity; at.Validity == nil || a.Revision > at.Validity.Revision {
		s.table = a
		at.Revoking = max(at.Revoking, a.Revision)
	}
	if s.cfg.Kind == Events {
		return s.revokeFact(&o, copies)
	}
	t := unsettle(copies, ev.At, s.cfg.Window)
	s.tellTwins(&t)
	return s.revoke(ev.Key, &revision{gone: []event.Dot{ev.At}, orphan: ev.At}, &t)
}
