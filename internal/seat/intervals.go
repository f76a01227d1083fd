package seat

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/txn"
)

// cuts is how a seat's inputs follow the ownership register.
//
// Invariants:
//   - table is the table of the last Cuts item that the fold was given, or has
//     committed before the start. Everything above the fold is judged under it.
//   - Before a Cuts item the fold has been given, as orphans, all events that count
//     under table and do not under the item's.
type cuts struct {
	table   *event.Authority
	retryAt time.Time // no other attempt to take the newest table before
	why     string    // the last attempt did not succeed; "" when it did
}

// cutsAgain is when logs that could not be read are read again.
const cutsAgain = 250 * time.Millisecond

// judge says of an item that its log calls valid, for the fold and the indexes
// before it. settled is false where only the register, as it is not known here yet,
// can tell: the origin waits. What was folded once was settled then.
func (in *inputs) judge(it *Item) (settled bool) {
	if in.seat.cfg.Authority == nil || it.Verdict != Valid {
		return true
	}
	folded := it.Next.Compare(in.folded[it.Origin]) <= 0
	if in.table == nil {
		return folded
	}
	switch in.table.Judge(it.Event.At, it.Event.Epoch) {
	case event.Orphan:
		it.Verdict = Orphan
	case event.Unsettled:
		return folded
	}
	return true
}

// follow takes over the newest table, if there is one: first the fold is given
// what it makes orphans of what was folded, then the table. All of that may be done
// again after a crash. A log that cannot be read now is tried again; the table in
// use stays until then.
func (in *inputs) follow(ctx context.Context) (moved bool, err error) {
	a := in.seat.cfg.Authority
	if a == nil {
		return false, nil
	}
	next := a.Intervals()
	if next == nil || next.Revision == 0 || in.table != nil && next.Revision <= in.table.Revision || time.Now().Before(in.retryAt) {
		return false, nil
	}
	for r := event.RegionID(1); r <= event.MaxRegion; r++ {
		from, found := next.Orphans(in.table, r)
		if !found || from.Compare(in.folded[r]) >= 0 {
			continue
		}
		orphans, err := in.behind(ctx, r, from, next)
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		if err != nil {
			in.why, in.retryAt = fmt.Sprintf("what lies behind a cut of region %d cannot be read: %v", r, err), time.Now().Add(cutsAgain)
			in.seat.cfg.Logger.Warn("read behind a cut, will try again", "topic", in.seat.cfg.Topic, "partition", in.seat.cfg.Partition,
				"origin", r, "from", from.Next, "err", err)
			return false, nil
		}
		if err := in.revoke(ctx, orphans); err != nil {
			return false, err
		}
	}
	if err := in.seat.cfg.Folder.Fold(ctx, []Item{{Verdict: Cuts, Authority: next}}); err != nil {
		return false, fmt.Errorf("fold cuts: %w", err)
	}
	in.table, in.why = next, ""
	return true, nil
}

// revoke gives the fold events that it has folded, as orphans.
func (in *inputs) revoke(ctx context.Context, orphans []Item) error {
	for len(orphans) > 0 {
		n := min(len(orphans), takeMax)
		if err := in.seat.cfg.Folder.Fold(ctx, orphans[:n:n]); err != nil {
			return fmt.Errorf("fold orphans: %w", err)
		}
		orphans = orphans[n:]
	}
	return nil
}

// behind reads an origin's log once more, from a place on to what was passed to
// the fold, and gives what counts under the table in use and is an orphan under the
// next one. It keeps the orphans alone in memory: those of one cut.
func (in *inputs) behind(ctx context.Context, r event.RegionID, start event.Point, next *event.Authority) ([]Item, error) {
	again := &rereading{in: in, origin: r, at: start, next: next}
	if r == in.seat.cfg.Region {
		return again.local(ctx)
	}
	return again.remote(ctx)
}

// rereading is one log that is read once more.
type rereading struct {
	in      *inputs
	origin  event.RegionID
	at      event.Point // everything of the origin below has been looked at
	next    *event.Authority
	log     *Log
	orphans []Item
}

