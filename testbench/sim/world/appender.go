package world

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/geogate/geogate/internal/seat"
	"github.com/geogate/geogate/testbench/sim/kafka"
)

// appender is an idempotent producer for one partition. What answers bring is looked at in
// the order of sending, and a batch is sent again under the same sequence when no answer
// came. When a batch fails, so does all that is behind it, on its way or not. When nobody
// knows what became of one, the appender goes on as another producer.
type appender struct {
	p     *proc
	tp    kafka.TP
	c     *conn
	num   int64
	named bool
	asked bool // for a number
	seq   int32
	queue []pending
	late  time.Duration // how late a batch comes that is sent soon; 0: as it may be
	ahead int           // records that are sent before that one

	// A seat's appender has several batches on their way, and brokers may refuse them, or
	// answer that they failed, and have nothing of them.
	seat       bool
	deliveries *seat.Deliveries
	flying     []*flight
}

// flight is a batch on its way.
type flight struct {
	batch   []pending
	seq     int32
	tries   int // further ones
	sent    int
	over    bool   // its records have their outcome
	settled func() // takes the answer; nil: there is none yet
}

// What brokers say of a batch that they have not appended. Of an unknown error a client
// does not know what it means.
var (
	errBroker  = errors.New("world: unknown error of the broker")
	errRefused = errors.New("world: the broker refuses the batch")
)

type pending struct {
	rec      seat.Record
	done     func(error)
	delivery *seat.Delivery
}

func (a *appender) add(r seat.Record, done func(error)) {
	a.queue = append(a.queue, pending{rec: r, done: done})
	a.pump()
}

// room is how many more batches may be sent now.
func (a *appender) room() int {
	if !a.seat {
		return 1 - len(a.flying)
	}
	return 3 - len(a.flying)
}

func (a *appender) pump() {
	if len(a.queue) == 0 || a.room() <= 0 || a.asked {
		return
	}
	if !a.named {
		if len(a.flying) > 0 {
			return // of the producer before
		}
		a.asked = true
		var num int64
		a.c.call(func(k *kafka.Cluster) func() {
			num, _, _ = k.InitProducer("")
			return func() {
				a.num, a.named, a.seq, a.asked = num, true, 0, false
				a.pump()
			}
		}, func() { a.asked = false; a.pump() })
		return
	}
	for len(a.queue) > 0 && a.room() > 0 {
		n := len(a.queue)
		if a.seat && n > 1 && a.p.w.Chance(0.4) { // a client fills batches as it gets records
			n = 1 + a.p.w.Rand().IntN(n-1)
		}
		if a.ahead > 0 {
			n = min(n, a.ahead)
		}
		f := &flight{batch: slices.Clone(a.queue[:n]), seq: a.seq, tries: a.p.w.Rand().IntN(3)}
		a.queue = a.queue[n:]
		a.seq += int32(n)
		a.flying = append(a.flying, f)
		a.send(f)
	}
}

func (a *appender) send(f *flight) {
	recs := make([]kafka.Record, len(f.batch))
	for i, b := range f.batch {
		recs[i] = kafka.Record{Key: b.rec.Key, Value: b.rec.Value, Headers: b.rec.Headers, Timestamp: b.rec.Timestamp}
	}
	num, w := a.num, a.p.w
	if a.late > 0 && a.ahead == 0 {
		a.c.late, a.late, f.tries = a.late, 0, 0
	}
	a.ahead = max(a.ahead-len(f.batch), 0)
	if a.seat {
		a.deliveries.Requested()
	}
	f.sent++
	again := f.sent > 1
	a.c.call(func(k *kafka.Cluster) func() {
		var err error
		switch {
		case a.seat && w.Chance(0.02):
			err = errBroker
		case a.seat && w.Chance(0.02):
			err = errRefused
		default:
			var base int64
			end := k.List(a.tp, false)
			if base, err = k.Produce("", num, 0, f.seq, a.tp, recs); a.seat && err == nil && again && base < end {
				w.counts["batches stored once and sent twice"]++
			}
		}
		return func() { a.answered(f, func() { a.finish(f, err) }) }
	}, func() {
		switch {
		case f.over:
		case f.tries > 0:
			f.tries--
			a.send(f)
		default:
			a.answered(f, func() { a.finish(f, errUnclear) })
		}
	})
}

// answered takes an answer when all before it have theirs.
func (a *appender) answered(f *flight, settled func()) {
	f.settled = settled
	for len(a.flying) > 0 && a.flying[0].settled != nil {
		f := a.flying[0]
		a.flying = a.flying[1:]
		if f.over {
			a.p.w.counts["batches answered when they had failed with another"]++
			continue
		}
		f.settled()
	}
	a.pump()
}

// finish tells the records of a batch what became of them.
func (a *appender) finish(f *flight, err error) {
	failed := f.batch
	f.over = true
	if err != nil {
		for _, g := range a.flying {
			if !g.over {
				g.over, failed = true, append(failed, g.batch...)
			}
		}
		failed, a.queue = append(failed, a.queue...), nil
		if errors.Is(err, errRefused) {
			a.seq = f.seq
		} else {
			a.named = false // it must not be overtaken, should it still land
		}
	}
	tell := func() {
		for _, b := range failed {
			b.done(a.outcome(b.delivery, err))
		}
	}
	if err != nil && !errors.Is(err, errUnclear) {
		// Who has given them learns of it when more may be under way. A client goes past
		// no batch that has no answer: that one may land at any time.
		a.p.after(a.p.w.Between(0, 20*time.Millisecond), tell)
	} else {
		tell()
	}
}

// outcome is what the product's producer says of a record.
func (a *appender) outcome(x *seat.Delivery, err error) error {
	if !a.seat || err == nil {
		return err
	}
	if certain := a.deliveries.Fail(x); certain && errors.Is(err, errRefused) {
		a.p.w.counts["records refused for certain"]++
		return fmt.Errorf("%w: %w", seat.ErrRefused, err)
	}
	return err
}
