package seat

import (
	"errors"
	"fmt"
	"time"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/judged"
)

// rereadAgain is when logs that could not be read are read again.
const rereadAgain = 250 * time.Millisecond

// takeover is the change to a newer table: first the fold is given what it makes
// orphans of what was folded, one origin after another, then the table. All of that
// may be done again after a crash.
type takeover struct {
	next   *event.ValidityTable
	origin event.RegionID // whose log is looked at
	log    *rereading     // of it
}

// revoked is how far each origin's log was looked at for a table that is not in force yet,
// and given to the fold what it revokes there: who has to wait for one origin does not give
// all of the others again at each attempt.
type revoked struct {
	revision uint64
	upTo     event.Vector
}

// followTable takes the newest table over, if there is one.
func (in *Inputs) followTable(now time.Time) {
	if in.takeover != nil || in.env.Table == nil || now.Before(in.retryAt) {
		return
	}
	next := in.env.Table()
	if next == nil || next.Revision == 0 || in.table != nil && next.Revision <= in.table.Revision {
		return
	}
	if !in.barriersKnown() {
		return
	}
	if in.revoked.revision != next.Revision {
		in.revoked = revoked{revision: next.Revision}
	}
	in.takeover = &takeover{next: next}
	in.nextOrigin(now)
}

// barriersKnown tells whether the own log has been read back to what was folded of it, so
// that all barriers are known by which it is judged when it is read again. After a start
// with an index that was lost it has not: a void record would be given back as if it had
// counted.
func (in *Inputs) barriersKnown() bool {
	folded := in.folded[in.cfg.Region]
	switch {
	case in.cfg.NoLog || folded.Incarnation != in.cfg.Incarnation: // nothing of the own log is read again
		return true
	case folded.Compare(in.env.Indexed()) <= 0:
		return true
	}
	return in.env.Ready() // retention has deleted the rest
}

// nextOrigin has the next origin's log read again of which folded events may be
// orphans; after the last the table is in force.
func (in *Inputs) nextOrigin(now time.Time) {
	t := in.takeover
	for t.origin < event.MaxRegion {
		t.origin++
		if t.origin == in.cfg.Region && in.cfg.NoLog {
			continue
		}
		from, found := t.next.Orphans(in.table, t.origin)
		if given := in.revoked.upTo[t.origin]; from.Compare(given) < 0 {
			from = given
		}
		if !found || from.Compare(in.folded[t.origin]) >= 0 {
			continue
		}
		t.log = &rereading{in: in, origin: t.origin, at: from, next: t.next}
		needed, cut := t.next.NewlyCut(in.table, t.origin)
		effect, err := t.log.begin(needed, cut)
		switch {
		case err != nil:
			in.postpone(now, from, err)
			return
		case effect.From < effect.To:
			in.rereads++
			effect.Number = in.rereads
			in.do(effect)
			return
		}
	}
	in.do(FoldItems{[]judged.Item{{Verdict: judged.Cuts, Validity: t.next}}})
	in.table, in.pendCause, in.takeover = t.next, "", nil
}

// postpone gives the takeover up for now; the table in use stays until it succeeds.
func (in *Inputs) postpone(now time.Time, from event.Point, err error) {
	r := in.takeover.origin
	in.pendCause = fmt.Sprintf("what lies past a cut of region %d cannot be read: %v", r, err)
	in.retryAt, in.takeover = now.Add(rereadAgain), nil
	in.do(ReportCutPending{Origin: r, From: from, Err: err})
}

func (in *Inputs) reread(now time.Time, ev Reread) {
	t := in.takeover
	if t == nil || ev.Number != in.rereads {
		return
	}
	for i := range ev.Entries {
		if err := t.log.take(&ev.Entries[i]); err != nil {
			in.postpone(now, t.log.at, err)
			return
		}
	}
}

func (in *Inputs) rereadEnded(now time.Time, ev RereadEnded) {
	t := in.takeover
	switch {
	case t == nil || ev.Number != in.rereads:
		return
	case ev.Err != nil:
		in.postpone(now, t.log.at, ev.Err)
		return
	}
	t.log.give()
	in.revoked.upTo[t.origin] = in.folded[t.origin]
	in.nextOrigin(now)
}

// rereading is one log that is read once more, from a place on to what was passed to
// the fold: for what counts under the table in use and is an orphan under the next
// one. It keeps a few orphans in memory, however many lie past the cut.
type rereading struct {
	in      *Inputs
	origin  event.RegionID
	at      event.Point // everything of the origin below has been looked at
	next    *event.ValidityTable
	log     *Log
	orphans []judged.Item // not given to the fold yet
	bytes   int           // of them
}

