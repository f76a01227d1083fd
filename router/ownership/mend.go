package ownership

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/geogate/geogate/internal/event"
)

// What a repair of the register writes, from what the register has, what the region's own
// Kafka has copied of it, and where the region's logs end. Nothing here reads or writes.

// PastEnd is a start or a cut in the register that lies past the end of the log that it
// is about: an offset that nothing bears out.
type PastEnd struct {
	Unit      string
	Topic     string
	Partition int32
	What      string // "start" or "cut"
	Epoch     event.Epoch
	Offset    int64
	End       int64
}

// String says what is wrong, for people.
func (p PastEnd) String() string {
	return fmt.Sprintf("the %s of epoch %d of %s in %s/%d is %d, and the log ends at %d", p.What, p.Epoch, p.Unit, p.Topic, p.Partition, p.Offset, p.End)
}

// pastEnds finds the starts and cuts of a region's epochs that lie past where its logs
// end, one for each partition.
func pastEnds(unit, region string, history []Tenure, ends []Extent) (found []PastEnd) {
	type place struct {
		topic     string
		partition int
	}
	seen, at := make(map[place]bool), indexExtents(ends)
	look := func(t *Tenure, what string, extents []Extent) {
		for _, e := range extents {
			for p, offset := range e.Offsets {
				end, listed := at.offset(e.Topic, e.Incarnation, int32(p))
				if here := (place{e.Topic, p}); listed && offset > end && !seen[here] {
					seen[here] = true
					found = append(found, PastEnd{Unit: unit, Topic: e.Topic, Partition: int32(p), What: what, Epoch: t.Epoch, Offset: offset, End: end})
				}
			}
		}
	}
	for i := range history {
		if t := &history[i]; t.Owner == region {
			look(t, "start", t.Start)
			look(t, "cut", t.Cut)
		}
	}
	return found
}

// lower is a region's history with no start or cut past where its logs end.
func lower(region string, history []Tenure, ends []Extent) []Tenure {
	out, at := slices.Clone(history), indexExtents(ends)
	bound := func(extents []Extent) []Extent {
		out := mergeExtents(nil, extents)
		for i := range out {
			for p, offset := range out[i].Offsets {
				if end, ok := at.offset(out[i].Topic, out[i].Incarnation, int32(p)); ok && offset > end {
					out[i].Offsets[p] = end
				}
			}
		}
		return out
	}
	for i := range out {
		if out[i].Owner == region {
			out[i].Start, out[i].Cut = bound(out[i].Start), bound(out[i].Cut)
		}
	}
	return out
}

// joinHistories is what two records know of the epochs of a unit together. It fails where
// both know something else of an epoch: then one of the two was given after the register
// had gone back.
func joinHistories(a, b []Tenure) ([]Tenure, error) {
	var err error
	if a, err = coarser(a, b); err == nil {
		b, err = coarser(b, a)
	}
	if err != nil {
		return nil, err
	}
	out := make([]Tenure, 0, max(len(a), len(b)))
	for len(a) > 0 && len(b) > 0 {
		x, y := a[0], b[0]
		if x.Epoch != y.Epoch {
			return nil, fmt.Errorf("one has epoch %d of %s where the other has epoch %d of %s", x.Epoch, x.Owner, y.Epoch, y.Owner)
		}
		if x.Owner != y.Owner || x.First != y.First || !sameExtents(x.Start, y.Start) {
			return nil, fmt.Errorf("epoch %d has two owners or two starts", x.Epoch)
		}
		switch {
		case x.Ended && y.Ended && (!sameExtents(x.Cut, y.Cut) || x.Applied != y.Applied):
			return nil, fmt.Errorf("epoch %d of %s has two cuts", x.Epoch, x.Owner)
		case y.Ended:
			x = y
		}
		out, a, b = append(out, x), a[1:], b[1:]
	}
	return append(append(out, a...), b...), nil
}

