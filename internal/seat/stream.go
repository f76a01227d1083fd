package seat

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
)

// localStream judges the records of the own region's partition as they come out
// of one consumer.
type localStream struct {
	seat *Seat
	box  *inbox
	log  *Log
	at   event.Point // everything below has been judged
	rest []*kgo.Record
}

// judged is one place with what only the tail needs to know of it.
type judged struct {
	Item
	barrier *Mark
	foreign bool // lies inside a transaction: not a gateway's
}

// take judges what has come in, up to max records. It blocks only for a marker
// that has to be asked about.
func (st *localStream) take(ctx context.Context, out []judged, limit int) ([]judged, error) {
	for n := 0; n < limit; n++ {
		if len(st.rest) == 0 {
			if st.rest = st.box.pop(); len(st.rest) == 0 {
				return out, nil
			}
		}
		j, err := st.judge(ctx, st.rest[0])
		if err != nil {
			return out, err
		}
		st.rest[0] = nil
		st.rest = st.rest[1:]
		st.at = j.Next
		out = append(out, j)
	}
	return out, nil
}

func (st *localStream) judge(ctx context.Context, r *kgo.Record) (judged, error) {
	own := st.seat.cfg.Region
	j := judged{Item: Item{Origin: own, Verdict: Skip, Next: event.Point{Incarnation: st.log.Incarnation(), Next: r.Offset + 1}}}
	switch {
	case !r.Attrs.IsControl():
		ev, err := event.FromRecord(st.seat.dot(own, st.log.Incarnation(), r.Offset), r.Timestamp.UnixMilli(),
			r.Key, r.Value, event.FromHeaders(r.Headers))
		j.Event, j.Verdict = ev, st.log.Record(&ev, err)
		j.foreign = r.Attrs.IsTransactional()
	case Asks(r.Key):
		barrier, err := st.seat.cfg.Control.Barrier(ctx, st.seat.cfg.ID, st.seat.cfg.Partition, r.ProducerID, r.ProducerEpoch)
		if err != nil {
			return judged{}, fmt.Errorf("judge marker at %d: %w", r.Offset, err)
		}
		st.log.Marker(r.Offset, barrier)
		if barrier {
			j.barrier = &Mark{Offset: r.Offset, Producer: r.ProducerID, Epoch: r.ProducerEpoch}
		}
	}
	j.Barrier = st.log.Last()
	return j, nil
}

// remoteStream judges the records of a remote topic's partition: each takes the
// place in its origin's log that the link's runs give it.
type remoteStream struct {
	seat   *Seat
	origin event.RegionID
	topic  control.Topic
	box    *inbox
	log    *Log
	at     event.Point // everything of the origin below has been judged
	next   int64       // everything of the remote partition below has been judged
	epoch  int32       // leader epoch of what was judged last, -1 nothing yet
	doubt  int32       // leader epoch of a position that is not believed yet, -1 none
	rest   []*kgo.Record

	foreign uint64        // records that the link did not write
	held    time.Duration // how far the next event's stamp lies beyond the bound
}

// take judges what has come in, up to max records; at a record that is not
// described yet it stops, and so does everything behind it.
func (st *remoteStream) take(out []Item, limit int) []Item {
	for n := 0; n < limit; n++ {
		if len(st.rest) == 0 {
			st.rest = st.box.pop()
		}
		out = st.advance(out)
		if len(st.rest) == 0 {
			return out
		}
		it, ok, wait := st.judge(st.rest[0])
		if wait {
			return out
		}
		st.next, st.epoch = st.rest[0].Offset+1, st.rest[0].LeaderEpoch
		st.rest[0] = nil
		st.rest = st.rest[1:]
		if ok && st.at.Compare(it.Next) < 0 {
			st.at = it.Next
			out = append(out, it)
		}
	}
	return out
}

// judge makes the item of a record. ok is false where the record has no place in
// the origin's log; wait is true where that is not known yet.
func (st *remoteStream) judge(r *kgo.Record) (it Item, ok, wait bool) {
	cfg := &st.seat.cfg
	if r.Attrs.IsControl() {
		// A marker of an epoch that the link has not confirmed may have filled a
		// place where records were lost.
		return Item{}, false, !cfg.Control.Confirmed(st.origin, st.topic.ID, cfg.Partition, r.LeaderEpoch)
	}
	loc := cfg.Control.Locate(st.origin, st.topic.ID, cfg.Partition, r.Offset, r.LeaderEpoch)
	switch loc.State {
	case control.Pending:
		return Item{}, false, true
	case control.Foreign:
		st.foreign++
		cfg.Logger.Error("foreign record in a remote topic", "topic", r.Topic, "partition", r.Partition, "offset", r.Offset)
		return Item{}, false, false
	}
	if loc.Incarnation != st.log.Incarnation() {
		st.log.Begin(loc.Incarnation)
	}
	st.log.Marker(loc.Barrier, true)
	ev, err := event.FromRecord(st.seat.dot(st.origin, loc.Incarnation, loc.Source), r.Timestamp.UnixMilli(),
		r.Key, r.Value, event.FromHeaders(r.Headers))
	verdict := st.log.Record(&ev, err)
	if verdict == Valid {
		if st.held = st.seat.hold(&ev); st.held > 0 {
			return Item{}, false, true
		}
	}
	return Item{
		Origin: st.origin, Event: ev, Verdict: verdict,
		Next: event.Point{Incarnation: loc.Incarnation, Next: loc.Source + 1}, Barrier: st.log.Last(), Restricted: loc.Restricted,
	}, true, false
}

// advance moves over what the origin's log holds besides copied records (markers,
// holes, denied records), once every record before it has been taken.
func (st *remoteStream) advance(out []Item) []Item {
	cov, ok := st.seat.cfg.Control.Covered(st.origin, st.topic.ID, st.seat.cfg.Partition)
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
	return append(out, Item{Origin: st.origin, Verdict: Skip, Next: cov.Source, Barrier: st.log.Last(), Restricted: cov.Restricted})
}

// believe asks, when a position names a later leader epoch than what was judged,
// whether that still lies there: the log may have lost its tail and have grown
// again, and then the position covers records that were never read. It tells
// whether the position counts; if not, the consumer comes back to what was lost,
// or the next round asks again.
func (st *remoteStream) believe(ctx context.Context) bool {
	epoch, p := st.doubt, st.box.place
	st.doubt = -1
	var req kadm.OffsetForLeaderEpochRequest
	req.Add(p.topic, p.partition, st.epoch)
	got, err := st.seat.cfg.Tail.inputs.admin.OffsetForLeaderEpoch(ctx, req)
	at, ok := got[p.topic][p.partition]
	if err != nil || !ok || at.Err != nil {
		st.seat.cfg.Logger.Warn("ask for the end of a leader epoch", "topic", p.topic, "partition", p.partition, "err", errors.Join(err, at.Err))
		return false
	}
	if at.EndOffset < st.next {
		return false
	}
	st.epoch = epoch
	return true
}
