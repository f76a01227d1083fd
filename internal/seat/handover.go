package seat

import (
	"sync"
	"sync/atomic"
)

// Handover keeps what a seat's Readback has judged for its Inputs, so that the own log is
// fetched, opened and judged once. The Readback reads uncommitted and the Inputs want what
// is committed. Of a stretch that nobody has written to in a transaction that is the same,
// for a reader that knows that everything below the stretch is committed: a transaction that
// is open there has written nothing in the stretch, or the stretch would not be free of
// transactions.
//
// Hence the invariant: in items are all places that were judged at or above first, and
// none of them lies in a transaction. A reader that has read committed up to first may take
// them. A reader that has not, because a transaction lies there or because it is slow and they
// were dropped, reads the log itself until it has.
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
	places []Read
	bytes  int
}

// NewHandover makes the handover of a Readback that begins at an offset. It keeps about
// limit bytes.
func NewHandover(from int64, limit int) *Handover {
	return &Handover{limit: limit, first: from}
}

// Put takes places in the order of the log. The Handover keeps the slice.
func (h *Handover) Put(of HandOver) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if of.From > h.first {
		h.drop(len(h.items))
		h.first = of.From
	}
	if len(of.Places) > 0 {
		n := weigh(of.Places)
		h.items = append(h.items, handed{of.Places, n})
		h.count(n)
	}
	for len(h.items) > 0 && (h.bytes > h.limit || h.budget.exhausted()) {
		h.drop(1)
	}
}

// Take gives the next of the places at or above an offset, below which everything was read
// committed; ok is false where they are not here, and the log has to be read.
func (h *Handover) Take(from int64) (places []Read, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if from < h.first {
		return nil, false
	}
	for len(h.items) > 0 {
		places = h.items[0].places
		h.drop(1)
		for len(places) > 0 && places[0].Item.Next.Next <= from {
			places = places[1:]
		}
		if len(places) > 0 {
			return places, true
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
		h.first = max(h.first, x.places[len(x.places)-1].Item.Next.Next)
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

// weigh is roughly what places keep in memory.
func weigh(places []Read) (n int) {
	for i := range places {
		n += places[i].Item.Event.Size()
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
