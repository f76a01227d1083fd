package ownership

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/router"
)

const modes = `version: 1
kind: OwnershipPolicy
domains:
  - {name: air, match: ["flights"], kind: entity, mode: multi_writer, policy: lww, partitions: 2}
  - {name: catalogue, match: ["catalogue.*"], kind: entity, mode: single_region, owner: eu, policy: lww, on_foreign_write: reject}
  - {name: orders, match: ["orders"], kind: entity, mode: by_key, owner: 'headers["home"]', policy: lww, on_foreign_write: reject}
`

// writtenRegister is a register whose records the test writes.
type writtenRegister struct {
	t    *testing.T
	core *Core
	*Intervals
}

func newWrittenRegister(t *testing.T) *writtenRegister {
	t.Helper()
	topology, err := router.NewTopology(router.Region{Name: "us", ID: 1}, router.Region{Name: "eu", ID: 2})
	if err != nil {
		t.Fatal(err)
	}
	policy, err := ParsePolicy("ownership.yaml", []byte(modes))
	if err != nil {
		t.Fatal(err)
	}
	core := NewCore(CoreConfig{
		Region: "us", ID: 1, Regions: topology, Instance: "us-0", Life: "life", Lease: DefaultLease(),
	})
	core.Step(0, Opened{Created: 1})
	return &writtenRegister{t, core, NewIntervals(nil, policy, topology, 0)}
}

// sees has the watch, or an answer of the register, bring a unit's record.
func (g *writtenRegister) sees(seq uint64, answered bool, r UnitRecord) {
	g.t.Helper()
	r.Version = max(r.Version, 1)
	data, err := json.Marshal(r)
	if err != nil {
		g.t.Fatal(err)
	}
	source := Watched
	if answered {
		source = Answered
	}
	g.core.Step(0, Seen{Source: source, Subject: UnitSubject(r.Unit), Seq: seq, Data: data})
}

func (g *writtenRegister) table(topic string, partition int32) *event.ValidityTable {
	return g.From(g.core.Tokens(), topic, partition)
}

func owned(unit, owner string, epoch event.Epoch, epochs ...Tenure) UnitRecord {
	return UnitRecord{Unit: unit, Owner: owner, Epoch: epoch, State: UnitActive, Epochs: epochs}
}

func extent(topic string, incarnation uint16, offsets ...int64) Extent {
	return Extent{Topic: topic, Incarnation: incarnation, Offsets: offsets}
}

// TestIntervalsWithoutExtents: from a record that names what has not been seen no table is
// made. An epoch whose start is not known would begin at 0, and all that is orphaned count.
func TestIntervalsWithoutExtents(t *testing.T) {
	g := newWrittenRegister(t)
	g.sees(1, false, owned("air/us", "us", 17, Tenure{Epoch: 17, Owner: "us"}))
	u := owned("air/eu", "eu", 34,
		Tenure{Epoch: 18, Owner: "eu", Ended: true, Cut: []Extent{extent("flights", 0, 7)}},
		Tenure{Epoch: 34, Owner: "eu", Start: []Extent{extent("flights", 0, 9)}})
	parts := outside(&u, 0)
	before := g.table("flights", 0)
	g.sees(3, false, u)
	if a := g.table("flights", 0); a != before {
		t.Fatalf("a table without what the record names: %+v", a.Logs[2])
	}
	if !g.core.Tokens().Outdates(before, "air/eu") {
		t.Error("writes are answered by the table from before")
	}
	for i := range parts {
		g.core.Step(0, Seen{Subject: parts[i].subject("0"), Seq: uint64(4 + i), Data: encode(parts[i])})
	}
	a := g.table("flights", 0)
	if got := a.Judge(event.Dot{Region: 2, Offset: 8}, 34); got != event.Orphan {
		t.Errorf("once it has come, what lies between the intervals is %v", got)
	}
}

