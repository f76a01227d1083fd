package offsets

// Len is the number of runs.
func (m *Map) Len() int {
	n := len(m.tail)
	for _, b := range m.blocks {
		n += b.runs
	}
	return n
}