// coarser is a history with the epochs joined that another one has joined.
func coarser(history, like []Tenure) ([]Tenure, error) {
	for l := range like {
		x := &like[l]
		if x.First == 0 {
			continue
		}
		var out []Tenure
		joined := false
		for i := range history {
			t := &history[i]
			if !x.Has(t.Epoch) || t.Owner != x.Owner {
				out = append(out, *t)
				continue
			}
			switch {
			case t.Has(x.First) && (t.StartAt == nil || t.Start != nil) && !sameExtents(t.Start, x.Start):
				return nil, fmt.Errorf("epoch %d has two starts", x.First)
			case t.Epoch == x.Epoch && t.Ended && (t.CutAt == nil || t.Cut != nil) && (!sameExtents(t.Cut, x.Cut) || t.Applied != x.Applied):
				return nil, fmt.Errorf("epoch %d of %s has two cuts", x.Epoch, x.Owner)
			case t.Epoch == x.Epoch:
				out, joined = append(out, *x), true
			}
		}
		// A history that comes to later epochs without it has none of those that it joins.
		if n := len(history); !joined && n > 0 && history[n-1].Epoch > x.Epoch {
			return nil, fmt.Errorf("one has epoch %d of %s, and the other has later ones without it", x.Epoch, x.Owner)
		}
		history = out
	}
	return history, nil
}

func sameExtents(a, b []Extent) bool {
	return slices.EqualFunc(a, b, func(x, y Extent) bool {
		return x.Topic == y.Topic && x.Incarnation == y.Incarnation && slices.Equal(x.Offsets, y.Offsets)
	})
}

func sameHistory(a, b []Tenure) bool {
	return slices.EqualFunc(a, b, func(x, y Tenure) bool {
		return x.Epoch == y.Epoch && x.First == y.First && x.Owner == y.Owner && x.Ended == y.Ended && x.Applied == y.Applied && sameExtents(x.Start, y.Start) && sameExtents(x.Cut, y.Cut)
	})
}

// Copied is a record of the register as the region's own Kafka has it.
type Copied struct {
	Epoch    event.Epoch
	Revision uint64
	Data     []byte
}

// damage is what a repair goes by.
type damage struct {
	region string
	id     event.RegionID
	ids    map[string]event.RegionID // of all regions
	reason string
	// What the register has now, by name; revisions are what writes are conditional on.
	units   map[string]known[UnitRecord]
	regions map[string]known[RegionRecord]
	memory  *Memory
	mark    *Mark
	// ends are where the region's own logs end, by unit.
	ends map[string][]Extent
	// extents are those that records name, as far as they are known; inline is how much of
	// them a record holds itself.
	extents *ExtentSets
	inline  int
}

// mending is one write of a repair.
type mending struct {
	subject string
	expect  uint64
	free    bool // it is written whatever there is
	data    []byte
	step    string // "": it belongs to the one that comes after it
}

// mend gives the writes that mend a register, in order; why says what keeps it from being
// mended.
//
// A record that the register has lost comes back with the next epoch, which nobody owns,
// and the regions whose records or units were lost are fenced: nothing is owned again
// before an operator has repaired from every region's copy and unfences them.
func (d *damage) mend() (writes []mending, why string) {
	lost := make(map[string]bool) // regions that have to be fenced
	var units []mending
	names := maps.Clone(d.mark.Epochs)
	if names == nil {
		names = make(map[string]event.Epoch)
	}
	for unit := range d.units {
		names[unit] = max(names[unit], 0)
	}
	for unit := range d.memory.Units {
		names[unit] = max(names[unit], d.memory.Epochs[unit])
	}
	for _, unit := range slices.Sorted(maps.Keys(names)) {
		list, last, why := d.mendUnit(unit, max(names[unit], d.memory.Epochs[unit]))
		if why != "" {
			return nil, why
		}
		if last != "" {
			lost[last] = true
		}
		units = append(units, list...)
	}
	for _, region := range slices.Sorted(maps.Keys(d.ids)) {
		m, why := d.mendRegion(region, lost[region])
		if why != "" {
			return nil, why
		}
		if m != nil {
			writes = append(writes, *m)
		}
	}
	return append(writes, units...), ""
}

