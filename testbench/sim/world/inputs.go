package world

import (
	"time"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/offsets"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/testbench/sim/kafka"
)

// remoteIn reads one origin's copy in this region: the remote topic committed,
// each record placed by the runs, void judged by the barriers that came with
// them.
type remoteIn struct {
	s      *seatRun
	from   *region
	tp     kafka.TP // the remote topic's partition
	log    *seat.Log
	at     event.Point // items were given out below it
	next   int64       // target offsets read below it
	epoch  int32       // leader epoch that they were read under
	asking bool
}

func (s *seatRun) readRemote(from *region) *remoteIn {
	in := &remoteIn{s: s, from: from, tp: remoteTP(from, s.tp), log: seat.NewLog(from.id, 0, seat.NoBarrier)}
	s.p.read(reader{off: &s.closed, c: s.p.dial(s.p.region), tp: in.tp, committed: true, take: func(got kafka.Fetched, more func()) {
		in.take(got, more)
	}, truncated: func(next int64) { in.next = min(in.next, next) }})
	in.idle()
	return in
}

func (in *remoteIn) take(got kafka.Fetched, more func()) {
	recs := got.Records
	var each func(i int)
	each = func(i int) {
		for ; i < len(recs); i++ {
			r := &recs[i]
			links := in.s.p.ctl.links[in.from]
			loc := control.Location{}
			switch {
			case r.Kind == kafka.Data:
				loc = links.Locate(in.id(), in.tp.Partition, r.Offset, r.LeaderEpoch)
			case links.Confirmed(in.id(), in.tp.Partition, r.LeaderEpoch):
				in.passed(r)
				continue
			}
			switch loc.State {
			case control.Pending:
				at := i
				in.s.p.ctl.waiting = append(in.s.p.ctl.waiting, func() { each(at) })
				return
			case control.Foreign:
				in.s.p.logf("foreign record at %v/%d", in.tp, r.Offset)
				in.s.p.w.fail("G8", "%s takes the link's own record at %v/%d for foreign", in.s.p.name, in.tp, r.Offset)
			case control.Mapped:
				in.mapped(r, loc)
			}
			in.passed(r)
		}
		in.next = max(in.next, got.Next)
		in.advance()
		in.s.p.after(in.s.p.w.between(0, 3*time.Millisecond), more)
	}
	each(0)
}

func (in *remoteIn) id() [16]byte { return in.s.p.region.kafka.TopicID(in.tp.Topic) }

func (in *remoteIn) passed(r *kafka.Record) {
	in.next, in.epoch = r.Offset+1, r.LeaderEpoch
}

func (in *remoteIn) mapped(r *kafka.Record, loc control.Location) {
	at := event.Dot{Region: in.from.id, Incarnation: loc.Incarnation, Partition: in.tp.Partition, Offset: loc.Source}
	next := event.Point{Incarnation: loc.Incarnation, Next: loc.Source + 1}
	in.s.p.w.checkDot(in, r, at)
	if next.Compare(in.at) <= 0 {
		return // read again after a truncation of the remote log
	}
	in.log.Marker(loc.Barrier, loc.Barrier != offsets.NoBarrier)
	ev, err := event.FromRecord(at, r.Timestamp, r.Key, r.Value, r.Headers)
	it := seat.Item{Origin: in.from.id, Event: ev, Verdict: in.log.Record(&ev, err), Next: next, Barrier: in.log.Last(), Restricted: loc.Restricted}
	in.give(it)
}

func (in *remoteIn) give(it seat.Item) {
	in.at = it.Next
	in.s.judged(it, "remote")
	in.s.pass(it, in.s.journal, in.s.index)
}

// advance moves over what the link has covered without a record: markers and
// holes at the end of the source.
func (in *remoteIn) advance() {
	c, ok := in.s.p.ctl.links[in.from].Covered(in.id(), in.tp.Partition)
	if !ok || in.next < c.Target || c.Source.Compare(in.at) <= 0 {
		return
	}
	if c.Epoch > in.epoch {
		in.validate(c.Epoch)
		return
	}
	in.log.Marker(c.Barrier, c.Barrier != offsets.NoBarrier)
	in.give(seat.Item{Origin: in.from.id, Verdict: seat.Skip, Next: c.Source, Barrier: in.log.Last(), Restricted: c.Restricted})
}

// validate asks whether what was read under an older leader epoch still lies
// there, before a position of a newer one is believed to cover it.
func (in *remoteIn) validate(epoch int32) {
	if in.asking {
		return
	}
	in.asking = true
	old, next := in.epoch, in.next
	in.s.p.dial(in.s.p.region).call(func(k *kafka.Cluster) func() {
		end := k.EndOfEpoch(in.tp, old)
		return func() {
			in.asking = false
			if end >= next && in.next == next && in.epoch == old {
				in.epoch = epoch
				in.advance()
			}
		}
	}, func() { in.asking = false; in.validate(epoch) })
}

