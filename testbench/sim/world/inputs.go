package world

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/judged"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/testbench/sim/kafka"
)

// logReading is how a seat reads logs: package seat's cores over the world's
// readers.
type logReading struct {
	back      *seat.Readback
	backQueue eventQueue
	backMore  func() // fetches on, once the core wants more
	isReady   bool   // it has come to the end listed after the start
	handover  *seat.Handover

	inputs  *seat.Inputs
	queue   eventQueue
	more    map[event.RegionID]func()
	fetched map[event.RegionID][]kafka.Record // what an origin's reader was given last
	ownOff  *bool                             // stops the inputs' reader of the own log; nil: there is none
	table   *event.ValidityTable              // the newest that the seat was told of
}

// eventQueue gives a core one event after another, each when all effects of the one
// before have been carried out.
type eventQueue struct {
	events []seat.InputEvent
	busy   bool
}

func (q *eventQueue) put(ev seat.InputEvent, step func(seat.InputEvent)) {
	q.events = append(q.events, ev)
	if q.busy {
		return
	}
	q.busy = true
	defer func() { q.busy = false }()
	for len(q.events) > 0 {
		ev := q.events[0]
		q.events = q.events[1:]
		step(ev)
	}
}

func (s *seatRun) inputsConfig() seat.InputsConfig {
	return seat.InputsConfig{Region: s.p.region.id, Partition: s.tp.Partition}
}

// lastBarrier is the own log's last barrier below an offset that the index has.
func (s *seatRun) lastBarrier(offset int64) int64 {
	last := seat.NoBarrier
	for _, d := range s.index.Barriers() {
		if d.Offset < offset {
			last = d.Offset
		}
	}
	return last
}

func (s *seatRun) indexed() event.Point { return s.index.Applied()[s.p.region.id] }

// openReadback begins to read the own log uncommitted.
func (s *seatRun) openReadback(from, last int64) {
	p := s.p
	s.back = seat.NewReadback(s.inputsConfig(), s.clock, from, last)
	s.handover = seat.NewHandover(from, 600*(1+p.w.Rand().IntN(20)))
	p.read(reader{off: &s.closed, c: p.dial(p.region), tp: s.tp, next: from, take: func(got kafka.Fetched, more func()) {
		s.backMore = more
		s.readBack(seat.Fetched{Origin: p.region.id, Entries: entriesOf(got.Records)})
	}})
	p.list(p.dial(p.region), s.tp, false, func(end int64) { s.readBack(seat.EndListed{End: end}) })
}

// readBack gives the Readback an event.
func (s *seatRun) readBack(ev seat.InputEvent) {
	s.backQueue.put(ev, func(ev seat.InputEvent) {
		if s.closed {
			return
		}
		for _, e := range slices.Clone(s.back.Step(ev)) {
			if s.closed {
				return
			}
			switch e := e.(type) {
			case seat.AskBarrier:
				s.askBarrier(e, s.readBack)
			case seat.IndexKeys:
				s.indexKeys(e)
				if applied, _ := s.journal.Applied(); e.Stretch.Follows(&applied) {
					s.p.w.counts["journaled as read back"] += len(e.Stretch.Places)
					for it := range e.Stretch.Items() {
						_ = s.journal.Add([]judged.Item{*it}) // it never fails
					}
				}
			case seat.HandOver:
				s.handover.Put(e)
			case seat.ReadPlaces:
				for _, r := range e.Places {
					s.judged(r.Item)
				}
				s.step(seat.ReadBack(e))
				s.input(seat.Look{})
			case seat.BeReady:
				s.p.logf("seat %v is ready", s.tp)
				s.isReady = true
				s.step(seat.Ready{})
			default:
				panic(fmt.Sprintf("world: readback effect %T", e))
			}
		}
		if more := s.backMore; more != nil && s.back.Wants() {
			s.backMore = nil
			s.p.after(s.p.w.Between(0, 3*time.Millisecond), more)
		}
	})
}

func (s *seatRun) askBarrier(e seat.AskBarrier, answer func(seat.InputEvent)) {
	m := control.Marker{Topic: s.p.region.kafka.TopicID(s.tp.Topic), Partition: s.tp.Partition, Producer: e.Producer, Epoch: e.Epoch}
	s.p.ctl.barrier(m, func(is bool) {
		s.p.logf("marker %v/%d by %d epoch %d: barrier %v", s.tp, e.Offset, e.Producer, e.Epoch, is)
		answer(seat.BarrierKnown{Offset: e.Offset, Barrier: is})
	})
}

func (s *seatRun) indexKeys(e seat.IndexKeys) {
	if err := s.index.Apply(e.Copies, e.Barriers, e.Applied); err != nil {
		s.p.w.fail("index", "index keys: %v", err)
	}
}

