package offsets

// Len is the number of runs.
func (m *Map) Len() (n int) {
	for first, value, ok := m.open().Ceil(0); ok; first, value, ok = m.store.Ceil(first + 1) {
		p, _ := m.unpack(first, value)
		n += len(p.runs)
	}
	return n
}
