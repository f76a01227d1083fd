package seat

import (
	"slices"
	"time"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/judged"
)

// remoteLog judges the entries of a remote partition: each record takes the place
// in its origin's log that the link's runs give it.
type remoteLog struct {
	in     *Inputs
	origin event.RegionID
	topic  event.TopicID
	log    *Log
	at     event.Point // everything of the origin below has been judged
	next   int64       // everything of the remote partition below has been judged
	epoch  int32       // leader epoch of what was judged last, -1 nothing yet
	doubt  int32       // leader epoch of a position that is not believed yet, -1 none
	asked  *epochQuestion
	rest   []Entry

	foreign uint64        // records that the link did not write
	held    time.Duration // how far the next event's stamp lies beyond the bound
}

// epochQuestion is an AskEpochEnd that is under way: the answer counts only if
// nothing has been judged meanwhile.
type epochQuestion struct {
	epoch, doubt int32
	next         int64
}

// take judges what is there, up to limit records; at a record that is not described
// yet it stops, and so does everything after it.
func (st *remoteLog) take(out []judged.Item, limit int) []judged.Item {
	for range limit {
		out = st.advance(out)
		if len(st.rest) == 0 {
			return out
		}
		e := &st.rest[0]
		it, ok, wait := st.judge(e)
		if wait {
			return out
		}
		st.next, st.epoch = e.next(), e.LeaderEpoch
		*e = Entry{}
		st.rest = st.rest[1:]
		if ok && st.at.Compare(it.Next) < 0 {
			st.at = it.Next
			out = append(out, it)
		}
	}
	return out
}

// judge makes the item of an entry. ok is false where it has no place in the
// origin's log; wait is true where that is not known yet.
func (st *remoteLog) judge(e *Entry) (it judged.Item, ok, wait bool) {
	in := st.in
	if e.Control != nil {
		// A marker of an epoch that the link has not confirmed may have filled a
		// place where records were lost.
		return judged.Item{}, false, !in.env.Copies.Confirmed(st.origin, st.topic, in.cfg.Partition, e.LeaderEpoch)
	}
	loc, pending := st.locate(e)
	switch {
	case pending:
		return judged.Item{}, false, true
	case loc.State == control.Foreign:
		st.foreign++
		in.do(ReportForeign{st.origin, e.Offset})
		return judged.Item{}, false, false
	}
	if loc.Incarnation != st.log.Incarnation() {
		st.log.Begin(loc.Incarnation)
	}
	st.log.Marker(loc.Barrier, true)
	ev, err := e.event(event.Dot{Region: st.origin, Incarnation: loc.Incarnation, Partition: in.cfg.Partition, Offset: loc.Source})
	verdict := st.log.Record(&ev, err)
	if verdict == judged.Valid && in.env.Hold != nil {
		if st.held = in.env.Hold(&ev); st.held > 0 {
			return judged.Item{}, false, true
		}
	}
	return judged.Item{
		Origin: st.origin, Event: ev, Verdict: verdict,
		Next: event.Point{Incarnation: loc.Incarnation, Next: loc.Source + max(1, e.Span)}, Barrier: st.log.Last(), Restricted: loc.Restricted,
	}, true, false
}

// locate says where an entry comes from. A batch that was refused is cut to its first
// offset if its offsets do not come from one stretch of the origin's log, which they
// do where a link wrote it; the rest is then the next entry.
func (st *remoteLog) locate(e *Entry) (loc control.Location, pending bool) {
	at := func(offset int64) control.Location {
		return st.in.env.Copies.Locate(st.origin, st.topic, st.in.cfg.Partition, offset, e.LeaderEpoch)
	}
	if loc = at(e.Offset); loc.State == control.Pending || e.Span <= 1 {
		return loc, loc.State == control.Pending
	}
	last := at(e.next() - 1)
	switch {
	case last.State == control.Pending:
		return loc, true
	case last.State == loc.State && last.Incarnation == loc.Incarnation && (loc.State == control.Foreign || last.Source-loc.Source == e.Span-1):
		return loc, false
	}
	rest := *e
	rest.Offset, rest.Span = e.Offset+1, e.Span-1
	e.Span = 1
	st.rest = slices.Insert(st.rest, 1, rest)
	return loc, false
}

// advance moves over what the origin's log holds besides copied records (markers,
// holes, denied records), once every record before it has been taken.
func (st *remoteLog) advance(out []judged.Item) []judged.Item {
	cov, ok := st.in.env.Copies.Covered(st.origin, st.topic, st.in.cfg.Partition)
	if !ok || st.next < cov.Target || st.at.Compare(cov.Source) >= 0 {
		return out
	}
	if len(st.rest) > 0 && st.rest[0].Offset < cov.Target {
		return out
	}
	if st.epoch >= 0 && cov.Epoch > st.epoch {
		st.doubt = cov.Epoch
		return out
	}
	if cov.Source.Incarnation != st.log.Incarnation() {
		st.log.Begin(cov.Source.Incarnation)
	}
	st.log.Marker(cov.Barrier, true)
	st.at = cov.Source
	return append(out, judged.Item{Origin: st.origin, Verdict: judged.Skip, Next: cov.Source, Barrier: st.log.Last(), Restricted: cov.Restricted})
}

// ask asks, when a position names a later leader epoch than what was judged,
// whether that still lies there: the log may have lost its tail and have grown
// again, and then the position covers records that were never read.
func (st *remoteLog) ask() (q AskEpochEnd, ok bool) {
	if st.doubt < 0 || st.asked != nil {
		return q, false
	}
	st.asked = &epochQuestion{epoch: st.epoch, doubt: st.doubt, next: st.next}
	st.doubt = -1
	return AskEpochEnd{Origin: st.origin, Epoch: st.epoch}, true
}

// epochEnds tells whether the position that was doubted counts. If not, the consumer
// comes back to what was lost, or it is asked again.
func (st *remoteLog) epochEnds(ev EpochEnd) (counts bool) {
	q := st.asked
	if q == nil || q.epoch != ev.Epoch {
		return false
	}
	st.asked, st.doubt = nil, -1
	if !ev.OK || ev.End < q.next || st.next != q.next || st.epoch != q.epoch {
		return false
	}
	st.epoch = q.doubt
	return true
}
