package world

import (
	"time"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/offsets"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/testbench/sim/kafka"
)

// cuts is how a seat's inputs follow the ownership register, as package seat's do.
type cuts struct {
	table  *event.Authority // of the last Cuts item that the fold was given, or had before
	folded event.Vector     // passed to the fold
	held   map[event.RegionID][]heldItem
	taking bool // a newer table is being taken over
}

// heldItem waits for the fold, and before it for indexes.
type heldItem struct {
	seat.Item
	in []seat.Sink
}

// beginCuts starts at what the fold has committed.
func (s *seatRun) beginCuts() {
	at := s.fold.part.Position()
	s.cuts = cuts{table: at.Authority, folded: at.Vector, held: map[event.RegionID][]heldItem{}}
}

// pass gives an item to the fold, and before it to those indexes that do not have
// it, once the register has said what it has to say about it.
func (s *seatRun) pass(it seat.Item, in ...seat.Sink) {
	if s.p.w.own == nil {
		s.indexed(it, in...)
		s.fold.push(it)
		return
	}
	s.held[it.Origin] = append(s.held[it.Origin], heldItem{it, in})
	s.release(it.Origin)
}

func (s *seatRun) release(o event.RegionID) {
	for len(s.held[o]) > 0 && !s.taking && !s.closed {
		it := s.held[o][0]
		if !s.standing(&it.Item) {
			return
		}
		s.held[o] = s.held[o][1:]
		s.indexed(it.Item, it.in...)
		if s.folded[o].Compare(it.Next) < 0 {
			s.folded[o] = it.Next
		}
		s.fold.push(it.Item)
	}
}

// standing judges an item that its log calls valid; false where only the register,
// as it is not known here yet, can tell.
func (s *seatRun) standing(it *seat.Item) (settled bool) {
	if it.Verdict != seat.Valid {
		return true
	}
	folded := it.Next.Compare(s.folded[it.Origin]) <= 0
	if s.table == nil {
		return folded
	}
	switch s.table.Judge(it.Event.At, it.Event.Epoch) {
	case event.Orphan:
		it.Verdict = seat.Orphan
	case event.Unsettled:
		return folded
	}
	return true
}

// follow takes over the newest table, if there is one: first the fold is given what
// it makes orphans of what was folded, then the table.
func (s *seatRun) follow() {
	if s.closed || s.core == nil || s.taking {
		return
	}
	next := s.p.tableOf(s.tp)
	if next.Revision == 0 || s.table != nil && next.Revision <= s.table.Revision {
		return
	}
	if v := s.fold.part.Position().Vector; !s.fold.ready || !s.indexesReach(v) {
		s.p.after(s.p.w.between(0, s.p.w.cfg.foldEvery), s.follow)
		return
	}
	s.taking = true
	s.behind(next, 1)
}

// behind has the logs read again, one after another, and then the table put in
// force.
func (s *seatRun) behind(next *event.Authority, id event.RegionID) {
	if s.closed {
		return
	}
	if int(id) > len(s.p.w.regions) {
		s.fold.push(seat.Item{Verdict: seat.Cuts, Authority: next})
		s.table, s.taking = next, false
		for _, r := range s.p.w.regions {
			s.release(r.id)
		}
		s.follow()
		return
	}
	from, any := next.Orphans(s.table, id)
	if !any || from.Compare(s.folded[id]) >= 0 {
		s.behind(next, id+1)
		return
	}
	g := &rereading{s: s, from: from, until: s.folded[id], next: next}
	g.done = func() {
		s.p.w.counts["revoked"] += len(g.orphans)
		s.fold.push(g.orphans...)
		s.behind(next, id+1)
	}
	if r := s.p.w.regions[id-1]; r == s.p.region {
		g.local()
	} else {
		g.remote(r)
	}
}

// rereading is one log that is read once more, from its beginning, for what counts
// under the table in use and is an orphan under the next one.
type rereading struct {
	s       *seatRun
	from    event.Point
	until   event.Point // what was passed to the fold
	next    *event.Authority
	orphans []seat.Item
	done    func()
	off     bool
}

func (g *rereading) finish() {
	if !g.off {
		g.off = true
		g.done()
	}
}

