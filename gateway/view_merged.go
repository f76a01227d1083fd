package gateway

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/conflict/view"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/internal/txn"
	"github.com/geogate/geogate/router"
)

// placeBit marks, in a cursor of the merged view, an entry that is not about the
// origins' logs but about this region's merged topic: partition p + placeBit, own
// region, next offset. A cursor is a vector, and on an entity topic a vector says
// what was folded only at checkpoints; the place lets the region that gave the
// cursor continue at the very next record. Any other region ignores it. Kafka
// numbers partitions far below placeBit.
const placeBit = 1 << 30

// merged is the merged view of a topic.
//
// Events: the dots of one origin come in the order of its log, so the cursor
// moves with every record, and a record is passed over if its dot or an alias is
// covered. Entities: only a checkpoint moves the vector, because a record's dot
// does not say that all changes before it were shown; all is shown from the start
// on.
type merged struct {
	s       *Server
	t       Topic
	seats   []Seat // by partition; nil: it cannot be read now
	given   bool   // a cursor was given
	latest  bool
	started bool // partitions that are opened from now on are read from their start

	parts map[int32]*mergedPart
	last  *mergedPart // of the record before
	known [event.MaxRegion + 1]bool
	place viewCursor
	form  *recordForm
	env   event.Decoder
}

// mergedPart is a partition of the merged view.
type mergedPart struct {
	partition int32
	at        event.Vector      // cursor
	placed    bool              // next is known
	next      int64             // offset in this region's merged topic
	opened    bool              // it is being read
	ahead     []view.Checkpoint // that the reading has not come to
	promised  view.Checkpoint   // the end of what was folded when the ends were listed
	lost      bool              // the log no longer has what a record that was read refers to
	aliases   aliasCache
}

// allSeats opens the seats of all partitions side by side, since each may have to
// load state; wait bounds the wait for them to catch up. Those that are held, or that
// the region cannot make, are nil: the others can be read, and the answer says so.
func (s *Server) allSeats(ctx, wait context.Context, t Topic) ([]Seat, error) {
	out, errs := make([]Seat, t.ViewPartitions()), make([]error, t.ViewPartitions())
	var wg sync.WaitGroup
	for p := range out {
		wg.Go(func() { out[p], errs[p] = s.openCaughtUp(ctx, wait, t, int32(p)) })
	}
	wg.Wait()
	var lacking error
	n := 0
	for p, err := range errs {
		switch {
		case err == nil:
		case errors.Is(err, seat.ErrHeld), errors.Is(err, ErrTopicBlocked):
			lacking, n = fmt.Errorf("open view of partition %d: %w", p, err), n+1
		default:
			return nil, fmt.Errorf("open view of partition %d: %w", p, err)
		}
	}
	if n == len(out) {
		return nil, lacking
	}
	return out, nil
}

// openCaughtUp opens the seat of a partition and waits until it shows what there was.
func (s *Server) openCaughtUp(ctx, wait context.Context, t Topic, p int32) (Seat, error) {
	st, err := s.seats.open(ctx, t, p)
	if err != nil {
		return nil, err
	}
	if err := st.CaughtUp(wait); err != nil {
		return nil, err
	}
	return st, nil
}

// newMerged makes the merged view from a cursor on, once this region covers it,
// which wait bounds.
func (s *Server) newMerged(ctx, wait context.Context, t Topic, from from) (*merged, error) {
	seats, err := s.allSeats(ctx, wait, t)
	if err != nil {
		return nil, err
	}
	m := &merged{
		s: s, t: t, seats: seats, given: from.given, latest: from.latest, parts: make(map[int32]*mergedPart),
		place: newViewCursor(event.MergedView, t.Name, s.cfg.Region), form: s.newRecordForm(t.Name),
	}
	for r := range m.known {
		m.known[r] = s.cfg.Topology.Name(event.RegionID(r)) != ""
	}
	for p, v := range from.cursor.At {
		if p >= placeBit {
			if from.cursor.Visible == s.cfg.Region {
				part := m.part(p - placeBit)
				part.placed, part.next = true, v[s.cfg.Region].Next
			}
			continue
		}
		m.part(p).at = v
		if seats[p] == nil {
			continue
		}
		if err := await(wait, seats[p].View(), v); err != nil {
			return nil, fmt.Errorf("wait for the cursor's place in partition %d: %w", p, err)
		}
	}
	return m, nil
}

// part is a partition's, with its place to be written into the next cursor.
func (m *merged) part(p int32) *mergedPart {
	if m.last == nil || m.last.partition != p {
		if m.last = m.parts[p]; m.last == nil {
			m.last = &mergedPart{partition: p}
			m.parts[p] = m.last
		}
	}
	m.place.move(p)
	return m.last
}

