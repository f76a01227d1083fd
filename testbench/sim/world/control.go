package world

import (
	"fmt"
	"slices"
	"time"

	"github.com/geogate/geogate/internal/control"
	"github.com/geogate/geogate/testbench/sim/kafka"
)

var controlTP = kafka.TP{Topic: control.TopicControl}

// follower feeds the pure cores of package control as its real Follower does:
// control uncommitted, positions and runs committed, each from its start.
type follower struct {
	p        *proc
	barriers control.BarrierIndex
	c        *conn
	links    map[*region]*control.LinkIndex // by the region they come from
	waiting  []func()                       // look again when something became known
	listing  map[*region]bool

	restricted map[string]uint16 // by topic, bit r: of origin r records may be missing
}

func newFollower(p *proc) *follower {
	f := &follower{p: p, c: p.dial(p.region), links: map[*region]*control.LinkIndex{}, listing: map[*region]bool{}, restricted: map[string]uint16{}}
	p.read(reader{c: f.c, tp: controlTP, committed: control.BarriersCommitted, take: func(got kafka.Fetched, more func()) {
		for i := range got.Records {
			if r := &got.Records[i]; r.Kind == kafka.Data {
				f.apply(r)
			}
		}
		f.barriers.ReadTo(got.Next)
		f.wake()
		p.after(p.w.Between(0, 3*time.Millisecond), more)
	}})
	for _, from := range p.w.regions {
		if from != p.region {
			f.follow(from)
			if p.w.border != nil {
				f.restrictions(from)
			}
		}
	}
	return f
}

func (f *follower) apply(r *kafka.Record) {
	if typ, ok := control.TypeOf(r.Key); !ok || typ != control.TypeBarrier || r.Value == nil {
		return
	}
	x, err := control.ParseBarrier(r.Key, r.Value)
	if err != nil {
		panic(fmt.Sprintf("world: a barrier record that we wrote does not parse: %v", err))
	}
	f.barriers.Add(x)
}

// follow reads the positions and runs of one link, in the slots that are used.
func (f *follower) follow(from *region) {
	l := control.NewLinkIndex()
	f.links[from] = l
	for _, slot := range f.p.w.slots(from) {
		f.p.read(reader{
			c: f.p.dial(f.p.region), tp: kafka.TP{Topic: control.PositionsFrom(from.name), Partition: slot}, committed: true,
			take: func(got kafka.Fetched, more func()) {
				for i := range got.Records {
					if r := &got.Records[i]; r.Kind == kafka.Data {
						if _, err := l.ApplyPosition(slot, r.Key, r.Value); err != nil {
							panic(fmt.Sprintf("world: take position: %v", err))
						}
					}
				}
				f.list(from)
				f.wake()
				f.p.after(f.p.w.Between(0, 10*time.Millisecond), more)
			},
		})
		f.p.read(reader{
			c: f.p.dial(f.p.region), tp: kafka.TP{Topic: control.RunsFrom(from.name), Partition: slot}, committed: true,
			take: func(got kafka.Fetched, more func()) {
				for i := range got.Records {
					if r := &got.Records[i]; r.Kind == kafka.Data {
						if err := l.ApplyRuns(r.Key, r.Value); err != nil {
							panic(fmt.Sprintf("world: take runs: %v", err))
						}
					}
				}
				l.RunsReadTo(slot, got.Next)
				f.list(from)
				f.wake()
				f.p.after(f.p.w.Between(0, 10*time.Millisecond), more)
			},
		})
	}
}

// list asks for the ends of the slots that have positions which wait for it.
func (f *follower) list(from *region) {
	l := f.links[from]
	slots := l.SlotsToList()
	slices.Sort(slots)
	if len(slots) == 0 || f.listing[from] {
		return
	}
	f.listing[from] = true
	done, left, upTo := l.BeginListing(), len(slots), map[int32]int64{}
	for _, slot := range slots {
		f.p.list(f.c, kafka.TP{Topic: control.RunsFrom(from.name), Partition: slot}, false, func(end int64) {
			upTo[slot] = end
			if left--; left == 0 {
				f.listing[from] = false
				done(upTo)
				f.wake()
				f.list(from)
			}
		})
	}
}

func (f *follower) wake() {
	ws := f.waiting
	f.waiting = nil
	for _, w := range ws {
		w()
	}
}

// barrier asks whether a commit marker is a barrier.
func (f *follower) barrier(m control.Marker, done func(bool)) {
	if is, ok := f.barriers.Known(m); ok {
		done(is)
		return
	}
	f.p.list(f.c, controlTP, control.BarriersCommitted, func(end int64) {
		var look func()
		look = func() {
			if is, ok := f.barriers.Resolve(m, end); ok {
				done(is)
				return
			}
			f.waiting = append(f.waiting, look)
		}
		look()
	})
}
