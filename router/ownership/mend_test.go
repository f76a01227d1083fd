package ownership

import (
	"strings"
	"testing"

	"github.com/geogate/geogate/internal/event"
)

// TestMend: what a repair writes of one unit, and what it refuses to write.
func TestMend(t *testing.T) {
	at := func(n int64) []Extent { return []Extent{{Topic: "t", Offsets: []int64{n}}} }
	const unit = "air/us"
	live := UnitRecord{Version: 1, Unit: unit, Epoch: 17, Owner: "us", State: UnitActive, Last: "us", Claim: "c", Epochs: []Tenure{{Epoch: 17, Owner: "us"}}}
	with := func(u UnitRecord, set func(*UnitRecord)) *UnitRecord {
		u.Epochs = append([]Tenure(nil), u.Epochs...)
		set(&u)
		return &u
	}
	fenced := with(live, func(u *UnitRecord) {
		u.Epoch, u.Owner, u.State, u.Scope = 34, "", UnitFenced, ScopeRegion
		u.Epochs[0].Ended, u.Epochs[0].Cut = true, at(5)
	})
	for name, tt := range map[string]struct {
		now, copied *UnitRecord // revisions 10 and 12
		mark        event.Epoch
		want        *UnitRecord // nil: nothing is written
		why         string
	}{
		"whole":    {now: &live, copied: &live, mark: 17},
		"no copy":  {now: &live, mark: 17},
		"only now": {now: fenced, copied: nil, mark: 34},
		"a fence is lost": {now: &live, copied: fenced, mark: 34, want: with(*fenced, func(u *UnitRecord) {
			u.Epoch, u.Claim = 49, ""
		})},
		"all is lost": {copied: &live, want: with(live, func(u *UnitRecord) {
			u.Epoch, u.Owner, u.State, u.Scope, u.Claim = 33, "", UnitFenced, ScopeRegion, ""
		})},
		"a fence of the unit alone stays one": {copied: with(*fenced, func(u *UnitRecord) { u.Scope = ScopeUnit }), want: with(*fenced, func(u *UnitRecord) {
			u.Epoch, u.Scope, u.Claim = 49, ScopeUnit, ""
		})},
		"a cut is lost": {now: with(*fenced, func(u *UnitRecord) { u.Epochs[0].Ended, u.Epochs[0].Cut = false, nil }), copied: fenced, want: with(*fenced, func(u *UnitRecord) {
			u.Epoch, u.Claim = 49, ""
		})},
		"a cut past the end, in the copy": {copied: with(*fenced, func(u *UnitRecord) { u.Epochs[0].Cut = at(1e12) }), want: with(*fenced, func(u *UnitRecord) {
			u.Epoch, u.Epochs[0].Cut, u.Claim = 49, at(7), ""
		})},
		"a start past the end": {now: with(live, func(u *UnitRecord) { u.Epochs[0].Start = at(8) }), want: with(live, func(u *UnitRecord) { u.Epochs[0].Start = at(7) })},
		"two cuts":             {now: with(*fenced, func(u *UnitRecord) { u.Epochs[0].Cut = at(4) }), copied: fenced, why: "contradicts each other"},
		"two histories": {now: with(live, func(u *UnitRecord) { u.Epoch, u.Epochs[0].Epoch = 33, 33 }), copied: with(live, func(u *UnitRecord) {
			u.Epoch, u.Epochs[0].Epoch = 49, 49
		}), why: "contradicts each other"},
		"no record of the epoch":       {now: &live, copied: &live, mark: 34, why: "epoch 34 of air/us was seen, and neither"},
		"an owner that it cannot have": {copied: with(live, func(u *UnitRecord) { u.Last = "eu" }), why: "forged or damaged"},
		"an owner that is no region":   {copied: with(live, func(u *UnitRecord) { u.Last = "mars" }), why: "forged or damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			d := damage{
				region: "us", id: 1, ids: map[string]event.RegionID{"us": 1, "eu": 2}, reason: "test", units: map[string]known[UnitRecord]{}, regions: map[string]known[RegionRecord]{},
				memory: &Memory{Epochs: map[string]event.Epoch{}, Live: map[string]uint64{"us": 3}}, mark: &Mark{}, ends: map[string][]Extent{unit: at(7)}, extents: &ExtentSets{}, inline: inlineExtents,
			}
			d.regions["us"] = known[RegionRecord]{rev: 9, rec: RegionRecord{Region: "us", Live: 3, State: RegionUp}}
			if tt.mark > 0 {
				d.mark.Epochs = map[string]event.Epoch{unit: tt.mark}
			}
			if tt.now != nil {
				d.units[unit] = known[UnitRecord]{rev: 10, hash: hash(encode(*tt.now)), rec: *tt.now}
			}
			if tt.copied != nil {
				revision := uint64(12)
				if tt.now != nil && hash(encode(*tt.now)) == hash(encode(*tt.copied)) {
					revision = 10
				}
				d.memory.TakeUnit(tt.copied, revision, encode(*tt.copied))
			}
			writes, why := d.mend()
			if tt.why != "" || why != "" {
				if tt.why == "" || !strings.Contains(why, tt.why) {
					t.Errorf("refused with %q", why)
				}
				return
			}
			if tt.want == nil {
				if len(writes) > 0 {
					t.Errorf("%d writes: %s", len(writes), writes[0].step)
				}
				return
			}
			tt.want.By, tt.want.Reason = "us", "test"
			if tt.now != nil {
				tt.want.Prev, tt.want.PrevHash = 10, d.units[unit].hash
			}
			last := writes[len(writes)-1]
			if string(last.data) != string(encode(*tt.want)) || last.expect != tt.want.Prev {
				t.Errorf("writes %s\nwant   %s", last.data, encode(*tt.want))
			}
			if tt.want.Owner == "" { // nobody claims before all regions have repaired
				r, err := DecodeRegion(writes[0].data)
				if err != nil || len(writes) != 2 || r.Region != "us" || r.State != RegionFenced || r.Live != 4 || writes[0].expect != 9 {
					t.Errorf("the region: %+v, %v", writes[0], err)
				}
			}
		})
	}
}

