package world

import (
	"errors"
	"time"

	"github.com/geogate/geogate/testbench/sim/kafka"
)

// errUnclear says that no answer came: the request may have had its effect, may
// have it later, or never.
var errUnclear = errors.New("world: outcome is unclear")

// producer is a client's side of one transactional id.
type producer struct {
	p     *proc
	c     *conn
	id    string
	num   int64
	epoch int16
	seq   map[kafka.TP]int32

	regains bool // once it has held the id, it takes it from nobody
	held    bool
}

func (p *proc) producer(to *region, id string) *producer {
	return &producer{p: p, c: p.dial(to), id: id, seq: map[kafka.TP]int32{}}
}

// retryConcurrent runs a request again while the transaction before is ending.
func (t *producer) retryConcurrent(do func(*kafka.Cluster) error, done func(error)) {
	tries := 0
	var attempt func()
	attempt = func() {
		t.c.call(func(k *kafka.Cluster) func() {
			err := do(k)
			return func() {
				if tries++; errors.Is(err, kafka.ErrConcurrent) && tries < 2000 {
					t.p.after(t.p.w.Between(time.Millisecond, 20*time.Millisecond), attempt)
					return
				}
				done(err)
			}
		}, func() { done(errUnclear) })
	}
	attempt()
}

// init takes the id over, or comes back to it. An unclear answer is simply asked again.
func (t *producer) init(done func(error)) {
	var num int64
	var epoch int16
	t.retryConcurrent(func(k *kafka.Cluster) (err error) {
		if t.regains && t.held {
			num, epoch, err = k.Regain(t.id, t)
		} else {
			num, epoch, err = k.Take(t.id, t)
		}
		return err
	}, func(err error) {
		if errors.Is(err, errUnclear) {
			t.init(done)
			return
		}
		t.held = t.held || err == nil
		t.num, t.epoch, t.seq = num, epoch, map[kafka.TP]int32{}
		done(err)
	})
}

func (t *producer) add(parts []kafka.TP, done func(error)) {
	num, epoch := t.num, t.epoch
	t.retryConcurrent(func(k *kafka.Cluster) error { return k.AddPartitions(t.id, num, epoch, parts...) }, done)
}

// produce sends one batch of the transaction.
func (t *producer) produce(tp kafka.TP, rs []kafka.Record, done func(base int64, err error)) {
	num, epoch, seq := t.num, t.epoch, t.seq[tp]
	t.seq[tp] += int32(len(rs))
	var base int64
	t.c.call(func(k *kafka.Cluster) func() {
		var err error
		base, err = k.Produce(t.id, num, epoch, seq, tp, rs)
		return func() { done(base, err) }
	}, func() { done(0, errUnclear) })
}

func (t *producer) end(commit bool, done func(error)) {
	num, epoch := t.num, t.epoch
	var next int16
	t.retryConcurrent(func(k *kafka.Cluster) (err error) {
		next, err = k.EndTxn(t.id, num, epoch, commit)
		return err
	}, func(err error) {
		if err == nil {
			if next != t.epoch {
				t.seq = map[kafka.TP]int32{}
			}
			t.epoch = next
		}
		done(err)
	})
}

// reader follows one partition, uncommitted or committed, by long polls.
type reader struct {
	p         *proc
	c         *conn
	tp        kafka.TP
	next      int64
	committed bool
	limit     int
	// take gets each answer with something in it and says when to go on: it
	// calls more, now or later.
	take func(f kafka.Fetched, more func())
	// truncated is told where reading goes on after the log lost its tail.
	truncated func(next int64)
	stopped   bool
	turn      int   // counts fetches
	off       *bool // stops the reader when it becomes true
	epoch     int32 // leader epoch of the newest record, to notice a truncation; -1: not known
}

func (p *proc) read(r reader) *reader {
	r.p, r.c = p, p.dial(r.c.to)
	if r.limit == 0 {
		r.limit = 1 + p.w.Rand().IntN(12)
	}
	rr := &r
	rr.fetch()
	return rr
}

func (r *reader) fetch() {
	if r.stopped || r.off != nil && *r.off {
		return
	}
	// One fetch at a time: what an earlier one still brings is not looked at.
	if until := r.p.w.slowUntil(r.c.to, r.tp); until > r.p.w.Now() {
		r.p.after(until-r.p.w.Now(), r.fetch)
		return
	}
	r.turn++
	turn := r.turn
	fetch := func() {
		if r.turn == turn {
			r.fetch()
		}
	}
	again := func() { r.p.after(r.p.w.Between(20*time.Millisecond, 200*time.Millisecond), fetch) }
	r.c.call(func(k *kafka.Cluster) func() {
		f, err := k.Fetch(r.tp, r.next, r.committed, r.limit)
		if end := k.EndOfEpoch(r.tp, r.epoch); r.epoch >= 0 && end < r.next {
			f.HW, err = end, kafka.ErrRange
		}
		if err == nil && f.Next == r.next {
			k.Watch(r.tp, func() { r.p.after(r.p.w.latency(r.p.region, r.c.to), fetch) })
			return func() {}
		}
		return func() {
			switch {
			case r.turn != turn || r.stopped || r.off != nil && *r.off:
			case err != nil:
				r.restart(min(max(r.next, f.Start), f.HW))
				r.fetch()
			default:
				if n := len(f.Records); n > 0 {
					r.epoch = f.Records[n-1].LeaderEpoch
				}
				r.next = f.Next
				r.take(f, r.fetch)
			}
		}
	}, again)
}

// restart goes on at another place, because the log has lost its tail.
func (r *reader) restart(next int64) {
	r.next = next
	if r.truncated != nil {
		r.truncated(next)
	}
}

// list asks for an end offset until it gets an answer.
func (p *proc) list(c *conn, tp kafka.TP, committed bool, done func(end int64)) {
	c.call(func(k *kafka.Cluster) func() {
		end := k.List(tp, committed)
		return func() { done(end) }
	}, func() {
		p.after(p.w.Between(20*time.Millisecond, 200*time.Millisecond), func() { p.list(c, tp, committed, done) })
	})
}
