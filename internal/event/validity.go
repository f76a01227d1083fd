package event

import (
	"encoding/binary"
	"math"
)

// NoCut is the cut of an interval that has not ended.
const NoCut int64 = math.MaxInt64

// anyEpoch, as a tenure's epoch, stands for all of them: what is written under
// whatever epoch counts.
const anyEpoch Epoch = 0

// Unregistered is what is known of a log whose region's epochs are in no register
// that is read here: all of it counts.
func Unregistered() Tenures {
	return Tenures{Known: math.MaxUint64, List: []Tenure{{Epoch: anyEpoch}}}
}

// Tenure is one epoch in which a region owned a unit, as far as the log of one of
// its partitions is concerned: from Start to Cut the records of the epoch count.
type Tenure struct {
	Epoch Epoch
	// First is set where several epochs were joined, of which Epoch is the last: what was
	// written under any from First to Epoch counts, wherever between Start and Cut it lies.
	First Epoch
	// Start is where the epoch began, for each incarnation that the log had then. A
	// later incarnation begins at offset 0, an earlier one has no part in the epoch.
	Start []Point
	// Ended is set once the cut is known. An incarnation that is not in Cut is cut
	// at 0, but one that a later one in Cut has replaced is whole.
	Ended bool
	Cut   []Point // exclusive
}

// Interval is what of an incarnation counts under the tenure: offsets from start
// up to, not including, cut. It is empty where they are equal.
func (t *Tenure) Interval(incarnation uint16) (start, cut int64) {
	if t.after(incarnation) {
		return 0, 0
	}
	start, _ = pointOf(t.Start, incarnation)
	cut = NoCut
	if t.Ended && !replaced(t.Cut, incarnation) {
		cut, _ = pointOf(t.Cut, incarnation)
	}
	return start, max(start, cut)
}

// has tells whether what is written under an epoch counts in the tenure.
func (t *Tenure) has(e Epoch) bool {
	return t.Epoch == e || t.Epoch == anyEpoch || t.First != 0 && t.First <= e && e < t.Epoch
}

// after tells whether the epoch began when an incarnation had been replaced.
func (t *Tenure) after(incarnation uint16) bool { return replaced(t.Start, incarnation) }

// replaced tells whether points name later incarnations and not this one.
func replaced(points []Point, incarnation uint16) bool {
	later := false
	for _, p := range points {
		if p.Incarnation == incarnation {
			return false
		}
		later = later || p.Incarnation > incarnation
	}
	return later
}

func pointOf(points []Point, incarnation uint16) (next int64, ok bool) {
	for _, p := range points {
		if p.Incarnation == incarnation {
			return p.Next, true
		}
	}
	return 0, false
}

// Tenures are the epochs in which one origin's log of a partition counted.
type Tenures struct {
	// Known is the highest epoch of the unit that the register has, of whatever
	// owner, fences included; 0: it has none.
	Known Epoch
	// List has the tenures of the log's own region, rising.
	List []Tenure
}

// ValidityTable is what the ownership register says about all origins' logs of one
// partition of a topic. It is not changed once it is shared. A nil ValidityTable stands
// for a deployment without a register, where every record counts.
type ValidityTable struct {
	// Revision rises whenever anything below changes: the sequence of the newest
	// record of the register that it was made from.
	Revision uint64
	Logs     [MaxRegion + 1]Tenures
	// Retired has bit r set for a region r that sets no cut of any of the logs: nobody need
	// wait for what it promises to have folded of them.
	Retired uint16
}

// Judgement says whether a record counts.
type Judgement uint8

// The judgements.
const (
	// Authoritative: the record lies in an interval of its unit, written under
	// that interval's epoch or without a gateway.
	Authoritative Judgement = iota
	// Orphan: it does not, and no later revision changes that.
	Orphan
	// Unsettled: the register, as it is known here, cannot tell yet.
	Unsettled
)

// Judge says whether the record at a dot counts, written under an epoch (gg-u) or,
// with epoch 0, without a gateway. An Orphan stays one under every later revision;
// an Authoritative record may become one when the cut of its epoch becomes known.
func (a *ValidityTable) Judge(at Dot, epoch Epoch) Judgement {
	if a == nil {
		return Authoritative
	}
	log := &a.Logs[at.Region]
	if epoch == 0 {
		return log.unstamped(at)
	}
	if epoch > log.Known {
		return Unsettled
	}
	for i := range log.List {
		if t := &log.List[i]; t.has(epoch) {
			if start, cut := t.Interval(at.Incarnation); start <= at.Offset && at.Offset < cut {
				return Authoritative
			}
			return Orphan
		}
	}
	return Orphan
}

// unstamped judges a record that only its place can vouch for.
func (l *Tenures) unstamped(at Dot) Judgement {
	for i := range l.List {
		start, cut := l.List[i].Interval(at.Incarnation)
		switch {
		case at.Offset < start || l.List[i].after(at.Incarnation):
			return Orphan // between two intervals, or before the first
		case at.Offset < cut:
			return Authoritative
		}
	}
	return Unsettled // a later interval may begin at or below it
}

