// Package keyset has sets of idempotency keys that know without a store which keys are not in
// it: nearly every key is new. The index of keys (dedupe) and the fold's journal (conflict/view)
// have one each.
package keyset

import (
	"encoding/binary"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/geogate/geogate/internal/event"
)

// Set knows without the store which keys have nothing there: nearly every first use of a
// key. It never says so of a key that has something. Until it has read all keys that were in
// the store when it was made, it says nothing of any; it reads some at a time (Note).
//
// It is a list of Bloom filters, each four times as large as the one before, which say of
// about one unknown key in a hundred that it may be there: then the store is asked. It is
// safe for concurrent use.
type Set struct {
	mu       sync.Mutex
	filters  []filter
	complete bool                 // every key of the store is in
	after    event.IdempotencyKey // the first that was not read from the store yet
	keys     int                  // that were added
	swept    int                  // that the store does not have any more
	full     bool                 // there is no memory for more: nothing is known
	taken    *atomic.Int64        // bytes of filters
}

// What filters take.
const (
	bitsOfKey    = 12
	probesOfKey  = 8
	firstFilter  = 4 << 10  // keys
	largeFilter  = 16 << 20 // keys: those after it are not larger
	readAtOnce   = 4 << 10  // keys of the store
	sweptAtLeast = 64 << 10 // keys before the filters are built again
)

// maxBytes is what the filters of all sets of a process take at most: those of 40 million
// keys.
const maxBytes = 64 << 20

var allBytes atomic.Int64

// New makes the set of an owner, with which its memory is given back.
func New[T any](owner *T) *Set {
	s := &Set{taken: new(atomic.Int64)}
	runtime.AddCleanup(owner, func(taken *atomic.Int64) { allBytes.Add(-taken.Load()) }, s.taken)
	return s
}

// take reserves memory; ok is false if there is no more.
func (s *Set) take(bytes int64) (ok bool) {
	if allBytes.Add(bytes) > maxBytes && bytes > 0 {
		allBytes.Add(-bytes)
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

// Maybe is the places of the keys that may be in the store.
func (s *Set) Maybe(keys []event.IdempotencyKey) []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []int
	for i := range keys {
		if !s.complete || s.has(&keys[i]) {
			out = append(out, i)
		}
	}
	return out
}

// Has tells whether a key may be in the store.
func (s *Set) Has(key event.IdempotencyKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.complete || s.has(&key)
}

func (s *Set) has(key *event.IdempotencyKey) bool {
	for i := range s.filters {
		if s.filters[i].has(key) {
			return true
		}
	}
	return false
}

// add notes a key; the caller holds mu.
func (s *Set) add(key *event.IdempotencyKey) {
	if s.full || s.has(key) {
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
			s.full = true
			return
		}
		s.filters = append(s.filters, filter{bits: make([]uint64, words), room: room})
		n++
	}
	s.filters[n-1].add(key)
	s.keys++
}

// forget begins with nothing; the caller holds mu.
func (s *Set) forget() {
	for _, f := range s.filters {
		s.take(-int64(8 * len(f.bits)))
	}
	s.filters, s.complete, s.after, s.keys, s.swept = nil, false, event.IdempotencyKey{}, 0, 0
}

// Add notes a key, before it is stored.
func (s *Set) Add(key event.IdempotencyKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(&key)
}

// Lister gives up to n keys of a store, in order from one on, and whether there are more.
type Lister func(from event.IdempotencyKey, n int) (keys []event.IdempotencyKey, more bool, err error)

// Note notes keys, before they are stored, and reads on in the store.
func (s *Set) Note(stored []event.IdempotencyKey, list Lister) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range stored {
		s.add(&stored[i])
	}
	if s.complete || s.full {
		return nil
	}
	keys, more, err := list(s.after, readAtOnce)
	if err != nil {
		return err
	}
	for i := range keys {
		s.add(&keys[i])
		s.after = keys[i]
	}
	s.complete = !more && !s.full
	return nil
}

// Swept notes that the store has removed some keys. When most of what the filters know
// is gone, they are built again.
func (s *Set) Swept(removed int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.swept += removed; s.swept > max(s.keys/2, sweptAtLeast) || s.full && removed > 0 {
		s.forget()
		s.full = false
	}
}