func (m *merged) derived() bool { return true }

func (m *merged) topic() string { return router.Merged(m.t.Name) }

// lacks are the partitions whose seats are not there, those of which something was lost and,
// of a topic that is held, all: each may lack records of other regions.
func (m *merged) lacks() (out []int32) {
	for p, st := range m.seats {
		part := m.parts[int32(p)]
		if st == nil || m.t.Held != "" || !st.Complete() || part != nil && part.lost {
			out = append(out, int32(p))
		}
	}
	return out
}

func (m *merged) beforeListing() {
	for p, st := range m.seats {
		if st == nil {
			continue
		}
		part := m.part(int32(p))
		cps := st.View().Checkpoints()
		if len(cps) > 0 {
			part.promised = cps[len(cps)-1]
		}
		if part.opened {
			part.ahead = after(cps, part.next)
		}
	}
}

func (m *merged) written() map[int32]int64 {
	out := make(map[int32]int64, len(m.parts))
	for p, part := range m.parts {
		if part.promised.Offset > 0 {
			out[p] = part.promised.Offset
		}
	}
	return out
}

// after is the checkpoints that a reader at next has not reached.
func after(cps []view.Checkpoint, next int64) []view.Checkpoint {
	for i := range cps {
		if cps[i].Offset > next {
			return cps[i:]
		}
	}
	return nil
}

func (m *merged) start(ctx context.Context, logs map[int32]span) (map[int32]int64, error) {
	out := make(map[int32]int64)
	for p, l := range logs {
		if !m.opened(ctx, p) {
			continue // a stream that is followed tries again
		}
		part, cps := m.part(p), m.seats[p].View().Checkpoints()
		if m.latest && !m.started {
			// The end was listed before the vector is asked for, so what lies
			// between the two is shown rather than missed.
			part.at, _ = m.seats[p].View().Committed()
			out[p] = l.end
		} else {
			o, err := m.begin(part, l, cps)
			if err != nil {
				return nil, err
			}
			out[p] = o
		}
		part.ahead, part.opened = after(cps, out[p]), true
		part.next, part.placed = out[p], true
	}
	m.started = true
	return out, nil
}

// opened tells whether a partition can be read, and opens its seat if that was not so
// when the reading began: the view has grown since, or the partition works again.
func (m *merged) opened(ctx context.Context, p int32) bool {
	if int(p) < len(m.seats) && m.seats[p] != nil {
		return true
	}
	if !m.started || p >= maxPartition {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, retryEvery)
	defer cancel()
	st, err := m.s.openCaughtUp(ctx, ctx, m.t, p)
	if err != nil {
		return false
	}
	for int(p) >= len(m.seats) {
		m.seats = append(m.seats, nil)
	}
	m.seats[p] = st
	return true
}

// begin is the offset after the last checkpoint that the cursor covers, or the
// cursor's own place if it lies before the next checkpoint.
func (m *merged) begin(part *mergedPart, l span, cps []view.Checkpoint) (int64, error) {
	p, cursor := part.partition, part.at
	if !part.placed && m.given && m.t.Domain.Kind == conflict.Entities {
		// The region that gave the cursor may not have known of a cut by then. What
		// was corrected since lies after the checkpoint before it.
		cursor = m.seats[p].View().Validity().Known(cursor)
	}
	i := 0
	for i < len(cps) && cursor.CoversAll(&cps[i].Vector) {
		i++
	}
	var o int64
	if i > 0 {
		o = cps[i-1].Offset
	}
	if at := part.next; part.placed && at >= o && at <= l.end && (i == len(cps) || at <= cps[i].Offset) {
		o = at
	}
	if o < l.start {
		if m.given && m.t.Domain.Kind == conflict.Events {
			return 0, fmt.Errorf("begin in partition %d: %w", p, errExpired)
		}
		o = l.start
	}
	return o, nil
}

// reached joins the checkpoints that were passed. That the end listed for a
// committed reader was reached says nothing about what is folded: a commit is
// answered before its markers are written, so the vector may be ahead of that end.
func (m *merged) reached(p int32, next int64) {
	part := m.part(p)
	part.next, part.placed = next, true
	for len(part.ahead) > 0 && part.ahead[0].Offset <= next {
		part.at.Join(&part.ahead[0].Vector)
		part.ahead = part.ahead[1:]
	}
	if part.promised.Offset <= next {
		part.at.Join(&part.promised.Vector)
	}
}

