package node

import (
	"testing"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/router"
)

// TestIntervalsOfARegisterAlone: where the register is the region's own, what
// another region wrote counts whatever its epoch, and waits for nothing; the own
// log is judged as ever.
func TestIntervalsOfARegisterAlone(t *testing.T) {
	g := newHearsay(t)
	g.alone = 1
	if got := g.table("flights", 0); got.Revision != 0 {
		t.Errorf("before the register is known: %+v", got)
	}
	g.sees(1, false, owned("air/us", "", 33, router.Tenure{Epoch: 17, Owner: "us", Ended: true, Cut: []router.Extent{extent("flights", 0, 5)}}))
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
