package view

import (
	"slices"

	"github.com/geogate/geogate/conflict"
	"github.com/geogate/geogate/internal/event"
)

const (
	cacheBytes = 1 << 20 // of entities in memory, for a partition
	cacheCost  = 512     // of an entry, about

	// cachesBytes is what the caches of all partitions of an instance have together; each
	// of many has less, but never less than leastCache.
	cachesBytes = 64 << 20
	leastCache  = 64 << 10
)

// entityCache has the entities that were folded last, as they are committed. The zero value is
// empty.
//
// They have memory of their own: what was folded shares the memory of a fetched batch, and
// one value would keep all of it.
type entityCache struct {
	room  *Room // tells how many partitions share; nil: none
	byKey map[string]cached
	bytes int
}

type cached struct {
	entity conflict.Entity
	bytes  int
}

func (c *entityCache) get(key []byte) (conflict.Entity, bool) {
	x, ok := c.byKey[string(key)]
	return x.entity, ok
}

// put keeps what an entity is now, or forgets what it was.
func (c *entityCache) put(key []byte, e conflict.Entity) {
	size := cacheCost + len(key) + sizeOf(&e.State)
	was, known := c.byKey[string(key)]
	c.bytes -= was.bytes
	limit := c.room.cacheShare()
	if size > limit/16 {
		if known {
			delete(c.byKey, string(key))
		}
		return
	}
	if c.bytes += size; c.bytes > limit {
		c.evict(string(key), limit*3/4)
	}
	if c.byKey == nil {
		c.byKey = make(map[string]cached)
	}
	c.byKey[string(key)] = cached{detached(e), size}
}

// evict drops what is more than a size, but not the entity that is kept; which others does not
// matter.
func (c *entityCache) evict(kept string, to int) {
	for k, x := range c.byKey {
		if c.bytes <= to {
			return
		}
		if k != kept { // its old size is not counted any more
			c.bytes -= x.bytes
			delete(c.byKey, k)
		}
	}
}

func (c *entityCache) clear() { *c = entityCache{room: c.room} }

// detached is an entity whose keys and values have memory of their own.
func detached(e conflict.Entity) conflict.Entity {
	e.Live = slices.Clone(e.Live)
	for i := range e.Live {
		detach(&e.Live[i].Event)
	}
	return e
}

func detach(ev *event.Event) {
	n := len(ev.Key) + len(ev.Value)
	for i := range ev.Headers {
		n += len(ev.Headers[i].Value)
	}
	mem := make([]byte, 0, n)
	take := func(b []byte) []byte {
		if b == nil {
			return nil // is not empty
		}
		at := len(mem)
		mem = append(mem, b...)
		return mem[at:len(mem):len(mem)]
	}
	ev.Key, ev.Value = take(ev.Key), take(ev.Value)
	ev.Headers = slices.Clone(ev.Headers)
	for i := range ev.Headers {
		ev.Headers[i].Value = take(ev.Headers[i].Value)
	}
}
