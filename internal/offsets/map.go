package offsets

import (
	"fmt"
	"slices"
)

// Limits of what a Map keeps in memory of one partition. What lies further back is read
// from its store.
const (
	// tailRuns is how many of the newest runs are kept.
	tailRuns = 1 << 10
	// runBytes is about what a run takes in memory.
	runBytes = 80
	// mostReplaced bounds how many runs one record may take the place of: a link folds
	// some thousands.
	mostReplaced = 1 << 16
)

// Map holds the runs of one remote partition in a store, packed into records, and
// answers in both directions. In memory it has the newest runs and the record that it
// looked at last. It is not safe for concurrent use. The zero Map has a store in memory.
//
// Invariant: the records of the store are disjoint.
type Map struct {
	store Store
	end   int64
	known bool // end is known
	tail  []Run
	block packed
}

// packed is a record of the store, opened.
type packed struct {
	first int64
	runs  []Run
}

// NewMap makes a map of what is in a store.
func NewMap(s Store) *Map { return &Map{store: s} }

func (m *Map) open() Store {
	if m.store == nil {
		m.store = new(Memory)
	}
	return m.store
}

// Add takes runs in target order. Runs that are already there are passed over, so
// that a folded block may follow the records it replaces; runs that contradict
// what is there, or overlap too much of it, are an error, and none of them is added.
func (m *Map) Add(runs ...Run) error {
	for i := 1; i < len(runs); i++ {
		if runs[i].Target < runs[i-1].TargetEnd() {
			return fmt.Errorf("add run at target %d: overlaps the run that ends at %d", runs[i].Target, runs[i-1].TargetEnd())
		}
	}
	if len(runs) == 0 {
		return nil
	}
	end := m.End()
	if runs[0].Target < end {
		return m.replace(runs)
	}
	m.pack(runs)
	m.end = runs[len(runs)-1].TargetEnd()
	if n := len(m.tail) + len(runs); n > 2*tailRuns {
		m.tail = append([]Run(nil), m.tail[min(len(m.tail), n-tailRuns):]...)
	}
	if len(runs) > tailRuns {
		runs = runs[len(runs)-tailRuns:]
	}
	m.tail = append(m.tail, runs...)
	return nil
}

// pack writes runs that lie where nothing is.
func (m *Map) pack(runs []Run) {
	for len(runs) > 0 {
		n := 1
		for n < len(runs) && n < MaxBlockRuns && runs[n].Follows(runs[n-1]) {
			n++
		}
		m.open().Put(runs[0].Target, AppendRuns(nil, runs[:n]))
		runs = runs[n:]
	}
}

// replace puts runs in the place of all records that they overlap, together with the other
// runs of these records.
func (m *Map) replace(runs []Run) error {
	var old []Run
	var keys []int64
	for p, ok := m.overlapped(runs[0].Target); ok && p.first < runs[len(runs)-1].TargetEnd(); p, ok = m.from(p.first + 1) {
		keys, old = append(keys, p.first), append(old, p.runs...)
		if len(old) > mostReplaced {
			return fmt.Errorf("add runs: they overlap more than %d that are there", mostReplaced)
		}
	}
	all := make([]Run, 0, len(old)+len(runs))
	i, fresh := 0, false
	for _, r := range runs {
		for ; i < len(old) && old[i].TargetEnd() <= r.Target; i++ {
			all = append(all, old[i])
		}
		switch {
		case i == len(old) || old[i].Target >= r.TargetEnd():
			all, fresh = append(all, r), true
		case !old[i].same(r):
			return fmt.Errorf("add run %+v: contradicts %+v", r, old[i])
		default:
			all = append(all, old[i])
			i++
		}
	}
	all = append(all, old[i:]...)
	if !fresh && len(keys) == 1 {
		return nil
	}
	for _, first := range keys {
		m.store.Delete(first)
	}
	m.pack(all)
	m.forget()
	return nil
}

// overlapped is the first record that ends above target.
func (m *Map) overlapped(target int64) (packed, bool) {
	if first, value, ok := m.open().Floor(target); ok {
		if p, ok := m.unpack(first, value); ok && p.runs[len(p.runs)-1].TargetEnd() > target {
			return p, true
		}
	}
	return m.from(target)
}

