package view

import "github.com/geogate/geogate/internal/event"

// CoveredAt is a vector up to which everything lies below an offset of the merged
// partition: as far as is known, and exact at the end.
func (v *View) CoveredAt(offset int64) event.Vector {
	v.mu.Lock()
	defer v.mu.Unlock()
	if offset >= v.vectorOffset {
		return v.committed.Vector
	}
	return v.chain.coveredAt(offset)
}

// coveredAt is the vector of the last checkpoint at or below the offset.
func (c *checkpoints) coveredAt(offset int64) event.Vector {
	for i := len(c.list) - 1; i >= 0; i-- {
		if c.list[i].Offset <= offset {
			return c.list[i].Vector
		}
	}
	return event.Vector{}
}

// StateCacheKey is where the store has a record of the state topic.
func StateCacheKey(topic event.TopicID, partition int32, key []byte) []byte {
	return space(storePrefix(topic, partition)).key(spaceState, key)
}

// CachedKey is where the store says how far it has the state topic.
func CachedKey(topic event.TopicID, partition int32) []byte {
	return space(storePrefix(topic, partition)).key(spaceOffset)
}