// openInputs begins to read every origin's log committed, where the least advanced
// of fold and indexes is.
func (s *seatRun) openInputs() {
	p, at := s.p, s.fold.part.Position()
	start := seat.InputsStart{Committed: at.Vector, Barriers: at.Barriers, Table: at.Validity, Keys: s.index.Applied()}
	v, last := s.journal.Applied()
	start.Sinks = []seat.SinkStart{{Applied: v, Barriers: last}}
	env := seat.InputsSurroundings{Copies: copies{s}, Clock: s.clock, Indexed: s.indexed, LastBarrier: s.lastBarrier, Ready: func() bool { return s.isReady }}
	if p.w.own != nil {
		env.Table = func() *event.ValidityTable { return s.table }
	}
	if s.tp.Topic == entityTopic {
		env.Hold = s.hold
	}
	s.inputs = seat.NewInputs(s.inputsConfig(), env, start)
	s.more, s.fetched = map[event.RegionID]func(){}, map[event.RegionID][]kafka.Record{}
	s.inputs.OpenLocal(0)
	for _, r := range p.w.regions {
		if tp := remoteTP(r, s.tp); r != p.region {
			s.readOrigin(r.id, tp, s.inputs.OpenRemote(r.id, p.region.kafka.TopicID(tp.Topic), 0))
		}
	}
	s.look()
}

func (s *seatRun) readOrigin(r event.RegionID, tp kafka.TP, from int64) {
	s.p.read(reader{off: &s.closed, c: s.p.dial(s.p.region), tp: tp, next: from, committed: true, take: func(got kafka.Fetched, more func()) {
		s.more[r], s.fetched[r] = more, got.Records
		s.input(seat.Fetched{Origin: r, Entries: entriesOf(got.Records)})
	}})
}

// takeOwn gives the inputs what is next of the own log: what the Readback has judged, or
// what they read of it where that is not handed over.
func (s *seatRun) takeOwn() (seat.InputEvent, bool) {
	own := s.p.region.id
	if s.closed || !s.inputs.Wants(own) || s.ownOff != nil && s.p.w.Chance(0.5) {
		return nil, false
	}
	from := s.inputs.LocalNext()
	places, ok := s.handover.Take(from)
	switch {
	case ok && s.ownOff != nil:
		*s.ownOff, s.ownOff = true, nil
		delete(s.more, own)
		fallthrough
	case ok:
		s.p.w.counts["handed over"] += len(places)
		return seat.Judged{Places: places}, len(places) > 0
	case s.ownOff != nil:
		return nil, false
	}
	off := new(bool)
	s.ownOff = off
	s.p.w.counts["own log read again"]++
	s.p.read(reader{off: off, c: s.p.dial(s.p.region), tp: s.tp, next: from, committed: true, take: func(got kafka.Fetched, more func()) {
		if s.closed || *off {
			*off = true
			return
		}
		s.more[own], s.fetched[own] = more, got.Records
		s.input(seat.Fetched{Origin: own, Entries: entriesOf(got.Records)})
	}})
	return nil, false
}

func (s *seatRun) hold(ev *event.Event) time.Duration {
	if !ev.Stamped {
		return 0
	}
	switch j, wait := s.clock.Bounds().Judge(ev.Stamp, s.p.wall()); j {
	case hlc.Hold:
		return wait
	case hlc.Pause:
		return time.Hour
	}
	return 0
}

// look has the inputs look again whenever the follower has read something.
func (s *seatRun) look() {
	if s.closed {
		return
	}
	s.input(seat.Look{})
	s.p.ctl.waiting = append(s.p.ctl.waiting, s.look)
}

// learnTable takes the newest table that the process has.
func (s *seatRun) learnTable() {
	if s.closed || s.inputs == nil {
		return
	}
	s.table = s.p.tableOf(s.tp)
	s.input(seat.Look{})
}

// input gives the Inputs an event.
func (s *seatRun) input(ev seat.InputEvent) {
	if s.inputs == nil {
		return
	}
	s.queue.put(ev, func(ev seat.InputEvent) {
		if s.closed {
			return
		}
		for _, e := range slices.Clone(s.inputs.Step(s.p.wall(), ev)) {
			if s.closed {
				return // the store may have another user now
			}
			s.doInput(e)
		}
		if ev, ok := s.takeOwn(); ok {
			s.queue.events = append(s.queue.events, ev)
		}
		for _, r := range s.p.w.regions {
			if more := s.more[r.id]; more != nil && s.inputs.Wants(r.id) {
				s.more[r.id] = nil
				s.p.after(s.p.w.Between(0, 3*time.Millisecond), more)
			}
		}
	})
}

// doInput carries out what the Inputs ask for.
func (s *seatRun) doInput(e seat.InputEffect) {
	w := s.p.w
	switch e := e.(type) {
	case seat.AskBarrier:
		s.askBarrier(e, s.input)
	case seat.AskEpochEnd:
		s.askEpochEnd(e)
	case seat.ReadAgain:
		s.readAgain(e)
	case seat.IndexKeys:
		s.indexKeys(e)
	case seat.AddToSinks:
		for i := range e.Items {
			s.judged(e.Items[i])
		}
		if err := s.journal.Add(e.Items); err != nil {
			w.fail("index", "%v", err)
		}
		s.restartPastCut(e.Items)
		s.fold.pump()
	case seat.FoldItems:
		for i := range e.Items {
			if it := &e.Items[i]; it.Verdict == judged.Orphan && it.Validity != nil {
				w.counts["revoked"]++
			}
		}
		s.fold.push(e.Items...)
	case seat.ReportForeign:
		w.fail("G8", "%s takes the link's own record at %d of region %d for foreign", s.p.name, e.Offset, e.Origin)
	case seat.ReportCutPending:
		s.p.logf("seat %v: cut of region %d pending: %v", s.tp, e.Origin, e.Err)
		s.p.after(300*time.Millisecond, func() { s.input(seat.Look{}) })
	default:
		panic(fmt.Sprintf("world: input effect %T", e))
	}
}

