package world

import (
	"slices"
	"time"

	"github.com/geogate/geogate/dedupe"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/hlc"
	"github.com/geogate/geogate/internal/judged"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/residency"
	"github.com/geogate/geogate/router/ownership"
	"github.com/geogate/geogate/testbench/sim/kafka"
)

// seatRun is one process's hold on a local partition, from opening to closing.
type seatRun struct {
	p      *proc
	tp     kafka.TP
	closed bool
	hang   bool // nothing is folded, by the regime

	clock   *hlc.Clock
	core    *seat.Core // nil until the fold's position is known
	journal *journal
	index   *index
	fold    *foldRun
	logReading

	out    *appender
	opener *producer
	raises bool         // the cluster raises a producer's epoch at a commit
	batch  []seat.Write // that come together
	// clients are those of writes of which the broker has not told what became of them.
	clients map[uint64]*client
	refs    uint64
	ticks   int
}

func (p *proc) start() {
	if p.alive {
		return
	}
	p.alive = true
	p.logf("started")
	p.seats, p.links = map[kafka.TP]*seatRun{}, map[*region]*linkRun{}
	p.ctl = newFollower(p)
	p.told = map[kafka.TP]uint64{}
	if p.inst != nil {
		p.intervals = ownership.NewIntervals(p.inst.Tokens, p.w.policy(), p.w.own.topology, 0)
		p.inst.Boot()
	}
	if p.w.border != nil {
		p.guard = residency.NewGuard(p.w.border.file)
	}
	for _, tp := range p.w.seats {
		p.reassign(tp)
	}
	for _, to := range p.w.regions {
		if _, told := p.orders[to]; to != p.region && told {
			p.relink(to) // what it was told last, true or not
		} else if to != p.region {
			p.hearLink(to)
		}
	}
}

// reassign brings the process in line with what the group has given it.
func (p *proc) reassign(tp kafka.TP) {
	if !p.alive {
		return
	}
	if p.inst != nil && p.inst.Paused() {
		p.after(0, func() { p.reassign(tp) })
		return
	}
	mine := p.region.procs[p.region.assigned[tp]] == p
	s := p.seats[tp]
	switch {
	case mine && s == nil:
		p.openSeat(tp)
	case !mine && s != nil:
		s.close("abandoned")
	}
}

func (p *proc) openSeat(tp kafka.TP) {
	s := &seatRun{
		p: p, tp: tp, clock: hlc.NewClock(p.wall, hlc.Bounds{}), clients: map[uint64]*client{},
		out:    &appender{p: p, tp: tp, c: p.dial(p.region), seat: true, deliveries: seat.NewDeliveries()},
		opener: p.producer(p.region, seat.TransactionalID(tp.Topic, tp.Partition)),
	}
	p.seats[tp] = s
	s.journal, s.index = p.store.open(tp, p)
	s.fold = newFold(s)
	p.logf("opens seat %v", tp)
	s.fold.open(s.begin)
}

func (st *store) open(tp kafka.TP, p *proc) (*journal, *index) {
	if st.journals[tp] == nil {
		st.journals[tp], st.keys[tp] = newJournal(p.w.foldConfig(tp.Topic)), dedupe.NewMemory()
	}
	return st.journals[tp], openIndex(p.region.id, p.w.cfg.window, st.keys[tp])
}

// begin starts reading where the least advanced of fold and indexes is.
func (s *seatRun) begin() {
	if s.core != nil || s.closed {
		return
	}
	p, at := s.p, s.fold.part.Position()
	own := p.region.id
	from, last := seat.ReadbackStart(0, s.index.Applied()[own], at.Vector[own], at.Barriers[own], s.lastBarrier)
	var published seat.Claims
	if steps := p.w.committed(p.region, s.tp); len(steps) > 0 {
		published = steps[len(steps)-1].claims // control, read after the fold before was fenced
	}
	s.clock.Restore(max(published.Closed, at.Stamp))
	around := seat.Surroundings{
		Index: s.index, Clock: s.clock, NewID: p.w.newID,
		Committed: func() event.Vector { return s.fold.part.Position().Vector },
		Closed:    func() event.Stamp { return p.w.closed(s) },
		Permit:    s.permit(), Indexed: s.index.Applied,
		Folded: func() *event.ValidityTable { return s.fold.part.Position().Validity },
	}
	if p.w.border != nil {
		around.Context = s.context
	}
	s.core = seat.NewCore(seat.CoreConfig{
		Region: own, Partition: s.tp.Partition, Epoch: event.FirstEpoch(own), Published: published, RetryEvery: 50 * time.Millisecond,
	}, around, from)
	s.openReadback(from, last)
	s.openInputs()
	s.tick()
	if p.w.own != nil {
		p.after(0, s.learnTable)
	}
}

// permit is what the core asks; nil without a register.
func (s *seatRun) permit() seat.WritePermit {
	if s.p.w.own == nil {
		return nil
	}
	return seatPermit{s.p, s.tp}
}

func (s *seatRun) tick() {
	if s.closed {
		return
	}
	s.step(seat.Tick{})
	if s.ticks++; s.ticks%20 == 0 {
		s.sweep()
	}
	if s.ticks%10 == 0 {
		s.input(seat.Look{})
	}
	s.publishAtRest()
	s.p.after(100*time.Millisecond, s.tick)
}

// sweep forgets keys that have expired everywhere.
func (s *seatRun) sweep() {
	closed := s.p.w.closed(s)
	s.p.store.swept[s.tp] = max(s.p.store.swept[s.tp], closed)
	if _, err := s.index.Sweep(closed, s.newest()); err != nil {
		s.p.w.fail("index", "sweep: %v", err)
	}
}

