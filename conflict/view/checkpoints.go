package view

import (
	"slices"

	"github.com/geogate/geogate/internal/event"
)

const (
	maxCheckpoints  = 512 // in memory, for a partition; the old half is thinned beyond
	checkpointEvery = 256 // merged offsets between two that are written down
)

// Checkpoint says that the records of the merged topic's partition below Offset
// are exactly those of the fold steps up to Vector.
type Checkpoint struct {
	Offset int64
	Vector event.Vector
}

// checkpoints is the chain of checkpoints of a partition, ascending in offset and
// vector: fine near the end, coarse far below it.
type checkpoints struct {
	list []checkpoint
	last int64 // offset of the last one that was written down
}

type checkpoint struct {
	Checkpoint
	written bool // is in the state topic
}

// add puts a checkpoint at the end of the chain. Of two at one offset the first
// is kept: a reader needs to have seen less for it.
func (c *checkpoints) add(x Checkpoint, written bool) {
	if n := len(c.list); n > 0 && c.list[n-1].Offset >= x.Offset {
		if c.list[n-1].Offset == x.Offset && written {
			c.list[n-1].written = true
			c.last = x.Offset
		}
		return
	}
	c.list = append(c.list, checkpoint{x, written})
	if written {
		c.last = x.Offset
	}
}

// due tells whether the last checkpoint should be written down, and which it is.
func (c *checkpoints) due() (x Checkpoint, ok bool) {
	if len(c.list) == 0 {
		return x, false
	}
	x = c.list[len(c.list)-1].Checkpoint
	return x, x.Offset-c.last >= checkpointEvery
}

// thin takes every second checkpoint out of the older half when there are too
// many, and returns the offsets of those that are written down.
func (c *checkpoints) thin() (written []int64) {
	if len(c.list) <= maxCheckpoints {
		return nil
	}
	half := len(c.list) / 2
	kept := c.list[:0]
	for i, x := range c.list {
		switch {
		case i >= half || i%2 == 0:
			kept = append(kept, x)
		case x.written:
			written = append(written, x.Offset)
		}
	}
	c.list = slices.Clip(kept)
	return written
}

// cut takes out what lies above the end of the merged partition: it was recreated.
func (c *checkpoints) cut(end int64) {
	c.list = slices.DeleteFunc(c.list, func(x checkpoint) bool { return x.Offset > end })
	c.last = min(c.last, end)
}

// start is the offset of the last checkpoint that the cursor covers, 0 if none.
func (c *checkpoints) start(cursor *event.Vector) int64 {
	for i := len(c.list) - 1; i >= 0; i-- {
		if cursor.CoversAll(&c.list[i].Vector) {
			return c.list[i].Offset
		}
	}
	return 0
}
