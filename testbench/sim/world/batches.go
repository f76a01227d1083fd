package world

import (
	"errors"
	"fmt"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/seat"
)

// together is what a seat has sent in one step, and what the broker has said of it.
type together struct {
	of     *seatRun
	ids    []event.ID
	denied []event.ID // of records that the broker has refused for certain
	stored int        // records
	failed int        // records of which nobody knows
	late   int        // records that were answered before
}

// produce gives the appender what the core sends in a step.
func (s *seatRun) produce(sent []seat.Sent) {
	w := s.p.w
	g := &together{of: s, ids: make([]event.ID, len(sent))}
	d := s.out.deliveries.Give(s.tp.Topic, s.tp.Partition)
	for i, x := range sent {
		ev, err := event.FromRecord(event.Dot{Region: s.p.region.id, Partition: s.tp.Partition}, x.Record.Timestamp, x.Record.Key, x.Record.Value, x.Record.Headers)
		if err != nil {
			panic(fmt.Sprintf("world: a seat sends what it cannot read: %v", err))
		}
		g.ids[i] = ev.ID
		s.out.queue = append(s.out.queue, pending{x.Record, func(err error) {
			switch {
			case err == nil:
				g.stored++
			case errors.Is(err, seat.ErrRefused):
				g.denied = append(g.denied, g.ids[i])
			default:
				g.failed++
			}
			if to := s.clients[x.Ref]; to != nil && to.answered {
				g.late++
			}
			delete(s.clients, x.Ref)
			s.step(seat.Produced{Refs: []uint64{x.Ref}, Err: err})
		}, &d})
	}
	w.batches = append(w.batches, g)
	s.out.pump()
}

// checkBatches (G1): what was refused for certain lies in no log. It counts what became of
// what was sent together, so that one sees which histories there are.
func (w *World) checkBatches() {
	type place struct {
		offset int64
		void   bool
	}
	for _, tp := range w.seats {
		for _, r := range w.regions {
			at := map[event.ID]place{}
			for _, e := range readLog(r, tp) {
				at[e.ID] = place{e.At.Offset, e.void}
			}
			var barriers []int64
			log, _ := r.kafka.Log(tp)
			for i := range log {
				if isBarrier(&log[i]) {
					barriers = append(barriers, log[i].Offset)
				}
			}
			for _, g := range w.batches {
				if g.of.p.region != r || g.of.tp != tp {
					continue
				}
				for _, id := range g.denied {
					if x, ok := at[id]; ok {
						w.fail("G1", "%s says that a record was refused, and it lies at %d of %v", g.of.p.name, x.offset, tp)
					}
				}
				if len(g.ids) == 1 {
					continue
				}
				first, last, void, valid := int64(-1), int64(-1), 0, 0
				for _, id := range g.ids {
					x, ok := at[id]
					switch {
					case !ok:
						continue
					case x.void:
						void++
					default:
						valid++
					}
					if first < 0 {
						first = x.offset
					}
					last = x.offset
				}
				w.counts["batches"]++
				w.countIf("batches partly void", void > 0 && valid > 0)
				w.countIf("batches partly stored", void+valid > 0 && void+valid < len(g.ids))
				w.countIf("batches partly unknown", g.stored > 0 && g.failed > 0)
				w.countIf("batches answered before the broker has", g.late > 0)
				for _, b := range barriers {
					if b > first && b < last {
						w.counts["batches cut by a barrier"]++
						break
					}
				}
			}
		}
	}
}

func (w *World) countIf(what string, is bool) {
	if is {
		w.counts[what]++
	}
}
