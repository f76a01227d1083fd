package world

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/replicate"
	"github.com/geogate/geogate/testbench/sim/kafka"
)

// op is one write of a client, with its retries.
type op struct {
	n       int
	tp      kafka.TP
	req     seat.Request
	left    int // further attempts
	answers []answered
}

// answered is an answer that a seat gave, whether or not the client saw it.
type answered struct {
	region *region
	by     string
	at     time.Duration
	seat.Answer
}

// schedule draws what happens while there are faults.
func (w *World) schedule() {
	for n := range w.cfg.writes {
		w.After(w.Between(100*time.Millisecond, w.cfg.length*4/5), func() { w.write(n) })
	}
	w.some(3, w.stream)
	w.some(3, w.cut)
	if w.cfg.regime != linkFights {
		w.some(4, w.kill)
		w.some(5, w.moveLink)
	}
	w.some(4, w.takeOver)
	if w.cfg.contested {
		w.some(20, w.takeOver)
	}
	if w.cfg.elections {
		w.some(8, w.elect)
	}
	w.some(25, w.compact)
	if w.cfg.truncate {
		w.some(2, w.truncate)
	}
	if w.cfg.foreign {
		w.some(4, w.foreign)
	}
	w.scheduleOwnership()
	if w.border != nil {
		w.some(4, w.reload)
	}
	w.scheduleRegime()
}

func (w *World) some(most int, do func()) {
	for range w.Rand().IntN(most + 1) {
		w.After(w.Between(200*time.Millisecond, w.cfg.length), do)
	}
}

func (w *World) write(n int) {
	o := &op{n: n, tp: pick(w.Rand(), w.seats...), left: w.Rand().IntN(4)}
	q := w.request(o.tp, n)
	o.req.Request = q
	if w.Chance(0.75) {
		o.req.Idempotency = event.HashKey([]byte(event.DefaultIdempotencySecret), "", q.Topic, fmt.Sprintf("k%d", n))
		o.req.Fingerprint = q.Fingerprint()
	} else {
		o.left = 0
	}
	w.ops = append(w.ops, o)
	w.attempt(o, pick(w.Rand(), w.regions...))
}

// request is a put, or now and then a delete, of some entity.
func (w *World) request(tp kafka.TP, n int) event.Request {
	q := event.Request{Topic: tp.Topic, Op: event.Put, Value: fmt.Appendf(nil, "v%d", n), Partition: -1}
	q.Key = fmt.Appendf(nil, "p%d-e%d", tp.Partition, w.Rand().IntN(w.cfg.entities))
	if tp.Topic == entityTopic && w.Chance(0.15) {
		q.Op, q.Value = event.Delete, nil
	}
	return q
}

// twin writes an entity under one key in one region and, before that can have come
// there, in another.
func (w *World) twin(a, b *region) {
	o := &op{n: w.cfg.writes + len(w.ops), tp: kafka.TP{Topic: entityTopic}}
	q := event.Request{Topic: entityTopic, Key: fmt.Appendf(nil, "p0-e%d", w.Rand().IntN(w.cfg.entities)), Op: event.Put, Value: fmt.Appendf(nil, "v%d", o.n), Partition: -1}
	o.req.Request = q
	o.req.Idempotency = event.HashKey([]byte(event.DefaultIdempotencySecret), "", q.Topic, fmt.Sprintf("k%d", o.n))
	o.req.Fingerprint = q.Fingerprint()
	w.ops = append(w.ops, o)
	w.attempt(o, a)
	w.After(w.Between(100*time.Millisecond, 600*time.Millisecond), func() { w.attempt(o, b) })
}

// attempt sends the request to an instance of a region: mostly the one that
// holds the seat, sometimes one that only held it before.
func (w *World) attempt(o *op, r *region) {
	i := r.assigned[o.tp]
	if !w.calm && w.Chance(0.3) {
		i = w.Rand().IntN(len(r.procs))
	}
	w.attemptAt(o, r, r.procs[i])
}