// Cut is the first offset of an incarnation's log, from an offset on, that does not
// count, and where the next interval begins: NoCut if everything from there on
// counts as far as is known, respectively if no next interval is known.
func (a *ValidityTable) Cut(origin RegionID, incarnation uint16, from int64) (cut, next int64) {
	if a == nil {
		return NoCut, NoCut
	}
	cut = from
	for i := range a.Logs[origin].List {
		start, end := a.Logs[origin].List[i].Interval(incarnation)
		switch {
		case end <= cut || start == end:
		case start <= cut:
			cut = end
		default:
			return cut, start
		}
	}
	return cut, NoCut
}

// Decided is the highest cut of an origin's log that a reader has come to, and so knows: of
// what lies below it, no later table judges anything otherwise.
func (a *ValidityTable) Decided(origin RegionID, read Point) (to Point) {
	if a == nil {
		return to
	}
	for i := range a.Logs[origin].List {
		if t := &a.Logs[origin].List[i]; t.Ended {
			for _, p := range t.Cut {
				if p.Compare(read) <= 0 && to.Compare(p) < 0 {
					to = p
				}
			}
		}
	}
	return to
}

// Known lowers a vector to what surely was read under the cuts of this table:
// an entry that lies past a cut, and not past where the next interval begins,
// may come from a reader that was shown what the cut has taken out since. One that
// lies further has met the next epoch, and with it the cut.
func (a *ValidityTable) Known(v Vector) Vector {
	if a == nil {
		return v
	}
	for r := range v {
		list := a.Logs[r].List
		for i := range list {
			_, cut := list[i].Interval(v[r].Incarnation)
			next := NoCut
			if i+1 < len(list) {
				next, _ = list[i+1].Interval(v[r].Incarnation)
			}
			if cut < v[r].Next && v[r].Next <= next {
				v[r].Next = cut
				break
			}
		}
	}
	return v
}

// Over tells whether nothing that counts of an origin's log lies at or above a point, as
// far as is known: its epoch was cut there or below, and no later one has started.
func (a *ValidityTable) Over(origin RegionID, at Point) bool {
	if a == nil || a.Revision == 0 {
		return false // nothing is known
	}
	cut, next := a.Cut(origin, at.Incarnation, at.Next)
	return cut == at.Next && next == NoCut && cut != NoCut
}

// Gone tells whether a region is retired, and nothing that counts of its log lies at or above
// a point: a reader that has come there waits for nothing of it.
func (a *ValidityTable) Gone(region RegionID, at Point) bool {
	return a.IsRetired(region) && a.Over(region, at)
}

// IsRetired tells whether a region is retired.
func (a *ValidityTable) IsRetired(region RegionID) bool { return a != nil && a.Retired>>region&1 == 1 }

// CutPending tells whether the newest epoch of an origin's log is over, and where it was
// cut is not known yet.
func (a *ValidityTable) CutPending(origin RegionID) bool {
	if a == nil {
		return false
	}
	log := &a.Logs[origin]
	n := len(log.List)
	return n > 0 && log.List[n-1].Epoch != anyEpoch && !log.List[n-1].Ended && log.Known > log.List[n-1].Epoch
}

// Orphans tells whether records of an origin that counted under the old table
// may not under this one, and from which point of the log on.
func (a *ValidityTable) Orphans(old *ValidityTable, origin RegionID) (from Point, found bool) {
	if a == nil {
		return Point{}, false
	}
	was := map[Epoch]*Tenure{}
	if old != nil {
		for i := range old.Logs[origin].List {
			was[old.Logs[origin].List[i].Epoch] = &old.Logs[origin].List[i]
		}
	}
	pastCut := func(t *Tenure) {
		if p := t.lowest(); !found || p.Compare(from) < 0 {
			from, found = p, true
		}
	}
	list := a.Logs[origin].List
	for i := range list {
		o := was[list[i].Epoch]
		if list[i].Ended && (o == nil || !o.Ended) {
			pastCut(&list[i])
		}
		// Where a new interval begins says of what came without a gateway between the
		// two that it does not count.
		if o == nil && i > 0 {
			pastCut(&list[i-1])
		}
	}
	return from, found
}

// NewlyCut gives the lowest point of an origin's log that lies past a cut which old does
// not have: only from there on may records count under old and not under a.
func (a *ValidityTable) NewlyCut(old *ValidityTable, origin RegionID) (from Point, found bool) {
	for i := range a.Logs[origin].List {
		t := &a.Logs[origin].List[i]
		if !t.Ended || old.hasCut(origin, t.Epoch) {
			continue
		}
		if p := t.lowest(); !found || p.Compare(from) < 0 {
			from, found = p, true
		}
	}
	return from, found
}

