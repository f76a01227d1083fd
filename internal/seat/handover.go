package seat

import (
	"sync"
	"sync/atomic"

	"github.com/geogate/geogate/internal/judged"
)

// Handover keeps what a seat's Readback has judged for its Inputs, so that the own log is
// fetched, opened and judged once. The Readback reads uncommitted and the Inputs want what
// is committed. Of a stretch that nobody has written to in a transaction that is the same,
// for whoever knows that everything below the stretch is committed: a transaction that is
// open there has written nothing in the stretch, or it would not be one.
//
// Hence the invariant: in items are all places that were judged at or above first, and
// none of them lies in a transaction. Whoever has read committed up to first may take
// them. Who has not, because a transaction lies there or he is too slow and they were
// dropped, reads on by himself until he has.
//
// It is safe for concurrent use. It never waits: beyond its limit the oldest places go.
type Handover struct {
	limit  int
	budget *handoverBudget // nil: none

	mu    sync.Mutex
	first int64 // guarded by mu, as everything below
	items []handed
	bytes int
}

// handed is what one Put brought.
type handed struct {
	items []judged.Item
	bytes int
}

// NewHandover makes the handover of a Readback that begins at an offset. It keeps about
// limit bytes.
func NewHandover(from int64, limit int) *Handover {
	return &Handover{limit: limit, first: from}
}

// Put takes places in the order of the log. The Handover keeps the slice.
func (h *Handover) Put(places HandOver) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if places.From > h.first {
		h.drop(len(h.items))
		h.first = places.From
	}
	if len(places.Items) > 0 {
		n := weighItems(places.Items)
		h.items = append(h.items, handed{places.Items, n})
		h.count(n)
	}
	for len(h.items) > 0 && (h.bytes > h.limit || h.budget.exhausted()) {
		h.drop(1)
	}
}

// Take gives the next of the places at or above an offset, below which everything was read
// committed; ok is false where they are not here, and the log has to be read.
func (h *Handover) Take(from int64) (items []judged.Item, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if from < h.first {
		return nil, false
	}
	for len(h.items) > 0 {
		items = h.items[0].items
		h.drop(1)
		for len(items) > 0 && items[0].Next.Next <= from {
			items = items[1:]
		}
		if len(items) > 0 {
			return items, true
		}
	}
	return nil, true
}

// Close drops everything.
func (h *Handover) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.drop(len(h.items))
}

// drop takes out the n oldest slices; the caller holds mu.
func (h *Handover) drop(n int) {
	for _, x := range h.items[:n] {
		h.first = max(h.first, x.items[len(x.items)-1].Next.Next)
		h.count(-x.bytes)
	}
	clear(h.items[:n])
	if h.items = h.items[n:]; len(h.items) == 0 {
		h.items = nil
	}
}

// count counts bytes that came or, below 0, went; the caller holds mu.
func (h *Handover) count(bytes int) {
	h.bytes += bytes
	h.budget.count(bytes)
}

// weighItems is roughly what places keep in memory.
func weighItems(items []judged.Item) (n int) {
	for i := range items {
		n += items[i].Event.Size()
	}
	return n
}

// newHandover makes a seat's handover, within what all seats may keep.
func (t *Tail) newHandover(from int64) *Handover {
	h := NewHandover(from, t.handoverBytes)
	h.budget = t.handovers
	return h
}

// handoverBudget is what the handovers of all seats of an instance keep together.
type handoverBudget struct {
	limit int64
	bytes atomic.Int64
}

func (b *handoverBudget) count(bytes int) {
	if b != nil {
		b.bytes.Add(int64(bytes))
	}
}

func (b *handoverBudget) exhausted() bool { return b != nil && b.bytes.Load() > b.limit }
