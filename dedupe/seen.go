package dedupe

import (
	"encoding/binary"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/geogate/geogate/internal/event"
)

// seen knows without the store which keys have no copy there: nearly every first use of a
// key. It never says so of a key that has one. Until it has read all keys that were in
// the store when the index was opened, it says nothing of any; it reads some at a time,
// whenever copies are stored.
//
// It is a list of Bloom filters, each four times as large as the one before, which say of
// about one unknown key in a hundred that it may be there: then the store is asked. It is
// safe for concurrent use.
type seen struct {
	mu      sync.Mutex
	filters []filter
	whole   bool                 // every key of the store is in
	after   event.IdempotencyKey // the first that was not read from the store yet
	keys    int                  // that were added
	swept   int                  // that the store does not have any more
	over    bool                 // there is no memory for more: nothing is known
	taken   *atomic.Int64        // bytes of filters
}

// What filters take.
const (
	bitsOfKey    = 12
	probesOfKey  = 8
	firstFilter  = 4 << 10  // keys
	largeFilter  = 16 << 20 // keys: those after it are not larger
	readAtOnce   = 4 << 10  // keys of the store
	sweptAtLeast = 64 << 10 // keys before filters are made anew
)

// maxSeen is what the filters of all indexes of a process take at most, in bytes: those
// of 40 million keys.
const maxSeen = 64 << 20

var seenBytes atomic.Int64

// newSeen makes the filters of an index, which are given back with it.
func newSeen(of *Index) {
	of.seen.taken = new(atomic.Int64)
	runtime.AddCleanup(of, func(taken *atomic.Int64) { seenBytes.Add(-taken.Load()) }, of.seen.taken)
}

// take reserves memory; ok is false if there is no more.
func (s *seen) take(bytes int64) (ok bool) {
	if seenBytes.Add(bytes) > maxSeen && bytes > 0 {
		seenBytes.Add(-bytes)
		return false
	}
	s.taken.Add(bytes)
	return true
}

type filter struct {
	bits []uint64
	room int // keys that it still takes
}

func (f *filter) place(key *event.IdempotencyKey, probe uint64) (word int, bit uint64) {
	// A key is the output of a keyed hash.
	h := binary.BigEndian.Uint64(key[:8]) + probe*(binary.BigEndian.Uint64(key[8:])|1)
	at := h % uint64(64*len(f.bits))
	return int(at / 64), 1 << (at % 64)
}

func (f *filter) add(key *event.IdempotencyKey) {
	for i := range uint64(probesOfKey) {
		word, bit := f.place(key, i)
		f.bits[word] |= bit
	}
	f.room--
}

func (f *filter) has(key *event.IdempotencyKey) bool {
	for i := range uint64(probesOfKey) {
		if word, bit := f.place(key, i); f.bits[word]&bit == 0 {
			return false
		}
	}
	return true
}

// maybe is the places of the keys that may have copies in the store.
func (s *seen) maybe(keys []event.IdempotencyKey) []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []int
	for i := range keys {
		if !s.whole || s.has(&keys[i]) {
			out = append(out, i)
		}
	}
	return out
}

func (s *seen) has(key *event.IdempotencyKey) bool {
	for i := range s.filters {
		if s.filters[i].has(key) {
			return true
		}
	}
	return false
}

// add notes a key; the caller holds mu.
func (s *seen) add(key *event.IdempotencyKey) {
	if s.over || s.has(key) {
		return
	}
	n := len(s.filters)
	if n == 0 || s.filters[n-1].room == 0 {
		room := largeFilter
		if n < 6 {
			room = firstFilter << (2 * n)
		}
		words := room * bitsOfKey / 64
		if !s.take(int64(8 * words)) {
			s.forget()
			s.over = true
			return
		}
		s.filters = append(s.filters, filter{bits: make([]uint64, words), room: room})
		n++
	}
	s.filters[n-1].add(key)
	s.keys++
}

// forget begins with nothing; the caller holds mu.
func (s *seen) forget() {
	for _, f := range s.filters {
		s.take(-int64(8 * len(f.bits)))
	}
	s.filters, s.whole, s.after, s.keys, s.swept = nil, false, event.IdempotencyKey{}, 0, 0
}

// store notes the keys of copies, before they are stored, and reads on in the store.
func (s *seen) store(copies []Copy, from Store) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range copies {
		s.add(&copies[i].Key)
	}
	if s.whole || s.over {
		return nil
	}
	keys, more, err := from.Keys(s.after, readAtOnce)
	if err != nil {
		return err
	}
	for i := range keys {
		s.add(&keys[i])
		s.after = keys[i]
	}
	s.whole = !more && !s.over
	return nil
}

// sweep notes that the store has removed some copies. When most of what the filters know
// is gone, they are made anew.
func (s *seen) sweep(removed int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.swept += removed; s.swept > max(s.keys/2, sweptAtLeast) || s.over && removed > 0 {
		s.forget()
		s.over = false
	}
}
