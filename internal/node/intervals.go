package node

import (
	"sync"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/router"
)

// intervals makes, from what is known of the ownership register, the tables that
// say which records of a partition's logs count.
type intervals struct {
	authority *router.Authority
	policy    *router.Policy
	topology  *router.Topology
	// alone is the own region if the register is nobody else's; other regions'
	// epochs are then not in it, and their logs count whole. 0: it is all regions'.
	alone event.RegionID

	mu     sync.Mutex
	tables map[place]*event.Authority
}

func newIntervals(authority *router.Authority, policy *router.Policy, topology *router.Topology) *intervals {
	return &intervals{authority: authority, policy: policy, topology: topology, tables: make(map[place]*event.Authority)}
}

// of is the newest table of a topic's partition, in every region under the name
// that the topic has at home. Its revision never falls; it is 0, and tells nothing,
// until the register has been read. A nil intervals, that is no register, gives
// nil.
func (i *intervals) of(topic string, partition int32) *event.Authority {
	if i == nil {
		return nil
	}
	return i.from(i.authority.Tokens(), topic, partition)
}

func (i *intervals) from(t *router.Tokens, topic string, partition int32) *event.Authority {
	domain, at := i.policy.Domain(topic), place{topic, partition}
	revision := uint64(0)
	for _, r := range i.topology.Regions() {
		revision = max(revision, t.Units[domain.Unit(r.Name)].Revision)
	}
	if i.alone != 0 {
		revision = max(revision, 1) // of a unit that only another region may own it has no record, ever
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	known := i.tables[at]
	switch {
	case known == nil:
		known = &event.Authority{}
	case known.Revision >= revision:
		return known
	}
	// One unit's record may be known by hearsay before an earlier one of another
	// unit was delivered. A table under the revision of the first that lacked the
	// second would never be put right: so the watch has to have come that far.
	if revision == 0 || revision > t.Revision() {
		return known
	}
	table := &event.Authority{Revision: revision}
	for _, r := range i.topology.Regions() {
		if i.alone != 0 && i.alone != r.ID {
			table.Logs[r.ID] = event.Unregistered()
			continue
		}
		u := t.Units[domain.Unit(r.Name)].Record
		table.Logs[r.ID] = tenures(&u, r.Name, topic, partition)
	}
	i.tables[at] = table
	return table
}

// tenures are the epochs of a unit in which a region owned it, as far as one
// partition of its log is concerned.
func tenures(u *router.UnitRecord, region, topic string, partition int32) event.Tenures {
	out := event.Tenures{Known: u.Epoch}
	for i, e := range u.Epochs {
		if e.Owner != region {
			continue
		}
		t := event.Tenure{
			Epoch: e.Epoch, Start: points(e.Start, topic, partition),
			Ended: e.Ended, Cut: points(e.Cut, topic, partition),
		}
		if e.Ended && len(t.Cut) == 0 {
			// The cut leaves the partition out: the next epoch ends this one.
			switch next := i + 1; {
			case next == len(u.Epochs):
				t.Ended = false
			case u.Epochs[next].Owner == region:
				t.Cut = points(u.Epochs[next].Start, topic, partition)
			}
		}
		out.List = append(out.List, t)
	}
	return out
}

func points(extents []router.Extent, topic string, partition int32) (out []event.Point) {
	for _, e := range extents {
		if e.Topic == topic && int(partition) < len(e.Offsets) && e.Offsets[partition] >= 0 {
			out = append(out, event.Point{Incarnation: e.Incarnation, Next: e.Offsets[partition]})
		}
	}
	return out
}

// intervals is the newest table of a topic's partition for the links: nil without
// a register. It may give another table once intervalsChanged was closed.
func (n *Node) intervals(topic string, partition int32) *event.Authority {
	return n.tables.of(topic, partition)
}

// intervalsChanged is closed when intervals may give a newer table next; nil, which
// never is, without a register.
func (n *Node) intervalsChanged() <-chan struct{} {
	if n.authority == nil {
		return nil
	}
	return n.authority.Changed()
}