// from is the first record that begins at or above target.
func (m *Map) from(target int64) (packed, bool) {
	first, value, ok := m.open().Ceil(target)
	if !ok {
		return packed{}, false
	}
	return m.unpack(first, value)
}

// unpack opens a record of the store.
func (m *Map) unpack(first int64, value []byte) (packed, bool) {
	runs, err := ParseRuns(first, value)
	if err != nil {
		m.store.Broken(fmt.Errorf("record of runs at %d: %w", first, err))
		return packed{}, false
	}
	return packed{first, runs}, true
}

// forget takes everything out of memory.
func (m *Map) forget() { m.tail, m.block, m.known = nil, packed{}, false }

// Forget takes what can be read again out of memory.
func (m *Map) Forget() { m.tail, m.block = nil, packed{} }

// Held is about how many bytes of memory Forget would free.
func (m *Map) Held() int {
	return (cap(m.tail) + cap(m.block.runs)) * runBytes
}

func (p *packed) holds(target int64) bool {
	n := len(p.runs)
	return n > 0 && p.first <= target && target < p.runs[n-1].TargetEnd()
}

// atOrAfter finds the run that holds target, or else the first after it.
func (m *Map) atOrAfter(target int64) (Run, bool) {
	if target >= m.End() {
		return Run{}, false
	}
	runs := m.block.runs
	switch {
	case len(m.tail) > 0 && target >= m.tail[0].Target:
		runs = m.tail
	case !m.block.holds(target):
		p, ok := m.overlapped(target)
		if !ok {
			return Run{}, false
		}
		m.block, runs = p, p.runs
	}
	j, _ := slices.BinarySearchFunc(runs, target, func(r Run, t int64) int {
		if r.TargetEnd() <= t {
			return -1
		}
		return 1
	})
	if j == len(runs) {
		return Run{}, false
	}
	return runs[j], true
}

// Locate finds the run that holds a target offset.
func (m *Map) Locate(target int64) (Run, bool) {
	r, ok := m.atOrAfter(target)
	return r, ok && r.Target <= target
}

// Source is the source offset of a target offset.
func (m *Map) Source(target int64) (incarnation uint16, source int64, ok bool) {
	r, ok := m.Locate(target)
	if !ok {
		return 0, 0, false
	}
	return r.Incarnation, r.Source + target - r.Target, true
}

// Target is the target offset of a source offset, if it was copied.
func (m *Map) Target(incarnation uint16, source int64) (target int64, ok bool) {
	r, ok := m.sourceAtOrAfter(incarnation, source)
	if !ok || r.Incarnation != incarnation || r.Source > source {
		return 0, false
	}
	return r.Target + source - r.Source, true
}

// TargetFrom is the first target offset whose record lies at or after a source
// offset; ok is false when nothing of that kind was copied yet.
func (m *Map) TargetFrom(incarnation uint16, source int64) (target int64, ok bool) {
	r, ok := m.sourceAtOrAfter(incarnation, source)
	if !ok {
		return 0, false
	}
	if r.Incarnation == incarnation && r.Source < source {
		return r.Target + source - r.Source, true
	}
	return r.Target, true
}

// place is a place in the source's log.
type place struct {
	incarnation uint16
	offset      int64
}

func (p place) atMost(q place) bool {
	return p.incarnation < q.incarnation || p.incarnation == q.incarnation && p.offset <= q.offset
}

// begin and end are where a run begins and ends in the source's log.
func (r Run) begin() place { return place{r.Incarnation, r.Source} }

func (r Run) endPlace() place { return place{r.Incarnation, r.SourceEnd()} }

// sourceAtOrAfter finds, in target order, the first run of a later incarnation or
// of this one that ends above source. A link copies in order, so within an
// incarnation sources rise with targets.
func (m *Map) sourceAtOrAfter(incarnation uint16, source int64) (Run, bool) {
	at := place{incarnation, source}
	within := func(runs []Run) bool { // the run cannot lie before them
		return len(runs) > 0 && runs[0].begin().atMost(at)
	}
	runs := m.block.runs
	switch n := len(runs); {
	case within(m.tail):
		runs = m.tail
	case within(runs) && !runs[n-1].endPlace().atMost(at):
	default:
		p, ok := m.lastFrom(at)
		if !ok {
			return Run{}, false
		}
		m.block, runs = p, p.runs
	}
	if r, ok := firstPast(runs, at); ok {
		return r, true
	}
	// Past the record's end: what follows it.
	p, ok := m.from(runs[len(runs)-1].TargetEnd())
	if !ok {
		return Run{}, false
	}
	return firstPast(p.runs, at)
}