func (s *seatRun) tpOf(origin event.RegionID) kafka.TP {
	if origin == s.p.region.id {
		return s.tp
	}
	return remoteTP(s.p.w.regions[origin-1], s.tp)
}

func (s *seatRun) askEpochEnd(e seat.AskEpochEnd) {
	tp := s.tpOf(e.Origin)
	s.p.dial(s.p.region).call(func(k *kafka.Cluster) func() {
		end := k.EndOfEpoch(tp, e.Epoch)
		return func() { s.input(seat.EpochEnd{Origin: e.Origin, Epoch: e.Epoch, End: end, OK: true}) }
	}, func() { s.input(seat.EpochEnd{Origin: e.Origin, Epoch: e.Epoch}) })
}

// readAgain reads a stretch of a log once more.
func (s *seatRun) readAgain(e seat.ReadAgain) {
	p, tp := s.p, s.tpOf(e.Origin)
	off := false
	end := func(err error) {
		if !off && !s.closed {
			s.input(seat.RereadEnded{Number: e.Number, Err: err})
		}
		off = true
	}
	p.list(p.dial(p.region), tp, false, func(hw int64) {
		if hw < e.To {
			end(fmt.Errorf("%v ends at %d, before %d", tp, hw, e.To))
			return
		}
		p.read(reader{
			off: &off, c: p.dial(p.region), tp: tp, next: e.From, committed: true, epoch: -1,
			truncated: func(int64) { end(errors.New("the log has lost its tail")) },
			take: func(got kafka.Fetched, more func()) {
				records := slices.DeleteFunc(slices.Clone(got.Records), func(r kafka.Record) bool { return r.Kind != kafka.Data || r.Offset >= e.To })
				if s.closed {
					off = true
					return
				}
				s.input(seat.Reread{Number: e.Number, Entries: entriesOf(records)})
				if got.Next >= e.To {
					end(nil)
					return
				}
				more()
			},
		})
	})
}

// entriesOf is what a consumer sees of a log's entries.
func entriesOf(rs []kafka.Record) []seat.Entry {
	out := make([]seat.Entry, len(rs))
	for i := range rs {
		r := &rs[i]
		out[i] = seat.Entry{
			Offset: r.Offset, LeaderEpoch: r.LeaderEpoch, Producer: r.ProducerID, ProducerEpoch: r.ProducerEpoch,
			Transactional: r.Transactional, Timestamp: r.Timestamp, Key: r.Key, Value: r.Value, Headers: r.Headers,
		}
		switch r.Kind {
		case kafka.Commit:
			out[i].Control = []byte{0, 0, 0, 1}
		case kafka.Abort:
			out[i].Control = []byte{0, 0, 0, 0}
		case kafka.Data:
		}
	}
	return out
}

// copies implements seat.Copies over what the process's follower knows, and checks
// what it answers.
type copies struct{ s *seatRun }

func (c copies) links(from event.RegionID) *control.LinkIndex {
	return c.s.p.ctl.links[c.s.p.w.regions[from-1]]
}

// Locate implements seat.Copies.
func (c copies) Locate(from event.RegionID, remote event.TopicID, partition int32, target int64, epoch int32) control.Location {
	loc := c.links(from).Locate(remote, partition, target, epoch)
	if loc.State == control.Mapped && epoch >= 0 {
		fetched := c.s.fetched[from]
		if i := slices.IndexFunc(fetched, func(r kafka.Record) bool { return r.Offset == target }); i >= 0 {
			at := event.Dot{Region: from, Incarnation: loc.Incarnation, Partition: partition, Offset: loc.Source}
			c.s.p.w.checkDot(c.s, &fetched[i], at)
		}
	}
	return loc
}

// Confirmed implements seat.Copies.
func (c copies) Confirmed(from event.RegionID, remote event.TopicID, partition int32, epoch int32) bool {
	return c.links(from).Confirmed(remote, partition, epoch)
}

// Covered implements seat.Copies.
func (c copies) Covered(from event.RegionID, remote event.TopicID, partition int32) (control.Covered, bool) {
	return c.links(from).Covered(remote, partition)
}

// TargetOffsetFrom implements seat.Copies.
func (c copies) TargetOffsetFrom(from event.RegionID, remote event.TopicID, partition int32, incarnation uint16, source int64) (int64, bool) {
	return c.links(from).TargetOffsetFrom(remote, partition, incarnation, source)
}
