package dedupe

import (
	"bytes"
	"errors"
	"slices"
	"sync"

	"github.com/geogate/geogate/internal/event"
)

// Memory is a Store that lives with the process: for tests and simulation.
type Memory struct {
	mu    sync.Mutex
	state State
	keys  map[event.IdempotencyKey][]Copy
}

// NewMemory makes an empty store.
func NewMemory() *Memory { return &Memory{keys: make(map[event.IdempotencyKey][]Copy)} }

// State implements Store.
func (m *Memory) State() (State, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return State{m.state.Applied, slices.Clone(m.state.Barriers)}, nil
}

// Copies implements Store.
func (m *Memory) Copies(key event.IdempotencyKey) ([]Copy, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.keys[key]), nil
}

// CopiesOf implements Store.
func (m *Memory) CopiesOf(keys []event.IdempotencyKey, fn func(i int, copies []Copy)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, k := range keys {
		if cs := m.keys[k]; len(cs) > 0 {
			fn(i, slices.Clone(cs))
		}
	}
	return nil
}

// Keys implements Store.
func (m *Memory) Keys(from event.IdempotencyKey, n int) (keys []event.IdempotencyKey, more bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k := range m.keys {
		if bytes.Compare(k[:], from[:]) >= 0 {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b event.IdempotencyKey) int { return bytes.Compare(a[:], b[:]) })
	more = len(keys) > n
	return keys[:min(n, len(keys))], more, nil
}

// Apply implements Store.
func (m *Memory) Apply(b Update) error {
	if b.With != nil {
		return errors.New("dedupe: a store in memory shares its transactions with no other index")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range b.Copies {
		c.EntityKey = slices.Clone(c.EntityKey)
		cs := m.keys[c.Key]
		at := slices.IndexFunc(cs, func(o Copy) bool { return o.At == c.At })
		if at >= 0 {
			cs[at] = c
		} else {
			cs = append(cs, c)
		}
		slices.SortFunc(cs, order)
		m.keys[c.Key] = cs
	}
	m.state.Barriers = append(m.state.Barriers, b.Barriers...)
	m.state.Applied = b.Applied
	return nil
}

// Scan implements Store.
func (m *Memory) Scan(fn func([]Copy) []Copy) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, cs := range m.keys {
		remove := fn(slices.Clone(cs))
		cs = slices.DeleteFunc(cs, func(c Copy) bool {
			return slices.ContainsFunc(remove, func(r Copy) bool { return r.At == c.At })
		})
		if m.keys[key] = cs; len(cs) == 0 {
			delete(m.keys, key)
		}
	}
	return nil
}