func TestIntervalsOfAPartition(t *testing.T) {
	g := newWrittenRegister(t)
	if a := g.table("flights", 1); a == nil || !reflect.DeepEqual(*a, event.ValidityTable{}) {
		t.Errorf("before the register is known: %+v", a)
	}
	g.sees(1, false, owned("air/us", "us", 17, Tenure{Epoch: 17, Owner: "us"}))
	g.sees(4, false, owned("air/eu", "", 49,
		Tenure{Epoch: 18, Owner: "eu", Ended: true, Cut: []Extent{extent("flights", 0, 7, 9), extent("other", 0, 1, 1)}},
		Tenure{Epoch: 34, Owner: "eu", Ended: true, Start: []Extent{extent("flights", 0, 8, 12), extent("flights", 1, -1, 0)}, Cut: []Extent{extent("flights", 1, -1, 3)}},
	))
	a := g.table("flights", 1)
	want := event.ValidityTable{Revision: 4}
	want.Logs[1] = event.Tenures{Known: 17, List: []event.Tenure{{Epoch: 17}}}
	want.Logs[2] = event.Tenures{Known: 49, List: []event.Tenure{
		{Epoch: 18, Ended: true, Cut: []event.Point{{Next: 9}}},
		{Epoch: 34, Ended: true, Start: []event.Point{{Next: 12}, {Incarnation: 1}}, Cut: []event.Point{{Incarnation: 1, Next: 3}}},
	}}
	if !reflect.DeepEqual(*a, want) {
		t.Errorf("table %+v\nwant  %+v", *a, want)
	}
	if g.table("flights", 1) != a {
		t.Error("the table is made again")
	}
	if a := g.table("flights", 0); a.Logs[2].List[1].Cut != nil || a.Logs[2].List[1].Ended || !reflect.DeepEqual(a.Logs[2].List[1].Start, []event.Point{{Next: 8}}) {
		t.Errorf("partition 0: %+v", a.Logs[2])
	}
	// A cut leaves out what no other region is given: there the next epoch ends the
	// one before, unless it is another region's.
	for _, c := range []struct {
		unit, next string
		want       []event.Tenure
	}{
		{"orders/eu", "", []event.Tenure{{Epoch: 18}}},
		{"orders/eu", "eu", []event.Tenure{{Epoch: 18, Ended: true, Cut: []event.Point{{Next: 6}}}, {Epoch: 34, Start: []event.Point{{Next: 6}}}}},
		{"orders/eu", "us", []event.Tenure{{Epoch: 18, Ended: true}}},
	} {
		u := owned(c.unit, "eu", 33, Tenure{Epoch: 18, Owner: "eu", Ended: true, Applied: true, Cut: []Extent{extent("other", 0, 3)}})
		if c.next != "" {
			u.Epochs = append(u.Epochs, Tenure{Epoch: 34, Owner: c.next, Start: []Extent{extent("orders", 0, 6)}})
		}
		if got := (&Intervals{}).tenures(&u, "eu", "orders", 0).List; !reflect.DeepEqual(got, c.want) {
			t.Errorf("left out, then %q: %+v, want %+v", c.next, got, c.want)
		}
	}
	// What happens to other units makes no new table.
	g.sees(5, false, owned("orders/us", "us", 17, Tenure{Epoch: 17, Owner: "us"}))
	if g.table("flights", 1) != a {
		t.Error("another unit's record made a new table")
	}
	if orders := g.table("orders", 0); orders.Revision != 5 || len(orders.Logs[1].List) != 1 || orders.Logs[2].Known != 0 {
		t.Errorf("orders: %+v", orders)
	}
}

// TestIntervalsOfOneRegionsUnit: the log of each region counts where that region
// owned the unit, and one that never did does not.
func TestIntervalsOfOneRegionsUnit(t *testing.T) {
	g := newWrittenRegister(t)
	g.sees(3, false, owned("catalogue", "us", 33,
		Tenure{Epoch: 18, Owner: "eu", Ended: true, Cut: []Extent{extent("catalogue.a", 0, 5)}},
		Tenure{Epoch: 33, Owner: "us", Start: []Extent{extent("catalogue.a", 0, 2)}},
	))
	a := g.table("catalogue.a", 0)
	for _, c := range []struct {
		region event.RegionID
		offset int64
		epoch  event.Epoch
		want   event.Judgement
	}{
		{2, 4, 18, event.Authoritative},
		{2, 5, 18, event.Orphan},
		{2, 4, 33, event.Orphan},
		{1, 1, 33, event.Orphan},
		{1, 2, 33, event.Authoritative},
		{1, 2, 18, event.Orphan},
		{1, 9, 49, event.Unsettled},
	} {
		if got := a.Judge(event.Dot{Region: c.region, Offset: c.offset}, c.epoch); got != c.want {
			t.Errorf("region %d, offset %d, epoch %d: %v, want %v", c.region, c.offset, c.epoch, got, c.want)
		}
	}
}

// TestIntervalsOfRetiredRegions: a region is retired for readers of a topic once the records
// of all units of its domain name it.
func TestIntervalsOfRetiredRegions(t *testing.T) {
	g := newWrittenRegister(t)
	named := func(u UnitRecord, regions ...string) UnitRecord {
		u.Version, u.Retired = retireVersion, regions
		return u
	}
	us, eu := owned("air/us", "us", 17, Tenure{Epoch: 17, Owner: "us"}), owned("air/eu", "", 33, Tenure{Epoch: 18, Owner: "eu", Ended: true})
	g.sees(1, false, us)
	g.sees(2, false, eu)
	for seq, c := range []struct {
		record UnitRecord
		want   uint16
	}{
		{named(eu, "eu"), 0},
		{named(us, "eu", "who"), 1 << 2},
		{owned("catalogue", "us", 33), 1 << 2},
		{us, 0},
		{named(us, "eu"), 1 << 2},
		{named(eu), 0},
	} {
		g.sees(uint64(seq)+3, false, c.record)
		if got := g.table("flights", 0).Retired; got != c.want {
			t.Errorf("behind record %d the retired regions are %#x, want %#x", seq+3, got, c.want)
		}
	}
	if got := g.table("catalogue.a", 0).Retired; got != 0 {
		t.Errorf("in another domain the retired regions are %#x", got)
	}
}

