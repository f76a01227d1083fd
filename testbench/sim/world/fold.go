package world

import (
	"errors"
	"fmt"
	"time"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/judged"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/testbench/sim/kafka"
)

// step is one committed fold step: what a region put out at once. The world
// writes it into a log of its own in the step's transaction, so that a checker
// sees exactly the steps that were committed.
type step struct {
	by       string
	at       time.Duration
	position conflict.Position
	out      *conflict.Output
	claims   seat.Claims
	term     int64 // barrier of the seat that claims, or none
	claim    bool  // it folds nothing: the seat wants a transaction
	told     conflict.Told
	frontier conflict.Frontier
}

func stepsTP(tp kafka.TP) kafka.TP {
	return kafka.TP{Topic: "sim.steps." + tp.Topic, Partition: tp.Partition}
}

func stateTP(tp kafka.TP) kafka.TP {
	return kafka.TP{Topic: control.StateOf(tp.Topic), Partition: tp.Partition}
}

// journal is the view's index: events by entity and key, and how far it is.
type journal struct {
	mem      *conflict.Memory
	applied  event.Vector
	barriers seat.Barriers
	copies   map[event.IdempotencyKey][]conflict.Copy
	marks    []mark
}

func newJournal(cfg conflict.Config) *journal {
	return &journal{mem: conflict.NewMemory(cfg), barriers: seat.NoBarriers(), copies: map[event.IdempotencyKey][]conflict.Copy{}}
}

// Applied implements seat.Sink.
func (j *journal) Applied() (event.Vector, seat.Barriers) { return j.applied, j.barriers }

// Add implements seat.Sink.
func (j *journal) Add(items []judged.Item) error {
	var out []judged.Item
	for i := range items {
		if o := items[i].Origin; j.applied[o].Compare(items[i].Next) < 0 { // the rest it has
			out = append(out, items[i])
			if items[i].Barrier != j.barriers[o] {
				j.marks = append(j.marks, mark{o, items[i].Next, items[i].Barrier})
			}
			j.applied[o], j.barriers[o] = items[i].Next, items[i].Barrier
			if it := &items[i]; (it.Verdict == judged.Valid || it.Verdict == judged.Orphan) && !it.Event.Envelope.Key.IsZero() {
				j.copies[it.Event.Envelope.Key] = append(j.copies[it.Event.Envelope.Key], conflict.CopyOf(&it.Event))
			}
		}
	}
	j.mem.Add(out)
	return nil
}

// foldStore reads committed state from a cache of the state topic, and the rest
// from the journal.
type foldStore struct {
	*conflict.Memory
	entities map[string]conflict.Entity
	twins    map[event.IdempotencyKey]conflict.Twin
	orphans  map[event.Dot]conflict.Orphaned
	bases    map[string]conflict.Base
}

// Entity implements conflict.Store.
func (s *foldStore) Entity(key []byte) (conflict.Entity, bool, error) {
	e, ok := s.entities[string(key)]
	return e, ok, nil
}

// Twin implements conflict.Store.
func (s *foldStore) Twin(k event.IdempotencyKey) (conflict.Twin, bool, error) {
	t, ok := s.twins[k]
	return t, ok, nil
}

// Orphan implements conflict.Store.
func (s *foldStore) Orphan(d event.Dot) (conflict.Orphaned, bool, error) {
	o, ok := s.orphans[d]
	return o, ok, nil
}

// Base implements conflict.Store.
func (s *foldStore) Base(key []byte) (conflict.Base, bool, error) {
	b, ok := s.bases[string(key)]
	return b, ok, nil
}

// commit takes over what a committed step has put out.
func (s *foldStore) commit(out *conflict.Output) {
	for _, c := range out.Entities {
		if c.Entity.IsZero() {
			delete(s.entities, string(c.Key))
		} else {
			s.entities[string(c.Key)] = c.Entity
		}
	}
	for _, t := range out.Twins {
		if len(t.Copies) == 0 {
			delete(s.twins, t.Key)
		} else {
			s.twins[t.Key] = t
		}
	}
	for _, o := range out.Orphans {
		s.orphans[o.At] = o
	}
	for _, b := range out.Bases {
		if b.Base.IsZero() {
			delete(s.bases, string(b.Key))
		} else {
			s.bases[string(b.Key)] = b.Base
		}
	}
}

// foldRun is a seat's fold: one transaction a step.
type foldRun struct {
	s     *seatRun
	prod  *producer
	part  *conflict.Partition
	store *foldStore
	ready bool
	busy  bool
	held  bool // by the regime
	queue []judged.Item
	asked func()  // the seat waits for a transaction
	last  settled // as committed
	next  settled // of the step under way

	commits int // steps committed
}

func newFold(s *seatRun) *foldRun {
	f := &foldRun{s: s, prod: s.p.producer(s.p.region, fmt.Sprintf("geogate.fold.%s.%d", s.tp.Topic, s.tp.Partition))}
	f.prod.regains = true
	return f
}