// take looks at one judged item; false ends the reading.
func (g *rereading) take(it seat.Item) bool {
	if it.Next.Compare(g.until) > 0 {
		g.finish()
		return false
	}
	ev := &it.Event
	if it.Verdict == seat.Valid && it.Next.Compare(g.from) > 0 &&
		g.next.Judge(ev.At, ev.Epoch) == event.Orphan && g.s.table.Judge(ev.At, ev.Epoch) != event.Orphan {
		it.Verdict, it.Authority = seat.Orphan, g.next
		g.orphans = append(g.orphans, it)
	}
	if it.Next.Compare(g.until) == 0 {
		g.finish()
		return false
	}
	return true
}

// again reads from the beginning once more, when more is known of the copy.
func (g *rereading) again(from *region) {
	if !g.s.closed {
		g.off, g.orphans = false, nil
		g.remote(from)
	}
}

func (g *rereading) local() {
	s, p := g.s, g.s.p
	log := seat.NewLog(p.region.id, 0, seat.NoBarrier)
	p.read(reader{off: &g.off, c: p.dial(p.region), tp: s.tp, committed: true, take: func(got kafka.Fetched, more func()) {
		var each func(i int)
		each = func(i int) {
			for ; i < len(got.Records); i++ {
				r := &got.Records[i]
				next := event.Point{Next: r.Offset + 1}
				if r.Kind == kafka.Commit {
					m := control.Marker{Topic: p.region.kafka.TopicID(s.tp.Topic), Partition: s.tp.Partition, Producer: r.ProducerID, Epoch: r.ProducerEpoch}
					at := i
					p.ctl.barrier(m, func(is bool) {
						log.Marker(r.Offset, is)
						if g.take(seat.Item{Origin: p.region.id, Verdict: seat.Skip, Next: next}) {
							each(at + 1)
						}
					})
					return
				}
				it := seat.Item{Origin: p.region.id, Verdict: seat.Skip, Next: next, Barrier: log.Last()}
				if r.Kind == kafka.Data {
					at := event.Dot{Region: p.region.id, Partition: s.tp.Partition, Offset: r.Offset}
					ev, err := event.FromRecord(at, r.Timestamp, r.Key, r.Value, r.Headers)
					it.Event, it.Verdict = ev, log.Record(&ev, err)
				}
				if !g.take(it) {
					return
				}
			}
			if got.Next >= g.until.Next {
				g.finish()
				return
			}
			more()
		}
		each(0)
	}})
}

// remote reads the copy of another region's log. Where what was folded ends there
// is certain because a position says so.
func (g *rereading) remote(from *region) {
	s, p := g.s, g.s.p
	tp := remoteTP(from, s.tp)
	id := p.region.kafka.TopicID(tp.Topic)
	if c, ok := p.ctl.links[from].Covered(id, tp.Partition); !ok || c.Source.Compare(g.until) < 0 {
		p.after(200*time.Millisecond, func() { g.again(from) })
		return
	}
	log := seat.NewLog(from.id, 0, seat.NoBarrier)
	p.list(p.dial(p.region), tp, true, func(end int64) {
		if end == 0 {
			g.finish()
			return
		}
		p.read(reader{off: &g.off, c: p.dial(p.region), tp: tp, committed: true, take: func(got kafka.Fetched, more func()) {
			for i := range got.Records {
				r := &got.Records[i]
				if r.Kind != kafka.Data {
					continue
				}
				loc := p.ctl.links[from].Locate(id, tp.Partition, r.Offset, -1)
				switch loc.State {
				case control.Pending:
					g.off = true
					p.after(200*time.Millisecond, func() { g.again(from) })
					return
				case control.Foreign:
					continue
				}
				at := event.Dot{Region: from.id, Incarnation: loc.Incarnation, Partition: tp.Partition, Offset: loc.Source}
				log.Marker(loc.Barrier, loc.Barrier != offsets.NoBarrier)
				ev, err := event.FromRecord(at, r.Timestamp, r.Key, r.Value, r.Headers)
				it := seat.Item{Origin: from.id, Event: ev, Verdict: log.Record(&ev, err), Next: event.Point{Incarnation: loc.Incarnation, Next: loc.Source + 1}, Barrier: log.Last()}
				if !g.take(it) {
					return
				}
			}
			if got.Next >= end {
				g.finish()
				return
			}
			more()
		}})
	})
}