// local reads the own log. Its tail has met every barrier below what was folded.
func (g *rereading) local(ctx context.Context) ([]Item, error) {
	s, folded := g.in.seat, g.in.folded[g.origin]
	if folded.Incarnation != s.incarnation {
		return nil, nil // the log that was folded is no more
	}
	g.log = NewLog(g.origin, s.incarnation, NoBarrier)
	g.log.Rule = s.cfg.Rule
	read := func(r *txn.Record) error {
		g.log.Marker(s.LastBarrier(r.Offset), true)
		g.take(r, event.Point{Incarnation: s.incarnation, Next: r.Offset}, false)
		return nil
	}
	at := from(g.at, event.Point{Incarnation: s.incarnation})
	err := g.read(ctx, s.cfg.Topic, at, folded.Next, read)
	return g.orphans, err
}

// remote reads the copy of another region's log in its remote topic.
func (g *rereading) remote(ctx context.Context) ([]Item, error) {
	s, folded := g.in.seat, g.in.folded[g.origin]
	topic, ok := s.cfg.Control.Remote(g.origin, s.cfg.Topic)
	if !ok {
		return nil, errors.New("no copy of the log is registered")
	}
	// Where the copy of what was folded ends is certain only once a position
	// says so.
	cov, ok := s.cfg.Control.Covered(g.origin, topic.ID, s.cfg.Partition)
	if !ok || cov.Source.Compare(folded) < 0 {
		return nil, fmt.Errorf("%s is not described up to %d", topic.Name, folded.Next)
	}
	to, ok := s.cfg.Control.FindFrom(g.origin, topic.ID, s.cfg.Partition, folded.Incarnation, folded.Next)
	if !ok {
		to = cov.Target
	}
	g.log = NewLog(g.origin, g.at.Incarnation, NoBarrier)
	g.log.Rule = s.cfg.Rule
	read := func(r *txn.Record) error {
		// Under whatever leader epoch: it was judged before.
		loc := s.cfg.Control.Locate(g.origin, topic.ID, s.cfg.Partition, r.Offset, -1)
		switch loc.State {
		case control.Pending:
			return fmt.Errorf("the record at %d of %s is not described", r.Offset, topic.Name)
		case control.Foreign:
			return nil
		}
		if loc.Incarnation != g.log.Incarnation() {
			g.log.Begin(loc.Incarnation)
		}
		g.log.Marker(loc.Barrier, true)
		g.take(r, event.Point{Incarnation: loc.Incarnation, Next: loc.Source}, loc.Restricted)
		return nil
	}
	err := g.read(ctx, topic.Name, g.in.target(g.origin, topic, g.at), to, read)
	return g.orphans, err
}

// read reads a stretch of a partition, or what retention has left of it.
func (g *rereading) read(ctx context.Context, topic string, at, to int64, each func(*txn.Record) error) error {
	s := g.in.seat
	p := place{topic, s.cfg.Partition}
	first, _, err := s.cfg.Tail.inputs.bounds(ctx, p)
	if err != nil {
		return err
	}
	if at = max(at, first); at >= to {
		return nil
	}
	topics := txn.NewTopics(s.cfg.Producer.Client())
	_, err = txn.ReadCommitted(ctx, topics, txn.TopicPartition{Topic: topic, Partition: p.partition}, at, to, each)
	return err
}

// take looks at a record whose place in the origin's log is given.
func (g *rereading) take(r *txn.Record, where event.Point, restricted bool) {
	after := event.Point{Incarnation: where.Incarnation, Next: where.Next + 1}
	if after.Compare(g.at) <= 0 || after.Compare(g.in.folded[g.origin]) > 0 {
		return // seen already, or not folded: that is judged when its turn comes
	}
	g.at = after
	at := g.in.seat.dot(g.origin, where.Incarnation, where.Next)
	ev, err := event.FromRecord(at, r.Timestamp, r.Key, r.Value, r.Headers)
	if g.log.Record(&ev, err) != Valid {
		return
	}
	if g.next.Judge(ev.At, ev.Epoch) != event.Orphan || g.in.table.Judge(ev.At, ev.Epoch) == event.Orphan {
		return
	}
	g.orphans = append(g.orphans, Item{
		Origin: g.origin, Event: ev, Verdict: Orphan, Next: after, Barrier: g.log.Last(), Restricted: restricted, Authority: g.next,
	})
}