// open fences the fold before, then reads the state topic to what it had
// committed.
func (f *foldRun) open(done func()) {
	f.ready = false
	if f.s.closed {
		return
	}
	p := f.s.p
	f.prod.init(func(err error) {
		if err != nil {
			f.s.fenced("fold: " + err.Error())
			return
		}
		p.list(f.prod.c, stateTP(f.s.tp), false, func(end int64) { f.load(end, done) })
	})
}

func (f *foldRun) load(end int64, done func()) {
	p := f.s.p
	f.last = settled{}
	st := &foldStore{Memory: f.s.journal.mem, entities: map[string]conflict.Entity{}, twins: map[event.IdempotencyKey]conflict.Twin{}, orphans: map[event.Dot]conflict.Orphaned{}, bases: map[string]conflict.Base{}}
	at := conflict.Start()
	finish := func() {
		f.s.journal.begin(&at)
		f.store, f.part, f.ready = st, conflict.NewPartition(p.w.foldConfig(f.s.tp.Topic), st, at), true
		done()
		f.pump()
	}
	if end == 0 {
		finish()
		return
	}
	var r *reader
	r = p.read(reader{c: p.dial(p.region), tp: stateTP(f.s.tp), committed: true, take: func(got kafka.Fetched, more func()) {
		for i := range got.Records {
			if rec := &got.Records[i]; rec.Kind == kafka.Data {
				f.take(st, &at, rec)
			}
		}
		if got.Next >= end {
			r.stopped = true
			finish()
			return
		}
		more()
	}})
}

func (f *foldRun) take(st *foldStore, at *conflict.Position, rec *kafka.Record) {
	kind, key := rec.Key[0], string(rec.Key[1:])
	switch {
	case rec.Value == nil && kind == 't':
		delete(st.twins, event.IdempotencyKey([]byte(key)))
		return
	case rec.Value == nil && kind == 'b':
		delete(st.bases, key)
		return
	case rec.Value == nil:
		delete(st.entities, key)
		return
	}
	switch o := f.s.p.w.object(rec.Value).(type) {
	case conflict.Entity:
		st.entities[key] = o
	case conflict.Base:
		st.bases[key] = o
	case conflict.Twin:
		st.twins[event.IdempotencyKey([]byte(key))] = o
	case conflict.Orphaned:
		st.orphans[o.At] = o
	case conflict.Position:
		*at = o
	case settled:
		f.last = o
	default:
		panic(fmt.Sprintf("world: state record of kind %c holds %T", kind, o))
	}
}

// push queues judged items; the indexes have them already.
func (f *foldRun) push(items ...judged.Item) {
	f.queue = append(f.queue, items...)
	f.s.holdAtCut(items)
	f.pump()
}

func (f *foldRun) pump() {
	if f.ready && !f.busy && f.asked != nil && !f.s.closed {
		f.busy = true
		f.s.p.after(f.s.p.w.Between(0, f.s.p.w.cfg.foldEvery), f.claim)
		return
	}
	if !f.ready || f.busy || f.held || f.s.hang || f.s.closed {
		return
	}
	v := f.part.Position().Vector
	for len(f.queue) > 0 && f.queue[0].Validity == nil && f.queue[0].Next.Compare(v[f.queue[0].Origin]) <= 0 {
		f.queue = f.queue[1:]
	}
	if n, _ := conflict.Foldable(f.queue, &f.s.journal.applied, &v); n == 0 {
		return
	}
	f.busy = true
	f.s.p.after(f.s.p.w.Between(0, f.s.p.w.cfg.foldEvery), f.step)
}

func (f *foldRun) step() {
	if f.s.closed {
		return
	}
	if f.held || f.s.hang {
		f.busy = false
		return
	}
	w := f.s.p.w
	v := f.part.Position().Vector
	n, _ := conflict.Foldable(f.queue, &f.s.journal.applied, &v)
	n = min(n, 1+w.Rand().IntN(6))
	f.part.Raise(f.last.frontier)
	out, err := f.part.Step(f.queue[:n])
	if err != nil {
		w.fail("fold", "%s %v: step: %v", f.s.p.name, f.s.tp, err)
		return
	}
	recs := f.records(out)
	parts := []kafka.TP{stateTP(f.s.tp), stepsTP(f.s.tp), controlTP}
	next := f.next
	f.prod.add(parts, func(err error) {
		if err != nil {
			f.failed(err)
			return
		}
		f.send(parts, recs, func() { f.commit(out, n, next) })
	})
}

// confirm tells the seat when a transaction has been committed that begins from now on.
func (f *foldRun) confirm(done func()) {
	f.asked = done
	f.pump()
}

// claim commits a transaction that folds nothing and has the seat's claims.
func (f *foldRun) claim() {
	asked := f.asked
	if f.s.closed || asked == nil {
		return
	}
	out := &conflict.Output{Position: f.part.Position()}
	parts := []kafka.TP{stateTP(f.s.tp), stepsTP(f.s.tp), controlTP}
	recs := f.records(out)
	next := f.next
	f.prod.add(parts, func(err error) {
		if err != nil {
			f.failed(err)
			return
		}
		f.send(parts, recs, func() {
			f.prod.end(true, func(err error) {
				if err != nil {
					f.failed(err)
					return
				}
				f.asked, f.busy, f.last = nil, false, next
				if !f.s.closed {
					asked()
				}
				f.pump()
			})
		})
	})
}

