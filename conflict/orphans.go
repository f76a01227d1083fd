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
	// topic's merged topic stands for now; zero: for none, or it was never there.
	Instead event.Dot
}

// OrphanedOf is what is kept of an event.
func OrphanedOf(ev *event.Event) Orphaned {
	return Orphaned{
		At: ev.At, ID: ev.ID, Stamp: ev.Stamp, Timestamp: ev.Timestamp, Epoch: ev.Epoch, Op: ev.Op,
		Key: ev.Key, Idempotency: ev.Envelope.Key,
	}
}

// putInForce puts a table in force. An older one than is in force changes nothing.
func (p *Position) putInForce(a *event.ValidityTable) {
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
	_, known, err := s.findOrphan(at)
	return known, err
}

// findOrphan is what is kept of the orphan at a dot, if that is known to be one.
func (s *step) findOrphan(at event.Dot) (o Orphaned, ok bool, err error) {
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
		s.foundOrphans = append(s.foundOrphans, o.At)
	}
	s.orphans[o.At] = &o
}

// refolds remembers which entities were refolded while orphans of a table are revoked,
// so that an entity with many of them is refolded once and not for each:
// a refold leaves out all of them. Any event that is folded ends it.
type refolds struct {
	table   *event.ValidityTable
	names   map[string]bool
	onlyOwn bool // what earlier steps remember does not count any more
}

func (m *refolds) has(earlier *refolds, table *event.ValidityTable, name string) bool {
	return m.table == table && m.names[name] || !m.onlyOwn && earlier.table == table && earlier.names[name]
}

func (m *refolds) add(table *event.ValidityTable, name string) {
	if m.table != table {
		m.onlyOwn = m.onlyOwn || m.table != nil
		m.table, m.names = table, map[string]bool{}
	}
	m.names[name] = true
}

func (m *refolds) forget() {
	if !m.onlyOwn || m.table != nil {
		*m = refolds{onlyOwn: true}
	}
}

// join takes over what a step remembers.
func (m *refolds) join(o *refolds) {
	switch {
	case o.onlyOwn || m.table != o.table && o.table != nil:
		m.table, m.names = o.table, o.names
	default:
		maps.Copy(m.names, o.names)
	}
}

// noteOrphan notes the event in hand, which was not folded, as an orphan.
func (s *step) noteOrphan() {
	s.out.Counts.Orphans++
	s.setOrphan(OrphanedOf(&s.item.Event))
}

// revokeOrphan takes the event in hand, which was folded, out again. One that was
// taken out before, by a step whose Cuts did not follow, changes nothing.
//
// What the feed says of the copies of its key depends on the orphans revoked so far, so
// that each is reported separately; entities are folded by the whole table, so that no
// orphan that is still to be revoked comes back for a while.
func (s *step) revokeOrphan() error {
	ev, at := &s.item.Event, &s.out.Position
	if s.cfg.QuarantineReason(ev) != "" {
		return nil // it was quarantined
	}
	if _, known, err := s.findOrphan(ev.At); known || err != nil {
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
	if a := s.item.Validity; at.Validity == nil || a.Revision > at.Validity.Revision {
		s.table = a
		at.Revoking = max(at.Revoking, a.Revision)
	}
	if s.cfg.Kind == Events {
		return s.revokeEvent(&o, copies)
	}
	t := unsettle(copies, ev.At, s.cfg.Window)
	s.reportTwins(&t)
	return s.revoke(ev.Key, &revision{gone: []event.Dot{ev.At}, orphan: ev.At}, &t)
}