// mendUnit gives the writes that mend a unit, none if none is needed, and the region that
// owned it last if its record was lost. What the record names comes before it, also if it
// may still be there.
func (d *damage) mendUnit(unit string, remembered event.Epoch) (list []mending, last, why string) {
	now, there := d.units[unit]
	base, history, lost := now.rec, now.rec.Epochs, false
	if c, ok := d.memory.Units[unit]; ok {
		copied, err := DecodeUnit(c.Data)
		if err != nil {
			return nil, "", fmt.Sprintf("the copy of the record of %s cannot be read: %v", unit, err)
		}
		d.extents.Resolve(&copied)
		if !copied.Resolved() {
			return nil, "", fmt.Sprintf("the copy of the record of %s names starts or cuts that the copy does not have; repair first at a gateway of a region that has them", unit)
		}
		if now.rec.Epochs, err = coarser(now.rec.Epochs, copied.Epochs); err == nil && now.rec.Resolved() {
			history, err = joinHistories(now.rec.Epochs, copied.Epochs)
		}
		if err != nil {
			return nil, "", fmt.Sprintf("what the register and the copy in Kafka have of %s contradicts each other, and nobody but you can say which one is true: %v", unit, err)
		}
		lost = copied.Epoch > now.rec.Epoch || c.Revision > now.rev || !sameHistory(history, now.rec.Epochs)
		if copied.Epoch > base.Epoch || copied.Epoch == base.Epoch && c.Revision > now.rev {
			base = copied
		}
	}
	if !now.rec.Resolved() {
		return nil, "", fmt.Sprintf("the record of %s names starts or cuts that neither the register nor the copy in the Kafka of this region has; repair first at a gateway of a region that has them", unit)
	}
	if base.Epoch < remembered {
		return nil, "", fmt.Sprintf("epoch %d of %s was seen, and neither the register nor the copy in the Kafka of this region has its record (the newest is of epoch %d); repair first at a gateway of a region that has it",
			remembered, unit, base.Epoch)
	}
	wrong := pastEnds(unit, d.region, history, d.ends[unit])
	if !lost && len(wrong) == 0 {
		return nil, "", ""
	}
	next := base
	next.Version, next.Unit, next.By, next.Reason = recordVersion, unit, d.region, d.reason
	next.Prev, next.PrevHash = now.rev, now.hash
	next.Epochs = lower(d.region, history, d.ends[unit])
	step := fmt.Sprintf("write the record of %s as it is, but nothing past the ends of its logs", unit)
	if lost {
		if n := len(history); next.Last == "" && n > 0 {
			next.Last = history[n-1].Owner
		}
		scope := ScopeRegion
		if base.State == UnitFenced && base.Scope == ScopeUnit {
			scope = ScopeUnit
		}
		next.Epoch = nextEpoch(max(base.Epoch, now.rec.Epoch), d.id)
		next.Owner, next.State, next.For, next.Scope, next.Live, next.Claim, next.Incarnation = "", UnitFenced, "", scope, 0, "", 0
		step = fmt.Sprintf("write the record of %s, of which the register has epoch %d and epoch %d was seen, as FENCED in epoch %d, with its %d earlier epochs", unit, now.rec.Epoch, base.Epoch, next.Epoch, len(history))
		if !there {
			step = fmt.Sprintf("write the record of %s, which the register has lost and of which epoch %d was seen, as FENCED in epoch %d, with its %d earlier epochs", unit, base.Epoch, next.Epoch, len(history))
		}
		last = next.Last
		if _, ok := d.ids[last]; !ok || strings.Contains(unit, "/") && !strings.HasSuffix(unit, "/"+last) {
			return nil, "", fmt.Sprintf("the copy in Kafka names %q as the last owner of %s, which it cannot be: the copy was forged or damaged", last, unit)
		}
		step += ", owned last by " + last
	}
	for _, w := range wrong {
		step += fmt.Sprintf("; %s: %d is written", w, w.End)
	}
	next.bounds(func(_ *[]Extent, ref **ExtentsRef) { *ref = nil })
	list = storedByRepair(outside(&next, d.inline))
	next.seal()
	return append(list, mending{subject: UnitSubject(unit), expect: now.rev, data: encode(next), step: step}), last, ""
}

