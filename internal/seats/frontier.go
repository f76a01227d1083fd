package seats

import (
	"iter"
	"math"
	"slices"
	"time"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/conflict/view"
	"github.com/geogate/geogate/gateway"
	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/txn"
)

// sight fills in what the frontier of a partition needs of other regions.
func (s *Seats) sight(at txn.TopicPartition, x *conflict.Sight) {
	x.Regions = s.regionIDs()
	if !s.tables.Shared() {
		x.Ownership = math.MaxUint64 // no region can fence another
	}
	x.Told = func(r event.RegionID) iter.Seq[conflict.Told] { return s.toldBack(at, r) }
}

// toldBack is what a region has told of a partition, the newest first.
func (s *Seats) toldBack(at txn.TopicPartition, r event.RegionID) iter.Seq[conflict.Told] {
	return func(yield func(conflict.Told) bool) {
		for p := range s.cfg.Control.Told(r, at.Topic, at.Partition) {
			if !yield(conflict.Told{End: p.End, Promised: p.Promised, Ownership: p.Ownership, Incarnations: p.Incarnation, Floor: p.Floor}) {
				return
			}
		}
	}
}

// told is what a region has told of a partition, the oldest first.
func (s *Seats) told(at txn.TopicPartition, r event.RegionID) []conflict.Told {
	all := slices.Collect(s.toldBack(at, r))
	slices.Reverse(all)
	return all
}

// heldFrontier is what of a topic lies above the frontier, and what holds that in the
// partition of which most does.
type heldFrontier struct {
	topic     string
	offsets   int64 // of all partitions
	needed    int64 // likewise, that a lost store has to read
	partition int32
	most      int64
	origin    event.RegionID
	hold      conflict.Hold
	since     time.Time
}

// addFrontier takes a partition in; the topic's partitions come together.
func addFrontier(list []heldFrontier, at txn.TopicPartition, folded *view.Status) []heldFrontier {
	st := &folded.Frontier
	if !st.Known {
		return list
	}
	if n := len(list); n == 0 || list[n-1].topic != at.Topic {
		list = append(list, heldFrontier{topic: at.Topic})
	}
	x := &list[len(list)-1]
	above := st.Above(&st.Vector)
	x.offsets += above
	x.needed += (&conflict.Frontier{At: folded.Needed}).Above(&st.Vector)
	if origin, hold, held := st.Hindmost(&st.Vector); held && above > x.most {
		x.partition, x.most, x.origin, x.hold, x.since = at.Partition, above, origin, hold, st.Since[origin]
	}
	return list
}

// frontiers are those of all topics, in order.
func (s *Seats) frontiers() (out []heldFrontier) {
	for _, h := range s.list() {
		st := h.view.Status()
		out = addFrontier(out, h.TopicPartition, &st)
	}
	return out
}

// Frontiers says of which topics something is kept because it is not settled, and why.
func (s *Seats) Frontiers() (out []gateway.FrontierStatus) {
	for _, x := range s.frontiers() {
		if x.offsets == 0 {
			continue
		}
		st := gateway.FrontierStatus{
			Topic: x.topic, Offsets: x.offsets, Needed: x.needed, Partition: x.partition,
			Origin: s.cfg.Topology.Name(x.origin), HeldBy: x.hold.Why.String(), Since: gateway.Time(x.since),
		}
		if name := s.cfg.Topology.Name(x.hold.By); x.hold.By != 0 {
			st.Region = &name
		}
		out = append(out, st)
	}
	return out
}
