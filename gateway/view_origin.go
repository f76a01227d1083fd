package gateway

import (
	"context"
	"fmt"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/judged"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/internal/txn"
)

// ownLog is the view of this region's own log of a topic. Void records and orphans
// are left out, twins stay. It stops before a record that cannot be judged until
// more is known of the ownership register.
type ownLog struct {
	s      *Server
	valid  validity
	t      Topic
	given  bool
	latest bool
	at     map[int32]event.Point
	logs   map[int32]*ownPartition
	form   *recordForm
	place  viewCursor
}

// ownPartition judges one partition that is read from some offset on.
//
// Invariant: every barrier from searched on, up to where reading has come, is
// known to log.
type ownPartition struct {
	log      *seat.Log
	start    int64   // of the log itself
	from     int64   // where reading began
	searched int64   // barriers are known from here on
	seen     []int64 // barriers met since from
	next     int64
}

func (s *Server) newOwnLog(t Topic, from from) *ownLog {
	l := &ownLog{
		s: s, valid: s.newValidity(t.Name), t: t, given: from.given, latest: from.latest, at: make(map[int32]event.Point), logs: make(map[int32]*ownPartition),
		form: s.newRecordForm(t.Name), place: newViewCursor(event.OriginView(s.cfg.Region), t.Name, s.cfg.Region),
	}
	for p, v := range from.cursor.At {
		l.at[p] = v[s.cfg.Region]
		l.place.move(p)
	}
	return l
}

func (l *ownLog) derived() bool { return false }

func (l *ownLog) topic() string  { return l.t.Name }
func (l *ownLog) beforeListing() { l.valid.refresh() }

// written: what was folded of the log lay below its last stable offset before.
func (l *ownLog) written() map[int32]int64 { return nil }

func (l *ownLog) start(_ context.Context, logs map[int32]span) (map[int32]int64, error) {
	out := make(map[int32]int64)
	for p, log := range logs {
		inc := l.s.deps.Logs.Incarnation(l.t.Name, l.t.ID, p)
		at, o := l.at[p], log.start
		switch {
		case l.latest:
			o = log.end
		case !l.given:
		case at.Incarnation > inc || at.Next > log.end:
			return nil, fmt.Errorf("begin in partition %d at %d: %w", p, at.Next, errStale)
		case at.Incarnation < inc || at.Next < log.start:
			return nil, fmt.Errorf("begin in partition %d at %d: %w", p, at.Next, errExpired)
		default:
			o = at.Next
		}
		out[p], l.at[p] = o, event.Point{Incarnation: inc, Next: o}
		l.place.move(p)
		part := &ownPartition{log: seat.NewLog(l.s.cfg.Region, inc, seat.NoBarrier), start: log.start, from: o, searched: o, next: o}
		if o == log.start {
			part.searched = 0 // what lay below is gone, and with it any barrier
		}
		l.logs[p] = part
	}
	return out, nil
}

func (l *ownLog) show(ctx context.Context, rec *txn.Entry, dst []byte) (_ []byte, shown bool, err error) {
	part, inc := l.logs[rec.Partition], l.at[rec.Partition].Incarnation
	if rec.Control {
		if !seat.Asks(rec.Key) {
			return dst, false, nil
		}
		barrier, err := l.s.deps.Logs.IsBarrier(ctx, l.t.ID, rec.Partition, rec.Producer, rec.ProducerEpoch)
		if err != nil {
			return dst, false, err
		}
		part.log.Marker(rec.Offset, barrier)
		if barrier {
			part.seen = append(part.seen, rec.Offset)
		}
		return dst, false, nil
	}
	at := event.Dot{Region: l.s.cfg.Region, Incarnation: inc, Partition: rec.Partition, Offset: rec.Offset}
	ev, bad := eventOf(at, rec)
	if bad == nil && ev.Stamped && ev.Incarnation == inc && ev.Barrier < part.searched && part.log.Last() <= ev.Barrier {
		if err := l.search(ctx, rec.Partition, part, ev.Barrier); err != nil {
			return dst, false, err
		}
	}
	if part.log.Record(&ev, bad) != judged.Valid {
		return dst, false, nil
	}
	switch l.valid.judge(&ev) {
	case event.Orphan:
		return dst, false, nil
	case event.Unsettled:
		return dst, false, errUndecided
	}
	return l.form.append(dst, &ev), true, nil
}

// search makes the barriers known from down on: a reader that begins inside the
// log reads the markers from the gg-e of the first stamped record on.
func (l *ownLog) search(ctx context.Context, p int32, part *ownPartition, down int64) error {
	down = max(down, part.start)
	key := logKey{l.t.ID, p}
	last, known := l.s.scans.last(key, down, part.from)
	if !known && down < part.from {
		found, err := l.s.barriers(ctx, l.t, p, down, part.from)
		if err != nil {
			return err
		}
		l.s.scans.add(key, down, part.from, found)
		if len(found) > 0 {
			last = found[len(found)-1]
		}
	}
	part.log.Marker(last, last != seat.NoBarrier)
	part.searched = down
	if down == part.start {
		part.searched = 0
	}
	return nil
}

func (l *ownLog) reached(p int32, next int64) {
	l.logs[p].next = next
	at := l.at[p]
	at.Next = next
	l.at[p] = at
	l.place.move(p)
}

func (l *ownLog) lacks() []int32 { return nil }

func (l *ownLog) appendCursor(dst []byte) []byte {
	return appendOriginCursor(dst, &l.place, l.s.cfg.Region, l.at)
}

// close keeps the barriers that were found for the next reader.
func (l *ownLog) close() {
	for p, part := range l.logs {
		l.s.scans.add(logKey{l.t.ID, p}, part.from, part.next, part.seen)
	}
}