// idle looks for such progress whenever the follower learnt something.
func (in *remoteIn) idle() {
	if in.s.closed {
		return
	}
	in.advance()
	in.s.p.ctl.waiting = append(in.s.p.ctl.waiting, in.idle)
}

// localIn reads the seat's own log: all of it for answers and indexes, and below
// the last stable offset for the fold.
type localIn struct {
	s         *seatRun
	log       *seat.Log
	judged    []localItem // read, not yet stable
	stable    int64
	committed map[int64]bool // transactional records that were committed
}

type localItem struct {
	seat.Item
	transactional bool
}

func (s *seatRun) readLocal(from int64, barrier int64) *localIn {
	in := &localIn{s: s, log: seat.NewLog(s.p.region.id, 0, barrier), committed: map[int64]bool{}}
	s.p.read(reader{off: &s.closed, c: s.p.dial(s.p.region), tp: s.tp, next: from, take: func(got kafka.Fetched, more func()) {
		in.take(got, 0, more)
	}})
	s.p.read(reader{off: &s.closed, c: s.p.dial(s.p.region), tp: s.tp, next: from, committed: true, take: func(got kafka.Fetched, more func()) {
		in.stable = got.Next
		for i := range got.Records {
			if r := &got.Records[i]; r.Kind == kafka.Data && r.Transactional {
				in.committed[r.Offset] = true
			}
		}
		in.release()
		s.p.after(s.p.w.between(0, 3*time.Millisecond), more)
	}})
	return in
}

func (in *localIn) take(got kafka.Fetched, i int, more func()) {
	p := in.s.p
	for ; i < len(got.Records); i++ {
		if in.s.closed {
			return
		}
		r := &got.Records[i]
		next := event.Point{Next: r.Offset + 1}
		switch r.Kind {
		case kafka.Abort, kafka.Commit:
			if seat.Asks(controlKey(r.Kind)) {
				m := control.Marker{
					Topic: p.region.kafka.TopicID(in.s.tp.Topic), Partition: in.s.tp.Partition,
					Producer: r.ProducerID, Epoch: r.ProducerEpoch,
				}
				at := i
				p.ctl.barrier(m, func(is bool) {
					in.log.Marker(r.Offset, is)
					p.logf("marker %v/%d by %d epoch %d: barrier %v", in.s.tp, r.Offset, r.ProducerID, r.ProducerEpoch, is)
					var mark *seat.Mark
					if is {
						mark = &seat.Mark{Offset: r.Offset, Producer: r.ProducerID, Epoch: r.ProducerEpoch}
					}
					in.give(seat.Item{Origin: p.region.id, Verdict: seat.Skip, Next: next, Barrier: in.log.Last()}, mark, false)
					in.take(got, at+1, more)
				})
				return
			}
			in.give(seat.Item{Origin: p.region.id, Verdict: seat.Skip, Next: next, Barrier: in.log.Last()}, nil, false)
		case kafka.Data:
			at := event.Dot{Region: p.region.id, Partition: in.s.tp.Partition, Offset: r.Offset}
			ev, err := event.FromRecord(at, r.Timestamp, r.Key, r.Value, r.Headers)
			in.give(seat.Item{Origin: p.region.id, Event: ev, Verdict: in.log.Record(&ev, err), Next: next, Barrier: in.log.Last()}, nil, r.Transactional)
		}
	}
	in.s.caughtUp(got.Next)
	p.after(p.w.between(0, 3*time.Millisecond), more)
}

// tailed are the indexes that the tail feeds, settled those that come with the fold:
// an event journal follows the register, the index of keys must not.
func (s *seatRun) tailed() []seat.Sink {
	if s.p.w.own == nil {
		return []seat.Sink{s.journal, s.index}
	}
	return []seat.Sink{s.index}
}

func (s *seatRun) settled() []seat.Sink {
	if s.p.w.own == nil {
		return nil
	}
	return []seat.Sink{s.journal}
}

// controlKey is the key of a control record as a consumer sees it.
func controlKey(k kafka.Kind) []byte {
	if k == kafka.Commit {
		return []byte{0, 0, 0, 1}
	}
	return []byte{0, 0, 0, 0}
}

func (in *localIn) give(it seat.Item, barrier *seat.Mark, transactional bool) {
	in.s.judged(it, "local")
	in.s.indexed(it, in.s.tailed()...)
	in.s.readBack(it, barrier)
	in.judged = append(in.judged, localItem{it, transactional})
	in.release()
}

// release gives the fold what is stable; an aborted record is only a place.
func (in *localIn) release() {
	n := 0
	for ; n < len(in.judged) && in.judged[n].Next.Next <= in.stable; n++ {
		it := in.judged[n].Item
		if in.judged[n].transactional && !in.committed[it.Event.At.Offset] {
			it = seat.Item{Origin: it.Origin, Verdict: seat.Skip, Next: it.Next, Barrier: it.Barrier}
		}
		in.s.pass(it, in.s.settled()...)
	}
	in.judged = in.judged[n:]
}