// storedByRepair gives the writes of records of extents, each once.
func storedByRepair(records []ExtentsRecord) (list []mending) {
	stored := make(map[string]bool)
	for i := range records {
		r := &records[i]
		if subject := r.subject(repairSlotOf(r)); !stored[subject] {
			stored[subject] = true
			list = append(list, mending{subject: subject, free: true, data: encode(r)})
		}
	}
	return list
}

// mendRegion gives the write that fences a region, if anything of it was lost.
func (d *damage) mendRegion(region string, unitLost bool) (*mending, string) {
	now := d.regions[region]
	remembered := d.memory.Live[region]
	known := d.memory.Regions[region]
	// That it was retired may be gone, and another region have mended the rest of it already.
	forgotten := known.away() && now.rec.State != RegionUp && !now.rec.away() && now.rec.Reason != rejoined
	if remembered <= now.rec.Live && !unitLost && !forgotten {
		return nil, ""
	}
	next := RegionRecord{Region: region, ID: d.ids[region], Live: max(remembered, now.rec.Live) + 1, State: RegionFenced, By: d.region, Reason: d.reason}
	step := "fence region"
	switch {
	case now.rec.away():
		next.State, next.Retired, step = now.rec.State, now.rec.Retired, "keep the state "+string(now.rec.State)+" of region"
	case known.away():
		next.State, next.Retired, step = RegionRetired, known.Retired, "retire region"
	}
	return &mending{
		subject: RegionSubject(region), expect: now.rev, data: encode(next.seal()),
		step: fmt.Sprintf("%s %s, with liveness epoch %d (the register has %d, %d was seen)", step, region, next.Live, now.rec.Live, max(remembered, now.rec.Live)),
	}, ""
}

// RepairRecord says that the register was repaired: what was lost of it, and could be
// found, comes before it. Its subject is own.repair.
type RepairRecord struct {
	Version int    `json:"v"`
	By      string `json:"by"` // region
	Reason  string `json:"reason,omitempty"`
	// Beyond is the highest revision that was seen before: the record's own lies past it.
	Beyond uint64 `json:"beyond"`
}

func (r RepairRecord) version() int { return r.Version }
func (r RepairRecord) newest() int  { return recordVersion }

// subjectRepair is where repairs are told.
const subjectRepair = "own.repair"

// TakeExtents takes in extents that units' records name.
func (m *Memory) TakeExtents(r *ExtentsRecord) { m.Extents.Take(r) }

// TakeUnit takes in a revision of a unit's record: the newest is of the highest epoch, and
// of that the last.
func (m *Memory) TakeUnit(u *UnitRecord, revision uint64, data []byte) {
	if m.takeCopy(u.Unit, Copied{Epoch: u.Epoch, Revision: revision, Data: data}) {
		m.Extents.prune(u) // else years of fences would fill the memory
	}
	m.Epochs[u.Unit] = max(m.Epochs[u.Unit], u.Epoch)
}

// TakeRegion takes in a revision of a region's record.
func (m *Memory) TakeRegion(r *RegionRecord) {
	if m.Regions == nil {
		m.Regions = make(map[string]RegionRecord)
	}
	if old, ok := m.Regions[r.Region]; !ok || old.Live <= r.Live {
		m.Regions[r.Region] = *r
	}
	m.Live[r.Region] = max(m.Live[r.Region], r.Live)
}

func (m *Memory) takeCopy(unit string, c Copied) (newest bool) {
	if m.Units == nil {
		m.Units = make(map[string]Copied)
	}
	old := m.Units[unit]
	if cmp.Or(cmp.Compare(c.Epoch, old.Epoch), cmp.Compare(c.Revision, old.Revision)) >= 0 {
		c.Data = slices.Clone(c.Data)
		m.Units[unit] = c
		return true
	}
	return false
}