// TestRepairsShareNoSlot: however many starts and cuts two repairs of a unit store at the same
// time, in whatever order, none pushes out what a record names: no subject has two of them.
func TestRepairsShareNoSlot(t *testing.T) {
	const unit, tenures = "air/us", 100
	content := map[string]string{}
	parts := 0
	for shift := range int64(2) { // two regions have seen different ends of the same epochs
		u := UnitRecord{Version: 1, Unit: unit, Epoch: 16*tenures + 2, State: UnitFenced, Scope: ScopeRegion, Last: "us"}
		for i := range int64(tenures) {
			at := func(n int64) []Extent { return []Extent{{Topic: "t", Offsets: []int64{n}}} }
			u.Epochs = append(u.Epochs, Tenure{Epoch: event.Epoch(16*i + 1), Owner: "us", Start: at(10 * i), Cut: at(10*(i+1) - shift*(i%2)), Ended: true})
		}
		d := damage{
			region: "us", id: 1, ids: map[string]event.RegionID{"us": 1, "eu": 2}, units: map[string]known[UnitRecord]{}, regions: map[string]known[RegionRecord]{},
			memory: &Memory{Epochs: map[string]event.Epoch{}, Live: map[string]uint64{"us": 3}}, mark: &Mark{}, extents: &ExtentSets{},
		}
		d.memory.TakeUnit(&u, 12, encode(u))
		writes, why := d.mend()
		if why != "" {
			t.Fatal(why)
		}
		for _, w := range writes {
			if ExtentsKey(w.subject) == "" {
				continue
			}
			parts++
			r, err := DecodeExtents(w.data)
			if err != nil {
				t.Fatal(err)
			}
			if !r.In(ExtentsKey(w.subject)) {
				t.Errorf("%s is not a subject of its unit", w.subject)
			}
			if was, ok := content[w.subject]; ok && was != r.Sum {
				t.Errorf("%s has parts of %s and %s", w.subject, was, r.Sum)
			}
			content[w.subject] = r.Sum
		}
	}
	if parts < 2*tenures || len(content) < tenures {
		t.Errorf("%d parts in %d slots", parts, len(content))
	}
}