// firstPast is the first of runs that ends past a place.
func firstPast(runs []Run, at place) (Run, bool) {
	j, _ := slices.BinarySearchFunc(runs, at, func(r Run, at place) int {
		if r.endPlace().atMost(at) {
			return -1
		}
		return 1
	})
	if j == len(runs) {
		return Run{}, false
	}
	return runs[j], true
}

// lastFrom is the last record that begins at or before a place in the source's log, or
// else the first record. Where records begin rises with their targets, so it halves the
// target offsets: that takes as many look-ups as there are bits in an offset at most.
func (m *Map) lastFrom(at place) (packed, bool) {
	first, value, ok := m.open().Ceil(0)
	if !ok {
		return packed{}, false
	}
	begins := func(value []byte) (place, bool) {
		p, err := parseBegin(value)
		if err != nil {
			m.store.Broken(fmt.Errorf("record of runs: %w", err))
		}
		return p, err == nil
	}
	// The record is that at first, or one that begins in (first, until).
	until := m.End()
	for first+1 < until {
		mid := first + (until-first)/2
		f, v, ok := m.store.Floor(mid)
		if ok && f == first {
			f, v, ok = m.store.Ceil(mid + 1)
		}
		if !ok || f >= until {
			break // none begins in between
		}
		where, good := begins(v)
		if !good {
			return packed{}, false
		}
		if where.atMost(at) {
			first, value = f, v
		} else {
			until = f
		}
	}
	return m.unpack(first, value)
}

// Cut forgets every target offset at or above target: the remote log lost them.
func (m *Map) Cut(target int64) {
	s := m.open()
	for first, _, ok := s.Ceil(target); ok; first, _, ok = s.Ceil(first + 1) {
		s.Delete(first)
	}
	if p, ok := m.overlapped(target); ok {
		s.Delete(p.first)
		var kept []Run
		for _, r := range p.runs {
			if r.Target < target {
				r.Count = min(r.Count, target-r.Target)
				kept = append(kept, r)
			}
		}
		m.pack(kept)
	}
	m.forget()
}

// CutRecord is Cut at end if the record that begins at first ends above it: somebody
// made it shorter.
func (m *Map) CutRecord(first, end int64) {
	if first >= m.End() {
		return
	}
	if f, value, ok := m.open().Floor(first); ok && f == first {
		if p, ok := m.unpack(f, value); ok && p.runs[len(p.runs)-1].TargetEnd() > end {
			m.Cut(end)
		}
	}
}

// End is the target offset after the last run, 0 when there is none.
func (m *Map) End() int64 {
	if !m.known {
		m.end, m.known = 0, true
		if first, value, ok := m.open().Floor(1<<63 - 1); ok {
			if p, ok := m.unpack(first, value); ok {
				m.end = p.runs[len(p.runs)-1].TargetEnd()
			}
		}
	}
	return m.end
}

// Below gives the first targets of records whose runs lie below a target offset, at most
// most of them, in order. The last record that begins below it is never among them: it
// tells readers of places before it that what they need lay below the offset.
func (m *Map) Below(target int64, most int) (firsts []int64) {
	s := m.open()
	first, _, ok := s.Ceil(0)
	for ok && len(firsts) < most {
		next, _, more := s.Ceil(first + 1)
		if !more || next >= target {
			break
		}
		firsts, first = append(firsts, first), next
	}
	return firsts
}

// RemoveBelow takes out the record that begins at first if Below would give it, and tells
// where the next begins.
func (m *Map) RemoveBelow(first, target int64) (next int64, ok bool) {
	s := m.open()
	if f, _, found := s.Floor(first); !found || f != first {
		return 0, false
	}
	if next, _, ok = s.Ceil(first + 1); !ok || next >= target {
		return 0, false
	}
	s.Delete(first)
	m.block = packed{} // it may be that one; the newest are never below
	if len(m.tail) > 0 && m.tail[0].Target < next {
		m.tail = nil
	}
	return next, true
}