func (f *foldRun) records(out *conflict.Output) map[kafka.TP][]kafka.Record {
	w, tp := f.s.p.w, f.s.tp
	state := []kafka.Record{}
	put := func(kind byte, key []byte, o any) {
		state = append(state, kafka.Record{Key: append([]byte{kind}, key...), Value: w.keep(o)})
	}
	for _, c := range out.Entities {
		if c.Entity.IsZero() {
			state = append(state, kafka.Record{Key: append([]byte{'e'}, c.Key...)})
			continue
		}
		put('e', c.Key, c.Entity)
	}
	for _, t := range out.Twins {
		if len(t.Copies) == 0 {
			state = append(state, kafka.Record{Key: append([]byte{'t'}, t.Key[:]...)})
			continue
		}
		put('t', t.Key[:], t)
	}
	for _, b := range out.Bases {
		if b.Base.IsZero() {
			state = append(state, kafka.Record{Key: append([]byte{'b'}, b.Key...)})
			continue
		}
		w.counts["bases put out"]++
		put('b', b.Key, b.Base)
	}
	for _, o := range out.Orphans {
		put('o', fmt.Appendf(nil, "%v", o.At), o)
	}
	put('v', nil, out.Position)
	claims := f.s.core.Claims()
	prog := control.Progress{
		ID: f.s.p.region.kafka.TopicID(tp.Topic), Partition: tp.Partition, Topic: tp.Topic,
		End: claims.End, Closed: claims.Closed, Promised: claims.Promised,
	}
	frontier, told := f.frontier(out, claims)
	f.next = settled{frontier.At, told.Floor}
	put('f', nil, f.next)
	return map[kafka.TP][]kafka.Record{
		stateTP(tp): state,
		stepsTP(tp): {{Key: []byte{}, Value: w.keep(&step{told: told, frontier: frontier, by: f.s.p.name, at: w.Now(), position: out.Position, out: out, claims: claims, term: f.s.core.Term(), claim: out.Position.Vector == f.part.Position().Vector && out.Position.Validity == f.part.Position().Validity})}},
		controlTP:   {{Key: prog.AppendKey(nil), Value: prog.AppendValue(nil)}},
	}
}

func (f *foldRun) send(parts []kafka.TP, recs map[kafka.TP][]kafka.Record, done func()) {
	left, failed := len(parts), error(nil)
	for _, tp := range parts {
		f.prod.produce(tp, recs[tp], func(_ int64, err error) {
			failed = errors.Join(failed, err)
			if left--; left > 0 {
				return
			}
			if failed != nil {
				f.failed(failed)
				return
			}
			done()
		})
	}
}

func (f *foldRun) commit(out *conflict.Output, n int, next settled) {
	f.prod.end(true, func(err error) {
		if err != nil {
			f.failed(err)
			return
		}
		if f.s.p.w.Tracing() {
			f.s.p.logf("fold %v: %s", f.s.tp, stepText(f.queue[:n], out))
		}
		f.committed(out, next)
		f.queue = f.queue[n:]
		done := func() {
			f.busy = false
			f.pump()
		}
		if f.tidyDue() {
			f.tidy(done)
			return
		}
		done()
	})
}

// failed has one answer for whatever went wrong in a transaction: Init again, which
// aborts or finds it ended, unless another seat has come, and read what stands. A fence is
// final.
func (f *foldRun) failed(err error) {
	if errors.Is(err, kafka.ErrFenced) {
		f.s.fenced("fold: " + err.Error())
		return
	}
	f.s.p.logf("fold %v: %v: open again", f.s.tp, err)
	f.open(func() { f.busy = false })
}

// stepText is what the trace says of a committed step.
func stepText(items []judged.Item, out *conflict.Output) string {
	text := ""
	for i := range items {
		switch it := &items[i]; it.Verdict {
		case judged.Cuts:
			text += fmt.Sprintf("cuts %d; ", it.Validity.Revision)
		case judged.Skip:
			text += fmt.Sprintf("skip to %d/%d; ", it.Origin, it.Next.Next)
		default:
			text += fmt.Sprintf("verdict %d %v epoch %d key %.4x of %q (revokes %v); ", it.Verdict, it.Event.At, it.Event.Epoch, it.Event.Envelope.Key, it.Event.Key, it.Validity != nil)
		}
	}
	for _, m := range out.Merged {
		text += fmt.Sprintf("merged %v corrects %v; ", m.Event.At, m.Corrects)
	}
	for _, c := range out.Entities {
		text += fmt.Sprintf("%q has %d live; ", c.Key, len(c.Entity.Live))
	}
	for _, o := range out.Orphans {
		text += fmt.Sprintf("orphan %v instead %v; ", o.At, o.Instead)
	}
	return text
}