// appendOriginCursor appends the cursor of a view of one origin's log.
func appendOriginCursor(dst []byte, place *viewCursor, from event.RegionID, at map[int32]event.Point) []byte {
	return place.append(dst, func(w *event.CursorWriter, p int32) {
		var v event.Vector
		v[from] = at[p]
		w.Set(p, &v)
	})
}

func eventOf(at event.Dot, rec *txn.Entry) (event.Event, error) {
	if rec.Refused != nil {
		return event.Event{At: at}, rec.Refused
	}
	return event.FromRecord(at, rec.Timestamp, rec.Key, rec.Value, rec.Headers)
}

// remoteLog is the view of another region's log of a topic, as far as a link has
// copied it here. Records keep the coordinates of their origin; what no link
// wrote and what is an orphan is left out, and it stops like ownLog.
type remoteLog struct {
	s       *Server
	valid   validity
	t       Topic
	from    event.RegionID
	remote  control.Topic
	given   bool
	latest  bool
	at      map[int32]event.Point
	covered map[int32]control.Covered
	form    *recordForm
	place   viewCursor
}

func (s *Server) newRemoteLog(t Topic, origin event.RegionID, from from) *remoteLog {
	l := &remoteLog{
		s: s, valid: s.newValidity(t.Name), t: t, from: origin, given: from.given, latest: from.latest,
		at: make(map[int32]event.Point), covered: make(map[int32]control.Covered),
		form: s.newRecordForm(t.Name), place: newViewCursor(event.OriginView(origin), t.Name, s.cfg.Region),
	}
	for p, v := range from.cursor.At {
		l.at[p] = v[origin]
		l.place.move(p)
	}
	return l
}

func (l *remoteLog) derived() bool { return false }

func (l *remoteLog) topic() string {
	if l.remote.Name == "" {
		l.remote, _ = l.s.deps.Logs.Remote(l.from, l.t.Name)
	}
	return l.remote.Name
}

// written: what was folded of an origin lay below the last stable offset before.
func (l *remoteLog) written() map[int32]int64 { return nil }

func (l *remoteLog) beforeListing() {
	l.valid.refresh()
	for p := range l.at {
		l.covered[p], _ = l.s.deps.Logs.Covered(l.from, l.remote.ID, p)
	}
}

func (l *remoteLog) start(_ context.Context, logs map[int32]span) (map[int32]int64, error) {
	out := make(map[int32]int64)
	for p, log := range logs {
		at := l.at[p]
		cov, described := l.s.deps.Logs.Covered(l.from, l.remote.ID, p)
		o, found := log.start, true
		switch {
		case l.latest && described:
			o, at = cov.Target, cov.Source
		case !l.given || l.latest:
		default:
			if o, found = l.s.deps.Logs.TargetOffsetFrom(l.from, l.remote.ID, p, at.Incarnation, at.Next); !found && described && cov.Source.Compare(at) >= 0 {
				o, found = cov.Target, true
			}
			if !found && at == (event.Point{}) {
				o, found = log.start, true
			}
		}
		if !found {
			return nil, fmt.Errorf("begin in partition %d at %d of region %d: %w", p, at.Next, l.from, errStale)
		}
		if o < log.start {
			return nil, fmt.Errorf("begin in partition %d at %d of region %d: %w", p, at.Next, l.from, errExpired)
		}
		out[p], l.at[p] = o, at
		l.covered[p] = cov
		l.place.move(p)
	}
	return out, nil
}

func (l *remoteLog) show(_ context.Context, rec *txn.Entry, dst []byte) (_ []byte, shown bool, err error) {
	if rec.Control {
		return dst, false, nil // the link's own marker
	}
	where := l.s.deps.Logs.Locate(l.from, l.remote.ID, rec.Partition, rec.Offset, rec.LeaderEpoch)
	switch where.State {
	case control.Pending:
		return dst, false, errUndecided
	case control.Foreign:
		return dst, false, nil
	}
	at := event.Dot{Region: l.from, Incarnation: where.Incarnation, Partition: rec.Partition, Offset: where.Source}
	point := l.at[rec.Partition]
	if point.Reaches(at.Incarnation, at.Offset) {
		return dst, false, nil
	}
	ev, bad := eventOf(at, rec)
	shown = seat.NewLog(l.from, where.Incarnation, where.Barrier).Record(&ev, bad) == judged.Valid
	if shown {
		judgement := l.valid.judge(&ev)
		if judgement == event.Unsettled {
			return dst, false, errUndecided
		}
		shown = judgement == event.Authoritative
	}
	if rec.Span > 1 { // a batch that was refused, which a link has copied whole
		where = l.s.deps.Logs.Locate(l.from, l.remote.ID, rec.Partition, rec.Next()-1, rec.LeaderEpoch)
		if where.State == control.Pending {
			return dst, false, errUndecided
		}
	}
	if where.State != control.Foreign {
		l.at[rec.Partition] = event.Point{Incarnation: where.Incarnation, Next: where.Source + 1}
		l.place.move(rec.Partition)
	}
	if shown {
		dst = l.form.append(dst, &ev)
	}
	return dst, shown, nil
}

// reached moves the cursor past what the link knows to hold no record.
func (l *remoteLog) reached(p int32, next int64) {
	if cov, ok := l.covered[p]; ok && next >= cov.Target && l.at[p].Compare(cov.Source) < 0 {
		l.at[p] = cov.Source
		l.place.move(p)
	}
}

func (l *remoteLog) lacks() []int32 { return nil }

func (l *remoteLog) appendCursor(dst []byte) []byte {
	return appendOriginCursor(dst, &l.place, l.from, l.at)
}

func (l *remoteLog) close() {}
