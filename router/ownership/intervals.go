package ownership

import (
	"sync"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/router"
)

// Intervals makes, from what is known of the ownership register, the tables that
// say which records of a partition's logs count. It is safe for concurrent use.
type Intervals struct {
	tokens   func() *Tokens
	policy   *Policy
	topology *router.Topology
	// alone is the own region if the register is nobody else's; other regions'
	// epochs are then not in it, and their logs count whole. 0: it is all regions'.
	alone event.RegionID

	mu     sync.Mutex
	tables map[logPlace]*event.ValidityTable
	// topics has the extents of a record by topic; its key is the record's first extent. It
	// is rebuilt when there is a newer revision.
	topics  map[*Extent]map[string][]Extent
	indexed uint64
}

// logPlace is a partition of a topic.
type logPlace struct {
	topic     string
	partition int32
}

// NewIntervals makes tables from what tokens gives ([Client.Tokens]). A region whose
// register no other region uses passes its own id as alone; else it is 0.
func NewIntervals(tokens func() *Tokens, policy *Policy, topology *router.Topology, alone event.RegionID) *Intervals {
	return &Intervals{tokens: tokens, policy: policy, topology: topology, alone: alone, tables: make(map[logPlace]*event.ValidityTable)}
}

// Table is the newest table of a topic's partition, in every region under the name
// that the topic has at home. Its revision never falls; it is 0, and tells nothing,
// until the register has been read. A nil Intervals, that is no register, gives
// nil.
func (i *Intervals) Table(topic string, partition int32) *event.ValidityTable {
	if i == nil {
		return nil
	}
	return i.From(i.tokens(), topic, partition)
}

// From is [Intervals.Table] of tokens that the caller has taken.
func (i *Intervals) From(t *Tokens, topic string, partition int32) *event.ValidityTable {
	domain, at := i.policy.Domain(topic), logPlace{topic, partition}
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
		known = &event.ValidityTable{}
	case known.Revision >= revision:
		return known
	}
	// One unit's record may be known from a rumour before an earlier one of another
	// unit was delivered. A table under the revision of the first that lacked the
	// second would never be put right: so the watch has to have come that far.
	if revision == 0 || revision > t.Revision() {
		return known
	}
	for _, r := range i.topology.Regions() {
		if u := t.Units[domain.Unit(r.Name)].Record; !u.Resolved() {
			return known // the watch is about to bring what the record names
		}
	}
	if i.indexed != t.Revision() {
		i.topics, i.indexed = make(map[*Extent]map[string][]Extent), t.Revision()
	}
	table := &event.ValidityTable{Revision: revision}
	for _, r := range i.topology.Regions() {
		if i.alone != 0 && i.alone != r.ID {
			table.Logs[r.ID] = event.Unregistered()
			continue
		}
		u := t.Units[domain.Unit(r.Name)].Record
		table.Logs[r.ID] = i.tenures(&u, r.Name, topic, partition)
	}
	if i.alone == 0 {
		table.Retired = i.retired(t, domain)
	}
	i.tables[at] = table
	return table
}

// retired are the regions that every unit's record of a domain names as retired.
func (i *Intervals) retired(t *Tokens, domain Domain) uint16 {
	all, some := ^uint16(0), false
	for _, r := range i.topology.Regions() {
		u := t.Units[domain.Unit(r.Name)]
		if u.Revision == 0 {
			continue
		}
		names := uint16(0)
		for _, name := range u.Record.Retired {
			if id, ok := i.topology.ID(name); ok {
				names |= 1 << id
			}
		}
		all, some = all&names, true
	}
	if !some {
		return 0
	}
	return all
}

// Shared tells whether the register is one of all regions. Its revisions are then the same
// everywhere.
func (i *Intervals) Shared() bool { return i != nil && i.alone == 0 }

// Reach joins where the epochs of a unit began and were cut, in the logs of a
// topic's partition: so far a seat has to have indexed them before it accepts.
func (i *Intervals) Reach(u *UnitRecord, topic string, partition int32) (v event.Vector) {
	raise := func(region string, extents []Extent) {
		id, ok := i.topology.ID(region)
		if !ok {
			return
		}
		for _, p := range points(extents, topic, partition) {
			if v[id].Compare(p) < 0 {
				v[id] = p
			}
		}
	}
	for e := range u.Epochs {
		raise(u.Epochs[e].Owner, u.Epochs[e].Start)
		raise(u.Epochs[e].Owner, u.Epochs[e].Cut)
	}
	return v
}

// tenures are the epochs of a unit in which a region owned it, as far as one
// partition of its log is concerned.
func (i *Intervals) tenures(u *UnitRecord, region, topic string, partition int32) event.Tenures {
	out := event.Tenures{Known: u.Epoch}
	for n, e := range u.Epochs {
		if e.Owner != region {
			continue
		}
		t := event.Tenure{
			Epoch: e.Epoch, First: e.First, Start: points(i.of(e.Start, topic), topic, partition),
			Ended: e.Ended, Cut: points(i.of(e.Cut, topic), topic, partition),
		}
		if e.Ended && len(t.Cut) == 0 {
			// The cut leaves the partition out: the next epoch ends this one.
			switch next := n + 1; {
			case next == len(u.Epochs):
				t.Ended = false
			case u.Epochs[next].Owner == region:
				t.Cut = points(i.of(u.Epochs[next].Start, topic), topic, partition)
			}
		}
		out.List = append(out.List, t)
	}
	return out
}

// of gives the extents of a topic. A unit may have ten thousand topics, and each of their
// partitions has a table. The caller holds mu.
func (i *Intervals) of(extents []Extent, topic string) []Extent {
	if len(extents) < fewExtents {
		return extents
	}
	index := i.topics[&extents[0]]
	if index == nil {
		index = make(map[string][]Extent, len(extents))
		for _, e := range extents {
			index[e.Topic] = append(index[e.Topic], e)
		}
		i.topics[&extents[0]] = index
	}
	return index[topic]
}

// fewExtents is how many extents are searched without an index.
const fewExtents = 16

func points(extents []Extent, topic string, partition int32) (out []event.Point) {
	for _, e := range extents {
		if e.Topic == topic && int(partition) < len(e.Offsets) && e.Offsets[partition] >= 0 {
			out = append(out, event.Point{Incarnation: e.Incarnation, Next: e.Offsets[partition]})
		}
	}
	return out
}
