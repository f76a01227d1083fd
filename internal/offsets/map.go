package offsets

import (
	"fmt"
	"slices"
)

// BlockRuns is how many runs a Map packs into one block: large enough that a run
// costs a few bytes, small enough that a look-up decodes little.
const BlockRuns = 256

// Map holds the runs of one remote partition, packed, and answers in both
// directions. It is not safe for concurrent use.
type Map struct {
	blocks []block // in target order, disjoint
	tail   []Run   // the newest runs, not packed yet

	cached int // index of the block that decoded holds, valid when decoded != nil
	decode []Run
}

type block struct {
	target, targetEnd int64 // range of target offsets, gaps included
	sourceEnd         int64 // its source offsets lie below
	incarnation       uint16
	runs              int
	value             []byte
}

// Add takes runs in target order. Runs that are already there are passed over, so
// that a folded block may follow the records it replaces; runs that contradict
// what is there are an error, and none of them is added.
func (m *Map) Add(runs ...Run) error {
	fresh := make([]Run, 0, len(runs))
	for i, r := range runs {
		if i > 0 && r.Target < runs[i-1].TargetEnd() {
			return fmt.Errorf("add run at target %d: overlaps the run that ends at %d", r.Target, runs[i-1].TargetEnd())
		}
		old, ok := m.overlap(r)
		switch {
		case !ok:
			fresh = append(fresh, r)
		case !old.same(r):
			return fmt.Errorf("add run %+v: contradicts %+v", r, old)
		}
	}
	for _, r := range fresh {
		m.insert(r)
	}
	return nil
}

// overlap finds a run that shares a target offset with r.
func (m *Map) overlap(r Run) (Run, bool) {
	if r.Target >= m.End() {
		return Run{}, false
	}
	old, ok := m.atOrAfter(r.Target)
	return old, ok && old.Target < r.TargetEnd()
}

func (m *Map) insert(r Run) {
	if len(m.tail) == 0 || r.Target >= m.tail[0].Target {
		at, _ := slices.BinarySearchFunc(m.tail, r.Target, func(o Run, t int64) int { return int(o.Target - t) })
		m.tail = slices.Insert(m.tail, at, r)
		if len(m.tail) >= 2*BlockRuns {
			m.pack()
		}
		return
	}
	at, _ := slices.BinarySearchFunc(m.blocks, r.Target, func(b block, t int64) int {
		if b.targetEnd <= t {
			return -1
		}
		return 1
	})
	// An old run between others: give it a block of its own, splitting the
	// one around it.
	m.decode = nil
	if at < len(m.blocks) && m.blocks[at].target < r.Target {
		runs := m.unpack(at)
		cut, _ := slices.BinarySearchFunc(runs, r.Target, func(o Run, t int64) int { return int(o.Target - t) })
		m.blocks = slices.Replace(m.blocks, at, at+1, newBlock(runs[:cut]), newBlock([]Run{r}), newBlock(runs[cut:]))
		m.decode = nil
		return
	}
	m.blocks = slices.Insert(m.blocks, at, newBlock([]Run{r}))
}

// pack moves the older half of the tail into blocks of runs that follow on each
// other.
func (m *Map) pack() {
	old := m.tail[:BlockRuns]
	for len(old) > 0 {
		n := 1
		for n < len(old) && follows(old[n-1], old[n]) {
			n++
		}
		m.blocks = append(m.blocks, newBlock(old[:n]))
		old = old[n:]
	}
	m.tail = slices.Delete(m.tail, 0, BlockRuns)
}

// follows tells whether b may follow a in one encoded block: there a run
// without barriers of its own takes over the barrier of the run before.
func follows(a, b Run) bool {
	return b.Incarnation == a.Incarnation && b.Restricted == a.Restricted && b.Source >= a.SourceEnd() &&
		(len(b.Barriers) > 0 && b.Barriers[0] >= a.SourceEnd() || len(b.Barriers) == 0 && b.Barrier == a.Barrier)
}

func newBlock(runs []Run) block {
	last := runs[len(runs)-1]
	return block{
		target: runs[0].Target, targetEnd: last.TargetEnd(),
		sourceEnd:   last.SourceEnd(),
		incarnation: runs[0].Incarnation,
		runs:        len(runs),
		value:       AppendRuns(nil, runs),
	}
}

func (m *Map) unpack(i int) []Run {
	if m.decode != nil && m.cached == i {
		return m.decode
	}
	runs, err := ParseRuns(m.blocks[i].target, m.blocks[i].value)
	if err != nil {
		panic(fmt.Sprintf("offsets: a block that this map packed does not parse: %v", err))
	}
	m.cached, m.decode = i, runs
	return runs
}

// atOrAfter finds the run that holds target, or else the first after it.
func (m *Map) atOrAfter(target int64) (Run, bool) {
	i, _ := slices.BinarySearchFunc(m.blocks, target, func(b block, t int64) int {
		if b.targetEnd <= t {
			return -1
		}
		return 1
	})
	runs := m.tail
	if i < len(m.blocks) {
		runs = m.unpack(i)
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

// sourceAtOrAfter finds, in target order, the first run of a later incarnation or
// of this one that ends above source. A link copies in order, so within an
// incarnation sources rise with targets.
func (m *Map) sourceAtOrAfter(incarnation uint16, source int64) (Run, bool) {
	below := func(inc uint16, end int64) int {
		if inc < incarnation || inc == incarnation && end <= source {
			return -1
		}
		return 1
	}
	i, _ := slices.BinarySearchFunc(m.blocks, source, func(b block, _ int64) int { return below(b.incarnation, b.sourceEnd) })
	runs := m.tail
	if i < len(m.blocks) {
		runs = m.unpack(i)
	}
	j, _ := slices.BinarySearchFunc(runs, source, func(r Run, _ int64) int { return below(r.Incarnation, r.SourceEnd()) })
	if j == len(runs) {
		return Run{}, false
	}
	return runs[j], true
}

// Cut forgets every target offset at or above target: the remote log lost them.
func (m *Map) Cut(target int64) {
	cut := func(runs []Run) []Run {
		var kept []Run
		for _, r := range runs {
			if r.Target < target {
				r.Count = min(r.Count, target-r.Target)
				kept = append(kept, r)
			}
		}
		return kept
	}
	m.tail = cut(m.tail)
	var blocks []block
	for i, b := range m.blocks {
		if b.targetEnd <= target {
			blocks = append(blocks, b)
		} else if runs := cut(m.unpack(i)); len(runs) > 0 {
			blocks = append(blocks, newBlock(runs))
		}
	}
	m.blocks, m.decode = blocks, nil
}

// End is the target offset after the last run, 0 when there is none.
func (m *Map) End() int64 {
	if n := len(m.tail); n > 0 {
		return m.tail[n-1].TargetEnd()
	}
	if n := len(m.blocks); n > 0 {
		return m.blocks[n-1].targetEnd
	}
	return 0
}