// attemptAt sends the request to one instance.
func (w *World) attemptAt(o *op, r *region, p *proc) {
	w.open++
	closed := false
	life := p.life
	twice := !o.req.Idempotency.IsZero() && w.Chance(0.1) // on two connections at a time
	finish := func(ok bool) {
		if !closed {
			closed = true
			w.open--
			w.again(o, r, ok)
		}
	}
	w.After(w.Between(100*time.Microsecond, 5*time.Millisecond), func() {
		if !p.alive || p.life != life {
			finish(false)
			return
		}
		p.soon(func() {
			if twice {
				p.write(o, func(a seat.Answer, err error) {
					if err == nil {
						o.answers = append(o.answers, answered{r, p.name, w.Now(), a})
					}
				})
			}
			p.write(o, func(a seat.Answer, err error) {
				if err != nil {
					p.logf("write %d: %v", o.n, err)
					w.counts["refused"]++
					if errors.Is(err, seat.ErrDrift) { // no wall is that far off
						w.fail("clock", "write %d to %v: %v", o.n, o.tp, err)
					}
				} else {
					w.counts["answered"]++
					p.logf("write %d answered: %v stamp %v replayed %v", o.n, a.At, a.Stamp, a.Replayed)
					o.answers = append(o.answers, answered{r, p.name, w.Now(), a})
					w.checkReplayNow(o, &o.answers[len(o.answers)-1], a.Epoch)
				}
				finish(err == nil)
			})
		})
	})
	// The client gives up waiting at some time, so a killed process does not
	// keep the operation open.
	w.After(w.Between(2*time.Second, 6*time.Second), func() { finish(false) })
}

// again retries a keyed write: because it failed, or because the client did not
// see the answer.
func (w *World) again(o *op, r *region, ok bool) {
	if o.left == 0 || o.req.Idempotency.IsZero() || ok && w.Chance(0.3) {
		return
	}
	o.left--
	if w.Chance(0.5) {
		r = pick(w.Rand(), w.regions...)
	}
	w.open++
	w.After(pick(w.Rand(), w.Between(time.Millisecond, 50*time.Millisecond), w.Between(50*time.Millisecond, 6*time.Second)), func() {
		w.open--
		w.attempt(o, r)
	})
}

func (w *World) cut() {
	a := pick(w.Rand(), w.regions...)
	b := pick(w.Rand(), w.regions...)
	if a == b {
		return
	}
	w.Logf("cut %s %s", a.name, b.name)
	w.cuts[cutKey(a, b)]++
	w.After(w.Between(200*time.Millisecond, 6*time.Second), func() {
		w.cuts[cutKey(a, b)]--
		w.Logf("heal %s %s", a.name, b.name)
	})
}

func (w *World) kill() {
	p := pick(w.Rand(), pick(w.Rand(), w.regions...).procs...)
	if !p.alive {
		return
	}
	p.kill()
	w.counts["kills"]++
	w.After(w.Between(50*time.Millisecond, 4*time.Second), func() {
		if !p.alive && w.Chance(0.4) {
			p.store = newStore()
			p.logf("store deleted")
		}
		p.start()
	})
}

// takeOver gives a seat to another instance; the one that had it may learn of it
// late.
func (w *World) takeOver() {
	w.takeSeat(pick(w.Rand(), w.regions...), pick(w.Rand(), w.seats...))
}

func (w *World) takeSeat(r *region, tp kafka.TP) {
	old := r.procs[r.assigned[tp]]
	r.assigned[tp] = (r.assigned[tp] + 1) % len(r.procs)
	w.Logf("seat %v of %s goes to %s", tp, r.name, r.procs[r.assigned[tp]].name)
	w.counts["takeovers"]++
	r.procs[r.assigned[tp]].reassign(tp)
	hears := pick(w.Rand(), 0, w.Between(0, 4*time.Second))
	if w.cfg.contested {
		hears = w.Between(time.Second, 6*time.Second)
	}
	old.after(hears, func() { old.reassign(tp) })
}

// moveLink gives a link to another instance, often with another number of shards;
// the one that had it goes on until it hears of it.
func (w *World) moveLink() {
	r := pick(w.Rand(), w.regions...)
	to := pick(w.Rand(), w.regions...)
	if r == to {
		return
	}
	old := r.procs[r.linked[to]]
	if w.Chance(0.6) {
		w.shards[[2]event.RegionID{r.id, to.id}] = pick(w.Rand(), 1, 2, 3)
	}
	r.linked[to] = (r.linked[to] + 1) % len(r.procs)
	w.Logf("link %s-%s goes to %s", r.name, to.name, r.procs[r.linked[to]].name)
	if w.Chance(0.5) { // it has just started, and is in the middle of taking it over
		old.kill()
		w.After(w.Between(20*time.Millisecond, 200*time.Millisecond), old.start)
	}
	next := r.procs[r.linked[to]]
	w.After(pick(w.Rand(), 0, w.Between(0, time.Second)), func() { next.hearLink(to) })
	w.After(pick(w.Rand(), 0, w.Between(0, 6*time.Second)), func() { old.hearLink(to) })
}