// give gives the fold the orphans that were found. What was looked at for them is not
// looked at again if the rest cannot be read and is tried later.
func (g *rereading) give() {
	if len(g.orphans) == 0 {
		return
	}
	g.in.do(FoldItems{g.orphans})
	g.in.revoked.upTo[g.origin] = g.at
	g.orphans, g.bytes = nil, 0
}

// begin says what to read; an empty stretch: nothing. If cut is true, the log may hold, from
// needed on, orphans that the fold has had.
func (g *rereading) begin(needed event.Point, cut bool) (ReadAgain, error) {
	if needed.Compare(g.at) < 0 {
		needed = g.at // what lies below has been taken out
	}
	in, folded := g.in, g.in.folded[g.origin]
	if g.origin == in.cfg.Region {
		if folded.Incarnation != in.cfg.Incarnation {
			return ReadAgain{}, nil // the log that was folded is no more
		}
		g.log = in.newLog(g.origin, in.cfg.Incarnation, NoBarrier)
		effect := ReadAgain{Origin: g.origin, From: offsetIn(g.at, in.cfg.Incarnation), To: folded.Next, Needed: folded.Next}
		if cut {
			effect.Needed = min(effect.To, offsetIn(needed, in.cfg.Incarnation))
		}
		return effect, nil
	}
	st := in.remotes[g.origin]
	if st == nil {
		return ReadAgain{}, errors.New("no copy of the log is registered")
	}
	// Where the copy of what was folded ends is certain only once a position says so.
	cov, ok := in.env.Copies.Covered(g.origin, st.topic, in.cfg.Partition)
	if !ok || cov.Source.Compare(folded) < 0 {
		return ReadAgain{}, fmt.Errorf("the copy is not described up to %d", folded.Next)
	}
	to, ok := in.env.Copies.TargetOffsetFrom(g.origin, st.topic, in.cfg.Partition, folded.Incarnation, folded.Next)
	if !ok {
		to = cov.Target
	}
	g.log = in.newLog(g.origin, g.at.Incarnation, NoBarrier)
	effect := ReadAgain{Origin: g.origin, From: in.target(g.origin, st.topic, g.at), To: to, Needed: to}
	if cut {
		at, _ := in.offsetOf(g.origin, needed) // 0 if it is not known: everything is needed
		effect.Needed = min(to, at)
	}
	return effect, nil
}

// take looks at one entry. The own log's Readback has met every barrier below what
// was folded: barriersKnown.
func (g *rereading) take(e *Entry) error {
	in := g.in
	if e.Control != nil {
		return nil
	}
	if g.origin == in.cfg.Region {
		g.log.Marker(in.env.LastBarrier(e.Offset), true)
		g.look(e, event.Point{Incarnation: in.cfg.Incarnation, Next: e.Offset}, false)
		return nil
	}
	// Under whatever leader epoch: it was judged before.
	loc := in.env.Copies.Locate(g.origin, in.remotes[g.origin].topic, in.cfg.Partition, e.Offset, -1)
	switch loc.State {
	case control.Pending:
		return fmt.Errorf("the copy's record at %d is not described", e.Offset)
	case control.Foreign:
		return nil
	}
	if loc.Incarnation != g.log.Incarnation() {
		g.log.Begin(loc.Incarnation)
	}
	g.log.Marker(loc.Barrier, true)
	g.look(e, event.Point{Incarnation: loc.Incarnation, Next: loc.Source}, loc.Restricted)
	return nil
}

// look looks at a record whose place in the origin's log is given.
func (g *rereading) look(e *Entry, where event.Point, restricted bool) {
	after := event.Point{Incarnation: where.Incarnation, Next: where.Next + 1}
	if after.Compare(g.at) <= 0 || after.Compare(g.in.folded[g.origin]) > 0 {
		return // seen already, or not folded: that is judged when its turn comes
	}
	g.at = after
	ev, err := e.event(event.Dot{Region: g.origin, Incarnation: where.Incarnation, Partition: g.in.cfg.Partition, Offset: where.Next})
	if g.log.Record(&ev, err) != judged.Valid {
		return
	}
	if g.next.Judge(ev.At, ev.Epoch) != event.Orphan || g.in.table.Judge(ev.At, ev.Epoch) == event.Orphan {
		return
	}
	g.orphans = append(g.orphans, judged.Item{
		Origin: g.origin, Event: ev, Verdict: judged.Orphan, Next: after, Barrier: g.log.Last(), Restricted: restricted, Validity: g.next,
	})
	if g.bytes += len(ev.Key) + len(ev.Value); len(g.orphans) >= takeMax || g.bytes >= popBytes {
		g.give()
	}
}
