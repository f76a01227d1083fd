package world

import (
	"fmt"
	"slices"
	"time"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/testbench/sim/kafka"
)

// stream is a client that writes lines of few record keys to one partition of a region, in
// order, and sends them again until all are stored: to the same process those that have
// failed, else everything.
type stream struct {
	w     *World
	r     *region
	tp    kafka.TP
	lines []*line
	left  int // further attempts

	p     *proc // that has the order
	life  int
	order *seat.Order
	sent  int // attempts so far
}

// line is one write of a stream, and what became of its last attempt.
type line struct {
	*op
	attempt  int // in which it was given last
	answered bool
	err      error
}

// stream lets a client begin to write.
func (w *World) stream() {
	st := &stream{w: w, r: pick(w.Rand(), w.regions...), tp: pick(w.Rand(), w.seats...), left: 8}
	for range 3 + w.Rand().IntN(8) {
		o := &op{n: w.cfg.writes + len(w.ops), tp: st.tp}
		q := event.Request{Topic: st.tp.Topic, Op: event.Put, Value: fmt.Appendf(nil, "v%d", o.n), Partition: -1}
		q.Key = fmt.Appendf(nil, "p%d-e%d", st.tp.Partition, w.Rand().IntN(min(2, w.cfg.entities)))
		o.req.Request = q
		o.req.Idempotency = event.HashKey([]byte(event.DefaultIdempotencySecret), "", q.Topic, fmt.Sprintf("k%d", o.n))
		o.req.Fingerprint = q.Fingerprint()
		w.ops = append(w.ops, o)
		st.lines = append(st.lines, &line{op: o})
	}
	st.attempt()
}

// attempt gives the seat what is not stored yet.
func (st *stream) attempt() {
	w, p := st.w, st.r.procs[st.r.assigned[st.tp]]
	if st.left == 0 || !slices.ContainsFunc(st.lines, func(l *line) bool { return !l.answered || l.err != nil }) {
		return
	}
	st.left--
	st.sent++
	w.open++
	w.After(w.Between(2*time.Second, 5*time.Second), func() {
		w.open--
		st.attempt()
	})
	again := st.lines
	if st.p == p && st.life == p.life && w.Chance(0.7) {
		if again = st.failed(); again == nil {
			return // some are not answered yet
		}
		for _, l := range again {
			st.order.Retry(l.req.Key)
		}
	} else {
		st.p, st.life, st.order = p, p.life, seat.NewOrder()
	}
	for _, l := range again {
		l.attempt, l.answered, l.err = st.sent, false, nil
	}
	p.after(0, func() { st.give(p, again) })
}

// give submits lines to the process, some at a time. A connection keeps the order of what
// it carries: the next ones come after those before them, or never.
func (st *stream) give(p *proc, lines []*line) {
	w := st.w
	n := 1 + w.Rand().IntN(len(lines))
	st.submit(p, lines[:n])
	if lines = lines[n:]; len(lines) > 0 {
		p.after(pick(w.Rand(), time.Microsecond, w.Between(3*time.Millisecond, 60*time.Millisecond)), func() { st.give(p, lines) })
	}
}

// failed is the lines that have failed, once all are answered.
func (st *stream) failed() (out []*line) {
	for _, l := range st.lines {
		if !l.answered {
			return nil
		}
		if l.err != nil {
			out = append(out, l)
		}
	}
	return out
}

// submit gives lines to the seat of the process.
func (st *stream) submit(p *proc, lines []*line) {
	order := st.order
	for _, l := range lines {
		attempt := l.attempt
		p.submit(st.tp, l.req, order, func(a seat.Answer, err error) {
			if err == nil {
				st.stored(p, l, a)
			} else {
				p.logf("line %d: %v", l.n, err)
				st.w.counts["refused"]++
			}
			if l.attempt == attempt {
				l.answered, l.err = true, err
			}
		})
	}
}

// stored takes an answer: every line of the record key before this one is in the log
// before it.
func (st *stream) stored(p *proc, l *line, a seat.Answer) {
	w := st.w
	w.counts["lines"]++
	p.logf("line %d answered: %v stamp %v replayed %v", l.n, a.At, a.Stamp, a.Replayed)
	l.answers = append(l.answers, answered{st.r, p.name, w.Now(), a})
	w.checkReplayNow(l.op, &l.answers[len(l.answers)-1], a.Epoch)
	log := readLog(st.r, st.tp)
	for _, b := range st.lines {
		if b == l {
			return
		}
		before := func(e told) bool {
			return !e.void && !e.broken && e.At.Offset < a.At.Offset && e.Envelope.Key == b.req.Idempotency
		}
		if string(b.req.Key) == string(l.req.Key) && !slices.ContainsFunc(log, before) {
			w.fail("order", "line %d of key %s is stored at %v, line %d before it is not", l.n, l.req.Key, a.At, b.n)
		}
	}
}