// newest is what the process knows of which records count; nil without a register.
func (s *seatRun) newest() *event.ValidityTable {
	if s.p.w.own == nil {
		return nil
	}
	return s.p.tableOf(s.tp)
}

// judged remembers what the log said of a place for the comparison of readers.
func (s *seatRun) judged(it judged.Item) {
	how := "remote"
	if it.Origin == s.p.region.id {
		how = "local"
	}
	switch it.Verdict {
	case judged.Skip:
		return
	case judged.Orphan:
		it.Verdict = judged.Valid // by its log
	default:
	}
	s.p.w.judged(s.p, s.tp.Topic, how, it)
}

// fenced ends the seat because another instance has taken something of it over.
// Where the group still gives it to this process, it begins again from nothing.
func (s *seatRun) fenced(why string) {
	p, tp := s.p, s.tp
	s.close(why)
	p.after(p.w.Between(200*time.Millisecond, 1500*time.Millisecond), func() { p.reassign(tp) })
}

func (s *seatRun) close(why string) {
	if s.closed {
		return
	}
	s.closed = true
	s.p.logf("closes seat %v: %s", s.tp, why)
	delete(s.p.seats, s.tp)
}

// step runs the core and does what it asks for.
func (s *seatRun) step(ev seat.Event) {
	if s.core == nil || s.closed {
		return
	}
	for _, e := range append([]seat.Effect(nil), s.core.Step(s.p.wall(), ev)...) {
		switch e := e.(type) {
		case seat.OpenTerm:
			s.openTerm(e.Attempt)
		case seat.ConfirmTerm:
			s.fold.confirm(func() { s.step(seat.TermConfirmed{}) })
		case seat.Produce:
			s.out.late, s.out.ahead = s.strike(len(e.Records))
			s.produce(e.Records)
		case seat.Replies:
			for _, r := range slices.Clone(e.List) { // an answer may lead to the next step
				r.To.Answered(r.Answer, r.Err)
			}
		case seat.Stop:
			s.fenced("superseded")
		}
	}
}

// openTerm writes a barrier.
func (s *seatRun) openTerm(number uint64) {
	a, effects := seat.NewAttempt(number, s.raises)
	s.attempt(a, effects)
}

// attempt carries out what an attempt to write a barrier asks for.
func (s *seatRun) attempt(a *seat.Attempt, effects []seat.AttemptEffect) {
	p, t := s.p, s.opener
	next := func(ev seat.AttemptEvent) { s.attempt(a, a.Step(ev)) }
	for _, e := range effects {
		switch e := e.(type) {
		case seat.InitProducer:
			t.init(func(err error) { next(seat.ProducerInited{Producer: t.num, Epoch: t.epoch, Err: err}) })
		case seat.AddPartition:
			t.add([]kafka.TP{s.tp}, func(err error) { next(seat.PartitionAdded{Err: err}) })
		case seat.AnnounceBarrier:
			p.logf("seat %v: barrier as %d epoch %d", s.tp, e.Producer, e.Epoch)
			rec := control.Barrier{
				Topic: p.region.kafka.TopicID(s.tp.Topic), Partition: s.tp.Partition,
				ProducerID: e.Producer, ProducerEpoch: e.Epoch, Instance: p.name,
			}
			p.appendControl(seat.Record{Key: rec.AppendKey(nil), Value: rec.AppendValue(nil), Timestamp: p.wall().UnixMilli()},
				func(err error) { next(seat.BarrierAnnounced{Err: err}) })
		case seat.EndTxn:
			t.end(true, func(err error) { next(seat.TxnEnded{Epoch: t.epoch, Err: err}) })
		case seat.AbortTxn:
			t.end(false, func(error) {})
		case seat.Finish:
			s.raises = e.Raises
			p.logf("seat %v: barrier: %T", s.tp, e.Event)
			s.step(e.Event)
		}
	}
}

func (p *proc) appendControl(r seat.Record, done func(error)) {
	a := &appender{p: p, tp: controlTP, c: p.dial(p.region)}
	a.add(r, done)
}

// write hands a client's request to the seat.
func (p *proc) write(o *op, done func(seat.Answer, error)) { p.submit(o.tp, o.req, nil, done) }

func (p *proc) submit(tp kafka.TP, req seat.Request, o *seat.Order, done func(seat.Answer, error)) {
	s := p.seats[tp]
	if s == nil || s.core == nil {
		if o != nil {
			o.Fail(req.Key)
		}
		done(seat.Answer{}, seat.ErrNotReady)
		return
	}
	s.submit(req, o, done)
}

// submit gives a write to the core, with what else comes at about that time.
func (s *seatRun) submit(req seat.Request, o *seat.Order, done func(seat.Answer, error)) {
	s.refs++
	s.clients[s.refs] = &client{s: s, done: done}
	s.batch = append(s.batch, seat.Write{
		Ref: s.refs, Request: &req, Deadline: s.p.wall().Add(3 * time.Second), Order: o, To: s.clients[s.refs],
	})
	if len(s.batch) == 1 {
		s.p.after(s.p.w.Between(0, 20*time.Millisecond), func() {
			batch := s.batch
			s.batch = nil
			s.step(seat.Accept{Writes: batch})
		})
	}
}

// client is who gets the answer of a write.
type client struct {
	s        *seatRun
	done     func(seat.Answer, error)
	answered bool
}

// Answered implements seat.Answerer.
func (c *client) Answered(a seat.Answer, err error) {
	if c.answered {
		c.s.p.w.fail("G1", "%s %v: a write is answered twice", c.s.p.name, c.s.tp)
	}
	c.answered = true
	c.done(a, err)
}

// newID makes event ids from the seed.
func (w *World) newID() (event.ID, error) {
	var id event.ID
	for i := range id {
		id[i] = byte(w.Rand().Uint32())
	}
	return id, nil
}
