package offsets

import (
	"cmp"
	"slices"
)

// Store keeps the records of runs of one partition, in the order of their first targets.
// Values are those of the topic of runs ([AppendRuns]). A store reports errors by means of
// its own, and answers as if what it cannot read were not there.
type Store interface {
	// Floor is the last record that begins at or below target.
	Floor(target int64) (first int64, value []byte, ok bool)
	// Ceil is the first record that begins at or above target.
	Ceil(target int64) (first int64, value []byte, ok bool)
	// Put keeps a record, in the place of one that begins at the same target. The value is
	// the store's from then on.
	Put(first int64, value []byte)
	// Delete removes the record that begins at first, if there is one.
	Delete(first int64)
	// Broken is told of a record that cannot be read.
	Broken(err error)
}

// Memory is a Store in memory. The zero Memory is empty.
type Memory struct{ records []memoryRecord }

type memoryRecord struct {
	first int64
	value []byte
}

func (m *Memory) find(first int64) (int, bool) {
	if n := len(m.records); n == 0 || m.records[n-1].first < first {
		return n, false // where a link writes
	}
	return slices.BinarySearchFunc(m.records, first, func(r memoryRecord, first int64) int { return cmp.Compare(r.first, first) })
}

func (m *Memory) at(i int) (first int64, value []byte, ok bool) {
	if i < 0 || i >= len(m.records) {
		return 0, nil, false
	}
	return m.records[i].first, m.records[i].value, true
}

// Floor implements Store.
func (m *Memory) Floor(target int64) (first int64, value []byte, ok bool) {
	i, found := m.find(target)
	if !found {
		i--
	}
	return m.at(i)
}

// Ceil implements Store.
func (m *Memory) Ceil(target int64) (first int64, value []byte, ok bool) {
	i, _ := m.find(target)
	return m.at(i)
}

// Put implements Store.
func (m *Memory) Put(first int64, value []byte) {
	i, found := m.find(first)
	if found {
		m.records[i].value = value
		return
	}
	m.records = slices.Insert(m.records, i, memoryRecord{first, value})
}

// Delete implements Store.
func (m *Memory) Delete(first int64) {
	if i, found := m.find(first); found {
		m.records = slices.Delete(m.records, i, i+1)
	}
}

// Broken implements Store. What is in memory is what was put there.
func (m *Memory) Broken(err error) { panic(err) }
