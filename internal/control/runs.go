package control

import (
	"container/list"

	"github.com/geogate/geogate/internal/event"
	"github.com/geogate/geogate/internal/offsets"
)

// RunStore keeps the runs that one link has written down. It is a cache of the topic of
// runs: what is lost of it is read again.
type RunStore interface {
	// Of is the store of a copy's runs.
	Of(Copy) offsets.Store
	// ReadTo notes that the records of a slot below next were put, and stores what was put
	// and how far that is.
	ReadTo(slot int32, next int64)
	// Err is the first error of a read or write. After it, nothing is found and nothing is
	// stored.
	Err() error
}

// SavedRuns is a RunStore that outlives the process.
type SavedRuns interface {
	RunStore
	// Place is how far a slot was read, and of which topic; ok is false if that is not
	// known.
	Place(slot int32) (p Place, ok bool)
	// Under says from which topic the next ReadTo of a slot is, and the leader epoch of the
	// last batch that was read of it; -1 if none was read since the start.
	Under(slot int32, topic event.TopicID, epoch int32)
	// Reset forgets everything.
	Reset()
}

// Place is how far a slot of a topic of runs was read.
type Place struct {
	Topic event.TopicID
	Next  int64
	Epoch int32 // leader epoch of the last batch below Next, -1 unknown
}

// memoryRuns keeps runs in memory.
type memoryRuns map[Copy]*offsets.Memory

// NewMemoryRuns makes a store that ends with the process.
func NewMemoryRuns() RunStore { return memoryRuns{} }

func (m memoryRuns) Of(c Copy) offsets.Store {
	if m[c] == nil {
		m[c] = new(offsets.Memory)
	}
	return m[c]
}

func (m memoryRuns) ReadTo(int32, int64) {}
func (m memoryRuns) Err() error          { return nil }

// runBudget bounds, in bytes, the memory that the runs of one link take beside their store.
// It holds the newest hundred runs of each of 1,000 partitions, or some dozens of blocks that
// readers further back need.
const runBudget = 8 << 20

// runTable is the runs of one link, by copy. What they take in memory is bounded: of those
// that were used least recently only the store has them.
type runTable struct {
	store  RunStore
	copies map[Copy]*copyRuns
	used   *list.List // of those that hold memory, the most recently used first
	held   int        // bytes, of all
	budget int
}

type copyRuns struct {
	offsets.Map
	held int
	used *list.Element // nil: it holds nothing
	// below is a target offset: the log of the copy begins there or later, and no reader
	// needs runs below it.
	below int64
	// removed is where the lowest run begins, once runs below it were taken out.
	removed int64
}

func newRunTable(store RunStore) *runTable {
	return &runTable{store: store, copies: make(map[Copy]*copyRuns), used: list.New(), budget: runBudget}
}

// reset forgets what was looked up in the store.
func (t *runTable) reset() {
	clear(t.copies)
	t.used.Init()
	t.held = 0
}

// of gives the runs of a copy. The memory that the caller's use of them takes is accounted
// for by the next call for another copy.
func (t *runTable) of(c Copy) *copyRuns {
	r := t.copies[c]
	if r == nil {
		r = &copyRuns{Map: *offsets.NewMap(t.store.Of(c))}
		t.copies[c] = r
	}
	front := t.used.Front()
	if front != nil && front == r.used {
		return r
	}
	if front != nil {
		last := front.Value.(*copyRuns)
		t.held += last.Held() - last.held
		last.held = last.Held()
	}
	if r.used == nil {
		r.used = t.used.PushFront(r)
	} else {
		t.used.MoveToFront(r.used)
	}
	for e := t.used.Back(); t.held > t.budget && e != r.used; e = t.used.Back() {
		old := t.used.Remove(e).(*copyRuns)
		old.Forget()
		t.held -= old.held
		old.held, old.used = 0, nil
	}
	return r
}

// put adds a record's runs. Runs of a later record win over those they
// contradict: a link cuts its runs only after the remote log was truncated, and
// then everything above is gone.
func (t *runTable) put(c Copy, first int64, runs []offsets.Run) {
	m := t.of(c)
	m.CutRecord(first, runs[len(runs)-1].TargetEnd())
	if m.Add(runs...) == nil {
		return
	}
	for _, r := range runs {
		if m.Add(r) != nil {
			m.Cut(r.Target)
			_ = m.Add(r) // nothing is left that it could contradict
		}
	}
}

// tombstone takes out a record that is not needed any more. A tombstone alone proves nothing:
// one comes also for a record that was folded into a block, which has replaced it.
func (t *runTable) tombstone(c Copy, first int64) {
	m := t.copies[c]
	if m == nil || m.below == 0 {
		return
	}
	if next, ok := m.RemoveBelow(first, m.below); ok {
		m.removed = max(m.removed, next)
	}
}

// locate finds the run that holds a target offset. Where there is none, known is false if
// there may have been one: runs were taken out there, or the store has failed.
func (t *runTable) locate(c Copy, target int64) (r offsets.Run, known, ok bool) {
	m := t.of(c)
	r, ok = m.Locate(target)
	return r, ok || target >= m.removed && t.store.Err() == nil, ok
}

func (t *runTable) target(c Copy, incarnation uint16, source int64) (int64, bool) {
	return t.of(c).Target(incarnation, source)
}

func (t *runTable) targetFrom(c Copy, incarnation uint16, source int64) (int64, bool) {
	return t.of(c).TargetFrom(incarnation, source)
}

// needless gives the first targets of records that nobody needs: the log of the copy begins
// at target or above it, and its readers have read what is below.
func (t *runTable) needless(c Copy, target int64, most int) []int64 {
	m := t.of(c)
	m.below = max(m.below, target)
	return m.Below(m.below, most)
}

// savedPlace tells where to go on reading a slot of a topic of runs that begins and ends at
// first and end. The cluster says that what was written under the leader epoch of the place
// ends at epochEnd; -1 if it knows nothing of that epoch. ok is false if what was saved is of
// another log, or of one that has lost its end since.
//
// A machine that loses power may lose the ends of both log and store, and the log may have
// grown again: the last offsets are read once more.
func savedPlace(p Place, topic event.TopicID, first, end, epochEnd int64) (next int64, ok bool) {
	if p.Topic != topic || p.Next > end || epochEnd < p.Next {
		return first, false
	}
	return max(first, p.Next-readAgain), true
}

// readAgain is how many offsets of a slot are read once more at a start.
const readAgain = 1000
