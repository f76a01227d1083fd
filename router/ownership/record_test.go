package ownership

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/geogate/geogate/internal/event"
)

// golden are the bytes of docs/format/ownership.md.
var golden = []struct {
	subject string
	record  versioned
	want    string
}{
	{RegionSubject("eu"), RegionRecord{
		Version: 1, Region: "eu", ID: 2, Live: 2, State: RegionFenced, By: "us", Reason: "planned maintenance", Plan: "us-us-0-0a1b2c3d4e5f-9",
	}, `{"v":1,"region":"eu","id":2,"live_epoch":2,"state":"FENCED","by":"us","reason":"planned maintenance","plan":"us-us-0-0a1b2c3d4e5f-9"}`},
	{RegionSubject("eu"), RegionRecord{
		Version: 3, Region: "eu", ID: 2, Live: 3, State: RegionRetired, By: "us", Reason: "site closed", Plan: "us-us-0-0a1b2c3d4e5f-12",
		Retired: &Retirement{At: 1796083200000, By: "us", Reason: "site closed"},
	}, `{"v":3,"region":"eu","id":2,"live_epoch":3,"state":"RETIRED","by":"us","reason":"site closed","plan":"us-us-0-0a1b2c3d4e5f-12","retired":{"at":1796083200000,"by":"us","reason":"site closed"}}`},
	{"own.unit.air.us", UnitRecord{
		Version: 3, Unit: "air/us", Epoch: 17, Owner: "us", State: UnitActive, Last: "us", Live: 1, Claim: "us-us-0-0a1b2c3d4e5f-3", Incarnation: 1, By: "us",
		Reason: "retirement of region eu", Retired: []string{"eu"}, Prev: 40, PrevHash: "9c1f", Epochs: []Tenure{{Epoch: 17, Owner: "us"}},
	}, `{"v":3,"unit":"air/us","epoch":17,"owner":"us","state":"ACTIVE","last":"us","live_epoch":1,"claim":"us-us-0-0a1b2c3d4e5f-3","incarnation":1,"by":"us","reason":"retirement of region eu","retired":["eu"],"prev":40,"prev_hash":"9c1f","epochs":[{"epoch":17,"owner":"us"}]}`},
	{UnitSubject("air/eu"), UnitRecord{
		Version: 1, Unit: "air/eu", Epoch: 33, State: UnitFenced, Last: "eu", Scope: ScopeRegion, By: "us", Reason: "planned maintenance", Prev: 12,
		PrevHash: "9c1f", Epochs: []Tenure{{Epoch: 18, Owner: "eu", Ended: true, Cut: []Extent{{Topic: "flights", Offsets: []int64{120, 96}}}}},
	}, `{"v":1,"unit":"air/eu","epoch":33,"owner":"","state":"FENCED","last":"eu","scope":"region","by":"us","reason":"planned maintenance","prev":12,"prev_hash":"9c1f","epochs":[{"epoch":18,"owner":"eu","ended":true,"cut":[{"topic":"flights","incarnation":0,"offsets":[120,96]}]}]}`},
	{leaseSubject("eu", "eu.0"), LeaseRecord{
		Version: 1, Region: "eu", Instance: "eu.0", Life: "0a1b2c3d4e5f", After: 9, Guard: 11, Hold: 18000, Reads: 3,
	}, `{"v":1,"region":"eu","instance":"eu.0","life":"0a1b2c3d4e5f","after":9,"guard":11,"hold_ms":18000,"reads":3}`},
	{drainedSubject("eu", "eu-0", "air/eu"), DrainedRecord{
		Version: 1, Region: "eu", Instance: "eu-0", Life: "0a1b2c3d4e5f", Unit: "air/eu", Epoch: 33, Ends: []Extent{{Topic: "flights", Offsets: []int64{120, 96}}},
	}, `{"v":1,"region":"eu","instance":"eu-0","life":"0a1b2c3d4e5f","unit":"air/eu","epoch":33,"ends":[{"topic":"flights","incarnation":0,"offsets":[120,96]}]}`},
	{"own.unit.air.eu", UnitRecord{
		Version: 2, Unit: "air/eu", Epoch: 33, State: UnitFenced, Last: "eu", Scope: ScopeRegion, By: "us", Reason: "planned maintenance", Prev: 12,
		PrevHash: "9c1f", Epochs: []Tenure{{Epoch: 18, Owner: "eu", Ended: true, Cut: flights, CutAt: &ExtentsRef{Sum: sumOf(flights), Parts: 1}}},
	}, `{"v":2,"unit":"air/eu","epoch":33,"owner":"","state":"FENCED","last":"eu","scope":"region","by":"us","reason":"planned maintenance","prev":12,"prev_hash":"9c1f","epochs":[{"epoch":18,"owner":"eu","ended":true,"cut_at":{"sum":"` + sumOf(flights) + `","parts":1}}]}`},
	{"own.unit.air.eu", UnitRecord{
		Version: 2, Unit: "air/eu", Epoch: 82, Owner: "eu", State: UnitActive, Last: "eu", Live: 3, Claim: "eu-eu-0-0a1b2c3d4e5f-7", Incarnation: 2, By: "eu",
		Prev: 12, PrevHash: "9c1f", Epochs: []Tenure{{First: 18, Epoch: 66, Owner: "eu", Ended: true, Cut: flights}, {Epoch: 82, Owner: "eu", Start: flights}},
	}, `{"v":2,"unit":"air/eu","epoch":82,"owner":"eu","state":"ACTIVE","last":"eu","live_epoch":3,"claim":"eu-eu-0-0a1b2c3d4e5f-7","incarnation":2,"by":"eu","prev":12,"prev_hash":"9c1f","epochs":[{"epoch":66,"first":18,"owner":"eu","ended":true,"cut":[{"topic":"flights","incarnation":0,"offsets":[120,96]}]},{"epoch":82,"owner":"eu","start":[{"topic":"flights","incarnation":0,"offsets":[120,96]}]}]}`},
	{
		"own.extents.air.eu.0", split("air/eu", 33, flights)[0],
		`{"v":1,"unit":"air/eu","epoch":33,"sum":"` + sumOf(flights) + `","part":0,"parts":1,"extents":[{"topic":"flights","incarnation":0,"offsets":[120,96]}]}`,
	},
}