// elect gives a partition of a remote topic another leader, which has all of it:
// soon after the link has appended something there.
func (w *World) elect() {
	r, from := pick(w.Rand(), w.regions...), pick(w.Rand(), w.regions...)
	if r == from {
		return
	}
	tp := remoteTP(from, pick(w.Rand(), w.seats...))
	r.kafka.Watch(tp, func() {
		w.After(w.Between(0, w.cfg.electWithin), func() {
			if !w.calm {
				w.Logf("%s: %v has another leader", r.name, tp)
				r.kafka.Truncate(tp, r.kafka.List(tp, false))
			}
		})
	})
}

func (w *World) compact() {
	r := pick(w.Rand(), w.regions...)
	var of []kafka.TP
	for _, from := range w.regions {
		if from == r {
			of = append(of, controlTP, stateTP(pick(w.Rand(), w.seats...)))
			continue
		}
		for _, slot := range w.slots(from) {
			of = append(of, kafka.TP{Topic: control.PositionsFrom(from.name), Partition: slot}, kafka.TP{Topic: control.RunsFrom(from.name), Partition: slot})
		}
	}
	r.kafka.Compact(pick(w.Rand(), of...), w.Chance(0.3))
}

// truncate lets a remote log lose its tail, as an unclean election does. It cuts
// behind a marker or inside what is open: a log that keeps a transaction's records
// and loses its marker is beyond what a link can repair.
func (w *World) truncate() {
	r, from := pick(w.Rand(), w.regions...), pick(w.Rand(), w.regions...)
	if r == from {
		return
	}
	tp := remoteTP(from, pick(w.Rand(), w.seats...))
	log, _ := r.kafka.Log(tp)
	cuts := []int64{0}
	for i := range log {
		switch {
		case log[i].Kind != kafka.Data:
			cuts = append(cuts, log[i].Offset+1)
		case log[i].Offset >= r.kafka.List(tp, true):
			cuts = append(cuts, log[i].Offset)
		}
	}
	n := len(cuts)
	to := cuts[n-1-w.Rand().IntN(min(n, 4))]
	if len(log) == 0 {
		return
	}
	w.Logf("%s loses %v from %d (end %d)", r.name, tp, to, r.kafka.List(tp, false))
	w.counts["truncations"]++
	r.kafka.Truncate(tp, to)
}

// foreignClocks are what applications write as timestamps besides the milliseconds of
// their wall: microseconds, nanoseconds, seconds, none, and what no clock shows.
var foreignClocks = []func(wall int64) int64{
	func(wall int64) int64 { return wall },
	func(wall int64) int64 { return wall * 1000 },
	func(wall int64) int64 { return wall + time.Hour.Milliseconds() },
	func(wall int64) int64 { return wall * 1_000_000 },
	func(wall int64) int64 { return wall + 3*time.Second.Milliseconds() },
	func(int64) int64 { return math.MaxInt64 },
	func(wall int64) int64 { return wall / 1000 },
	func(int64) int64 { return -1 },
	func(int64) int64 { return math.MinInt64 },
}

// foreign lets another application write into the events topic in a transaction,
// which it leaves open for a while. Its clock counts whatever it likes.
func (w *World) foreign() {
	r := pick(w.Rand(), w.regions...)
	id := fmt.Sprintf("app-%d", w.Rand().IntN(2))
	tp := kafka.TP{Topic: eventsTopic}
	num, epoch, err := r.kafka.InitProducer(id)
	if err != nil {
		return
	}
	wall, stamp := epoch0.Add(w.Now()).UnixMilli(), foreignClocks[w.counts["foreign"]%len(foreignClocks)]
	w.counts["foreign"]++
	if r.kafka.AddPartitions(id, num, epoch, tp) != nil {
		return
	}
	if w.Chance(0.7) {
		_, _ = r.kafka.Produce(id, num, epoch, 0, tp, []kafka.Record{{Key: []byte("app"), Value: []byte("foreign"), Timestamp: stamp(wall)}})
	}
	commit := w.Chance(0.5)
	w.After(w.Between(time.Millisecond, 5*time.Second), func() { _, _ = r.kafka.EndTxn(id, num, epoch, commit) })
}