func (a *ValidityTable) hasCut(origin RegionID, e Epoch) bool {
	if a == nil {
		return false
	}
	for i := range a.Logs[origin].List {
		if t := &a.Logs[origin].List[i]; t.Epoch == e {
			return t.Ended
		}
	}
	return false
}

// lowest is the first point of the log that lies past the tenure's cut; no log
// comes to that of a tenure without one.
func (t *Tenure) lowest() Point {
	low := Point{math.MaxUint16, NoCut}
	consider := func(incarnation uint16) {
		if _, cut := t.Interval(incarnation); cut != NoCut && incarnation < low.Incarnation {
			low = Point{incarnation, cut}
		}
	}
	if len(t.Start) == 0 {
		consider(0) // it need not be listed
	}
	for _, points := range [][]Point{t.Start, t.Cut} {
		for _, p := range points {
			consider(p.Incarnation)
		}
	}
	return low
}

// retirable are the bits of regions.
const retirable = 1<<(MaxRegion+1) - 2

// maxTenures bounds the tenures of a log and the points of a tenure that a record
// may hold.
const maxTenures = 1 << 16

// logsRetired, in the number of logs, says that regions are retired.
const logsRetired = 0x80

// The flags of a tenure in a record.
const (
	tenureEnded byte = 1 << iota
	tenureJoins
)

// AppendValidityTable appends: uvarint revision; u8 number of logs, plus 128 if regions are
// retired; then a u16 with a bit for each that is; and for each log, region ids ascending: u8 id, uvarint highest epoch known, uvarint number of tenures, and
// for each: uvarint epoch, u8 flags (1: it has ended, 2: it joins several), uvarint first
// epoch if it joins several, its start and its cut, each a uvarint number of points and
// their uvarint incarnation and offset.
func AppendValidityTable(b []byte, a *ValidityTable) []byte {
	b = append(binary.AppendUvarint(b, a.Revision), 0)
	n := len(b) - 1
	if a.Retired != 0 {
		b[n] = logsRetired
		b = binary.BigEndian.AppendUint16(b, a.Retired)
	}
	for r := range a.Logs {
		log := &a.Logs[r]
		if log.Known == 0 && len(log.List) == 0 {
			continue
		}
		b[n]++
		b = binary.AppendUvarint(append(b, byte(r)), uint64(log.Known))
		b = binary.AppendUvarint(b, uint64(len(log.List)))
		for i := range log.List {
			t := &log.List[i]
			flags := byte(0)
			if t.Ended {
				flags |= tenureEnded
			}
			if t.First != 0 {
				flags |= tenureJoins
			}
			b = append(binary.AppendUvarint(b, uint64(t.Epoch)), flags)
			if t.First != 0 {
				b = binary.AppendUvarint(b, uint64(t.First))
			}
			b = appendBounds(appendBounds(b, t.Start), t.Cut)
		}
	}
	return b
}

func appendBounds(b []byte, points []Point) []byte {
	b = binary.AppendUvarint(b, uint64(len(points)))
	for _, p := range points {
		b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(p.Incarnation)), uint64(p.Next))
	}
	return b
}

// ReadValidityTable reads what AppendValidityTable has written.
func ReadValidityTable(r *Reader) *ValidityTable {
	a := &ValidityTable{Revision: r.Uvarint()}
	last, logs := RegionID(0), r.Uint8()
	if logs >= logsRetired {
		logs -= logsRetired
		if a.Retired = r.Uint16(); a.Retired&^retirable != 0 || a.Retired == 0 {
			r.Fail("retired regions %#x", a.Retired)
		}
	}
	for range logs {
		id := r.Region()
		if r.Err() == nil && id <= last {
			r.Fail("log of region %d after %d", id, last)
		}
		if r.Err() != nil {
			return a // an id that is none must not index the logs
		}
		last = id
		log := &a.Logs[id]
		log.Known = Epoch(r.Uvarint())
		for range r.UvarintMax(maxTenures) {
			if r.Err() != nil {
				return a
			}
			t := Tenure{Epoch: Epoch(r.Uvarint())}
			flags := r.Uint8()
			if t.Ended = flags&tenureEnded != 0; flags&^(tenureEnded|tenureJoins) != 0 {
				r.Fail("flags %#x of epoch %d", flags, t.Epoch)
			}
			if flags&tenureJoins != 0 {
				if t.First = Epoch(r.Uvarint()); t.First == 0 || t.First >= t.Epoch {
					r.Fail("epoch %d joins those from %d on", t.Epoch, t.First)
				}
			}
			t.Start, t.Cut = readBounds(r), readBounds(r)
			log.List = append(log.List, t)
		}
	}
	return a
}

func readBounds(r *Reader) (points []Point) {
	for range r.UvarintMax(maxTenures) {
		if r.Err() != nil {
			break
		}
		points = append(points, Point{Incarnation: uint16(r.UvarintMax(math.MaxUint16)), Next: int64(r.UvarintMax(math.MaxInt64))})
	}
	return points
}