var flights = []Extent{{Topic: "flights", Offsets: []int64{120, 96}}}

func TestOwnershipGolden(t *testing.T) {
	doc, err := os.ReadFile("../../docs/format/ownership.md")
	if err != nil {
		t.Fatal(err)
	}
	doc = bytes.ReplaceAll(doc, []byte(",\n    "), []byte(",")) // long examples are broken
	for _, g := range golden {
		if got := string(encode(g.record)); got != g.want {
			t.Errorf("%s: got\n%s\nwant\n%s", g.subject, got, g.want)
		}
		if !bytes.Contains(doc, []byte(g.want)) || !bytes.Contains(doc, []byte("`"+g.subject+"`")) {
			t.Errorf("docs/format/ownership.md does not show %s: %s", g.subject, g.want)
		}
	}
	if old, err := decode[LeaseRecord]([]byte(`{"v":1,"region":"eu","instance":"eu.0","guard":11,"hold_ms":18000}`)); err != nil || old.Life != "" || old.Guard != 11 {
		t.Errorf("a renewal without a life reads as %+v, %v", old, err)
	}
	u, err := decode[UnitRecord]([]byte(golden[3].want))
	if err != nil || u.Epoch != 33 || len(u.Epochs) != 1 {
		t.Errorf("decoded %+v, %v", u, err)
	}
	if _, err := decode[UnitRecord]([]byte(strings.Replace(golden[3].want, `"v":1`, `"v":4`, 1))); err == nil {
		t.Error("a later version is accepted")
	}
	if _, err := decode[RegionRecord]([]byte(strings.Replace(golden[0].want, `"v":1`, `"v":4`, 1))); err == nil {
		t.Error("a later version of a region's record is accepted")
	}
}

func TestNextEpoch(t *testing.T) {
	for _, tt := range []struct {
		epoch event.Epoch
		id    event.RegionID
		want  event.Epoch
	}{{0, 1, 1}, {17, 1, 33}, {17, 2, 18}, {18, 1, 33}, {18, 2, 34}, {34, 1, 49}, {31, 15, 47}, {30, 15, 31}} {
		if got := nextEpoch(tt.epoch, tt.id); got != tt.want {
			t.Errorf("after %d region %d mints %d, want %d", tt.epoch, tt.id, got, tt.want)
		}
	}
	// Two regions never mint the same, whatever they have seen.
	for e := range event.Epoch(200) {
		for f := range event.Epoch(200) {
			if nextEpoch(e, 1) == nextEpoch(f, 2) {
				t.Fatalf("both mint %d", nextEpoch(e, 1))
			}
		}
	}
}

func TestMergeExtents(t *testing.T) {
	a := []Extent{{Topic: "t", Offsets: []int64{3, -1}}, {Topic: "u", Offsets: []int64{1}}}
	b := []Extent{{Topic: "t", Offsets: []int64{2, 5, 9}}, {Topic: "t", Incarnation: 1, Offsets: []int64{7}}}
	m := mergeExtents(a, b)
	for _, tt := range []struct {
		topic       string
		incarnation uint16
		partition   int32
		want        int64
		ok          bool
	}{{"t", 0, 0, 3, true}, {"t", 0, 1, 5, true}, {"t", 0, 2, 9, true}, {"t", 1, 0, 7, true}, {"u", 0, 0, 1, true}, {"u", 0, 1, 0, false}, {"v", 0, 0, 0, false}} {
		if got, ok := Offset(m, tt.topic, tt.incarnation, tt.partition); got != tt.want || ok != tt.ok {
			t.Errorf("%+v: got %d, %v", tt, got, ok)
		}
	}
	if a[0].Offsets[1] != -1 {
		t.Error("merging changed what was given")
	}
}

func TestLeaseNumbers(t *testing.T) {
	c := DefaultLease()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	if w := c.Wait().Seconds(); w < 18.36 || w > 18.37 {
		t.Errorf("W is %v", c.Wait())
	}
	c.Duration -= 4e9
	if err := c.Validate(); err == nil {
		t.Errorf("%+v is accepted", c)
	}
	c.Duration = 290 * 365 * 24 * 3600e9 // W of it is no number
	if err := c.Validate(); err == nil {
		t.Errorf("%+v is accepted", c)
	}
}