func (m *merged) show(ctx context.Context, rec *txn.Entry, dst []byte) (_ []byte, shown bool, err error) {
	if rec.Control {
		return dst, false, nil
	}
	rest, stamped, err := m.env.Decode(rec.Headers)
	if err != nil || m.env.Dot == nil || m.env.Dot.Partition != rec.Partition {
		return dst, false, nil // not one of the fold's
	}
	ev := event.Event{
		Envelope: m.env.Envelope, At: *m.env.Dot, Stamped: stamped, Key: rec.Key, Value: rec.Value, Headers: rest, Timestamp: rec.Timestamp,
	}
	corrects := ev.Merged != nil && ev.Merged.Flags&event.FlagCorrects != 0
	if instead := ev.Replaced; instead != nil {
		ev.Timestamp, ev.LeftOut = instead.Timestamp, instead.LeftOut
	}
	ev.Dot, ev.Merged, ev.Replaced = nil, nil, nil
	if !stamped {
		ev.Stamp = hlc.FromMillis(ev.Timestamp)
	}
	ev.Op = event.Put
	if ev.Value == nil {
		ev.Op = event.Delete
	}
	if m.t.Domain.Kind == conflict.Events {
		shown, err := m.showEvent(ctx, &ev, corrects)
		if !shown || err != nil {
			return dst, false, err
		}
	} else if gone := corrects && !stamped && ev.Value == nil; !gone && m.orphan(&ev) {
		// What says that nothing is left of an entity bears the dot of what was
		// shown before, and stays.
		return dst, false, nil
	}
	if ev.LeftOut {
		if shown, err := m.fill(ctx, &ev); !shown || err != nil {
			return dst, false, err
		}
	}
	return m.form.append(dst, &ev), true, nil
}

// fill reads from the log what the merged topic did not take of an event. One that retention
// has deleted there cannot be shown, and the answer says that it lacks something; that an
// entity was deleted is shown.
func (m *merged) fill(ctx context.Context, ev *event.Event) (shown bool, err error) {
	whole, err := m.seats[ev.At.Partition].Fetch(ctx, ev.At)
	switch {
	case errors.Is(err, view.ErrGone):
		if ev.Value != nil {
			m.part(ev.At.Partition).lost = true
		}
		return ev.Value == nil, nil
	case err != nil:
		return false, fmt.Errorf("%w: read a value from the log: %w", ErrUpstream, err)
	}
	ev.Value, ev.Headers, ev.LeftOut = whole.Value, whole.Headers, false
	return true, nil
}

// orphan tells whether a record no longer counts, by the table that its
// partition's view has folded with.
func (m *merged) orphan(ev *event.Event) bool {
	return m.seats[ev.At.Partition].View().Validity().Judge(ev.At, ev.Epoch) == event.Orphan
}

// showEvent takes a record of an events topic and tells whether it is shown. The record
// of an orphan that stands for another copy of its write becomes that copy.
func (m *merged) showEvent(ctx context.Context, ev *event.Event, retracts bool) (bool, error) {
	p, at := ev.At.Partition, ev.At
	if retracts {
		return false, nil // of a record that is left out
	}
	merged, part := m.seats[p].View(), m.part(p)
	aliases, err := part.aliases.of(merged, at)
	if err != nil {
		return false, err
	}
	seen := part.at.Covers(at)
	for _, alias := range aliases {
		seen = seen || part.at.Covers(alias)
	}
	if !seen && m.orphan(ev) {
		lost, known, err := merged.Orphan(at)
		switch {
		case err != nil:
			return false, err
		case !known || lost.Instead == (event.Dot{}) || part.at.Covers(lost.Instead):
			seen = true // it no longer counts, or was read as the other copy
		default:
			switch *ev, err = m.seats[p].Fetch(ctx, lost.Instead); {
			case errors.Is(err, view.ErrGone):
				seen, part.lost = true, true
			case err != nil:
				return false, fmt.Errorf("%w: %w", ErrUpstream, err)
			}
		}
	}
	part.at.Advance(at)
	return !seen, nil
}

func (m *merged) appendCursor(dst []byte) []byte {
	return m.place.append(dst, func(w *event.CursorWriter, p int32) {
		part := m.parts[p]
		v := part.at
		for r := range v {
			if !m.known[r] {
				v[r] = event.Point{} // of a region that has left: no read would take the cursor
			}
		}
		w.Set(p, &v)
		if part.placed {
			var place event.Vector
			place[m.s.cfg.Region].Next = part.next
			w.Set(p+placeBit, &place)
		}
	})
}

func (m *merged) close() {}