// heal ends all faults.
func (w *World) heal() {
	w.calm = true
	w.Logf("all faults end")
	w.healOwnership()
	w.After(500*time.Millisecond, w.reload)
	clear(w.cuts)
	clear(w.oneWay)
	for _, r := range w.regions {
		for _, p := range r.procs {
			p.tablesFrom = 0
			p.start()
			for _, tp := range w.seats {
				p.reassign(tp)
			}
			for _, to := range w.regions {
				if to != r {
					p.hearLink(to)
				}
			}
		}
	}
}

// drained tells whether every region has applied every log to its end.
func (w *World) drained() bool {
	if w.quiet || w.open > 0 || w.Now() < w.nextLook {
		return w.quiet
	}
	w.nextLook = w.Now() + 100*time.Millisecond
	w.quiet = w.undrained() == ""
	return w.quiet
}

func (w *World) undrained() string {
	if w.open > 0 {
		return fmt.Sprintf("%d operations are open", w.open)
	}
	if left := w.unsettled(); left != "" {
		return left
	}
	for _, r := range w.regions {
		// The last transaction of a topic that is not carried any more: no fold waits
		// for it, and the check reads its records beside the position that names them.
		if r.kafka.MarkersMissing() {
			return fmt.Sprintf("%s has transactions whose markers are not written", r.name)
		}
		for _, tp := range w.seats {
			steps := w.committed(r, tp)
			var v event.Vector
			if len(steps) > 0 {
				v = steps[len(steps)-1].position.Vector
			}
			if w.parkedAny(r, tp) {
				continue // a fold without its journal waits for what was lost, too
			}
			for _, from := range w.regions {
				if end := w.needs(r, from, tp); v[from.id].Next < end {
					return fmt.Sprintf("%s has applied %v of %s to %d, the log ends at %d", r.name, tp, from.name, v[from.id].Next, end)
				}
			}
		}
	}
	return ""
}

// committed is the fold steps of a region's partition that were committed.
func (w *World) committed(r *region, tp kafka.TP) []*step {
	log, aborted := r.kafka.Log(stepsTP(tp))
	lso := r.kafka.List(stepsTP(tp), true)
	var out []*step
	for i := range log {
		if rec := &log[i]; rec.Kind == kafka.Data && rec.Offset < lso && !aborted(rec) {
			out = append(out, w.object(rec.Value).(*step))
		}
	}
	return out
}

// slots is the slots of a link's positions and runs that are in use.
func (w *World) slots(from *region) []int32 {
	out := []int32{slotOf(kafka.TP{Topic: control.ControlFrom(from.name)})}
	for _, tp := range w.seats {
		if s := slotOf(remoteTP(from, tp)); !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// parkedAny tells whether what any region copies to r of a partition is held back: a
// fold of r that has lost its store then cannot be brought up to where it was.
func (w *World) parkedAny(r *region, tp kafka.TP) bool {
	return slices.ContainsFunc(w.regions, func(from *region) bool { return w.parked(r, from, tp) })
}

// parked tells whether a link has recorded, for good, why it does not copy a
// partition any further.
func (w *World) parked(r, from *region, tp kafka.TP) bool {
	if r == from || w.counts["truncations"] == 0 {
		return false
	}
	got, err := r.kafka.Fetch(kafka.TP{Topic: control.PositionsFrom(from.name), Partition: slotOf(remoteTP(from, tp))}, 0, true, 1<<30)
	if err != nil {
		return false
	}
	for i := range got.Records {
		if rec := &got.Records[i]; rec.Kind == kafka.Data {
			x, ok, err := replicate.ParseIncident(rec.Key, rec.Value)
			if ok && err == nil && x.Topic == tp.Topic && x.Partition == tp.Partition && x.Kind.Parks() {
				return true
			}
		}
	}
	return false
}