// TestIntervalsWaitForTheWatch: a rumour that outruns an earlier record of another
// unit makes no table that lacks it for good.
func TestIntervalsWaitForTheWatch(t *testing.T) {
	g := newWrittenRegister(t)
	us := Tenure{Epoch: 17, Owner: "us"}
	g.sees(1, false, owned("air/us", "us", 17, us))
	first := g.table("flights", 0)
	cut := owned("air/us", "", 33, Tenure{Epoch: 17, Owner: "us", Ended: true, Cut: []Extent{extent("flights", 0, 5)}})
	g.sees(9, true, cut)
	if got := g.table("flights", 0); got != first {
		t.Errorf("by a rumour: %+v", got)
	}
	if !g.core.Tokens().Outdates(first, "air/us") {
		t.Error("writes are accepted by a table that lacks the cut")
	}
	g.sees(2, false, owned("air/eu", "eu", 18, Tenure{Epoch: 18, Owner: "eu"}))
	if got := g.table("flights", 0); got != first {
		t.Errorf("by a rumour of one unit: %+v", got)
	}
	g.sees(9, false, cut)
	if got := g.table("flights", 0); got.Revision != 9 || got.Logs[2].Known != 18 || !got.Logs[1].List[0].Ended {
		t.Errorf("once the watch has come there: %+v", got)
	} else if g.core.Tokens().Outdates(got, "air/us") {
		t.Error("no write is accepted by the table of the cut")
	}
}

// TestReachOfAUnit: a seat waits for its index to come to every start and cut.
func TestReachOfAUnit(t *testing.T) {
	g := newWrittenRegister(t)
	u := owned("catalogue", "us", 65,
		Tenure{Epoch: 17, Owner: "us", Ended: true, Cut: []Extent{extent("c", 0, 4, 6)}},
		Tenure{Epoch: 34, Owner: "eu", Start: []Extent{extent("c", 0, 1, 1)}, Ended: true, Cut: []Extent{extent("c", 0, 9, 8), extent("d", 0, 77, 77)}},
		Tenure{Epoch: 65, Owner: "us", Start: []Extent{extent("c", 0, 7, 5)}},
	)
	for p, want := range []event.Vector{{1: {Next: 7}, 2: {Next: 9}}, {1: {Next: 6}, 2: {Next: 8}}, {}} {
		if got := g.Reach(&u, "c", int32(p)); got != want {
			t.Errorf("partition %d: %v, want %v", p, got, want)
		}
	}
}

// TestIntervalsOfARegisterAlone: where the register is the region's own, what
// another region wrote counts whatever its epoch, and waits for nothing; the own
// log is judged as ever.
func TestIntervalsOfARegisterAlone(t *testing.T) {
	g := newWrittenRegister(t)
	g.alone = 1
	if got := g.table("flights", 0); got.Revision != 0 {
		t.Errorf("before the register is known: %+v", got)
	}
	g.sees(1, false, owned("air/us", "", 33, Tenure{Epoch: 17, Owner: "us", Ended: true, Cut: []Extent{extent("flights", 0, 5)}}))
	for _, c := range []struct {
		topic  string
		region event.RegionID
		offset int64
		epoch  event.Epoch
		want   event.Judgement
	}{
		{"flights", 1, 4, 17, event.Authoritative},
		{"flights", 1, 5, 17, event.Orphan},
		{"flights", 1, 9, 65, event.Unsettled},
		{"flights", 2, 9, 18, event.Authoritative},
		{"flights", 2, 9, 98, event.Authoritative},
		{"flights", 2, 9, 0, event.Authoritative},
		{"catalogue.a", 2, 9, 18, event.Authoritative}, // no unit of it is in the register
	} {
		if got := g.table(c.topic, 0).Judge(event.Dot{Region: c.region, Offset: c.offset}, c.epoch); got != c.want {
			t.Errorf("%s of region %d at %d under %d: %v, want %v", c.topic, c.region, c.offset, c.epoch, got, c.want)
		}
	}
	if cut, next := g.table("flights", 0).Cut(2, 0, 7); cut != event.NoCut || next != event.NoCut {
		t.Errorf("the other region's log is cut at %d, goes on at %d", cut, next)
	}
}
