package seat

import (
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/judged"
)

// Readback is the pure core of how a seat reads its own log back, uncommitted:
// answers and the index of keys do not wait for other applications' transactions.
// It has no clock, goroutine or socket, and is not safe for concurrent use.
//
// Invariants: the index of keys has a place before the Core gets it, and before it is
// handed over to the Inputs. Nothing that was judged at or above clean lies in a
// transaction.
type Readback struct {
	own   event.RegionID
	clock Clock
	local localLog
	end   int64 // listed after the start, -1 not yet
	ready bool
	clean int64

	out []InputEffect
}

// ReadbackStart is where a seat begins to read its own log back: at the lower of
// index and fold. What lies above the fold tells the clock which stamps were used,
// and the index takes it twice without harm. last is the log's last barrier below;
// lastBarrier is that of the index.
func ReadbackStart(incarnation uint16, applied, committed event.Point, barrier int64, lastBarrier func(int64) int64) (from, last int64) {
	from, last = offsetIn(applied, incarnation), NoBarrier
	if c := offsetIn(committed, incarnation); c < from {
		from, last = c, barrier
	}
	return from, max(last, lastBarrier(from))
}

// NewReadback makes the reader of a seat's own log from an offset on; last is the
// last barrier below it.
func NewReadback(cfg InputsConfig, clock Clock, from, last int64) *Readback {
	b := &Readback{own: cfg.Region, clock: clock, end: -1, clean: from, local: localLog{
		partition: cfg.Partition, log: NewLog(cfg.Region, cfg.Incarnation, last), at: event.Point{Incarnation: cfg.Incarnation, Next: from},
	}}
	b.local.log.Rule = cfg.Rule
	return b
}

// Wants tells whether the next entries may be given.
func (b *Readback) Wants() bool { return len(b.local.rest) == 0 }

// Step takes one event and returns what is to be done, in order. The slice is valid
// until the next Step. Events that an effect leads to are given after all of them
// have been carried out.
func (b *Readback) Step(ev InputEvent) []InputEffect {
	b.out = b.out[:0]
	switch ev := ev.(type) {
	case Fetched:
		b.local.add(ev.Entries)
	case BarrierKnown:
		b.local.told(ev)
	case EndListed:
		b.end = ev.End
	}
	b.take()
	if !b.ready && b.end >= 0 && b.local.at.Next >= b.end {
		b.ready = true
		b.out = append(b.out, BeReady{})
	}
	if q, ok := b.local.ask(); ok {
		b.out = append(b.out, q)
	}
	return b.out
}

// take judges what is there.
func (b *Readback) take() {
	if len(b.local.rest) == 0 {
		return
	}
	var x IndexKeys
	var places []Read
	j := new(localItem)
	begins := b.local.at.Next
	firstClean := 0 // of places: none from it on lies in a transaction
	for range takeMax {
		before := b.local.at.Next
		if !b.local.next(j) {
			break
		}
		if places == nil {
			places = make([]Read, 0, min(takeMax, 1+len(b.local.rest)))
		}
		if j.barrier != nil {
			x.Barriers = append(x.Barriers, event.Dot{
				Region: b.own, Incarnation: j.Next.Incarnation, Partition: b.local.partition, Offset: j.barrier.Offset,
			})
		}
		// A gateway's records are never transactional; one inside a transaction may
		// yet be aborted, and who reads uncommitted cannot tell.
		if c, ok := keyed(&j.Item); ok && !j.transactional {
			if x.Copies == nil {
				x.Copies = make([]event.Copy, 0, cap(places)-len(places))
			}
			x.Copies = append(x.Copies, c)
		}
		if j.Verdict == judged.Valid && j.Event.Stamped {
			// The clock keeps above the log's own stamps, whatever the wall says. The
			// stamp of a record without a gateway is what its producer took for the time.
			b.clock.Restore(j.Event.Stamp)
		}
		x.Applied[b.own] = j.Next
		places = append(places, Read{Item: j.Item, Barrier: j.barrier})
		switch {
		case j.transactional:
			b.clean = j.Next.Next
		case j.Next.Next <= before: // the log has lost its tail
			b.clean = max(b.clean, before)
		}
		if j.Next.Next <= b.clean {
			firstClean = len(places)
		}
	}
	if len(places) > 0 {
		x.Stretch = Stretch{From: b.clean, Begins: begins, Places: places[firstClean:len(places):len(places)]}
		b.out = append(b.out, x, HandOver{x.Stretch}, ReadPlaces{places})
	}
}
